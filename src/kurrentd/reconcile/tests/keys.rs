//! A host without keys is asked nothing by the kernel.

use super::*;
use std::io;
use std::sync::Mutex;

/// A kernel that refuses one attribute of `w1`'s hosts, or takes it and forgets it.
struct FailingKernel {
    kernel: FakeKernel,
    broken: Arc<Mutex<Option<(&'static str, bool)>>>,
}

impl kurrent_sys::configfs::Kernel for FailingKernel {
    fn make(&self, path: &Path) -> io::Result<()> {
        self.kernel.make(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.kernel.remove(path)
    }

    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        match *self.broken.lock().unwrap() {
            Some((attribute, forgets)) if path.ends_with(attribute) && path.to_str().unwrap().contains(":host.w1.") => {
                if forgets {
                    Ok(())
                } else {
                    Err(io::ErrorKind::InvalidInput.into())
                }
            }
            _ => self.kernel.write(path, value),
        }
    }

    fn link(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.kernel.link(target, link)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_did_not_get_its_keys_is_never_let_in_and_keeps_nobody_else_out() {
    let bench = Bench::new().await;
    bench.worker("w2").await;
    let broken = Arc::new(Mutex::new(None));
    let kernel = FailingKernel { kernel: FakeKernel::new(&bench.root()).unwrap(), broken: broken.clone() };
    let nvmet = Nvmet::new(bench.root(), Box::new(kernel));
    let kernel = Kernel { nvmet, tcp: bench.folder.path().join("tcp") };
    let mut follower = Follower::new(kernel, bench.shared.credentials.clone(), "10.0.0.1:4420".parse().unwrap());
    let target = TargetHandle::default();
    // What `dhchap_hash` is by itself is what we want, so forgetting it does no harm.
    let cases = [
        ("dhchap_hash", false),
        ("dhchap_dhgroup", false),
        ("dhchap_key", false),
        ("dhchap_ctrl_key", false),
        ("dhchap_dhgroup", true),
        ("dhchap_key", true),
        ("dhchap_ctrl_key", true),
    ];
    for case in cases {
        // Once for a new host, once for one that is to get other keys under its old name.
        bench.bind(A, "w1").await;
        for with_old_keys in [false, true] {
            if with_old_keys {
                assert_eq!(bench.pass(&mut follower).exports().len(), 1, "{case:?}");
                let host = bench.nvmet().observe().unwrap().hosts.keys().next().cloned().unwrap();
                fs::write(bench.root().join("hosts").join(host).join("dhchap_key"), "\n").unwrap();
            }
            *broken.lock().unwrap() = Some(case);
            for _ in 0..2 {
                let seen = bench.pass(&mut follower);
                assert!(
                    seen.faults.iter().any(|f| f.contains(if case.1 { "does not have the keys" } else { case.0 })),
                    "{:?}",
                    seen.faults
                );
                assert_nobody_in(&seen);
            }
            if with_old_keys {
                let bound = bench.bind(B, "w2").await;
                target.publish(bench.pass(&mut follower));
                assert_eq!(target.observation().exports().len(), 1, "the other worker: {case:?}");
                target.settled(bound, WITHIN).await.unwrap();
            }
            *broken.lock().unwrap() = None;
        }
        for mac in [A, B] {
            bench.change(Change::Unbind { mac }).await;
        }
        assert_eq!(bench.pass(&mut follower).faults, Vec::<String>::new());
    }
}
