// SPDX-License-Identifier: Apache-2.0
//! Observers, links that are reliable where that is offered, what a message says of its publisher,
//! and lists of links, claims and quotas.

use std::time::Duration;

use dlx::{
    Change, ErrorKind, Mode, Observe, OnFull, PublisherOptions, RetainFor, SubscribeOptions,
};

use crate::daemon::{Daemon, PATIENCE};

fn next(observer: &dlx::Observer) -> Change {
    observer.next_timeout(PATIENCE).expect("a change")
}

#[test]
fn an_observer_is_told_of_publishers() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let options = PublisherOptions {
        on_full: OnFull::Block,
        depth: 7,
        history: 5,
        retain: 3,
        retain_for: RetainFor::Time(Duration::from_secs(9)),
        groups: vec!["first".into(), "second".into()],
        ..Default::default()
    };
    let publisher = client.publisher_with("cam/front", &options).unwrap();
    let observer = client.observe("cam/**", Observe::Both).unwrap();
    let Change::Publisher { observed, retained, qos, groups, .. } = next(&observer) else {
        panic!("a publisher comes first");
    };
    assert_eq!((observed.id, &*observed.topic), (publisher.id(), "cam/front"));
    assert_eq!(observed.pid, std::process::id());
    assert!(observed.own && !observed.gone && !retained);
    assert_eq!((qos.on_full, qos.depth, qos.history, qos.retain), (OnFull::Block, 7, 5, 3));
    assert_eq!(qos.retain_for, RetainFor::Time(Duration::from_secs(9)));
    assert_eq!(groups, ["first", "second"]);
    assert_eq!(next(&observer), Change::AllTold);
    assert_eq!(observer.try_next().unwrap(), None);
    let error = observer.next_timeout(Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let other = client.publisher("cam/other").unwrap();
    assert!(matches!(next(&observer), Change::Publisher { observed, .. } if !observed.gone));
    drop(other);
    assert!(matches!(next(&observer), Change::Publisher { observed, .. } if observed.gone));
    assert!(observer.poll_fd().is_ok());
}

#[test]
fn an_observer_is_told_of_subscriptions_that_nobody_serves() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let observer = client.observe("cam/*", Observe::Subscriptions).unwrap();
    assert_eq!(next(&observer), Change::AllTold);
    let options = SubscribeOptions { mode: Mode::Latest, ..Default::default() };
    let subscription = client.subscribe_with("*/front", &options).unwrap();
    let Change::Subscription { observed, mode, reliable, group, .. } = next(&observer) else {
        panic!("a subscription is told");
    };
    assert_eq!(&*observed.topic, "*/front");
    assert_eq!((mode, reliable, group), (Mode::Latest, false, None));
    drop(subscription);
    let observer = std::thread::spawn(move || {
        assert!(matches!(next(&observer), Change::Subscription { observed, .. } if observed.gone));
        observer
    });
    observer.join().unwrap();
}

#[test]
fn a_subscription_is_reliable_where_that_is_offered() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let blocks = PublisherOptions { on_full: OnFull::Block, depth: 9, ..Default::default() };
    let latched =
        PublisherOptions { retain: 1, retain_for: RetainFor::Latched, ..Default::default() };
    let publishers = [
        client.publisher_with("x/blocks", &blocks).unwrap(),
        client.publisher_with("x/drops", &latched).unwrap(),
    ];
    let mut options = SubscribeOptions { reliable: true, ..Default::default() };
    assert_eq!(client.subscribe_with("x/*", &options).unwrap_err().kind(), ErrorKind::Qos);
    options.accepts_unreliable = true;
    let subscription = client.subscribe_with("x/*", &options).unwrap();
    for publisher in &publishers {
        publisher.publish(publisher.alloc::<u8>(&[8]).unwrap()).unwrap();
        let message = subscription.take_timeout(PATIENCE).unwrap();
        let qos = message.qos().unwrap();
        let is_first = publisher.id() == publishers[0].id();
        assert_eq!(message.is_reliable().unwrap(), is_first);
        assert_eq!(qos.on_full, if is_first { OnFull::Block } else { OnFull::Drop });
        assert_eq!(qos.retain_for, if is_first { RetainFor::Forever } else { RetainFor::Latched });
        assert_eq!((qos.depth, qos.retain), if is_first { (9, 0) } else { (16, 1) });
    }
}

#[test]
fn links_claims_and_quotas_are_listed() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let publisher = client.publisher("a").unwrap();
    let options = SubscribeOptions { group: Some("g".into()), ..Default::default() };
    let worker = client.subscribe_with("a", &options).unwrap();
    let subscription = client.subscribe("a").unwrap();
    publisher.publish(publisher.alloc::<u8>(&[8]).unwrap()).unwrap();
    let message = worker.take_timeout(PATIENCE).unwrap();

    let links = client.links(publisher.id()).unwrap();
    assert_eq!(links.len(), 2);
    assert!(links.iter().all(|l| l.publisher == publisher.id() && l.client_name == "test"));
    assert!(links.iter().all(|l| l.pid == std::process::id() && !l.blocks && !l.joining));
    let other = links.iter().find(|l| l.group.is_none()).unwrap();
    assert_eq!((other.taken, other.behind, other.n_held), (0, Some(1), 0));
    let link = links.iter().find(|l| l.group.is_some()).unwrap();

    let claims = client.claims(publisher.id(), link.group.unwrap()).unwrap();
    assert_eq!(claims.len(), 1);
    assert_eq!((claims[0].seq, claims[0].attempt, claims[0].link), (1, 1, Some(link.link)));
    assert_eq!(claims[0].published_ns, Some(message.monotonic_ns()));
    message.done().unwrap();
    assert_eq!(client.claims(publisher.id(), link.group.unwrap()).unwrap(), []);
    assert_eq!(client.claims(publisher.id(), 99).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(client.links(1).unwrap_err().kind(), ErrorKind::NotFound);

    let patterns = |client: &dlx::Client| {
        let quotas = client.quotas().unwrap();
        quotas.iter().find(|q| q.name == "patterns").map(|q| q.used).unwrap()
    };
    assert_eq!(patterns(&client), 0);
    let observer = client.observe("b", Observe::Both).unwrap(); // it counts as a pattern
    assert_eq!(patterns(&client), 1);
    drop((observer, subscription));
    while patterns(&client) > 0 {
        std::thread::yield_now();
    }
}
