// SPDX-License-Identifier: Apache-2.0
//! The exporting side of a flow: a thread that takes messages of one topic for one other host.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlx::{Ends, ErrorKind, Message, SubscribeOptions, Subscription};

use crate::bridge::Shared;
use crate::flow::{Heard, MAX_UNACKED, Position, Sender, Want};
use crate::mailbox::Mailbox;
use crate::metrics::{Counters, Way};
use crate::offer::{Offer, is_bridge};
use crate::outgoing::Item;
use crate::wire::{Frame, Head};
use crate::{Every, say};

/// How often the other side is told what was sent.
const PROBE: Duration = Duration::from_secs(1);
/// How long publishers have to attach a new subscription.
const ATTACH: Duration = Duration::from_secs(5);
/// How long a message waits until it is known whether its publisher is a bridge.
const KNOWN: Duration = Duration::from_secs(5);

/// What the thread is told.
pub enum Event {
    Want(Want),
    /// The topic has no publisher any more.
    Gone,
}

/// The local subscription.
struct Source {
    subscription: Subscription,
    base: Option<Base>,
    /// A message that was taken, and since when its publisher is not known.
    unknown: Option<(Message, Instant)>,
}

/// What had been published before the subscription, until that is told.
struct Base {
    published: Vec<Position>,
    /// How many publishers there were, to be attached.
    live: u32,
    since: Instant,
    /// They are attached: what they retain comes before the subscription is found empty again.
    attached: bool,
}

pub struct Export {
    shared: Arc<Shared>,
    host: String,
    offer: Offer,
    mailbox: Arc<Mailbox<Event>>,
    counters: Arc<Counters>,
    sender: Sender<Item>,
    source: Option<Source>,
    /// Which publishers of the topic are bridges.
    bridges: HashMap<u64, bool>,
    refusals: Every,
    troubles: Every,
}

impl Export {
    pub fn new(
        shared: Arc<Shared>,
        host: &str,
        offer: Offer,
        mailbox: Arc<Mailbox<Event>>,
    ) -> Export {
        Export {
            counters: shared.metrics.of(Way::Export, host, &offer.topic),
            host: host.to_string(),
            sender: Sender::new(offer.retain as usize),
            source: None,
            bridges: HashMap::new(),
            refusals: Every::default(),
            troubles: Every::default(),
            shared,
            offer,
            mailbox,
        }
    }

    /// Runs until the other side wants no more, is not heard of for too long, or has got the end.
    pub fn run(mut self) {
        let (mut heard, mut probed) = (Instant::now(), Instant::now());
        let (mut gone, mut ended) = (false, false);
        while !self.shared.is_stopping() {
            while let Some(event) = self.mailbox.pop() {
                match event {
                    Event::Gone => gone = true,
                    Event::Want(want) => {
                        heard = Instant::now();
                        self.on_want(&want);
                        if want.close {
                            return;
                        }
                    }
                }
            }
            if heard.elapsed() > self.shared.config.hold() {
                say(format_args!(
                    "{}: {} was not heard of for {} s (hold): its flow ends, with {} messages that \
                     it has not acknowledged",
                    self.offer.topic,
                    self.host,
                    self.shared.config.hold,
                    self.sender.unacked()
                ));
                return;
            }
            let drained = self.fill();
            if gone && drained && !ended {
                let end = Item::of_head(&Head::End);
                let head = end.head;
                self.sender.push(end, None, head, 0);
                ended = true;
            }
            if ended && self.sender.unacked() == 0 {
                return;
            }
            self.send_pieces();
            if probed.elapsed() >= PROBE && self.sender.unacked() > 0 {
                probed = Instant::now();
                let generation = self.sender.generation();
                self.send(Frame::Probe { generation, next: self.sender.next() }, false);
            }
            self.counters.credits.set(self.sender.credits());
            let fd = match &self.source {
                Some(source) if drained && !gone => source.subscription.poll_fd().ok(),
                _ => None,
            };
            let pending = self.source.as_ref().is_some_and(|source| source.base.is_some());
            let ready = !drained && self.sender.has_room() && self.source.is_some();
            self.mailbox.wait(fd, if pending || ready { Duration::from_millis(20) } else { PROBE });
        }
    }

    fn send(&self, frame: Frame, urgent: bool) {
        self.shared.path.send(&self.host, urgent, frame.encode(&self.offer.topic), Vec::new());
    }

    fn on_want(&mut self, want: &Want) {
        match self.sender.on_want(want) {
            Heard::Begins => {
                self.counters.generations.add(1);
                if self.source.is_none() {
                    self.subscribe();
                }
            }
            Heard::Unknown => self.send(Frame::Reset(want.generation), true),
            Heard::Continues | Heard::Stale => (),
        }
    }

    fn subscribe(&mut self) {
        let topic = &self.offer.topic;
        let options = SubscribeOptions {
            reliable: self.offer.reliable,
            accepts_unreliable: self.offer.reliable, // another publisher may come that drops
            max_held: self.offer.retain + 2 * MAX_UNACKED as u32, // an offer is far below 4096
            ends: Ends::Never,
            ..Default::default()
        };
        let client = &self.shared.client;
        let source = client.publishers(Some(topic)).and_then(|publishers| {
            let published: Vec<_> = publishers
                .iter()
                .map(|p| Position { publisher: p.publisher, seq: p.published })
                .collect();
            let live = publishers.iter().filter(|p| !p.retained).count() as u32;
            let subscription = client.subscribe_with(topic, &options)?;
            let base = Base { published, live, since: Instant::now(), attached: false };
            Ok(Source { subscription, base: Some(base), unknown: None })
        });
        match source {
            Ok(source) => self.source = Some(source),
            Err(e) if self.troubles.is_due() => say(format_args!("{topic}: {e}")),
            Err(_) => (),
        }
    }

    /// Takes messages as long as there is room; returns whether there is no more message.
    fn fill(&mut self) -> bool {
        if self.source.is_none() && self.sender.credits() > 0 {
            self.subscribe();
        }
        while self.sender.has_room() {
            let Some(source) = &mut self.source else { return false };
            let taken = match source.unknown.take() {
                Some((message, since)) => Ok(Some((message, since))),
                None => {
                    let taken = source.subscription.try_take();
                    taken.map(|message| message.map(|message| (message, Instant::now())))
                }
            };
            match taken {
                Ok(Some((message, since))) => match self.is_of_bridge(message.publisher()) {
                    Some(true) => (),
                    Some(false) => {
                        self.push(&message);
                        self.send_pieces();
                    }
                    None if since.elapsed() < KNOWN => {
                        self.source.as_mut().expect("it is there").unknown = Some((message, since));
                        return false;
                    }
                    None => self.refuse(
                        message.seq(),
                        "the daemon does not tell whose its publisher was, which may have been a \
                         bridge",
                    ),
                },
                Ok(None) => {
                    self.tell_base();
                    return true;
                }
                // Its publisher, or memory, allows less than is retained and under way here.
                Err(e) if e.kind() == ErrorKind::TooManyHeld => {
                    if !self.sender.forget_retained() {
                        return false;
                    }
                    if self.troubles.is_due() {
                        say(format_args!(
                            "{}: {e}; a bridge of {} that is started again gets {} retained \
                             messages of {}",
                            self.offer.topic,
                            self.host,
                            self.sender.n_retained(),
                            self.offer.retain
                        ));
                    }
                }
                Err(e) => {
                    if e.kind() != ErrorKind::Interrupted && self.troubles.is_due() {
                        say(format_args!("{}: {e}", self.offer.topic));
                    }
                    return false;
                }
            }
        }
        false
    }

    fn push(&mut self, message: &Message) {
        let source = Position { publisher: message.publisher(), seq: message.seq() };
        match Item::of_message(message, &self.shared.config) {
            Ok(item) => {
                self.counters.messages.add(1);
                self.counters.bytes.add(item.payload);
                let (head, payload) = (item.head, item.payload);
                self.sender.push(item, Some(source), head, payload);
            }
            Err(why) => self.refuse(source.seq, &why),
        }
    }

    fn refuse(&mut self, seq: u64, why: &str) {
        self.counters.refused.add(1);
        if self.refusals.is_due() {
            say(format_args!(
                "{}: message {seq} is not carried: {why}; {} were not",
                self.offer.topic,
                self.counters.refused.get()
            ));
        }
    }

    /// What a bridge publishes came from another machine. None: it is not known yet.
    fn is_of_bridge(&mut self, publisher: u64) -> Option<bool> {
        if let Some(&known) = self.bridges.get(&publisher) {
            return Some(known);
        }
        let topic = Some(self.offer.topic.as_str());
        if let Ok(publishers) = self.shared.client.publishers(topic) {
            self.bridges =
                publishers.iter().map(|p| (p.publisher, is_bridge(&p.client_name))).collect();
        }
        // It may have left: then the observer was told of it.
        let known = self.bridges.get(&publisher).copied().or(self.shared.is_of_bridge(publisher));
        known.inspect(|&known| _ = self.bridges.insert(publisher, known))
    }

    /// There is no message now: when all that is retained was taken, tells what had been published
    /// before the subscription.
    fn tell_base(&mut self) {
        let Some(source) = &mut self.source else { return };
        let Some(base) = &mut source.base else { return };
        if !base.attached {
            let attached = source.subscription.stats().map_or(0, |stats| stats.n_publishers);
            base.attached = attached >= base.live || base.since.elapsed() > ATTACH;
            return;
        }
        let published = std::mem::take(&mut base.published);
        source.base = None;
        let item = Item::of_head(&Head::Base(published));
        let head = item.head;
        self.sender.push(item, None, head, 0);
    }

    fn send_pieces(&mut self) {
        let generation = self.sender.generation();
        while let Some((piece, item)) = self.sender.next_piece() {
            let frame = Frame::Piece {
                generation,
                piece,
                head: if piece.offset == 0 { item.head as u32 } else { 0 },
                size: item.head + item.payload,
            };
            let (header, body) =
                (frame.encode(&self.offer.topic), item.range(piece.offset, piece.len));
            self.shared.path.send(&self.host, false, header, body);
        }
    }
}
