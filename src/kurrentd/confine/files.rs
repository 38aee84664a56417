//! Landlock: which files may be read, written and run, and on which TCP ports may be listened; nothing may be connected to.

use super::{Part, State};
use kurrent_core::config::Config;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::path::{Path, PathBuf};

/// The newest rules that are asked for: Linux 6.12, the appliance's. An older kernel does what it knows.
const RULES: ABI = ABI::V6;
/// The kernel's own views, devices without contents, libraries, and what the C library reads of itself. A static program has no
/// `getrandom` that could be looked up by name: the crate of that name waits at `/dev/random` then, and reads `/dev/urandom`.
const SYSTEM: [&str; 11] = [
    "/proc",
    "/sys",
    "/usr",
    "/lib",
    "/lib64",
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
    "/etc/ld.so.cache",
    "/etc/localtime",
];
/// What runs a program that is not static, where each platform's ABI says it is. For a restart in place on other hosts than the
/// appliance, whose programs are static.
const INTERPRETERS: [&str; 3] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1"];
/// Where the kernel's target is configured.
const CONFIGFS: &str = "/sys/kernel/config";

/// What a process needs besides [`SYSTEM`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Files, and folders with all that is in them.
    pub read: Vec<PathBuf>,
    /// Files that are written in place, and folders in which anything may be made and removed.
    pub write: Vec<PathBuf>,
    /// TCP ports that are listened on.
    pub ports: Vec<u16>,
}

impl Files {
    /// What `kurrentd run` needs. The state folder's own folder is in it: a restored state is put in place by renames beside it.
    #[must_use]
    pub fn of_daemon(config: &Config, status: &Path) -> Self {
        // Editors replace a file, so what is allowed is the folder. The workers' kernel may lie behind a link, as on the appliance.
        let worker = config.files_dir.join("worker").canonicalize().ok();
        let read = config.file.as_deref().map(folder_of).into_iter().chain([config.files_dir.clone()]).chain(worker);
        Self {
            read: read.chain(config.tftp.folder.clone()).collect(),
            write: vec![folder_of(&config.state_dir), config.agent.disk_dir.clone(), folder_of(status), CONFIGFS.into()],
            ports: vec![config.boot_port, config.api_port],
        }
    }

    /// What `kurrentd uplink` needs: the lease is replaced by a rename, the resolvers are written in place. No TCP.
    #[must_use]
    pub fn of_uplink(lease_file: &Path, resolv_conf: &Path) -> Self {
        Self { read: Vec::new(), write: vec![folder_of(lease_file), resolv_conf.to_owned()], ports: Vec::new() }
    }

    /// Makes the folders that are written to: only what is there can be allowed. What is wrong with one is told by its user.
    pub fn make_folders(&self) {
        for folder in self.write.iter().filter(|folder| !folder.starts_with("/sys") && !folder.exists()) {
            if let Err(error) = std::fs::create_dir_all(folder) {
                tracing::debug!(folder = %folder.display(), %error, "confinement: can not be made");
            }
        }
    }

    /// Confines the process to them.
    pub(super) fn confine(&self) -> Part {
        const NAME: &str = "files";
        let (state, detail) = match self.restrict() {
            Ok(RulesetStatus::FullyEnforced) => (State::On, "only its own can be read and written (Landlock)".to_owned()),
            Ok(RulesetStatus::PartiallyEnforced) => (State::Partly, "this kernel's Landlock knows only some of the rules".to_owned()),
            Ok(RulesetStatus::NotEnforced) => (State::Missing, "this kernel has no Landlock (Linux 5.13, lsm=landlock)".to_owned()),
            // After many restarts in place the kernel takes no further layer; those that are there hold.
            Err(error) if is_full(&error) => (State::On, "only its own can be read and written (Landlock, of an earlier start)".to_owned()),
            Err(error) => (State::Missing, format!("Landlock: {error}")),
        };
        Part { name: NAME, state, detail }
    }

    fn restrict(&self) -> Result<RulesetStatus, RulesetError> {
        let all = AccessFs::from_all(RULES);
        let reads = AccessFs::ReadFile | AccessFs::ReadDir;
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .handle_access(AccessNet::from_all(RULES))?
            // Nobody is signalled, and no abstract socket is used.
            .scope(Scope::from_all(RULES))?
            .create()?;
        let program = std::env::current_exe().ok();
        let own = self.read.iter().map(PathBuf::as_path).chain(program.as_deref());
        for path in SYSTEM.iter().map(Path::new).chain(own) {
            rules = allow(rules, path, reads)?;
        }
        // Programs: this one and no other. There is no shell to become.
        for path in INTERPRETERS.iter().map(Path::new).chain(program.as_deref()) {
            rules = allow(rules, path, AccessFs::Execute.into())?;
        }
        for path in &self.write {
            rules = allow(rules, path, all & !AccessFs::Execute & !AccessFs::MakeChar & !AccessFs::MakeBlock)?;
        }
        for port in &self.ports {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
        }
        Ok(rules.restrict_self()?.ruleset)
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        Some(_) | None => PathBuf::from("."),
    }
}

fn is_full(error: &RulesetError) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.raw_os_error() == Some(libc::E2BIG)) {
            return true;
        }
        cause = error.source();
    }
    false
}

type Rules = landlock::RulesetCreated;

/// What is not there can not be allowed; what makes it later is not ours.
fn allow(rules: Rules, path: &Path, access: BitFlags<AccessFs>) -> Result<Rules, RulesetError> {
    let Ok(opened) = PathFd::new(path) else {
        tracing::debug!(path = %path.display(), "confinement: not there");
        return Ok(rules);
    };
    // A file has no entries to make.
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(RULES) };
    rules.add_rule(PathBeneath::new(opened, access))
}
