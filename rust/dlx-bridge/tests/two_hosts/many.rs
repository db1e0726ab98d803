// SPDX-License-Identifier: Apache-2.0
//! Many topics at once.

use dlx::OnFull;

use crate::hosts::{PATIENCE, robot_and_base, wait_until};
use crate::numbers::{publish, publisher, subscriber, take};

fn many(n: u64) {
    let (robot, base) = robot_and_base();
    let (here, there) = (robot.connect(), base.connect());
    let publishers: Vec<_> =
        (0..n).map(|i| publisher(&here, &format!("topic/{i}"), OnFull::Block)).collect();
    wait_until("all topics are known", || there.publishers(None).unwrap().len() as u64 == n);
    let subscriptions: Vec<_> =
        (0..n).map(|i| subscriber(&there, &format!("robot/topic/{i}"), true)).collect();
    publishers.iter().for_each(|publisher| publisher.wait(1, PATIENCE).unwrap());
    for round in 0..3 {
        for (i, publisher) in publishers.iter().enumerate() {
            publish(publisher, 10 * i as u64 + round);
        }
    }
    for (i, subscription) in subscriptions.iter().enumerate() {
        for round in 0..3 {
            assert_eq!(take(subscription), 10 * i as u64 + round);
        }
    }
    let metrics = base.metrics().unwrap();
    let direct = metrics.iter().filter(|(name, _)| name.starts_with("dlx_bridge_direct{"));
    assert_eq!(direct.filter(|(_, value)| **value == 1.0).count() as u64, n, "go by a stream");
}

#[test]
fn a_hundred_topics_are_carried() {
    many(100);
}

#[test]
#[ignore = "takes long: make check-bridge"]
fn a_thousand_topics_are_carried() {
    many(1000);
}
