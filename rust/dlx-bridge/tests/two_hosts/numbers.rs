// SPDX-License-Identifier: Apache-2.0
//! Messages that are numbers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use dlx::{
    Client, Ends, OnFull, PublishOptions, Publisher, PublisherOptions, SubscribeOptions,
    Subscription,
};

use crate::hosts::{PATIENCE, wait_until};

pub fn publisher(client: &Client, topic: &str, on_full: OnFull) -> Publisher {
    let options = PublisherOptions { on_full, ..Default::default() };
    client.publisher_with(topic, &options).unwrap()
}

/// One that waits for the next publisher when there is none any more.
pub fn subscriber(client: &Client, topic: &str, reliable: bool) -> Subscription {
    let options = SubscribeOptions { reliable, ends: Ends::Never, ..Default::default() };
    client.subscribe_with(topic, &options).unwrap()
}

/// Publishes a number, and waits for room.
pub fn publish(publisher: &Publisher, number: u64) {
    let mut loan = publisher.alloc::<u64>(&[1]).unwrap();
    loan[0] = number;
    let options = PublishOptions { timeout: Some(PATIENCE), ..Default::default() };
    publisher.publish_with(loan, &options).unwrap();
}

/// Takes a number.
pub fn take(subscription: &Subscription) -> u64 {
    let message = subscription.take_timeout(PATIENCE).unwrap();
    message.slice::<u64>(0).unwrap()[0]
}

/// Sets a flag when it is dropped, so that threads end also when a test fails.
pub struct Sets<'a>(pub &'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Publishes numbers until it is told to stop.
pub struct Pump<'a> {
    pub stop: &'a AtomicBool,
    pub published: &'a AtomicU64,
}

impl Pump<'_> {
    pub fn run(&self, publisher: &Publisher) {
        while !self.stop.load(Ordering::Relaxed) {
            publish(publisher, self.published.load(Ordering::Relaxed));
            self.published.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_micros(200)); // as a sensor
        }
    }
}

/// What came of the numbers.
#[derive(Default)]
pub struct Taken {
    pub numbers: BTreeSet<u64>,
    pub repeated: u64,
    /// What the subscription counts itself.
    pub gaps: u64,
}

impl Taken {
    /// Takes what comes; returns whether something came.
    pub fn take(&mut self, subscription: &Subscription) -> bool {
        match subscription.take_timeout(Duration::from_millis(100)) {
            Ok(message) => {
                self.gaps += message.gap();
                let number = message.slice::<u64>(0).unwrap()[0];
                self.repeated += u64::from(!self.numbers.insert(number));
                true
            }
            Err(_) => false, // there is none, or the daemon is away
        }
    }

    pub fn take_until(
        &mut self,
        subscription: &Subscription,
        what: &str,
        mut is_so: impl FnMut() -> bool,
    ) {
        wait_until(what, || {
            self.take(subscription);
            is_so()
        });
    }

    pub fn take_up_to(&mut self, subscription: &Subscription, number: u64) {
        wait_until(&format!("number {number}"), || {
            self.take(subscription);
            self.numbers.last() >= Some(&number)
        });
    }
}
