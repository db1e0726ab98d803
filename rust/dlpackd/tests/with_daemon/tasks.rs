// SPDX-License-Identifier: Apache-2.0
//! Waiting in other loops: poll(2), and tokio.

use std::os::fd::AsRawFd;

use dlx::{ErrorKind, OnFull, PublisherOptions, SubscribeOptions};
use tokio::time::timeout;

use crate::daemon::{Daemon, PATIENCE};

fn is_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn descriptor_becomes_readable_with_a_message() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    let fd = subscription.poll_fd().unwrap().as_raw_fd();
    let poll = |timeout_ms| {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        unsafe { libc::poll(&mut poll, 1, timeout_ms) }
    };
    while subscription.try_take().unwrap().is_none() && poll(0) == 1 {}
    publisher.publish_slice(&[1_u8], &[]).unwrap();
    loop {
        assert_eq!(poll(PATIENCE.as_millis() as i32), 1);
        if subscription.try_take().unwrap().is_some() {
            break;
        }
    }
}

#[tokio::test]
async fn task_awaits_messages_until_the_publisher_leaves() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let mut subscription = client.subscribe("t").unwrap().into_async().unwrap();
    let taking = tokio::spawn(is_send(async move {
        let mut taken = Vec::new();
        while let Some(message) = subscription.next().await {
            taken.push(message.unwrap().slice::<u32>(0).unwrap()[0]);
        }
        taken
    }));
    let options = PublisherOptions { on_full: OnFull::Block, ..Default::default() };
    let mut publisher = client.publisher_with("t", &options).unwrap().into_async().unwrap();
    timeout(PATIENCE, publisher.wait(1)).await.unwrap().unwrap();
    for i in 0..100_u32 {
        let mut loan = publisher.get_ref().alloc::<u32>(&[]).unwrap();
        loan[0] = i;
        publisher.publish(loan).await.unwrap();
        if i % 10 == 0 {
            tokio::task::yield_now().await; // the taker may sleep before the next one
        }
    }
    drop(publisher);
    let taken = timeout(PATIENCE, taking).await.unwrap().unwrap();
    assert_eq!(taken.last(), Some(&99));
    assert!(taken.is_sorted(), "{taken:?}");
}

#[tokio::test]
async fn task_awaits_room_for_a_reliable_subscriber() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let options = PublisherOptions { on_full: OnFull::Block, depth: 2, ..Default::default() };
    let mut publisher = client.publisher_with("t", &options).unwrap().into_async().unwrap();
    let options = SubscribeOptions { reliable: true, ..Default::default() };
    let mut subscription = client.subscribe_with("t", &options).unwrap().into_async().unwrap();
    timeout(PATIENCE, publisher.wait(1)).await.unwrap().unwrap();
    let publishing = tokio::spawn(is_send(async move {
        for i in 0..50_u8 {
            let mut loan = publisher.get_ref().alloc::<u8>(&[]).unwrap();
            loan[0] = i;
            publisher.publish(loan).await.unwrap();
        }
    }));
    for i in 0..50_u8 {
        let message = timeout(PATIENCE, subscription.take()).await.unwrap().unwrap();
        assert_eq!(*message.slice::<u8>(0).unwrap(), [i]);
    }
    timeout(PATIENCE, publishing).await.unwrap().unwrap();
    assert_eq!(subscription.take().await.unwrap_err().kind(), ErrorKind::PublisherGone);
}

#[tokio::test]
async fn cancelled_take_loses_nothing() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let mut subscription = client.subscribe("t").unwrap().into_async().unwrap();
    let publisher = client.publisher("t").unwrap();
    let soon = std::time::Duration::from_millis(5);
    assert!(timeout(soon, subscription.take()).await.is_err());
    publisher.publish_slice(&[7_u8], &[]).unwrap();
    let message = timeout(PATIENCE, subscription.take()).await.unwrap().unwrap();
    assert_eq!(*message.slice::<u8>(0).unwrap(), [7]);
    assert!(subscription.into_inner().try_take().unwrap().is_none());
}
