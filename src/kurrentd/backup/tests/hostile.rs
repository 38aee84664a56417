//! Archives that are cut, damaged, or made to do harm: refused with clear words, and nothing changed.

use super::*;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// The members of an archive.
pub(super) fn members(archive: &Path) -> Vec<(String, Vec<u8>)> {
    let mut tar = tar::Archive::new(std::fs::File::open(archive).unwrap());
    let read = |e: io::Result<tar::Entry<'_, std::fs::File>>| {
        let mut entry = e.unwrap();
        let mut octets = Vec::new();
        io::Read::read_to_end(&mut entry, &mut octets).unwrap();
        (entry.path().unwrap().display().to_string(), octets)
    };
    tar.entries().unwrap().map(read).collect()
}

fn header(kind: EntryType, name: &[u8], size: u64) -> Header {
    let mut header = Header::new_ustar();
    // As raw octets: the library would refuse to write what we test.
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_mode(0o600);
    header.set_size(size);
    header.set_cksum();
    header
}

pub(super) fn archive_of(members: &[(String, Vec<u8>)]) -> Builder<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for (name, octets) in members {
        let size = u64::try_from(octets.len()).unwrap();
        tar.append(&header(EntryType::Regular, name.as_bytes(), size), octets.as_slice()).unwrap();
    }
    tar
}

/// Replaces a member, and makes the outer manifest say that this is right.
pub(super) fn forged(members: &[(String, Vec<u8>)], name: &str, edit: impl Fn(&[u8]) -> Vec<u8>) -> Vec<(String, Vec<u8>)> {
    let mut all = members.to_vec();
    let octets = all
        .iter_mut()
        .find(|m| m.0 == name)
        .map(|m| {
            m.1 = edit(&m.1);
            m.1.clone()
        })
        .unwrap();
    let manifest = all.last_mut().unwrap();
    let mut value: Manifest = serde_json::from_slice(&manifest.1).unwrap();
    for member in value.members.iter_mut().filter(|m| m.name == name) {
        member.size = u64::try_from(octets.len()).unwrap();
        member.sha256 = hex::encode(Sha256::digest(&octets));
    }
    manifest.1 = serde_json::to_vec_pretty(&value).unwrap();
    all
}

struct Hostile {
    lived: Lived,
    state: PathBuf,
    before: BTreeMap<PathBuf, Vec<u8>>,
}

impl Hostile {
    async fn new() -> Self {
        let lived = Lived::new().await;
        let state = lived.other();
        let before = contents(state.parent().unwrap());
        Self { lived, state, before }
    }

    fn refused(&self, archive: &[u8], code: &str, what: &str) {
        let path = self.lived.bench.folder.path().join("hostile.tar");
        std::fs::write(&path, archive).unwrap();
        let error = self.lived.stage(&self.state, &path, PASSPHRASE, false).unwrap_err();
        assert_eq!(error.code(), code, "{what}: {error}");
        assert!(error.to_string().len() > 30, "{what}: {error}");
        assert_eq!(contents(self.state.parent().unwrap()), self.before, "{what}: something changed");
    }
}

#[tokio::test]
async fn a_cut_archive_is_refused_wherever_it_is_cut() {
    let hostile = Hostile::new().await;
    let whole = std::fs::read(&hostile.lived.archive).unwrap();
    let manifest_ends = whole.len() - 1024;
    for cut in (0..manifest_ends).step_by(509).chain([1, 511, 512, 513, manifest_ends - 513]) {
        hostile.refused(&whole[..cut], "archive_damaged", &format!("cut at {cut}"));
    }
}

#[tokio::test]
async fn a_flipped_bit_is_refused_or_was_never_part_of_anything() {
    let hostile = Hostile::new().await;
    let whole = std::fs::read(&hostile.lived.archive).unwrap();
    let right = members(&hostile.lived.archive);
    let path = hostile.lived.bench.folder.path().join("flipped.tar");
    let mut refused = 0;
    for at in (0..whole.len()).step_by(97) {
        let mut octets = whole.clone();
        octets[at] ^= 1 << (at % 8);
        std::fs::write(&path, &octets).unwrap();
        match hostile.lived.stage(&hostile.state, &path, PASSPHRASE, true) {
            Err(error) => {
                refused += 1;
                let codes = ["archive_damaged", "archive_invalid", "archive_newer", "archive_forged", "passphrase_wrong"];
                assert!(codes.contains(&error.code()), "at {at}: {error}");
            }
            Ok(_) => assert_eq!(members(&path), right, "at {at}"),
        }
    }
    assert!(refused > whole.len() / 97 / 2, "{refused}");
    assert_eq!(contents(hostile.state.parent().unwrap()), hostile.before);
}

#[tokio::test]
async fn names_and_kinds_that_a_backup_does_not_have_are_refused() {
    let hostile = Hostile::new().await;
    let right = members(&hostile.lived.archive);
    let with = |kind: EntryType, name: &[u8], link: Option<&str>, octets: &[u8]| {
        let mut tar = Builder::new(Vec::new());
        let mut head = header(kind, name, u64::try_from(octets.len()).unwrap());
        if let Some(link) = link {
            head.set_link_name_literal(link).unwrap();
            head.set_cksum();
        }
        tar.append(&head, octets).unwrap();
        for (name, octets) in &right {
            tar.append(&header(EntryType::Regular, name.as_bytes(), u64::try_from(octets.len()).unwrap()), octets.as_slice()).unwrap();
        }
        tar.into_inner().unwrap()
    };
    for name in [
        "/etc/passwd",
        "../devices.yml",
        "secrets/../../x",
        "./devices.yml",
        "secrets/server.key",
        "devices.yml/",
        "lock",
        "",
        "Devices.yml",
        "operations.jsonl.10",
    ] {
        hostile.refused(&with(EntryType::Regular, name.as_bytes(), None, b"x"), "archive_invalid", name);
    }
    hostile.refused(&with(EntryType::Regular, b"\xff\xfe", None, b"x"), "archive_invalid", "a name that is no text");
    for kind in [EntryType::Symlink, EntryType::Link] {
        hostile.refused(&with(kind, b"leases", Some("/etc/passwd"), b""), "archive_invalid", "a link");
    }
    for kind in [EntryType::Directory, EntryType::Char, EntryType::Fifo, EntryType::GNUSparse, EntryType::GNULongName, EntryType::XHeader] {
        hostile.refused(&with(kind, b"leases", None, b""), "archive_invalid", &format!("{kind:?}"));
    }
    hostile.refused(&with(EntryType::Regular, b"devices.yml", None, b"x"), "archive_invalid", "a member that comes twice");
}

#[tokio::test]
async fn sizes_that_a_backup_does_not_have_are_refused_before_anything_is_written() {
    let hostile = Hostile::new().await;
    for (name, size) in [("devices.yml", 1 << 40), ("devices.yml", u64::MAX >> 1), ("secrets.enc", 1 << 30), ("leases", (64 << 20) + 1)] {
        let mut octets = header(EntryType::Regular, name.as_bytes(), size).as_bytes().to_vec();
        octets.extend([0; 4096]);
        hostile.refused(&octets, "archive_invalid", name);
    }
    // An archive that asks for all memory when its key is made.
    let right = members(&hostile.lived.archive);
    let greedy = forged(&right, SEALED, |octets| {
        let text = String::from_utf8_lossy(&octets[..200]).into_owned();
        let end = text.find("}\n").unwrap() + 2;
        let mut out = text[..end].replace("\"m_kib\":64,", "\"m_kib\":4000000000,").into_bytes();
        out.extend(&octets[end..]);
        out
    });
    hostile.refused(&archive_of(&greedy).into_inner().unwrap(), "archive_invalid", "4 TiB for a key");
}

#[tokio::test]
async fn who_does_not_know_the_passphrase_changes_no_ledger_unnoticed() {
    let hostile = Hostile::new().await;
    let right = members(&hostile.lived.archive);
    assert!(hostile.lived.stage(&hostile.state, &hostile.lived.archive, PASSPHRASE, true).is_ok());
    let other_key = |octets: &[u8]| String::from_utf8_lossy(octets).replace("rack 1", "rack 2").into_bytes();
    hostile.refused(&archive_of(&forged(&right, "devices.yml", other_key)).into_inner().unwrap(), "archive_forged", "another ledger");
    let mut unmatched = right.clone();
    unmatched.iter_mut().find(|m| m.0 == "devices.yml").unwrap().1.push(b'\n');
    hostile.refused(&archive_of(&unmatched).into_inner().unwrap(), "archive_damaged", "a ledger that is not the manifest's");
    let without: Vec<_> = right.iter().filter(|m| m.0 != "workers.yml").cloned().collect();
    hostile.refused(&archive_of(&without).into_inner().unwrap(), "archive_damaged", "a ledger that is missing");
}

#[tokio::test]
async fn what_a_later_program_wrote_is_refused_as_that() {
    let hostile = Hostile::new().await;
    let mut newer = members(&hostile.lived.archive);
    let manifest = newer.last_mut().unwrap();
    manifest.1 = String::from_utf8_lossy(&manifest.1).replace("\"format\": 2,", "\"format\": 3, \"more\": true,").into_bytes();
    hostile.refused(&archive_of(&newer).into_inner().unwrap(), "archive_newer", "a later format");
    // A whole backup, made with the right passphrase, whose ledgers this program does not read.
    let shared = hostile.lived.bench.plane.shared();
    let sealed_newer = |from: &str, to: &str| {
        let source = Source {
            state_dir: &shared.config.state_dir,
            ledger: &hostile.lived.ledger,
            people: crate::people::Octets::default(),
            name: "lab".into(),
            config: None,
            now: clock::now().wall,
        };
        let (edited, path) = (hostile.lived.bench.folder.path().join("edited"), hostile.lived.bench.folder.path().join("x.tar"));
        let mut file = std::fs::File::create(&path).unwrap();
        let texts = crate::ledger::load::texts(&hostile.lived.ledger).unwrap();
        let texts = texts.into_iter().map(|(n, t)| (n, if n == "workers.yml" { t.replacen(from, to, 1) } else { t })).collect();
        make::write_texts(&source, texts, &passphrase(PASSPHRASE), &mut file, &edited).unwrap();
        std::fs::read(&path).unwrap()
    };
    hostile.refused(&sealed_newer("version: 3", "version: 4"), "ledger_invalid", "a later ledger");
    hostile.refused(&sealed_newer("size_bytes: 4096", "size_bytes: 4095"), "ledger_invalid", "a ledger that breaks a rule");
}
