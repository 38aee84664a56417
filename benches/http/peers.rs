//! The servers that are compared, in the server's namespace, over the same folder.

use anyhow::{Result, ensure};
use kurrent_harness::process::{Lifetime, Process};
use kurrent_harness::tools::target_dir;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

/// The server's address.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Who serves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// `kurrentd`, as it is.
    Kurrent,
    /// nginx with one worker, as a fair administrator would have it.
    Nginx,
}

impl Peer {
    /// For the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kurrent => "kurrentd",
            Self::Nginx => "nginx",
        }
    }

    /// Starts it over `folder`.
    pub fn start(self, netns: &str, folder: &Path) -> Result<Process> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns]);
        match self {
            Self::Kurrent => kurrent(&mut command, folder)?,
            Self::Nginx => nginx(&mut command, folder)?,
        }
        let log = fs::File::create(folder.join(format!("{}.log", self.name())))?;
        command.stderr(log.try_clone()?).stdout(log);
        Process::start(self.name(), command, Lifetime::Ours)
    }
}

fn kurrent(command: &mut Command, folder: &Path) -> Result<()> {
    let dir = folder.display();
    let text = format!(
        "apiVersion: kurrent.io/v1\nkind: ApplianceConfiguration\nmetadata:\n  name: bench\nspec:\n  stateDir: {dir}/state\n  filesDir: {dir}/files\n  \
         agent:\n    diskDir: {dir}/disks\n  networking:\n    boot:\n      address: {SERVER}/16\n"
    );
    let file = folder.join("kurrent.yaml");
    fs::write(&file, text)?;
    command.arg(env!("CARGO_BIN_EXE_kurrentd")).arg("run").arg("--config").arg(file).arg("--status").arg(folder.join("status"));
    Ok(())
}

fn nginx(command: &mut Command, folder: &Path) -> Result<()> {
    let root = target_dir().join("deps/bench").canonicalize().unwrap_or_default();
    let program = root.join("usr/sbin/nginx");
    ensure!(program.exists(), "{} is missing; `make bench-deps` unpacks it", program.display());
    let dir = folder.display();
    let temporary: String =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|n| format!("  {n}_temp_path {dir}/nginx-{n};\n")).concat();
    // One process that is the worker: nothing is left when it ends. A connection serves as many requests as ours does.
    let text = format!(
        "daemon off;\nmaster_process off;\nworker_processes 1;\nuser root;\npid {dir}/nginx.pid;\nerror_log stderr;\nevents {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  tcp_nopush on;\n  tcp_nodelay on;\n  keepalive_timeout 65;\n  keepalive_requests 100000000;\n  \
         open_file_cache max=1000 inactive=60s;\n  open_file_cache_valid 60s;\n{temporary}  server {{ listen {SERVER}:80 backlog=1024; root {dir}; }}\n}}\n"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, text)?;
    command.arg("env").arg(format!("LD_LIBRARY_PATH={}", root.join("usr/lib/x86_64-linux-gnu").display()));
    command.arg(program).args(["-e", "stderr", "-p"]).arg(folder).arg("-c").arg(file);
    Ok(())
}
