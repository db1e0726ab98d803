// SPDX-License-Identifier: Apache-2.0
//! Connections that break, are slow or late, and programs that stand still, for as long as the case
//! is: `make check-bridge`.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, io::BufRead, io::BufReader};

use dlx::OnFull;
use zenoh::Wait;

use crate::hosts::{
    Host, PATIENCE, Process, can_be_apart, free_port, robot_and_base, robot_and_base_apart,
    robot_and_base_behind, robot_and_base_by, wait_until,
};
use crate::numbers::{Pump, Sets, Taken, publish, publisher, subscriber};

/// A reliable topic and one that drops go from robot to base while the trouble lasts. Returns how
/// long the reliable one stood still.
pub fn carry_both(robot: &mut Host, base: &mut Host, trouble: impl FnOnce(&mut Host, &mut Host)) {
    let (here, there) = (robot.connect(), base.connect());
    let publishers =
        [publisher(&here, "reliable", OnFull::Block), publisher(&here, "drops", OnFull::Drop)];
    let subscriptions =
        [subscriber(&there, "robot/reliable", true), subscriber(&there, "robot/drops", false)];
    for publisher in &publishers {
        publisher.wait(1, PATIENCE).unwrap();
    }
    let stop = AtomicBool::new(false);
    let published = [AtomicU64::new(0), AtomicU64::new(0)];
    let quiet = AtomicBool::new(false); // the takers may end
    let taken = thread::scope(|scope| {
        let (stopped, silenced) = (Sets(&stop), Sets(&quiet));
        let pumps: Vec<_> = publishers
            .into_iter()
            .zip(&published)
            .map(|(publisher, published)| {
                let pump = Pump { stop: &stop, published };
                scope.spawn(move || {
                    pump.run(&publisher);
                    publisher // it lives until everything has come
                })
            })
            .collect();
        let takers: Vec<_> = subscriptions
            .into_iter()
            .map(|subscription| {
                let quiet = &quiet;
                scope.spawn(move || {
                    let mut taken = Taken::default();
                    while taken.take(&subscription) || !quiet.load(Ordering::Relaxed) {}
                    taken
                })
            })
            .collect();
        let bytes = |base: &Host, topic| base.metric("messages_total", "import", "robot", topic);
        for topic in ["reliable", "drops"] {
            wait_until("messages come", || bytes(base, topic) > 300);
        }
        trouble(robot, base);
        for topic in ["reliable", "drops"] {
            let before = bytes(base, topic);
            wait_until("messages come again", || bytes(base, topic) > before + 300);
        }
        drop(stopped);
        let publishers: Vec<_> = pumps.into_iter().map(|pump| pump.join().unwrap()).collect();
        for (topic, published) in ["reliable", "drops"].iter().zip(&published) {
            wait_until("the last message has come", || {
                let missed = base.metric("missed_messages_total", "import", "robot", topic);
                let n = published.load(Ordering::Relaxed);
                bytes(base, topic) + missed >= n
            });
        }
        drop(silenced);
        let taken: Vec<_> = takers.into_iter().map(|taker| taker.join().unwrap()).collect();
        drop(publishers);
        taken
    });
    for ((topic, published), taken) in ["reliable", "drops"].iter().zip(&published).zip(&taken) {
        let missed = base.metric("missed_messages_total", "import", "robot", topic);
        let (n, published) = (taken.numbers.len() as u64, published.load(Ordering::Relaxed));
        assert_eq!(taken.repeated, 0, "{topic}");
        assert_eq!(n + missed + taken.gaps, published, "{topic}: {n} taken, {missed} missed");
        if *topic == "reliable" {
            assert_eq!(n, published, "{topic}");
        }
    }
}

/// The connection is down for so long.
fn link_down(seconds: u64) {
    let (mut robot, mut base, link) = robot_and_base_apart();
    carry_both(&mut robot, &mut base, |_, _| {
        link.set("down");
        thread::sleep(Duration::from_secs(seconds)); // the case itself
        link.set("up");
    });
    drop((robot, base));
}

/// The shortest one is among those that CI runs.
#[test]
fn connections_may_be_down_for_3_s() {
    if can_be_apart() {
        link_down(3);
    }
}

#[test]
#[ignore = "needs root: make check-bridge"]
fn connections_may_be_down_for_7_s() {
    link_down(7);
}

#[test]
#[ignore = "needs root: make check-bridge"]
fn connections_may_be_down_for_12_s() {
    link_down(12);
}

/// Less than what is published goes through: tbf of the kernel.
#[test]
#[ignore = "needs root: make check-bridge"]
fn connections_may_be_slow() {
    let (mut robot, mut base, link) = robot_and_base_apart();
    link.limit_rate("2mbit");
    carry_both(&mut robot, &mut base, |_, _| ());
    drop((robot, base));
}

/// Passes on what it reads, so much later.
fn delay(mut from: TcpStream, mut to: TcpStream, late: Duration) {
    let (send, pieces) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (due, piece) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now())); // the case itself
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both); // it may be closed already
    });
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer)
            && send.send((Instant::now() + late, buffer[..n].to_vec())).is_ok()
        {}
    });
}

/// A proxy that is late in both directions, as a long way is.
fn delaying_proxy(to: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, to) = (listener.local_addr().unwrap().to_string(), to.to_string());
    thread::spawn(move || {
        for one in listener.incoming().flatten() {
            let Ok(other) = TcpStream::connect(&to) else { continue };
            for (from, to) in [(&one, &other), (&other, &one)] {
                delay(
                    from.try_clone().unwrap(),
                    to.try_clone().unwrap(),
                    Duration::from_millis(150),
                );
            }
        }
    });
    address
}

#[test]
fn connections_may_be_late() {
    let (mut robot, mut base) = robot_and_base_by(delaying_proxy);
    carry_both(&mut robot, &mut base, |_, _| ());
}

/// A router of zenoh, as zenohd is one.
#[test]
#[ignore = "a part of another test"]
fn routes_as_another_program() {
    let Some(address) = env::var_os("BRIDGE_TEST_ROUTER") else { return };
    let mut config = zenoh::Config::default();
    for (key, value) in [
        ("mode", "\"router\"".to_string()),
        ("scouting/multicast/enabled", "false".into()),
        ("listen/endpoints", format!("[\"tcp/{}\"]", address.to_str().unwrap())),
    ] {
        config.insert_json5(key, &value).unwrap();
    }
    let _session = zenoh::open(config).wait().unwrap();
    let _ = std::io::stdin().read(&mut [0]); // it ends when the test ends
}

fn router(address: &str) -> Process {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "outages::routes_as_another_program"])
        .env("BRIDGE_TEST_ROUTER", address)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    Process(command.spawn().unwrap())
}

#[test]
fn routers_in_between_may_be_killed() {
    let address = format!("127.0.0.1:{}", free_port());
    let first = router(&address);
    let (mut robot, mut base) = robot_and_base_behind(&address);
    let mut second = None;
    carry_both(&mut robot, &mut base, |_, _| {
        drop(first);
        second = Some(router(&address));
    });
}

#[test]
#[ignore = "takes long: make check-bridge"]
fn bridges_may_stand_still() {
    for importing in [true, false] {
        let (mut robot, mut base) = robot_and_base();
        carry_both(&mut robot, &mut base, |robot, base| {
            let bridge = if importing { base } else { robot };
            bridge.signal_bridge(libc::SIGSTOP);
            thread::sleep(Duration::from_secs(12)); // the case itself
            bridge.signal_bridge(libc::SIGCONT);
        });
    }
}

/// A program of its own that takes numbers from "robot/slow", and prints them.
#[test]
#[ignore = "a part of another test"]
fn takes_numbers_as_another_program() {
    let Some(socket) = env::var_os("BRIDGE_TEST_SOCKET") else { return };
    let options = dlx::ConnectOptions { socket: Some(socket.into()), ..Default::default() };
    let client = dlx::Client::connect_with(&options).unwrap();
    let subscription = subscriber(&client, "robot/slow", true);
    loop {
        let message = subscription.take().unwrap();
        println!("number {}", message.slice::<u64>(0).unwrap()[0]);
    }
}

fn another_program(host: &Host) -> Process {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "--nocapture", "outages::takes_numbers_as_another_program"])
        .env("BRIDGE_TEST_SOCKET", host.path("socket"))
        .stdout(Stdio::piped());
    Process(command.spawn().unwrap())
}

#[test]
#[ignore = "takes long: make check-bridge"]
fn a_stopped_subscriber_stops_its_topic_alone() {
    let (mut robot, mut base) = robot_and_base();
    let slow = publisher(&robot.connect(), "slow", OnFull::Block);
    let mut program = another_program(&base);
    let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
    let mut next_number = move || {
        let line = lines.by_ref().map(Result::unwrap).find(|line| line.contains("number "));
        line.unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    slow.wait(1, PATIENCE).unwrap();
    let signal = |signal| {
        // SAFETY: a system call without pointers, to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(program.0.id() as i32, signal) }, 0);
    };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let all_done = Sets(&done);
        scope.spawn(|| {
            let slow = slow;
            (0..5000).for_each(|number| publish(&slow, number));
            wait_until("all has come", || done.load(Ordering::Relaxed));
        });
        assert_eq!(next_number(), 0);
        let start = Instant::now();
        carry_both(&mut robot, &mut base, |_, _| {
            signal(libc::SIGSTOP);
            thread::sleep(Duration::from_secs(8)); // the case itself
        });
        assert!(start.elapsed() < 3 * Duration::from_secs(8), "the other topics were held up");
        signal(libc::SIGCONT);
        (1..5000).for_each(|number| assert_eq!(next_number(), number));
        drop(all_done);
    });
}
