// SPDX-License-Identifier: Apache-2.0
//! What is not carried.

use std::fs;

use dlx::OnFull;

use crate::hosts::{Host, PATIENCE, pair, robot_and_base, wait_until};
use crate::numbers::{publish, publisher, subscriber, take};

const ALL: [&str; 4] = ["--export", "**", "--import", "**"];

#[test]
fn topics_do_not_go_round() {
    let (robot, base) = pair(&ALL, &ALL);
    let (here, there) = (robot.connect(), base.connect());
    let ours = publisher(&here, "x", OnFull::Block);
    let theirs = publisher(&there, "y", OnFull::Block);
    let topics = |client: &dlx::Client| -> Vec<String> {
        client.publishers(None).unwrap().into_iter().map(|p| p.topic).collect()
    };
    let (x, y) = (subscriber(&there, "robot/x", true), subscriber(&here, "base/y", true));
    ours.wait(1, PATIENCE).unwrap();
    theirs.wait(1, PATIENCE).unwrap();
    publish(&ours, 1);
    publish(&theirs, 2);
    assert_eq!((take(&x), take(&y)), (1, 2));
    // A topic that is made now is known when the others would have come back long ago.
    let _last = publisher(&here, "last", OnFull::Block);
    wait_until("the last topic is known", || topics(&there).contains(&"robot/last".into()));
    assert_eq!(topics(&here), ["base/y", "last", "x"]);
    assert_eq!(topics(&there), ["robot/last", "robot/x", "y"]);
}

/// Both sides publish the same topic, and both import it under the name that it has.
#[test]
fn messages_do_not_go_round() {
    let (mut robot, mut base) = pair(&ALL, &ALL);
    for host in [&mut robot, &mut base] {
        let file = "[[export]]\ntopics = 'chat'\n[[import]]\ntopics = 'chat'\nprefix = ''\n";
        let path = host.path("bridge.toml");
        fs::write(&path, file).unwrap();
        host.replace_options(&ALL, &["--config", path.to_str().unwrap()]);
        host.restart_bridge();
    }
    let (here, there) = (robot.connect(), base.connect());
    let ours = publisher(&here, "chat", OnFull::Block);
    let theirs = publisher(&there, "chat", OnFull::Block);
    let heard_here = subscriber(&here, "chat", true);
    let heard_there = subscriber(&there, "chat", true);
    // A subscriber and a bridge each, which has a subscriber itself.
    for publisher in [&ours, &theirs] {
        publisher.wait(2, PATIENCE).unwrap();
    }
    let mut heard = [Vec::new(), Vec::new()];
    for i in 0..100 {
        publish(&ours, 2 * i);
        publish(&theirs, 2 * i + 1);
        for (numbers, subscription) in heard.iter_mut().zip([&heard_here, &heard_there]) {
            numbers.extend([take(subscription), take(subscription)]);
        }
    }
    for mut numbers in heard {
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..200), "{numbers:?}");
    }
    for (host, other) in [(&robot, "base"), (&base, "robot")] {
        wait_until("all are counted", || {
            host.metric("messages_total", "import", other, "chat") == 100
        });
    }
}

/// A program that publishes a number and leaves at once.
fn publish_once(host: &Host, program: &str, number: u64) {
    let client = host.connect_as(program);
    let chat = publisher(&client, "chat", OnFull::Block);
    chat.wait(1, PATIENCE).unwrap();
    publish(&chat, number);
}

#[test]
fn programs_that_have_left_are_carried_and_bridges_are_not() {
    let (robot, base) = robot_and_base();
    let lasting = publisher(&robot.connect(), "chat", OnFull::Block);
    let subscription = subscriber(&base.connect(), "robot/chat", true);
    lasting.wait(1, PATIENCE).unwrap();
    for number in 0..100 {
        publish_once(&robot, "dlx-bridge:other", 1000 + number);
        publish_once(&robot, "test", number);
        assert_eq!(take(&subscription), number);
    }
}

#[test]
fn services_are_not_exported() {
    let (robot, base) = robot_and_base();
    let (here, there) = (robot.connect(), base.connect());
    let service = here.service("svc/detect").unwrap();
    let caller = here.caller("svc/detect").unwrap();
    wait_until("it is refused", || {
        robot.read("bridge").contains(
            "svc/detect is a service and is not exported: work queues and calls end at the machine",
        )
    });
    let _numbers = publisher(&here, "numbers", OnFull::Block);
    wait_until("another topic is known", || !there.publishers(None).unwrap().is_empty());
    assert_eq!(there.publishers(None).unwrap()[0].topic, "robot/numbers");
    drop((service, caller));
}

#[test]
fn two_bridges_with_one_name_say_so() {
    let (robot, mut base) = robot_and_base();
    let topic = publisher(&robot.connect(), "numbers", OnFull::Block);
    let other = publisher(&base.connect(), "numbers", OnFull::Block);
    base.name = "robot".into();
    base.restart_bridge();
    wait_until("it is said", || {
        base.read("bridge").contains("another bridge of realm dlx has the name robot, too")
    });
    drop((topic, other));
}
