//! Lists in pieces: `limit`, an opaque `cursor`, and `next` when more follows.
//!
//! A cursor names the last item that was sent, so what is added or removed meanwhile neither repeats nor hides any other.

use super::names::Cursor;
use super::problem::Problem;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use utoipa::IntoParams;

/// Items of one answer when none is asked for, and at most.
pub(super) const DEFAULT_LIMIT: usize = 200;
pub(super) const MAX_LIMIT: usize = 1000;
/// Longest cursor: the longest key (a file name) fits.
pub(super) const MAX_CURSOR: usize = 400;

/// One piece of a list.
pub(super) struct Page<T> {
    pub(super) items: Vec<T>,
    /// The cursor of the next piece.
    pub(super) next: Option<String>,
}

/// The query of a list without filters of its own.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Piece {
    /// Items of one answer.
    #[param(minimum = 1, maximum = 1000, default = 200)]
    limit: Option<usize>,
    /// Where the previous answer ended.
    #[param(value_type = Option<Cursor>)]
    cursor: Option<String>,
}

impl Piece {
    /// # Errors
    /// As [`Wanted::new`].
    pub(super) fn wanted(&self) -> Result<Wanted, Problem> {
        Wanted::new(self.limit, self.cursor.as_deref())
    }
}

/// Which piece is asked for.
pub(super) struct Wanted {
    limit: usize,
    after: Option<String>,
}

impl Wanted {
    /// # Errors
    /// 400 for a limit out of range and a cursor that is none of ours.
    pub(super) fn new(limit: Option<usize>, cursor: Option<&str>) -> Result<Self, Problem> {
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(Problem::new(400, "query_invalid", format!("the limit is 1 to {MAX_LIMIT}; choose one in that range")).at("limit"));
        }
        let foreign = || Problem::new(400, "cursor_invalid", "the cursor is not one of this list; begin without one").at("cursor");
        let decoded = |cursor: &str| {
            let octets = URL_SAFE_NO_PAD.decode(cursor).ok().filter(|_| cursor.len() <= MAX_CURSOR);
            octets.and_then(|o| String::from_utf8(o).ok()).ok_or_else(foreign)
        };
        Ok(Self { limit, after: cursor.map(decoded).transpose()? })
    }

    /// The key of the last item that was sent.
    pub(super) fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// Takes the piece from items that follow the cursor, in the order of the list, each with its key.
    pub(super) fn take<T>(&self, items: impl Iterator<Item = T>, key: impl Fn(&T) -> String) -> Page<T> {
        let mut items: Vec<T> = items.take(self.limit.saturating_add(1)).collect();
        let more = items.len() > self.limit;
        items.truncate(self.limit);
        let next = items.last().filter(|_| more).map(|last| URL_SAFE_NO_PAD.encode(key(last)));
        Page { items, next }
    }

    /// [`Wanted::take`] from a whole list that is ordered by its key.
    pub(super) fn take_sorted<T>(&self, items: impl Iterator<Item = T>, key: impl Fn(&T) -> String) -> Page<T> {
        let follows = |item: &T| self.after().is_none_or(|after| key(item).as_str() > after);
        self.take(items.filter(follows), &key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_put_together_are_the_list_also_when_it_changes_meanwhile() {
        let mut names: Vec<String> = (0..25).map(|n| format!("n{n:02}")).collect();
        let (mut seen, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let page = Wanted::new(Some(10), cursor.as_deref()).ok().unwrap().take_sorted(names.iter().cloned(), String::clone);
            seen.extend(page.items);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
            // What the cursor names goes, and something before it comes.
            names.retain(|n| n != "n09");
            names.insert(0, "a".into());
        }
        assert_eq!(seen, (0..25).map(|n| format!("n{n:02}")).collect::<Vec<_>>());
    }

    #[test]
    fn limits_and_cursors_of_others_are_refused() {
        for (limit, cursor) in
            [(Some(0), None), (Some(MAX_LIMIT + 1), None), (None, Some("%%")), (None, Some("_w")), (None, Some(&*"A".repeat(404)))]
        {
            assert!(Wanted::new(limit, cursor).is_err(), "{limit:?} {cursor:?}");
        }
        assert!(Wanted::new(Some(MAX_LIMIT), Some("")).is_ok());
    }
}
