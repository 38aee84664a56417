//! The run from first mount to stopped services: one loop over signals, devices, service output and time.

use crate::chain;
use crate::console::{self, Screen};
use crate::disk::{self, Found};
use crate::events::Sources;
use crate::harden;
use crate::log::{Log, kernel_message};
use crate::network::Network;
use crate::process::{self, Output};
use crate::setup;
use kurrent_core::init::mounts::{self, DATA, Mount};
use kurrent_core::init::screen::{View, render};
use kurrent_core::init::supervise::{Action, Event, Supervisor};
use kurrent_core::init::{Plan, Status, status};
use kurrent_core::modules::Asked;
use kurrent_core::time::Mono;
use kurrent_sys::block;
use kurrent_sys::clock::now;
use kurrent_sys::kmod::{ModuleTree, Uevents, modaliases};
use kurrent_sys::mount::mount;
use kurrent_sys::power::End;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

/// The operator's file.
const CONFIGURATION: &str = "/boot/kurrent.yaml";
/// What the daemon says for the screen.
const STATUS: &str = "/run/kurrent/status";
/// The longest sleep: NICs, cables and the daemon's status are looked at this often.
const TICK: Duration = Duration::from_millis(500);
/// How often the time is kept.
const KEEP_TIME: Duration = Duration::from_secs(600);
/// Between looks at all devices, when announcements were lost or the disk is missing.
const LOOK_AT_DEVICES: Duration = Duration::from_secs(1);
/// Before the screen says that there is no disk: USB disks take some seconds.
const DISK_PATIENCE: Duration = Duration::from_secs(10);
/// Records of the kernel's log that are taken in one turn: a kernel that talks without end must not keep PID 1 from the rest.
const RECORDS_AT_ONCE: usize = 200;
/// No device asks for these by an alias: power buttons, the NVMe target and the folder it is configured in.
const UNASKED_MODULES: [&str; 5] = ["button", "evdev", "configfs", "nvmet", "nvmet-tcp"];

enum Stage {
    LookingForDisk,
    Serving(Plan),
    /// Waiting for a person: the screen says for what.
    Stuck,
    Stopping(End),
}

struct Appliance {
    stage: Stage,
    /// Since when the disk is looked for: drivers are there.
    looking_since: Mono,
    log: Log,
    screen: Screen,
    view: View,
    modules: Option<ModuleTree>,
    asked: Asked,
    /// When all devices were looked at last.
    devices_seen: Mono,
    /// Announcements of devices were lost since then.
    devices_lost: bool,
    supervisor: Supervisor,
    outputs: Vec<Output>,
    last_words: BTreeMap<&'static str, String>,
    network: Network,
    /// Faults that stay until the next start.
    faults: Vec<String>,
    time_kept: Mono,
}

/// Runs the appliance until it is to end; then everything that it started has stopped.
pub fn run() -> End {
    let mut appliance = Appliance {
        stage: Stage::LookingForDisk,
        looking_since: now().mono,
        log: Log::new(),
        screen: Screen::default(),
        view: View { version: env!("CARGO_PKG_VERSION").to_owned(), phase: "starting".to_owned(), ..View::default() },
        modules: None,
        asked: Asked::default(),
        devices_seen: now().mono,
        devices_lost: false,
        supervisor: Supervisor::default(),
        outputs: Vec::new(),
        last_words: BTreeMap::new(),
        network: Network::default(),
        faults: Vec::new(),
        time_kept: now().mono,
    };
    appliance.mount_all(&mounts::early());
    // Our screen shows what matters; the kernel's messages go to the log, all but its last words.
    let _ = fs::write("/proc/sys/kernel/printk", "1");
    let mut sources = Sources::open(|text| appliance.log.line("init", text));
    appliance.draw();
    appliance.close();
    appliance.load_drivers();
    appliance.mount_all(&mounts::with_modules());
    appliance.looking_since = now().mono;
    loop {
        sources.buttons.look(Path::new("/sys"), Path::new("/dev"));
        appliance.tick();
        appliance.draw();
        let deadline = appliance.supervisor.next_deadline().map_or(TICK, |deadline| deadline.since(now().mono).min(TICK));
        let ready = sources.wait(&appliance.outputs, deadline);
        appliance.take(&mut sources, &ready);
        let exits = process::reap();
        for (pid, how) in exits {
            if let Some(name) = appliance.supervisor.name_of(pid) {
                appliance.say(&format!("{name} ended: {how}"));
                // What it said is not true any more. Another service's end says nothing about it.
                if name == status::WRITER {
                    let _ = fs::remove_file(STATUS);
                }
            }
            appliance.supervise(&Event::Exited { pid });
        }
        appliance.supervise(&Event::Time);
        if let Stage::Stopping(end) = appliance.stage
            && appliance.supervisor.is_finished()
        {
            appliance.keep_time();
            if !appliance.log.close() {
                console::say("the data disk does not take the log's last lines, going on without");
            }
            return end;
        }
    }
}

impl Appliance {
    fn say(&mut self, text: &str) {
        self.log.line("init", text);
    }

    fn mount_all(&mut self, mounts: &[Mount]) {
        for wanted in mounts {
            if let Err(fault) = mount(wanted) {
                self.say(&chain(&fault));
                if !wanted.optional {
                    console::say(&chain(&fault));
                    self.faults.push(chain(&fault));
                }
            }
        }
    }

    /// What is closed for good, before the first stranger is heard.
    fn close(&mut self) {
        let (said, faults) = harden::close();
        self.say(&format!("closed: {said}"));
        for fault in faults {
            self.say(&fault);
            self.faults.push(fault);
        }
    }

    fn load_drivers(&mut self) {
        let tree = match ModuleTree::running() {
            Ok(tree) => tree,
            Err(fault) => return self.faults.push(format!("Drivers: {}", chain(&fault))),
        };
        self.modules = Some(tree);
        self.coldplug();
        let Some(tree) = &self.modules else { return };
        for name in UNASKED_MODULES {
            if let Err(fault) = tree.load(name) {
                self.log.line("init", &chain(&fault));
            }
        }
    }

    /// Asks for the driver of every device that is there and for which none was asked for yet.
    fn coldplug(&mut self) {
        self.load_drivers_of(modaliases(Path::new("/sys")));
        self.devices_seen = now().mono;
        self.devices_lost = false;
    }

    fn load_drivers_of(&mut self, aliases: impl IntoIterator<Item = String>) {
        let Some(modules) = &self.modules else { return };
        for fault in modules.load_drivers(self.asked.fresh(aliases)) {
            self.log.line("init", &chain(&fault));
        }
    }

    /// Reads every source; never blocks.
    fn take(&mut self, sources: &mut Sources, outputs_ready: &[bool]) {
        let mut position = 0;
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.retain_mut(|output| {
            let ready = outputs_ready.get(position).copied().unwrap_or(false);
            position += 1;
            if !ready {
                return true;
            }
            let (lines, ended) = output.read();
            for line in lines {
                self.log.line(output.service, &line);
                self.last_words.insert(output.service, line);
            }
            !ended
        });
        self.outputs = outputs;
        while let Some(signal) = sources.signals.as_ref().and_then(|signals| signals.read_signal().ok().flatten()) {
            match Signal::try_from(i32::try_from(signal.ssi_signo).unwrap_or(0)) {
                Ok(Signal::SIGINT | Signal::SIGTERM) => self.stop(End::Reboot, "asked to start again"),
                Ok(Signal::SIGUSR2) => self.stop(End::PowerOff, "asked to power off"),
                _ => {}
            }
        }
        if sources.buttons.pressed() {
            self.stop(End::PowerOff, "power button");
        }
        let new = sources.uevents.as_ref().map(Uevents::new_devices).unwrap_or_default();
        self.load_drivers_of(new.modaliases);
        if new.lost && !self.devices_lost {
            self.say("the kernel announced more devices than could be read: looking at all of them");
        }
        self.devices_lost |= new.lost;
        let mut record = [0; 8192];
        for _ in 0..RECORDS_AT_ONCE {
            let Some(Ok(length)) = sources.kernel_log.as_mut().map(|log| log.read(&mut record)) else { break };
            let text = String::from_utf8_lossy(record.get(..length).unwrap_or_default());
            if let Some(message) = kernel_message(&text) {
                self.log.line("kernel", &message);
            }
        }
    }

    fn tick(&mut self) {
        let at = now().mono;
        let looks = self.devices_lost || matches!(self.stage, Stage::LookingForDisk);
        if looks && at.since(self.devices_seen) >= LOOK_AT_DEVICES {
            self.coldplug();
        }
        match &self.stage {
            Stage::LookingForDisk => self.look_for_disk(at),
            Stage::Serving(plan) => {
                let plan = plan.clone();
                let log = &mut self.log;
                self.network.update(&plan, |text| log.line("init", text));
                for service in self.network.services(&plan, CONFIGURATION) {
                    let actions = self.supervisor.keep(service, at);
                    self.act(actions);
                }
                [self.view.boot, self.view.uplink] = self.network.lines(&plan);
                if at.since(self.time_kept) > KEEP_TIME {
                    self.keep_time();
                }
            }
            Stage::Stuck | Stage::Stopping(_) => {}
        }
    }

    fn look_for_disk(&mut self, at: Mono) {
        let looking_for = at.since(self.looking_since);
        match disk::find(disk::places(), looking_for) {
            Found::One(disk) => {
                "preparing the disk".clone_into(&mut self.view.phase);
                self.draw();
                match self.use_disk(&disk) {
                    Ok(plan) => {
                        self.view.phase.clear();
                        self.stage = Stage::Serving(plan);
                    }
                    Err((phase, faults)) => self.stuck(&phase, faults),
                }
            }
            Found::Several { names, booted } => {
                let names = names.join(", ");
                let why = match booted {
                    Some(_) => "were written with the same image",
                    None => "hold a Kurrent image",
                };
                let fault = format!(
                    "Disks {names} all {why}, and it cannot be told which one was booted. Remove all but one, then start the appliance again."
                );
                self.stuck("NOT SERVING: several appliance disks", vec![fault]);
            }
            Found::None { disks, booted } => {
                "looking for the appliance's disk".clone_into(&mut self.view.phase);
                if looking_for > DISK_PATIENCE {
                    let names: Vec<String> = disks.into_iter().map(|disk| disk.name).collect();
                    let seen = if names.is_empty() { "no disk at all".to_owned() } else { names.join(", ") };
                    let wanted = match booted {
                        Some(esp) => format!("The disk that was booted (partition {esp}) is not found yet"),
                        None => "No disk with Kurrent's partitions found yet".to_owned(),
                    };
                    self.view.faults = vec![format!("{wanted}. Seen: {seen}. Looking on.")];
                }
            }
        }
    }

    fn stuck(&mut self, phase: &str, faults: Vec<String>) {
        for fault in &faults {
            self.say(fault);
        }
        phase.clone_into(&mut self.view.phase);
        self.faults.extend(faults);
        self.stage = Stage::Stuck;
    }

    /// Grows, mounts, sets the clock, reads the configuration; on failure the screen's words.
    fn use_disk(&mut self, disk: &block::Disk) -> Result<Plan, (String, Vec<String>)> {
        let not_serving = |what: &str| format!("NOT SERVING: {what}");
        let log = &mut self.log;
        let nodes = disk::prepare(disk, |text| log.line("init", text)).map_err(|fault| (not_serving("the disk"), vec![fault]))?;
        for wanted in mounts::partitions(&nodes.esp, &nodes.data) {
            mount(&wanted).map_err(|fault| (not_serving("the disk"), vec![chain(&fault)]))?;
        }
        if let Err(fault) = block::grow_btrfs(Path::new(DATA)) {
            // Smaller than it could be, but whole: the next start tries again.
            self.faults.push(chain(&fault));
        }
        setup::make_folders().map_err(|fault| (not_serving("the data partition"), vec![fault]))?;
        if let Err(fault) = self.log.open(Path::new("/data/log")) {
            self.faults.push(format!("The log cannot be kept: {fault}"));
        }
        self.faults.extend(setup::set_clock());
        setup::keep_time();
        let plan = setup::read_plan(CONFIGURATION).map_err(|faults| (not_serving("kurrent.yaml has to be corrected"), faults))?;
        if let Err(fault) = nix::unistd::sethostname(&plan.hostname) {
            self.faults.push(format!("Setting the hostname: {fault}"));
        }
        plan.hostname.clone_into(&mut self.view.hostname);
        Ok(plan)
    }

    fn keep_time(&mut self) {
        self.time_kept = now().mono;
        self.log.keep_time();
    }

    fn supervise(&mut self, event: &Event) {
        let actions = self.supervisor.on(event, now().mono);
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Spawn(service) => {
                    let event = match process::spawn(&service) {
                        Ok((pid, outputs)) => {
                            self.say(&format!("{} started, process {pid}", service.name));
                            self.outputs.extend(outputs);
                            Event::Spawned { name: service.name, pid }
                        }
                        Err(fault) => {
                            self.last_words.insert(service.name, fault.to_string());
                            Event::SpawnFailed { name: service.name }
                        }
                    };
                    self.supervise(&event);
                }
                Action::Terminate(pid) => signal(pid, Signal::SIGTERM),
                Action::Kill(pid) => signal(pid, Signal::SIGKILL),
                Action::GaveUp { name, pid } => self.say(&format!("{name}, process {pid}, does not end even when killed")),
                Action::Finished => self.say("all services have stopped"),
            }
        }
    }

    fn stop(&mut self, end: End, why: &str) {
        if matches!(self.stage, Stage::Stopping(_)) {
            return;
        }
        self.say(&format!("stopping: {why}"));
        self.view.phase = format!("stopping: {why}");
        self.stage = Stage::Stopping(end);
        self.supervise(&Event::Stop);
    }

    fn draw(&mut self) {
        self.view.status = fs::read_to_string(STATUS).ok().map(|text| Status::parse(&text));
        if !matches!(self.stage, Stage::LookingForDisk) || !self.faults.is_empty() {
            self.view.faults.clone_from(&self.faults);
        }
        if matches!(self.stage, Stage::Serving(_)) {
            self.view.faults.extend(self.network.faults.iter().cloned());
            for (name, times) in self.supervisor.failing() {
                let words = self.last_words.get(name).map_or("", String::as_str);
                self.view.faults.push(format!("{name} ended {times} times in a row and is started again; it said: {words}"));
            }
        }
        self.screen.show(render(&self.view));
    }
}

fn signal(pid: u32, signal: Signal) {
    // A process that ended in the meantime is what was wanted.
    if let Ok(pid) = i32::try_from(pid) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}
