//! Who has a place: bounded in all and per address, and never full of clients that do not exist.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

/// What a place is known by; a place that was freed and taken again has another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    turn: u32,
}

impl Key {
    /// As epoll carries it.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.turn) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        let low = |n: u64| u32::try_from(n & u64::from(u32::MAX)).unwrap_or(0);
        Self { index: low(bits), turn: low(bits >> 32) }
    }
}

/// What a place holds.
pub(crate) trait Tenant {
    /// Whose it is.
    fn client(&self) -> SocketAddr;
    /// Whether the client has shown that it exists: an ACK came.
    fn answered(&self) -> bool;
}

struct Place<T> {
    turn: u32,
    /// When it was taken, as a count of requests.
    order: u64,
    tenant: Option<T>,
}

/// All places.
pub(crate) struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    clients: HashMap<SocketAddr, Key>,
    addresses: HashMap<IpAddr, usize>,
    order: u64,
    max: usize,
    max_per_address: usize,
}

impl<T: Tenant> Table<T> {
    pub(crate) fn new(max: usize, max_per_address: usize) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            clients: HashMap::new(),
            addresses: HashMap::new(),
            order: 0,
            max: max.max(1),
            max_per_address: max_per_address.max(1),
        }
    }

    pub(crate) fn by_client(&self, client: SocketAddr) -> Option<Key> {
        self.clients.get(&client).copied()
    }

    pub(crate) fn tenant(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(usize::try_from(key.index).ok()?)?;
        place.tenant.as_mut().filter(|_| place.turn == key.turn)
    }

    /// Gives `tenant` a place. When all are taken, the oldest transfer without an ACK gives way: a flood of forged requests must not shut out
    /// real clients. `None`: all are real.
    pub(crate) fn enter(&mut self, tenant: T) -> Option<Key> {
        let client = tenant.client();
        if self.clients.contains_key(&client) {
            return None;
        }
        if count(&self.addresses, client.ip()) >= self.max_per_address {
            self.leave(self.oldest_unanswered(|other| other.ip() == client.ip())?);
        }
        if self.clients.len() >= self.max {
            self.leave(self.oldest_unanswered(|_| true)?);
        }
        self.order += 1;
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.places.push(Place { turn: 0, order: 0, tenant: None });
                u32::try_from(self.places.len() - 1).ok()?
            }
        };
        let place = self.places.get_mut(usize::try_from(index).ok()?)?;
        place.turn = place.turn.wrapping_add(1);
        (place.order, place.tenant) = (self.order, Some(tenant));
        let key = Key { index, turn: place.turn };
        self.clients.insert(client, key);
        *self.addresses.entry(client.ip()).or_default() += 1;
        Some(key)
    }

    /// Frees a place.
    pub(crate) fn leave(&mut self, key: Key) -> Option<T> {
        self.tenant(key)?;
        let tenant = self.places.get_mut(usize::try_from(key.index).ok()?)?.tenant.take()?;
        self.free.push(key.index);
        self.clients.remove(&tenant.client());
        let address = tenant.client().ip();
        if let Some(count) = self.addresses.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&address);
            }
        }
        Some(tenant)
    }

    fn oldest_unanswered(&self, which: impl Fn(SocketAddr) -> bool) -> Option<Key> {
        let places = self.places.iter().zip(0..).filter_map(|(place, index)| Some((place, index, place.tenant.as_ref()?)));
        places
            .filter(|(_, _, tenant)| !tenant.answered() && which(tenant.client()))
            .min_by_key(|(place, _, _)| place.order)
            .map(|(place, index, _)| Key { index, turn: place.turn })
    }
}

fn count<K: Hash + Eq>(map: &HashMap<K, usize>, key: K) -> usize {
    map.get(&key).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Peer(SocketAddr, bool);

    impl Tenant for Peer {
        fn client(&self) -> SocketAddr {
            self.0
        }
        fn answered(&self) -> bool {
            self.1
        }
    }

    fn peer(address: u8, port: u16, answered: bool) -> Peer {
        Peer(SocketAddr::from(([10, 0, 0, address], port)), answered)
    }

    #[test]
    fn a_flood_of_forged_requests_does_not_shut_out_real_clients() {
        let mut table = Table::new(8, 4);
        let real: Vec<Key> = (0..4).map(|n| table.enter(peer(n, 1, true)).expect("a place")).collect();
        for round in 0..1000_u16 {
            let address = u8::try_from(round % 200).expect("small") + 50;
            assert!(table.enter(peer(address, 1000 + round, false)).is_some());
        }
        let late = table.enter(peer(9, 1, false)).expect("a place for a client that came during the flood");
        table.tenant(late).expect("it").1 = true;
        for round in 0..1000 {
            table.enter(peer(33, round, false));
        }
        assert!(real.into_iter().chain([late]).all(|key| table.tenant(key).is_some()));
        assert!(table.places.len() <= 8 && table.clients.len() <= 8 && table.addresses.len() <= 8);
    }

    #[test]
    fn one_address_has_its_share_only_and_its_own_oldest_gives_way() {
        let mut table = Table::new(8, 2);
        let other = table.enter(peer(2, 1, false)).expect("a place");
        let [first, second, third] = [1, 2, 3].map(|port| table.enter(peer(1, port, false)).expect("a place"));
        assert!(table.tenant(first).is_none());
        assert!(table.tenant(second).is_some() && table.tenant(third).is_some() && table.tenant(other).is_some());
        for key in [second, third] {
            table.tenant(key).expect("it").1 = true;
        }
        assert!(table.enter(peer(1, 4, false)).is_none(), "real clients keep their places");
    }

    #[test]
    fn a_key_of_a_place_that_was_freed_opens_nothing() {
        let mut table = Table::new(1, 1);
        let key = table.enter(peer(1, 1, true)).expect("a place");
        assert_eq!(Key::from_bits(key.to_bits()), key);
        assert!(table.leave(key).is_some() && table.leave(key).is_none());
        let next = table.enter(peer(2, 2, true)).expect("a place");
        assert!(table.tenant(key).is_none() && table.tenant(next).is_some());
        assert!(table.enter(peer(3, 3, false)).is_none());
    }
}
