//! PID 1 of a worker's initramfs: from the sealed credentials to the disk's own init.
//!
//! It decides nothing: [`kurrent_core::stage1::Session`] says what comes next, the modules here do it. It never ends by itself
//! except in `exec` of the system's init: a failure is one line on every console, a report to the appliance, another try or a
//! reboot. Secrets are read once, kept in memory that is wiped, and never printed.
//!
//! Run as `/sbin/modprobe` it answers the kernel's own requests for modules.

mod console;
mod handover;
mod network;
mod report;
mod root;
mod switch;
mod unseal;

use console::say;
use kurrent_core::modules::Asked;
use kurrent_core::stage1::{Action, Credentials, Event, Phase, Session};
use kurrent_sys::{clock, fabrics, kmod};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the namespace may take to appear after the connection is live.
const NAMESPACE_WITHIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
/// Where the disk's system is put together.
const NEW_ROOT: &str = "/sysroot";

const NO_CREDENTIALS: &str = "there are no boot credentials";

/// Any fault, as the one line that is shown.
type Fault = String;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.first().is_some_and(|name| name.ends_with("modprobe")) {
        let rest: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
        std::process::exit(i32::from(kmod::answer_kernel(&rest)));
    }
    if std::process::id() != 1 {
        eprintln!("kurrent-stage1 is PID 1 of a worker's initramfs; it does nothing else");
        std::process::exit(2);
    }
    std::panic::set_hook(Box::new(|fault| {
        // PID 1 must not end: the kernel would stop with a panic of its own and nobody would see why.
        say(&format!("internal fault: {fault}; the machine starts again in {} s", kurrent_core::stage1::session::BEFORE_REBOOT.as_secs()));
        std::thread::sleep(kurrent_core::stage1::session::BEFORE_REBOOT);
        switch::reboot();
    }));
    let mut boot = Boot::default();
    boot.run();
}

/// What the phases hand to each other.
#[derive(Default)]
struct Boot {
    session: Session,
    credentials: Option<Credentials>,
    modules: Option<kmod::ModuleTree>,
    /// Devices whose drivers were looked for.
    devices: Asked,
    nic: Option<kurrent_sys::link::Link>,
    /// Block device of the namespace, `nvme0n1`.
    disk: Option<String>,
    root: Option<root::Mounted>,
    /// What is reported when the system's init can not be started: made before the secrets are wiped, holds none.
    last_words: Option<report::Prepared>,
}

impl Boot {
    fn run(&mut self) {
        let mut actions: VecDeque<Action> = self.session.on(Event::Started, clock::now()).into();
        loop {
            let Some(action) = actions.pop_front() else {
                actions.extend(self.session.on(Event::Failed("nothing to do".into()), clock::now()));
                continue;
            };
            let event = match action {
                Action::Run(phase) => Some(self.phase(phase)),
                Action::Report(step, detail) => {
                    self.report(step, &detail);
                    None
                }
                Action::Wait(pause) => {
                    say(&format!("trying again in {} s", pause.as_secs()));
                    std::thread::sleep(pause);
                    None
                }
                Action::Reboot => switch::reboot(),
                Action::SwitchRoot => Some(self.switch()),
            };
            if let Some(event) = event {
                actions = self.session.on(event, clock::now()).into();
            }
        }
    }

    fn phase(&mut self, phase: Phase) -> Event {
        // An earlier try may have come as far as the mount, and its controller may not go while that is there.
        if phase == Phase::Connect
            && let Err(fault) = root::unmount(Path::new(NEW_ROOT))
        {
            return Event::Hopeless(fault);
        }
        self.work(phase).map_or_else(Event::Failed, |()| Event::Done)
    }

    fn work(&mut self, phase: Phase) -> Result<(), Fault> {
        match phase {
            Phase::Unseal => {
                switch::mount_kernel_file_systems()?;
                console::open();
                self.credentials = Some(unseal::credentials()?);
                Ok(())
            }
            Phase::Drivers => self.drivers(),
            Phase::Link => self.link(),
            Phase::Connect => self.connect(),
            Phase::Namespace => self.namespace(),
            Phase::Root => self.mount_root(),
            Phase::Handover => self.hand_over(),
        }
    }

    fn credentials(&self) -> Result<&Credentials, Fault> {
        self.credentials.as_ref().ok_or_else(|| NO_CREDENTIALS.to_owned())
    }

    fn drivers(&mut self) -> Result<(), Fault> {
        let tree = kmod::ModuleTree::running().map_err(|e| one_line(&e))?;
        coldplug(&tree, &mut self.devices);
        tree.load("nvme-tcp").map_err(|e| one_line(&e))?;
        self.modules = Some(tree);
        Ok(())
    }

    fn link(&mut self) -> Result<(), Fault> {
        let credentials = self.credentials.as_ref().ok_or(NO_CREDENTIALS)?;
        let modules = self.modules.as_ref().ok_or("there are no modules")?;
        let nic = network::bring_up(credentials, || coldplug(modules, &mut self.devices))?;
        say(&format!("{} is {} at {}", nic.name, credentials.worker, credentials.address));
        self.nic = Some(nic);
        Ok(())
    }

    fn connect(&mut self) -> Result<(), Fault> {
        let credentials = self.credentials()?;
        let controllers = Path::new(fabrics::CONTROLLERS);
        // A controller of an earlier try of ours would stand in the way.
        for number in fabrics::controllers_of(controllers, &credentials.subsystem).map_err(|e| format!("looking for controllers: {e}"))? {
            fabrics::disconnect(controllers, number).map_err(|e| format!("removing controller {number}: {e}"))?;
        }
        let to = fabrics::Connect {
            target: credentials.target,
            subsystem: &credentials.subsystem,
            host: &credentials.host,
            host_id: credentials.host_id,
            host_secret: &credentials.host_secret,
            controller_secret: &credentials.controller_secret,
        };
        let number = fabrics::connect(Path::new(fabrics::FABRICS_DEVICE), &to).map_err(|e| e.to_string())?;
        fabrics::hide_secrets(controllers, number).map_err(|e| format!("hiding the secrets of nvme{number}: {e}"))?;
        say(&format!("connected to {} as nvme{number}, authenticated both ways", credentials.target));
        Ok(())
    }

    fn namespace(&mut self) -> Result<(), Fault> {
        let wanted = self.credentials()?.namespace;
        let disk = within(NAMESPACE_WITHIN, || {
            let found = fabrics::namespace(Path::new(fabrics::BLOCK_DEVICES), wanted).ok().flatten();
            found.filter(|name| Path::new("/dev").join(name).exists())
        });
        let missing = || {
            format!(
                "the disk {wanted} did not appear within {} s; the appliance connected but exports something else",
                NAMESPACE_WITHIN.as_secs()
            )
        };
        self.disk = Some(disk.ok_or_else(missing)?);
        Ok(())
    }

    fn mount_root(&mut self) -> Result<(), Fault> {
        let disk = self.disk.as_deref().ok_or("there is no disk")?;
        let modules = self.modules.as_ref().ok_or("there are no modules")?;
        let mounted = root::mount(disk, modules, Path::new(NEW_ROOT))?;
        say(&format!("root is {} ({})", mounted.device, mounted.kind.name()));
        self.root = Some(mounted);
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), Fault> {
        let nic = self.nic.as_ref().ok_or("there is no NIC")?;
        handover::prepare(Path::new(NEW_ROOT), self.credentials()?, nic)
    }

    fn report(&mut self, step: &'static str, detail: &str) {
        if step == "failed" {
            say(&format!("failed in {:?}: {detail}", self.session.phase()));
        }
        let report = match &self.credentials {
            Some(credentials) if self.nic.is_some() => Some(report::Prepared::new(credentials, step, detail)),
            _ => self.last_words.take(),
        };
        if let Some(Err(fault)) = report.map(|r| r.send()) {
            say(&format!("the appliance does not hear the report {step:?}: {fault}"));
        }
    }

    /// Wipes the secrets and becomes the system's init; comes back only with the reason why not.
    fn switch(&mut self) -> Event {
        let root = Path::new(NEW_ROOT);
        let init = match switch::find_init(root) {
            Ok(init) => init,
            Err(fault) => return Event::Failed(fault),
        };
        if let Some(credentials) = &self.credentials {
            say(&format!("starting the system of {}", credentials.worker));
            self.last_words = Some(report::Prepared::new(credentials, "failed", &format!("{init} can not be started")));
        }
        // From here there is no way back: the kernel's file systems move away and the initramfs goes.
        if let Err(fault) = switch::enter(root) {
            return Event::Hopeless(fault);
        }
        // Dropped here, wiped by their types: nothing of them is in memory when the system starts.
        self.credentials = None;
        Event::Hopeless(switch::exec(&init))
    }
}

/// Loads drivers for devices that have appeared.
fn coldplug(modules: &kmod::ModuleTree, asked: &mut Asked) {
    for fault in modules.load_drivers(asked.fresh(kmod::modaliases(Path::new("/sys")))) {
        say(&format!("driver: {}", one_line(&fault)));
    }
}

/// Polls until there is something, or the time is over.
fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if started.elapsed() >= limit {
            return None;
        }
        std::thread::sleep(POLL);
    }
}

/// An error and its causes as one line.
fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
