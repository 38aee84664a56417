use super::*;

fn at(secs: u64) -> Mono {
    Mono(Duration::from_secs(secs))
}

fn service(name: &'static str) -> Service {
    Service { name, command: vec![format!("/usr/bin/{name}")] }
}

fn running(name: &'static str, pid: u32) -> Supervisor {
    let mut all = Supervisor::default();
    assert_eq!(all.keep(service(name), at(0)), [Action::Spawn(service(name))]);
    assert_eq!(all.on(&Event::Spawned { name, pid }, at(0)), []);
    all
}

#[test]
fn a_service_that_keeps_failing_waits_longer_each_time() {
    let mut all = running("a", 10);
    let mut now = 0;
    let mut waits = Vec::new();
    for pid in 10..19 {
        assert_eq!(all.on(&Event::Exited { pid }, at(now)), []);
        let until = all.next_deadline().unwrap();
        waits.push(until.since(at(now)).as_secs());
        assert_eq!(all.on(&Event::Time, at(now)), [], "not before its time");
        now = until.0.as_secs();
        assert_eq!(all.on(&Event::Time, at(now)), [Action::Spawn(service("a"))]);
        assert_eq!(all.on(&Event::Spawned { name: "a", pid: pid + 1 }, at(now)), []);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
}

#[test]
fn a_service_that_was_healthy_starts_again_soon() {
    let mut all = running("a", 10);
    for _ in 0..5 {
        all.on(&Event::SpawnFailed { name: "a" }, at(0));
    }
    all.on(&Event::Exited { pid: 10 }, at(61));
    assert_eq!(all.next_deadline(), Some(at(62)));
    assert_eq!(all.failing().collect::<Vec<_>>(), [("a", 1)]);
}

#[test]
fn orphans_change_nothing() {
    let mut all = running("a", 10);
    assert_eq!(all.on(&Event::Exited { pid: 999 }, at(1)), []);
    assert_eq!((all.name_of(10), all.name_of(999)), (Some("a"), None));
}

#[test]
fn stopping_asks_then_ends_and_is_finished_once() {
    let mut all = running("a", 10);
    all.keep(service("b"), at(0));
    all.on(&Event::Spawned { name: "b", pid: 11 }, at(0));
    assert_eq!(all.on(&Event::Stop, at(5)), [Action::Terminate(10), Action::Terminate(11)]);
    assert_eq!(all.on(&Event::Exited { pid: 10 }, at(6)), []);
    assert_eq!(all.next_deadline(), Some(at(15)));
    assert_eq!(all.on(&Event::Time, at(15)), [Action::Kill(11)]);
    assert_eq!(all.on(&Event::Time, at(16)), []);
    assert_eq!(all.on(&Event::Exited { pid: 11 }, at(16)), [Action::Finished]);
    assert_eq!(all.on(&Event::Time, at(17)), []);
    assert_eq!(all.keep(service("c"), at(18)), []);
}

#[test]
fn stopping_when_nothing_runs_is_finished_at_once() {
    assert_eq!(Supervisor::default().on(&Event::Stop, at(0)), [Action::Finished]);
    let mut all = running("a", 10);
    all.on(&Event::Exited { pid: 10 }, at(1));
    assert_eq!(all.on(&Event::Stop, at(1)), [Action::Finished]);
}

#[test]
fn a_process_that_starts_while_stopping_is_stopped() {
    let mut all = Supervisor::default();
    all.keep(service("a"), at(0));
    assert_eq!(all.on(&Event::Stop, at(0)), []);
    assert_eq!(all.on(&Event::Spawned { name: "a", pid: 10 }, at(1)), [Action::Terminate(10)]);
}

#[test]
fn another_command_replaces_the_running_one() {
    let mut all = running("a", 10);
    assert_eq!(all.keep(service("a"), at(1)), []);
    let other = Service { name: "a", command: vec!["/usr/bin/a".to_owned(), "eth1".to_owned()] };
    assert_eq!(all.keep(other.clone(), at(1)), [Action::Terminate(10)]);
    all.on(&Event::Exited { pid: 10 }, at(2));
    assert_eq!(all.on(&Event::Time, at(3)), [Action::Spawn(other)]);
}

#[test]
fn a_process_that_does_not_even_end_when_killed_is_not_waited_for() {
    let mut all = running("a", 10);
    all.on(&Event::Stop, at(5));
    assert_eq!(all.on(&Event::Time, at(15)), [Action::Kill(10)]);
    assert_eq!(all.next_deadline(), Some(at(25)));
    assert_eq!(all.on(&Event::Time, at(24)), []);
    assert_eq!(all.name_of(10), Some("a"));
    assert_eq!(all.on(&Event::Time, at(25)), [Action::GaveUp { name: "a", pid: 10 }, Action::Finished]);
    assert_eq!(all.next_deadline(), None);
    assert_eq!(all.on(&Event::Exited { pid: 10 }, at(26)), [], "it may end later");
}

/// Every state meets every event; afterwards stopping always comes to its end.
#[test]
fn every_state_survives_every_event_and_still_stops() {
    let states = [
        State::Waiting { until: at(5) },
        State::Starting,
        State::Running { pid: 1, since: at(0) },
        State::Stopping { pid: 1, kill_at: at(15) },
        State::Killed { pid: 1, give_up_at: at(25) },
        State::Stopped,
    ];
    let events = [
        Event::Spawned { name: "a", pid: 1 },
        Event::SpawnFailed { name: "a" },
        Event::SpawnFailed { name: "other" },
        Event::Exited { pid: 1 },
        Event::Exited { pid: 2 },
        Event::Time,
        Event::Stop,
    ];
    for state in &states {
        for event in &events {
            let child = Child { service: service("a"), failures: 40, state: state.clone() };
            let mut all = Supervisor { children: vec![child], stopping: false, finished: false };
            let mut actions = all.on(event, at(20));
            let hung = all.clone();
            actions.extend(all.on(&Event::Stop, at(20)));
            actions.extend(all.on(&Event::Spawned { name: "a", pid: 1 }, at(20)));
            actions.extend(all.on(&Event::Time, at(40)));
            actions.extend(all.on(&Event::Exited { pid: 1 }, at(40)));
            assert_eq!(actions.last(), Some(&Action::Finished), "{state:?} {event:?}: {actions:?}");

            // And by its deadlines alone, when no process ever ends.
            let mut all = hung;
            all.on(&Event::Stop, at(20));
            all.on(&Event::Spawned { name: "a", pid: 1 }, at(20));
            while let Some(deadline) = all.next_deadline() {
                assert!(deadline <= at(20).after(STOP_WAIT * 2), "{state:?} {event:?}");
                all.on(&Event::Time, deadline.max(at(20)));
            }
            assert!(all.is_finished(), "{state:?} {event:?}");
        }
    }
}
