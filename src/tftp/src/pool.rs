//! The few threads that may wait for disks, so that the one that sends never does.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

/// A slow disk makes them wait one after the other; more would not make it faster.
const THREADS: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs, which must not panic, in the order in which they came. The threads end after it was dropped.
pub(crate) struct Pool(Sender<Job>);

impl Pool {
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, jobs) = channel::<Job>();
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..THREADS {
            let jobs = Arc::clone(&jobs);
            thread::Builder::new().name("tftp-files".into()).spawn(move || work(&jobs))?;
        }
        Ok(Self(sender))
    }

    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        // The threads outlive the sender.
        let _ = self.0.send(Box::new(job));
    }
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        job();
    }
}
