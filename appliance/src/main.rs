//! Builds the appliance: programs, initramfs, unified kernel image, ESP, data partition, disk image. No root, no loop
//! devices, no mounts; steps whose inputs are unchanged are passed over.
//!
//! ```text
//! cargo run -p kurrent-appliance -- image      # target/kurrent.img and target/kurrent.img.zst
//! cargo run -p kurrent-appliance -- files DIR  # only what a kurrentd on any host serves: loaders, attest, worker/
//! ```

mod disk;
mod esp;
mod initramfs;
mod modules;
mod programs;
mod recipe;
mod steps;
mod uki;

use anyhow::{Context as _, Result};
use clap::Parser;
use std::fs;
use std::path::{Path, PathBuf};
use steps::Steps;

/// Builds Kurrent's images.
#[derive(Parser)]
struct Arguments {
    /// Where build results go.
    #[arg(long, default_value = "target")]
    target: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// The disk image.
    Image,
    /// The folder that `kurrentd` serves (`filesDir`), for a host or a network namespace.
    Files {
        /// Made when it is not there.
        folder: PathBuf,
    },
}

/// Everything that goes into an image, built.
pub struct Parts {
    /// The kernel's release, `6.12.…`.
    pub release: String,
    /// Kernel, the same for appliance and workers.
    pub kernel: PathBuf,
    /// Static programs.
    pub programs: programs::Programs,
    /// Stock loaders: file name and where it is.
    pub loaders: Vec<(&'static str, PathBuf)>,
    /// stage-1's initramfs.
    pub stage1: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut steps = Steps::new(&arguments.target)?;
    let parts = build_parts(&arguments.target, &mut steps)?;
    match arguments.what {
        What::Files { folder } => export_files(&parts, &folder),
        What::Image => build_image(&arguments.target, &mut steps, &parts),
    }
}

fn build_parts(target: &Path, steps: &mut Steps) -> Result<Parts> {
    let deps = target.join("deps");
    let programs = programs::build(target)?;
    let (release, kernel) = recipe::kernel(&deps)?;
    let loaders = recipe::loaders(&deps)?;
    let index = modules::full_index(&deps, &release, steps)?;
    let stage1 = steps.work("stage1.img");
    let list = Path::new("appliance/recipe/modules-worker.list");
    let tree = modules::subset("modules-worker", list, &index, steps)?;
    let mut inputs = vec![programs.stage1.clone(), tree.join("modules.dep")];
    inputs.extend(Some(PathBuf::from(initramfs::WORKER_FILES)).filter(|folder| folder.is_dir()));
    steps.run("worker initramfs", &inputs, &stage1, || initramfs::worker(&programs, &release, &tree, &stage1))?;
    Ok(Parts { release, kernel, programs, loaders, stage1 })
}

fn build_image(target: &Path, steps: &mut Steps, parts: &Parts) -> Result<()> {
    let index = modules::full_index(&target.join("deps"), &parts.release, steps)?;
    let list = Path::new("appliance/recipe/modules-appliance.list");
    let tree = modules::subset("modules-appliance", list, &index, steps)?;
    let epoch = recipe::source_date_epoch()?;

    let initrd = steps.work("appliance.initrd");
    let mut inputs: Vec<PathBuf> = parts.programs.all();
    inputs.extend(parts.loaders.iter().map(|(_, path)| path.clone()));
    inputs.extend([tree.join("modules.dep"), PathBuf::from("rootfs/appliance"), steps.text("epoch", &epoch.to_string())?]);
    steps.run("appliance initramfs", &inputs, &initrd, || initramfs::appliance(parts, &tree, epoch, &initrd))?;

    let stub = target.join("deps").join(recipe::STUB);
    let cmdline = PathBuf::from("appliance/recipe/cmdline");
    let uki = steps.work("BOOTX64.EFI");
    let inputs = [stub.clone(), cmdline.clone(), parts.kernel.clone(), initrd.clone()];
    steps.run("unified kernel image", &inputs, &uki, || {
        uki::build(&uki::Sources { stub: &stub, cmdline: &cmdline, kernel: &parts.kernel, initrd: &initrd, release: &parts.release }, &uki)
    })?;

    let esp = steps.work("esp.img");
    let configuration = PathBuf::from("rootfs/boot/kurrent.yaml");
    let notices = recipe::notices(&target.join("deps"))?;
    let mut inputs = vec![uki.clone(), configuration.clone(), parts.kernel.clone(), parts.stage1.clone()];
    inputs.extend(notices.iter().map(|(_, path)| path.clone()));
    steps.run("EFI system partition", &inputs, &esp, || {
        let mut files = vec![
            ("EFI/BOOT/BOOTX64.EFI", uki.as_path()),
            ("kurrent.yaml", configuration.as_path()),
            ("kurrent/worker/vmlinuz", parts.kernel.as_path()),
            ("kurrent/worker/stage1.img", parts.stage1.as_path()),
        ];
        files.extend(notices.iter().map(|(inside, here)| (inside.as_str(), here.as_path())));
        esp::build(&files, epoch, &esp)
    })?;

    let data = steps.work("data.img");
    steps.run("data partition", &[], &data, || disk::build_data(&data))?;
    let image = target.join("kurrent.img");
    steps.run("disk image", &[esp.clone(), data.clone()], &image, || disk::build_image(&esp, &data, &image))?;
    let compressed = target.join("kurrent.img.zst");
    steps.run("compressed image", std::slice::from_ref(&image), &compressed, || disk::compress(&image, &compressed))?;

    let rows = [
        ("vmlinuz", parts.kernel.as_path()),
        ("appliance initramfs", initrd.as_path()),
        ("unified kernel image", uki.as_path()),
        ("worker/stage1.img", parts.stage1.as_path()),
        ("kurrent.img", image.as_path()),
        ("kurrent.img.zst", compressed.as_path()),
    ];
    println!("\n{:<24}{:>10}", "part", "MB");
    for (name, path) in rows {
        println!("{name:<24}{:>10}", megabytes(fs::metadata(path).with_context(|| format!("reading {}", path.display()))?.len()));
    }
    println!("\nimage: {}", image.display());
    Ok(())
}

/// One decimal, without floating point.
fn megabytes(octets: u64) -> String {
    let tenths = octets.div_ceil(100_000);
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn export_files(parts: &Parts, folder: &Path) -> Result<()> {
    let worker = folder.join("worker");
    fs::create_dir_all(&worker).with_context(|| format!("making {}", worker.display()))?;
    let mut copies = vec![(parts.kernel.clone(), worker.join("vmlinuz")), (parts.stage1.clone(), worker.join("stage1.img"))];
    copies.push((parts.programs.attest.clone(), folder.join("kurrent-attest.efi")));
    copies.push((parts.programs.attest_arm64.clone(), folder.join("kurrent-attest-arm64.efi")));
    copies.extend(parts.loaders.iter().map(|(name, path)| (path.clone(), folder.join(name))));
    for (from, to) in copies {
        fs::copy(&from, &to).with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    }
    println!("files: {}", folder.display());
    Ok(())
}
