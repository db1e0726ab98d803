// SPDX-License-Identifier: Apache-2.0
//! Waiting: time limits, the end of publishers, and a daemon that is restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dlx::{Client, ConnectOptions, Ends, ErrorKind, Interrupt, SubscribeOptions};

use crate::daemon::{Daemon, PATIENCE};

#[test]
fn take_ends_by_its_time_limit() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    assert!(subscription.try_take().unwrap().is_none());
    let begin = Instant::now();
    let error = subscription.take_timeout(Duration::from_millis(50)).unwrap_err();
    assert!(begin.elapsed() >= Duration::from_millis(50));
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("nobody publishes it"), "{error}");
}

#[test]
fn iterator_ends_with_the_last_publisher() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    for round in 0_u8..2 {
        let publisher = client.publisher("t").unwrap();
        for i in 0..3 {
            publisher.publish_slice(&[3 * round + i], &[]).unwrap();
        }
        drop(publisher);
        let taken: Vec<u8> =
            subscription.messages().map(|m| m.unwrap().slice::<u8>(0).unwrap()[0]).collect();
        assert_eq!(taken, [3 * round, 3 * round + 1, 3 * round + 2]);
    }
}

#[test]
fn subscription_that_never_ends_waits_for_the_next_publisher() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let options = SubscribeOptions { ends: Ends::Never, ..Default::default() };
    let subscription = client.subscribe_with("t", &options).unwrap();
    client.publisher("t").unwrap().publish_slice(&[1_u8], &[]).unwrap();
    subscription.take_timeout(PATIENCE).unwrap();
    let error = subscription.take_timeout(Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[test]
fn several_messages_are_taken_at_once() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    for i in 0_u8..5 {
        publisher.publish_slice(&[i], &[]).unwrap();
    }
    let messages = subscription.take_many(3, PATIENCE).unwrap();
    assert_eq!(messages.iter().map(|m| m.seq()).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(subscription.take_many(100, PATIENCE).unwrap().len(), 2);
    assert_eq!(subscription.take_many(0, PATIENCE).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn publisher_and_subscription_survive_the_daemon() {
    let mut daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    publisher.publish_slice(&[1_u8], &[]).unwrap();
    subscription.take_timeout(PATIENCE).unwrap();
    daemon.restart();
    // Each call looks for the daemon; what is published before the two have met is lost.
    let message = loop {
        publisher.publish_slice(&[2_u8], &[]).unwrap();
        match subscription.take_timeout(Duration::from_millis(10)) {
            Ok(message) => break message,
            Err(e) if matches!(e.kind(), ErrorKind::Timeout | ErrorKind::Disconnected) => {}
            Err(e) => panic!("{e:?}"),
        }
    };
    assert_eq!(*message.slice::<u8>(0).unwrap(), [2]);
}

#[test]
fn interrupt_ends_a_wait_and_is_freed_with_the_last_handle() {
    let daemon = Daemon::start();
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    let mut options = ConnectOptions {
        socket: Some(daemon.socket()),
        // the second question ends the wait
        interrupt: Some(Interrupt::new(move || asked.swap(true, Ordering::Relaxed))),
        ..Default::default()
    };
    let client = Client::connect_with(&options).unwrap();
    let subscription = client.subscribe("t").unwrap();
    options.socket = Some(daemon.socket().with_extension("not"));
    assert!(Client::connect_with(&options).is_err());
    drop((client, options));
    assert_eq!(Arc::strong_count(&stop), 2);
    assert_eq!(subscription.take().unwrap_err().kind(), ErrorKind::Interrupted);
    drop(subscription);
    assert_eq!(Arc::strong_count(&stop), 1);
}
