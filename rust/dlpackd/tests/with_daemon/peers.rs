// SPDX-License-Identifier: Apache-2.0
//! Events, lists and counters.

use dlx::{EventKind, OnFull, PublisherOptions};

use crate::daemon::{Daemon, PATIENCE};

#[test]
fn events_tell_who_comes_and_goes() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    publisher.publish_slice(&[1_u8], &[]).unwrap();
    let message = subscription.take_timeout(PATIENCE).unwrap();
    let joined = subscription.next_event().unwrap().unwrap();
    assert_eq!((joined.kind, joined.topic.as_str()), (EventKind::Joined, "t"));
    assert_eq!(joined.publisher, message.publisher());
    assert_eq!(publisher.id(), message.publisher());
    assert_eq!(publisher.next_event().unwrap().unwrap().kind, EventKind::Joined);
    assert_eq!(subscription.next_event().unwrap(), None);
    drop(publisher);
    assert_eq!(subscription.messages().count(), 0);
    assert_eq!(subscription.next_event().unwrap().unwrap().kind, EventKind::Left);
}

#[test]
fn publishers_are_listed() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let options = PublisherOptions { on_full: OnFull::Block, depth: 5, ..Default::default() };
    let _b = client.publisher_with("b/x", &options).unwrap();
    let a = client.publisher("a").unwrap();
    a.publish_slice(&[0_u16; 4], &[4]).unwrap();

    let all = client.publishers(None).unwrap();
    assert_eq!(all.iter().map(|p| p.topic.as_str()).collect::<Vec<_>>(), ["a", "b/x"]);
    assert_eq!((all[0].published, all[0].published_bytes, all[0].blocks), (1, 8, false));
    assert_eq!((all[1].depth, all[1].blocks), (5, true));
    assert_eq!(all[0].client_name, "test");
    assert_eq!(client.publishers(Some("b/*")).unwrap(), all[1..]);
    assert!(client.publishers(Some("a//b")).is_err());
}

#[test]
fn counters_count() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    publisher.publish_slice(&[0_u64; 8], &[8]).unwrap();
    let _held = subscription.take_timeout(PATIENCE).unwrap();
    let (published, taken) = (publisher.stats().unwrap(), subscription.stats().unwrap());
    assert_eq!((published.published, published.published_bytes, published.copied), (1, 64, 0));
    assert_eq!((taken.taken, taken.taken_bytes, taken.n_held), (1, 64, 1));
}
