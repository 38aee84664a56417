//! Which of the kernel's modules go into an image, and depmod's files for just those.

use crate::recipe;
use crate::steps::{Steps, sorted_entries, tool};
use anyhow::{Context as _, Result, bail};
use kurrent_core::modules::{ModuleIndex, Resolved, Sources};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files of the kernel package beside the modules that depmod reads.
const LISTS: [&str; 3] = ["modules.order", "modules.builtin", "modules.builtin.modinfo"];

/// depmod's files that our programs read.
const INDEX_FILES: [&str; 4] = ["modules.dep", "modules.alias", "modules.softdep", "modules.builtin"];

/// The whole kernel's modules.
pub struct FullIndex {
    folder: PathBuf,
    release: String,
    index: ModuleIndex,
}

/// Debian's package comes without depmod's files: makes them in a tree of links.
pub fn full_index(deps: &Path, release: &str, steps: &mut Steps) -> Result<FullIndex> {
    let source = fs::canonicalize(recipe::module_tree(deps, release)).context("the kernel's modules are missing: run `make deps`")?;
    let base = steps.work("modules-all");
    let folder = base.join("lib/modules").join(release);
    let dep = folder.join("modules.dep");
    steps.run("module index", &[source.join("modules.order"), source.join("modules.builtin")], &dep, || {
        let _ = fs::remove_dir_all(&base);
        fs::create_dir_all(&folder).context("making the module tree")?;
        for name in LISTS.into_iter().chain(["kernel"]) {
            std::os::unix::fs::symlink(source.join(name), folder.join(name)).context("linking the module tree")?;
        }
        depmod(&base, release)
    })?;
    let index = read_index(&folder)?;
    Ok(FullIndex { folder, release: release.to_owned(), index })
}

fn depmod(base: &Path, release: &str) -> Result<()> {
    tool(Command::new("depmod").arg("-b").arg(base).arg(release).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))
}

fn read_index(folder: &Path) -> Result<ModuleIndex> {
    let texts = INDEX_FILES.map(|name| fs::read_to_string(folder.join(name)).with_context(|| format!("reading {name}")));
    let [dep, alias, softdep, builtin] = texts;
    let (dep, alias, softdep, builtin) = (dep?, alias?, softdep?, builtin?);
    Ok(ModuleIndex::parse(Sources { dep: &dep, alias: &alias, softdep: &softdep, builtin: &builtin }))
}

/// NICs for every image.
const NICS: &str = "appliance/recipe/modules-nics.list";

/// Copies the NICs' modules and what a list names, with what they need; gives back the folder to put at
/// `/lib/modules/<release>`.
pub fn subset(name: &str, list: &Path, full: &FullIndex, steps: &mut Steps) -> Result<PathBuf> {
    let base = steps.work(name);
    let folder = base.join("lib/modules").join(&full.release);
    let lists = [Path::new(NICS), list];
    let inputs = [PathBuf::from(NICS), list.to_owned(), full.folder.join("modules.dep")];
    steps.run(name, &inputs, &folder.join("modules.dep"), || {
        let mut files = BTreeSet::new();
        for list in lists {
            let text = fs::read_to_string(list).with_context(|| format!("reading {}", list.display()))?;
            files.extend(wanted_files(&text, full).with_context(|| format!("in {}", list.display()))?);
        }
        let _ = fs::remove_dir_all(&base);
        for file in &files {
            copy(&full.folder.join(file), &folder.join(file))?;
        }
        for name in LISTS {
            copy(&full.folder.join(name), &folder.join(name))?;
        }
        depmod(&base, &full.release)
    })?;
    Ok(folder)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    }
    fs::copy(from, to).map(|_| ()).with_context(|| format!("copying {}", from.display()))
}

fn wanted_files(list: &str, full: &FullIndex) -> Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    for line in list.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|line| !line.is_empty()) {
        if line.ends_with('/') {
            let folder = full.folder.join("kernel").join(line);
            add_folder(&folder, &full.folder, &mut files)?;
            continue;
        }
        match full.index.resolve(line) {
            Resolved::Files(more) => files.extend(more.into_iter().map(|file| file.path)),
            // A newer kernel may have made it a part of itself.
            Resolved::Builtin => {}
            Resolved::Unknown => bail!("the kernel has no module {line}: correct the list"),
        }
    }
    Ok(files)
}

fn add_folder(folder: &Path, root: &Path, files: &mut BTreeSet<String>) -> Result<()> {
    for entry in sorted_entries(folder)? {
        if entry.is_dir() {
            add_folder(&entry, root, files)?;
        } else if let Ok(file) = entry.strip_prefix(root) {
            files.insert(file.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// depmod's text files and the modules: what belongs into an image of all that is in the folder.
pub fn image_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.join("kernel")];
    while let Some(next) = folders.pop() {
        for entry in sorted_entries(&next)? {
            if entry.is_dir() { folders.push(entry) } else { found.push(entry) }
        }
    }
    found.extend(INDEX_FILES.map(|name| folder.join(name)));
    found.sort();
    Ok(found)
}
