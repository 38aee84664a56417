//! The two initramfs images: a tree in memory, written as newc cpio and packed with zstd.

use crate::modules::image_files;
use crate::programs::Programs;
use crate::steps::{sorted_entries, tool};
use crate::{Parts, recipe};
use anyhow::{Context as _, Result};
use cpio::newc::{Builder, ModeFileType, trailer};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// zstd's level: small, and as quick to unpack as any other.
const ZSTD_LEVEL: &str = "-19";

/// Files of the repository for stage-1's tree, when there are any.
pub const WORKER_FILES: &str = "rootfs/stage1";

enum Node {
    Folder,
    Link(String),
    File { from: PathBuf, mode: u32 },
    Text(String),
    Device { major: u32, minor: u32 },
}

/// Paths without a leading `/`, in order: a folder comes before what is in it.
struct Tree(BTreeMap<String, Node>);

impl Tree {
    /// Folders that every image has, and the two device nodes which the kernel and PID 1 need before `/dev` is mounted.
    fn new() -> Self {
        let mut tree = Self(BTreeMap::new());
        for folder in ["dev", "proc", "sys", "run", "tmp", "usr/bin", "sbin", "etc"] {
            tree.folder(folder);
        }
        tree.add("dev/console", Node::Device { major: 5, minor: 1 });
        tree.add("dev/null", Node::Device { major: 1, minor: 3 });
        tree
    }

    fn folder(&mut self, path: &str) {
        self.add(path, Node::Folder);
    }

    fn add(&mut self, path: &str, node: Node) {
        for (at, _) in path.match_indices('/') {
            self.0.entry(path[..at].to_owned()).or_insert(Node::Folder);
        }
        self.0.insert(path.to_owned(), node);
    }

    fn program(&mut self, path: &str, from: &Path) {
        self.add(path, Node::File { from: from.to_owned(), mode: 0o755 });
    }

    fn file(&mut self, path: &str, from: &Path) {
        self.add(path, Node::File { from: from.to_owned(), mode: 0o644 });
    }

    fn modules(&mut self, release: &str, folder: &Path) -> Result<()> {
        for path in image_files(folder)? {
            let below = path.strip_prefix(folder).context("a module outside its folder")?.to_string_lossy().into_owned();
            self.file(&format!("lib/modules/{release}/{below}"), &path);
        }
        Ok(())
    }

    /// Everything below a folder of the repository.
    fn overlay(&mut self, folder: &Path, below: &str) -> Result<()> {
        for path in sorted_entries(folder)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let place = if below.is_empty() { name.into_owned() } else { format!("{below}/{name}") };
            if path.is_dir() { self.overlay(&path, &place)? } else { self.file(&place, &path) }
        }
        Ok(())
    }

    fn write(&self, output: &Path) -> Result<()> {
        let archive = output.with_extension("cpio");
        let file = fs::File::create(&archive).with_context(|| format!("writing {}", archive.display()))?;
        let mut out = std::io::BufWriter::new(file);
        for (number, (path, node)) in (1..).zip(&self.0) {
            // Everything is root's and of one date: the same sources give the same octets.
            let entry = Builder::new(path).ino(number).uid(0).gid(0).mtime(0);
            let (entry, contents) = match node {
                Node::Folder => (entry.mode(0o755).nlink(2).set_mode_file_type(ModeFileType::Directory), Vec::new()),
                Node::Link(target) => (entry.mode(0o777).set_mode_file_type(ModeFileType::Symlink), target.clone().into_bytes()),
                Node::Text(text) => (entry.mode(0o644).set_mode_file_type(ModeFileType::Regular), text.clone().into_bytes()),
                Node::File { from, mode } => {
                    let contents = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
                    (entry.mode(*mode).set_mode_file_type(ModeFileType::Regular), contents)
                }
                Node::Device { major, minor } => {
                    let entry = entry.mode(0o600).rdev_major(*major).rdev_minor(*minor);
                    (entry.set_mode_file_type(ModeFileType::Char), Vec::new())
                }
            };
            let length = u32::try_from(contents.len()).with_context(|| format!("{path} is too large for an initramfs"))?;
            let mut writer = entry.write(out, length);
            writer.write_all(&contents).context("writing the archive")?;
            out = writer.finish().context("writing the archive")?;
        }
        trailer(out).and_then(|mut out| out.flush()).context("writing the archive")?;
        tool(Command::new("zstd").args(["-q", "-f", "-T0", ZSTD_LEVEL, "-o"]).arg(output).arg(&archive))
    }
}

/// The appliance: everything that runs on it.
pub fn appliance(parts: &Parts, modules: &Path, epoch: u64, output: &Path) -> Result<()> {
    let mut tree = appliance_files(parts, epoch)?;
    tree.modules(&parts.release, modules)?;
    tree.write(output)
}

/// All but the kernel's modules.
fn appliance_files(parts: &Parts, epoch: u64) -> Result<Tree> {
    let mut tree = Tree::new();
    tree.overlay(Path::new("rootfs/appliance"), "")?;
    for folder in ["boot", "data", "var/lib"] {
        tree.folder(folder);
    }
    tree.add("var/lib/kurrent", Node::Link("/data".to_owned()));
    // The root file system is read-only; the uplink's resolvers come and go.
    tree.add("etc/resolv.conf", Node::Link("/run/resolv.conf".to_owned()));
    tree.program("init", &parts.programs.init);
    tree.add("sbin/modprobe", Node::Link("/init".to_owned()));
    tree.program("usr/bin/kurrentd", &parts.programs.daemon);
    tree.program("usr/bin/kurrent", &parts.programs.cli);
    tree.file("usr/share/kurrent/kurrent-attest.efi", &parts.programs.attest);
    tree.file("usr/share/kurrent/kurrent-attest-arm64.efi", &parts.programs.attest_arm64);
    for (name, path) in &parts.loaders {
        tree.file(&format!("usr/share/kurrent/{name}"), path);
    }
    tree.add("usr/share/kurrent/worker", Node::Link("/boot/kurrent/worker".to_owned()));
    // PID 1 takes no date before this one for real.
    tree.add("etc/kurrent-build-epoch", Node::Text(format!("{epoch}\n")));
    tree.add("etc/os-release", Node::Text(recipe::os_release()));
    Ok(tree)
}

/// stage-1 of a worker.
pub fn worker(programs: &Programs, release: &str, modules: &Path, output: &Path) -> Result<()> {
    let mut tree = Tree::new();
    let overlay = Path::new(WORKER_FILES);
    if overlay.is_dir() {
        tree.overlay(overlay, "")?;
    }
    tree.program("init", &programs.stage1);
    tree.add("sbin/modprobe", Node::Link("/init".to_owned()));
    tree.modules(release, modules)?;
    // The worker's own system loads further modules from here, with kmod, which reads only these forms.
    for name in ["dep", "alias", "symbols", "builtin", "builtin.alias"] {
        let name = format!("modules.{name}.bin");
        tree.file(&format!("lib/modules/{release}/{name}"), &modules.join(&name));
    }
    tree.write(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody gets a shell at the console or over a hole in a program: there is none, and nothing that asks for a login.
    #[test]
    fn the_appliance_has_its_own_programs_and_no_others() {
        std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap();
        let [init, daemon, cli, stage1, attest, attest_arm64] =
            ["init", "daemon", "cli", "stage1", "attest", "attest_arm64"].map(PathBuf::from);
        let programs = Programs { init, daemon, cli, stage1, attest, attest_arm64 };
        let nothing = PathBuf::new;
        let parts = Parts { release: String::new(), kernel: nothing(), programs, loaders: Vec::new(), stage1: nothing() };
        let tree = appliance_files(&parts, 0).unwrap();
        let programs = tree.0.iter().filter(|(_, node)| matches!(node, Node::File { mode, .. } if mode & 0o111 != 0));
        assert_eq!(programs.map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["init", "usr/bin/kurrent", "usr/bin/kurrentd"]);
        let links =
            tree.0.iter().filter_map(|(path, node)| if let Node::Link(to) = node { Some((path.as_str(), to.as_str())) } else { None });
        let to_programs: Vec<_> = links.filter(|(_, to)| to.contains("init") || to.contains("bin")).collect();
        assert_eq!(to_programs, [("sbin/modprobe", "/init")]);
    }
}
