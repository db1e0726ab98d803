// SPDX-License-Identifier: Apache-2.0
//! Bridges and daemons that are killed while messages are under way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, thread};

use dlx::{OnFull, PublisherOptions};

use crate::hostile::Evil;
use crate::hosts::{Host, PATIENCE, free_port, robot_and_base, wait_until};
use crate::numbers::{Pump, Sets, Taken, publish, publisher, subscriber, take};

/// Numbers go from robot to base while `trouble` does what it does, some times; returns what came
/// of how many, and what the importing bridge has counted as missed.
fn carry_numbers(
    mut trouble: impl FnMut(&mut Host, &mut Host),
    missed: impl Fn(&Host) -> u64,
) -> (Taken, u64, u64) {
    let (mut robot, mut base) = robot_and_base();
    let numbers = publisher(&robot.connect(), "numbers", OnFull::Block);
    let subscription = subscriber(&base.connect(), "robot/numbers", true);
    numbers.wait(1, PATIENCE).unwrap();
    let (stop, published) = (AtomicBool::new(false), AtomicU64::new(0));
    let pump = Pump { stop: &stop, published: &published };
    let mut taken = Taken::default();
    thread::scope(|scope| {
        let stopped = Sets(&stop);
        let thread = scope.spawn(move || {
            pump.run(&numbers);
            numbers
        });
        for _ in 0..3 {
            let next = published.load(Ordering::Relaxed) + 300;
            taken.take_up_to(&subscription, next);
            trouble(&mut robot, &mut base);
            // it goes on: with a number that was published afterwards
            taken.take_up_to(&subscription, published.load(Ordering::Relaxed) + 1);
        }
        drop(stopped);
        // The publisher may wait for the subscriber.
        taken.take_until(&subscription, "the publisher stops", || thread.is_finished());
        let _numbers = thread.join().unwrap();
        let n = published.load(Ordering::Relaxed);
        taken.take_up_to(&subscription, n - 1);
        let missed = missed(&base);
        (taken, n, missed)
    })
}

fn missed(base: &Host) -> u64 {
    base.metric("missed_messages_total", "import", "robot", "numbers")
}

#[test]
fn a_killed_importing_bridge_loses_nothing() {
    let (taken, published, _) = carry_numbers(|_, base| base.restart_bridge(), |_| 0);
    assert_eq!(taken.numbers.len() as u64, published);
    // What was published and not acknowledged comes again.
    assert!(taken.repeated <= 3 * 32, "{} came twice", taken.repeated);
}

#[test]
fn what_a_killed_exporting_bridge_loses_is_counted() {
    let (taken, published, missed) = carry_numbers(|robot, _| robot.restart_bridge(), missed);
    let n = taken.numbers.len() as u64;
    assert_eq!(n + missed, published, "{n} taken, {missed} missed, {} gaps", taken.gaps);
    assert!(missed > 0, "nothing was lost, which tells nothing");
    assert_eq!(taken.repeated, 0);
}

#[test]
fn what_a_killed_exporting_daemon_loses_is_counted() {
    let (taken, published, missed) = carry_numbers(
        |robot, _| {
            robot.kill_daemon();
            robot.start_daemon();
        },
        missed,
    );
    let n = taken.numbers.len() as u64;
    assert_eq!(n + missed, published, "{n} taken, {missed} missed, {} gaps", taken.gaps);
    assert_eq!(taken.repeated, 0);
}

#[test]
fn what_a_killed_importing_daemon_loses_is_counted() {
    let (taken, published, missed) = carry_numbers(
        |_, base| {
            base.kill_daemon();
            base.start_daemon();
        },
        missed,
    );
    let n = taken.numbers.len() as u64;
    assert_eq!(n + missed + taken.gaps, published, "{n} taken, {missed} missed");
    assert_eq!(taken.repeated, 0);
}

fn assert_ends(host: &mut Host) {
    host.signal_bridge(libc::SIGTERM);
    assert!(host.wait_bridge(), "{}", host.read("bridge"));
    assert!(!host.read("bridge").contains("have not ended"), "{}", host.read("bridge"));
}

#[test]
fn bridges_end_when_they_are_told() {
    let (mut robot, mut base) = robot_and_base();
    let here = robot.connect();
    let numbers = publisher(&here, "numbers", OnFull::Block);
    let _idle = publisher(&here, "idle", OnFull::Block);
    let client = base.connect();
    wait_until("topics are known", || client.publishers(None).unwrap().len() == 2);
    let subscription = subscriber(&client, "robot/numbers", true);
    numbers.wait(1, PATIENCE).unwrap();
    publish(&numbers, 1);
    subscription.take_timeout(PATIENCE).unwrap();
    for host in [&mut base, &mut robot] {
        assert_ends(host);
    }
    wait_until("the topic is gone", || client.publishers(None).unwrap().is_empty());
}

#[test]
fn bridges_without_memory_end_when_they_are_told() {
    let (robot, mut base) = robot_and_base();
    base.limit_memory("64MiB");
    let images = publisher(&robot.connect(), "images", OnFull::Block);
    let _subscription = subscriber(&base.connect(), "robot/images", true);
    images.wait(1, PATIENCE).unwrap();
    images.publish(images.alloc::<u8>(&[100 << 20]).unwrap()).unwrap();
    wait_until("it waits", || base.metric("waiting", "import", "robot", "images") == 1);
    assert_ends(&mut base);
}

#[test]
fn bridges_without_a_daemon_end_when_they_are_told() {
    let mut base = Host::new("base", None);
    base.kill_daemon();
    base.start_bridge(&["--import", "**", "--wait-daemon"]);
    let blocked = || base.bridge_status("SigBlk:", 16) >> (libc::SIGTERM - 1) & 1 == 1;
    wait_until("signals are waited for", blocked);
    assert_ends(&mut base);
    base.start_bridge(&["--import", "**", "--wait-daemon=10ms", "--json"]);
    assert!(!base.wait_bridge(), "there is no daemon");
    let said = base.read("bridge");
    assert!(said.starts_with("{\"message\": \"") && said.ends_with("\"}\n"), "{said}");
}

/// A robot and a base, which has more lines in its configuration, and where the robot listens.
fn robot_and_base_with(lines: &str) -> (Host, Host, String) {
    let address = format!("127.0.0.1:{}", free_port());
    let (mut robot, mut base) = (Host::new("robot", None), Host::new("base", None));
    robot.start_bridge(&[&format!("--listen={address}")]);
    let file = base.path("bridge.toml");
    fs::write(&file, format!("{lines}\n[[import]]\ntopics = '**'\n")).unwrap();
    base.start_bridge(&["--connect", &address, "--config", file.to_str().unwrap()]);
    (robot, base, address)
}

/// The publisher has left for longer than the base waits for a silent host.
#[test]
fn what_a_publisher_left_comes_as_long_as_its_host_is_heard_of() {
    let (robot, base, address) = robot_and_base_with("hold = 3");
    let (here, there) = (robot.connect(), base.connect());
    let watcher = Evil::new(&address);
    let subscription = subscriber(&there, "robot/numbers", true);
    let numbers = publisher(&here, "numbers", OnFull::Block);
    numbers.wait(1, PATIENCE).unwrap();
    wait_until("the topic is offered", || watcher.n_offers("robot") == 1);
    (0..40).for_each(|number| publish(&numbers, number));
    drop(numbers);
    wait_until("the topic is not offered any more", || watcher.n_offers("robot") == 0);
    thread::sleep(Duration::from_secs(8)); // the case itself
    (0..40).for_each(|number| assert_eq!(take(&subscription), number));
    wait_until("the topic ends", || there.publishers(None).unwrap().is_empty());
}

/// The topic was offered no more for a while, and the subscriber there had not taken all.
#[test]
fn a_publisher_that_comes_back_finds_its_backlog_carried_on() {
    let (robot, base, address) = robot_and_base_with("");
    let (here, there) = (robot.connect(), base.connect());
    let watcher = Evil::new(&address);
    let subscription = subscriber(&there, "robot/numbers", true);
    let options = PublisherOptions { on_full: OnFull::Block, depth: 16, ..Default::default() };
    let start = || {
        let numbers = here.publisher_with("numbers", &options).unwrap();
        numbers.wait(1, PATIENCE).unwrap();
        wait_until("the topic is offered", || watcher.n_offers("robot") == 1);
        numbers
    };
    let numbers = start();
    // 16 are here, 32 under way and the others there.
    (0..60).for_each(|number| publish(&numbers, number));
    drop(numbers);
    wait_until("the topic is not offered any more", || watcher.n_offers("robot") == 0);
    let numbers = start();
    publish(&numbers, 60);
    (0..20).for_each(|number| assert_eq!(take(&subscription), number));
    wait_until("the bridge has taken all", || {
        robot.metric("messages_total", "export", "base", "numbers") == 61
    });
    (61..66).for_each(|number| publish(&numbers, number));
    let mut rest: Vec<_> = (20..66).map(|_| take(&subscription)).collect();
    rest.sort_unstable(); // those of two publishers have no order
    assert_eq!(rest, Vec::from_iter(20..66));
    drop(numbers);
    wait_until("the topic ends", || there.publishers(None).unwrap().is_empty());
}

#[test]
fn bridges_that_an_operator_kicks_end() {
    let (mut robot, mut base) = robot_and_base();
    let numbers = publisher(&robot.connect(), "numbers", OnFull::Block);
    let _subscription = subscriber(&base.connect(), "robot/numbers", true);
    numbers.wait(1, PATIENCE).unwrap();
    for host in [&mut base, &mut robot] {
        host.kick_bridge();
        wait_until("it ends", || host.read("bridge").contains("the bridge ends: "));
        assert!(host.read("bridge").contains("kicked by dlxctl"), "{}", host.read("bridge"));
        assert!(!host.wait_bridge(), "{}", host.read("bridge"));
    }
}
