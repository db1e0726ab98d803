// SPDX-License-Identifier: Apache-2.0
//! Work queues.

use std::time::Duration;

use dlx::{Client, ErrorKind, EventKind, Message, Publisher, PublisherOptions, SubscribeOptions};

use crate::daemon::{Daemon, PATIENCE};

fn publisher(client: &Client) -> Publisher {
    let options = PublisherOptions { groups: vec!["g".into()], ..Default::default() };
    client.publisher_with("t", &options).unwrap()
}

fn worker_options() -> SubscribeOptions {
    SubscribeOptions { group: Some("g".into()), ..Default::default() }
}

fn number(message: &Message) -> u8 {
    message.slice::<u8>(0).unwrap()[0]
}

#[test]
fn each_message_goes_to_one_worker() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let publisher = publisher(&client);
    for i in 0_u8..4 {
        publisher.publish_slice(&[i], &[]).unwrap();
    }
    let a = client.subscribe_with("t", &worker_options()).unwrap();
    let b = client.subscribe_with("t", &worker_options()).unwrap();
    let mut taken = Vec::new();
    for worker in [&a, &b, &b, &a] {
        let message = worker.take_timeout(PATIENCE).unwrap();
        assert_eq!(message.attempt(), 1);
        taken.push(number(&message));
        message.done().unwrap();
    }
    assert_eq!(taken, [0, 1, 2, 3]);
    publisher.drain(PATIENCE).unwrap();
    let groups = client.groups(Some("t")).unwrap();
    assert_eq!((groups[0].name.as_str(), groups[0].done, groups[0].n_workers), ("g", 4, 2));
}

#[test]
fn dropped_message_is_delivered_again() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let publisher = publisher(&client);
    publisher.publish_slice(&[7_u8], &[]).unwrap();
    let worker = client.subscribe_with("t", &worker_options()).unwrap();
    drop(worker.take_timeout(PATIENCE).unwrap());
    let again = worker.take_timeout(PATIENCE).unwrap();
    assert_eq!((number(&again), again.attempt()), (7, 2));
    again.give_back().unwrap();
    assert_eq!(again.done().unwrap_err().kind(), ErrorKind::NotFound);
    drop(again);

    let error = publisher.drain(Duration::from_millis(10)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let last = worker.take_timeout(PATIENCE).unwrap();
    assert_eq!(last.attempt(), 3);
    last.renew().unwrap();
    last.done_at_release().unwrap();
    drop(last);
    publisher.drain(PATIENCE).unwrap();
}

#[test]
fn message_that_is_given_back_too_often_is_a_dead_letter() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let publisher = publisher(&client);
    let dead = client.subscribe("dead").unwrap();
    publisher.publish_slice(&[9_u8], &[]).unwrap();
    let options =
        SubscribeOptions { max_attempts: 1, dead_letters: Some("dead".into()), ..worker_options() };
    let worker = client.subscribe_with("t", &options).unwrap();
    drop(worker.take_timeout(PATIENCE).unwrap());
    assert!(worker.try_take().unwrap().is_none());
    assert_eq!(number(&dead.take_timeout(PATIENCE).unwrap()), 9);
    let kinds: Vec<_> =
        std::iter::from_fn(|| worker.next_event().unwrap()).map(|e| e.kind).collect();
    assert!(kinds.contains(&EventKind::DeadLetter), "{kinds:?}");
    assert_eq!(worker.stats().unwrap().dead, 1);
}

#[test]
fn queue_outlives_its_publisher_until_it_is_dropped() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let publisher = publisher(&client);
    publisher.publish_slice(&[1_u8], &[]).unwrap();
    publisher.publish_slice(&[2_u8], &[]).unwrap();
    drop(publisher);
    let worker = client.subscribe_with("t", &worker_options()).unwrap();
    let message = worker.take_timeout(PATIENCE).unwrap();
    assert_eq!(number(&message), 1);
    client.drop_queue("t").unwrap();
    assert_eq!(client.drop_queue("t").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(number(&message), 1);
}

#[test]
fn message_without_a_group_is_nobodys_work() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    client.publisher("t").unwrap().publish_slice(&[1_u8], &[]).unwrap();
    let message = subscription.take_timeout(PATIENCE).unwrap();
    assert_eq!(message.attempt(), 0);
    assert_eq!(message.done().unwrap_err().kind(), ErrorKind::Invalid);
}
