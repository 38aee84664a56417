//! Which kernel module files a name or an alias needs, and in which order: `modules.dep`, `modules.alias`,
//! `modules.softdep` and `modules.builtin` as depmod(8) writes them.
//!
//! Used by both PID 1s, which also answer the kernel's own `request_module` as `/sbin/modprobe`. Nothing here reads a
//! file: callers hand in the text.

use std::collections::{BTreeMap, BTreeSet};

/// The text of depmod's files. A missing file is an empty text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// `modules.dep`.
    pub dep: &'a str,
    /// `modules.alias`.
    pub alias: &'a str,
    /// `modules.softdep`.
    pub softdep: &'a str,
    /// `modules.builtin`.
    pub builtin: &'a str,
}

/// A file to hand to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleFile {
    /// Below `/lib/modules/<release>`.
    pub path: String,
    /// Not needed are soft dependencies (`modules.softdep`): the kernel may refuse them, as it does `crc32c-intel`, which btrfs
    /// would like, on a CPU without SSE 4.2.
    pub needed: bool,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// In the order in which they must be loaded; dependencies first.
    Files(Vec<ModuleFile>),
    /// Compiled into the kernel: nothing to do.
    Builtin,
    /// No module of this tree.
    Unknown,
}

#[derive(Clone, Debug, Default)]
struct SoftDependencies {
    before: Vec<String>,
    after: Vec<String>,
}

#[derive(Clone, Debug)]
struct Module {
    file: String,
    /// As depmod lists them: the last one has to be loaded first.
    needs: Vec<String>,
}

/// A kernel's modules, ready for questions.
#[derive(Clone, Debug, Default)]
pub struct ModuleIndex {
    modules: BTreeMap<String, Module>,
    aliases: Vec<(String, String)>,
    soft: BTreeMap<String, SoftDependencies>,
    builtin: BTreeSet<String>,
}

/// `-` and `_` are the same letter in module names and, outside brackets, in aliases.
fn normalized(name: &str) -> String {
    let mut in_brackets = false;
    name.chars()
        .map(|letter| {
            match letter {
                '[' => in_brackets = true,
                ']' => in_brackets = false,
                _ => {}
            }
            if letter == '-' && !in_brackets { '_' } else { letter }
        })
        .collect()
}

/// `kernel/net/8021q/8021q.ko.xz` is module `8021q`.
fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    normalized(base.split_once(".ko").map_or(base, |(name, _)| name))
}

impl ModuleIndex {
    /// Reads depmod's texts. Lines that are none of depmod's are passed over, as kmod does.
    #[must_use]
    pub fn parse(sources: Sources<'_>) -> Self {
        let mut index = Self::default();
        for (file, needs) in sources.dep.lines().filter_map(|line| line.split_once(':')) {
            let needs = needs.split_ascii_whitespace().map(str::to_owned).collect();
            index.modules.insert(module_name(file), Module { file: file.trim().to_owned(), needs });
        }
        for line in sources.alias.lines() {
            let mut words = line.split_ascii_whitespace();
            if let (Some("alias"), Some(pattern), Some(module), None) = (words.next(), words.next(), words.next(), words.next()) {
                index.aliases.push((normalized(pattern), normalized(module)));
            }
        }
        for line in sources.softdep.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some("softdep"), Some(module)) = (words.next(), words.next()) else { continue };
            let entry = index.soft.entry(normalized(module)).or_default();
            let mut list = None;
            for word in words {
                match word {
                    "pre:" => list = Some(&mut entry.before),
                    "post:" => list = Some(&mut entry.after),
                    name => {
                        if let Some(list) = list.as_mut() {
                            list.push(normalized(name));
                        }
                    }
                }
            }
        }
        index.builtin = sources.builtin.lines().filter(|line| !line.is_empty()).map(module_name).collect();
        index
    }

    /// What has to be loaded for a module name or an alias (`pci:v00001AF4d…`, `fs-btrfs`, `crypto-hmac(sha256)`).
    ///
    /// An alias may stand for several modules: all of them are named, as modprobe(8) loads all.
    #[must_use]
    pub fn resolve(&self, name: &str) -> Resolved {
        let name = normalized(name);
        let mut names = Vec::new();
        if self.modules.contains_key(&name) {
            names.push(name.clone());
        } else {
            for (pattern, module) in &self.aliases {
                if matches(pattern.as_bytes(), name.as_bytes()) && !names.contains(module) {
                    names.push(module.clone());
                }
            }
        }
        if names.is_empty() {
            return if self.builtin.contains(&name) { Resolved::Builtin } else { Resolved::Unknown };
        }
        let mut files = Vec::new();
        let mut seen = BTreeSet::new();
        for name in &names {
            self.collect(name, true, &mut files, &mut seen);
        }
        if files.is_empty() { Resolved::Unknown } else { Resolved::Files(files) }
    }

    /// Adds the module and what it needs. `seen` also ends circles of soft dependencies.
    fn collect(&self, name: &str, needed: bool, files: &mut Vec<ModuleFile>, seen: &mut BTreeSet<String>) {
        let Some(module) = self.modules.get(name) else { return };
        let own = || module.needs.iter().rev().chain([&module.file]);
        if !seen.insert(name.to_owned()) {
            for file in files.iter_mut().filter(|file| own().any(|path| *path == file.path)) {
                file.needed |= needed;
            }
            return;
        }
        let soft = self.soft.get(name);
        // A soft dependency may be an alias (`crypto-crc32c`), or be missing: both are fine.
        let mut collect_soft = |list: fn(&SoftDependencies) -> &Vec<String>, files: &mut Vec<ModuleFile>| {
            for other in soft.map(list).into_iter().flatten() {
                if self.modules.contains_key(other) {
                    self.collect(other, false, files, seen);
                } else {
                    let targets = self.aliases.iter().filter(|(pattern, _)| matches(pattern.as_bytes(), other.as_bytes()));
                    for (_, target) in targets {
                        self.collect(target, false, files, seen);
                    }
                }
            }
        };
        collect_soft(|soft| &soft.before, files);
        for path in own() {
            match files.iter_mut().find(|file| file.path == *path) {
                Some(file) => file.needed |= needed,
                None => files.push(ModuleFile { path: path.clone(), needed }),
            }
        }
        collect_soft(|soft| &soft.after, files);
    }
}

/// fnmatch(3) without flags, for `*`, `?` and `[…]`: what aliases use.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go back to: after the last `*`, and the text position it had eaten up to.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let step = match (pattern.get(p), text.get(t)) {
            (None, None) => return true,
            (Some(b'*'), _) => {
                retry = Some((p + 1, t));
                p += 1;
                continue;
            }
            (Some(b'?'), Some(_)) => Some(p + 1),
            (Some(b'['), Some(&letter)) => bracket(pattern, p, letter),
            (Some(expected), Some(letter)) if expected == letter => Some(p + 1),
            _ => None,
        };
        match (step, retry) {
            (Some(next), _) => {
                p = next;
                t += 1;
            }
            (None, Some((after_star, eaten))) if eaten < text.len() => {
                retry = Some((after_star, eaten + 1));
                p = after_star;
                t = eaten + 1;
            }
            (None, _) => return false,
        }
    }
}

/// Where the pattern goes on when `letter` is in the set that starts at `open`.
fn bracket(pattern: &[u8], open: usize, letter: u8) -> Option<usize> {
    let set = pattern.get(open + 1..)?;
    let close = set.iter().position(|&c| c == b']')?;
    let set = set.get(..close)?;
    let (negated, set) = match set.split_first() {
        Some((b'!' | b'^', rest)) => (true, rest),
        _ => (false, set),
    };
    let mut found = false;
    let mut rest = set;
    while let Some((&low, tail)) = rest.split_first() {
        if let [b'-', high, tail @ ..] = tail {
            found |= (low..=*high).contains(&letter);
            rest = tail;
        } else {
            found |= low == letter;
            rest = tail;
        }
    }
    (found != negated).then_some(open + 1 + close + 1)
}

/// What the kernel asks when it runs `/sbin/modprobe -q -- NAME` (`request_module`); `None` for any other command line.
#[must_use]
pub fn kernel_request<'a>(arguments: &[&'a str]) -> Option<&'a str> {
    match arguments {
        ["-q", "--", name] => Some(name),
        _ => None,
    }
}

/// What an appliance with many devices and people who plug in more of them comes to; beyond it, all are asked for again.
const REMEMBERED_ALIASES: usize = 4096;

/// Aliases of devices that were asked for already. Looking at all devices again costs no more than the looking: a second device
/// of the same kind finds its driver loaded.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    aliases: BTreeSet<String>,
}

impl Asked {
    /// Those that were not asked for before, each once; they count as asked for from now on.
    pub fn fresh(&mut self, aliases: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut fresh = Vec::new();
        for alias in aliases {
            if self.aliases.len() >= REMEMBERED_ALIASES {
                self.aliases.clear();
            }
            if self.aliases.insert(alias.clone()) {
                fresh.push(alias);
            }
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/fs/btrfs/btrfs.ko.xz: kernel/crypto/xor.ko.xz kernel/lib/raid6/raid6_pq.ko.xz kernel/lib/libcrc32c.ko.xz\n\
        kernel/crypto/xor.ko.xz:\nkernel/lib/raid6/raid6_pq.ko.xz:\n\
        kernel/lib/libcrc32c.ko.xz:\nkernel/arch/x86/crypto/crc32c-intel.ko.xz:\n\
        kernel/drivers/net/net_failover.ko.xz: kernel/net/core/failover.ko.xz\nkernel/net/core/failover.ko.xz:\n\
        kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko.xz kernel/net/core/failover.ko.xz\n\
        kernel/a.ko: \nkernel/b.ko.zst:\n";
    const ALIAS: &str = "# Aliases extracted from modules themselves.\nalias virtio:d00000001v* virtio_net\nalias fs-btrfs btrfs\n\
        alias crypto-crc32c crc32c_intel\nalias crypto-crc32c libcrc32c\nalias pci:v00008086d0000[12]00F*sv*sd*bc02sc*i* a\n\
        alias pci:v00008086d*sv*sd*bc02sc00i00* b\nalias gone not_here\n";
    const SOFTDEP: &str = "# Soft dependencies\nsoftdep btrfs pre: crypto-crc32c xor missing post: b\nsoftdep a pre: b\nsoftdep b pre: a\n";
    const BUILTIN: &str = "kernel/fs/configfs/configfs.ko\nkernel/drivers/nvme/common/nvme-auth.ko\n";

    fn check(name: &str, expected: Resolved) {
        let index = ModuleIndex::parse(Sources { dep: DEP, alias: ALIAS, softdep: SOFTDEP, builtin: BUILTIN });
        assert_eq!(index.resolve(name), expected, "{name}");
    }

    /// Those with a `?` may be refused.
    fn files(list: &[&str]) -> Resolved {
        let file = |path: &&str| ModuleFile { path: path.trim_end_matches('?').to_owned(), needed: !path.ends_with('?') };
        Resolved::Files(list.iter().map(file).collect())
    }

    #[test]
    fn dependencies_are_loaded_before_what_needs_them() {
        let virtio =
            files(&["kernel/net/core/failover.ko.xz", "kernel/drivers/net/net_failover.ko.xz", "kernel/drivers/net/virtio_net.ko.xz"]);
        check("virtio_net", virtio.clone());
        check("virtio-net", virtio.clone());
        check("virtio:d00000001v00001AF4", virtio);
    }

    #[test]
    fn soft_dependencies_go_around_the_module_and_may_be_missing_or_circular() {
        let btrfs = files(&[
            "kernel/arch/x86/crypto/crc32c-intel.ko.xz?",
            // Asked for softly first, and needed after all.
            "kernel/lib/libcrc32c.ko.xz",
            "kernel/crypto/xor.ko.xz",
            "kernel/lib/raid6/raid6_pq.ko.xz",
            "kernel/fs/btrfs/btrfs.ko.xz",
            "kernel/a.ko?",
            "kernel/b.ko.zst?",
        ]);
        check("fs-btrfs", btrfs);
        check("a", files(&["kernel/b.ko.zst?", "kernel/a.ko"]));
    }

    #[test]
    fn an_alias_may_stand_for_several_modules() {
        check("pci:v00008086d0000100Fsv0sd0bc02sc00i00", files(&["kernel/b.ko.zst", "kernel/a.ko"]));
        check("pci:v00008086d0000300Fsv0sd0bc02sc00i00", files(&["kernel/a.ko?", "kernel/b.ko.zst"]));
    }

    #[test]
    fn builtin_and_unknown_are_told_apart() {
        check("configfs", Resolved::Builtin);
        check("nvme_auth", Resolved::Builtin);
        check("gone", Resolved::Unknown);
        check("pci:v00001234", Resolved::Unknown);
        check("", Resolved::Unknown);
    }

    #[test]
    fn patterns_match_like_fnmatch() {
        let cases = [
            ("*", "", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbb", false),
            ("a*b*c", "a-b-b-c", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[0-9a]x", "ax", true),
            ("[0-9a]x", "bx", false),
            ("[!0-9]x", "bx", true),
            ("[!0-9]x", "3x", false),
            ("[", "[", false),
            ("[abc", "a", false),
            ("a", "ab", false),
            ("ab", "a", false),
            ("****a", "b", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn only_the_kernels_own_command_line_is_a_request() {
        assert_eq!(kernel_request(&["-q", "--", "fs-btrfs"]), Some("fs-btrfs"));
        assert_eq!(kernel_request(&["-q", "--"]), None);
        assert_eq!(kernel_request(&["fs-btrfs"]), None);
    }

    #[test]
    fn a_device_is_asked_for_once_and_the_memory_of_it_is_bounded() {
        let mut asked = Asked::default();
        let fresh = |asked: &mut Asked, aliases: &[&str]| asked.fresh(aliases.iter().map(|alias| (*alias).to_owned()));
        assert_eq!(fresh(&mut asked, &["pci:1", "usb:2", "pci:1"]), ["pci:1", "usb:2"]);
        assert_eq!(fresh(&mut asked, &["usb:2", "usb:3"]), ["usb:3"]);
        asked.fresh((0..3 * REMEMBERED_ALIASES).map(|number| format!("usb:{number}")));
        assert!(asked.aliases.len() <= REMEMBERED_ALIASES);
    }
}
