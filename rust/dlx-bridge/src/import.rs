// SPDX-License-Identifier: Apache-2.0
//! The importing side of a flow: a thread that publishes one topic of one other host here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlx::{
    ErrorKind, Loan, OnFull, PublishOptions, Publisher, PublisherOptions, Rejected, RetainFor, Set,
};

use crate::bridge::Shared;
use crate::clock::{monotonic_of, realtime_ns};
use crate::flow::{Arrival, FRAME_COST, Ledger, PIECE, Receiver, Verdict};
use crate::mailbox::Mailbox;
use crate::metrics::{Counters, Way};
use crate::offer::Offer;
use crate::path::Received;
use crate::wire::{Frame, HEAD_MAX, Head, Malformed, MessageHead};
use crate::{Every, lock, say};

/// How often the other side hears of this one, at least.
const REPEAT: Duration = Duration::from_secs(1);
/// How long an acknowledgement waits for others.
const FLUSH: Duration = Duration::from_millis(1);
/// How long a publisher waits for a reliable subscriber, before this side is heard of again.
const PUBLISH: Duration = Duration::from_millis(200);
/// How long nobody subscribes until nothing is sent any more.
const LINGER: Duration = Duration::from_secs(2);
/// How often a topic without a subscriber is looked at, should nothing tell of one.
const IDLE: Duration = Duration::from_secs(5);

/// A frame, the size of its header, and the credits that it takes.
type Delivery = (Frame, Received, usize, u64);

/// How the topic stands at the other host. A thread that waits for memory hears of it, too.
#[derive(Default)]
struct Standing {
    /// The other host offers it again: it was not reachable, or is another process now.
    again: bool,
    /// Since when the other host offers it no more, or is not reachable.
    withdrawn: Option<Instant>,
    /// Another thread takes the topic over.
    replaced: bool,
}

/// The mailbox of a flow, which takes no more than the credits allow.
pub struct Inbox {
    mailbox: Arc<Mailbox<Delivery>>,
    standing: Mutex<Standing>,
    queued: AtomicU64,
    limit: u64,
}

impl Inbox {
    pub fn new(window: u64) -> std::io::Result<Arc<Inbox>> {
        // a piece may begin while there is any credit, so one may go beyond the limit
        let limit = window + (HEAD_MAX as u64).max(PIECE) + FRAME_COST;
        Ok(Arc::new(Inbox {
            mailbox: Mailbox::new()?,
            standing: Mutex::default(),
            queued: AtomicU64::new(0),
            limit,
        }))
    }

    pub fn offer(&self) {
        *lock(&self.standing) = Standing { again: true, ..Default::default() };
        self.mailbox.ring();
    }

    pub fn withdraw(&self) {
        let mut standing = lock(&self.standing);
        (standing.again, standing.withdrawn) = (false, Some(Instant::now()));
    }

    pub fn replace(&self) {
        lock(&self.standing).replaced = true;
        self.mailbox.ring();
    }

    /// The process ends.
    pub fn ring(&self) {
        self.mailbox.ring();
    }

    /// For callbacks: never waits. Returns false if the other side ignores the credits.
    pub fn push(&self, frame: Frame, received: Received, header: usize) -> bool {
        let cost = (received.total - header) as u64 + FRAME_COST;
        if self.queued.fetch_add(cost, Ordering::Relaxed) + cost > self.limit {
            self.queued.fetch_sub(cost, Ordering::Relaxed);
            return false;
        }
        self.mailbox.push((frame, received, header, cost));
        true
    }
}

/// A message of which not all has come yet.
#[derive(Default)]
struct Partial {
    /// None: the item is refused, and what comes of it is dropped.
    head: Option<Head>,
    /// Of head and payload.
    size: u64,
    loans: Vec<Loan<u8>>,
    /// Bytes `at..` of `loans[tensor]` come next.
    tensor: usize,
    at: usize,
}

impl Partial {
    fn fill(&mut self, mut bytes: &[u8]) {
        while let Some(loan) = self.loans.get_mut(self.tensor) {
            let n = bytes.len().min(loan.len() - self.at);
            loan[self.at..self.at + n].copy_from_slice(&bytes[..n]);
            (self.at, bytes) = (self.at + n, &bytes[n..]);
            if self.at < loan.len() {
                return;
            }
            (self.tensor, self.at) = (self.tensor + 1, 0);
        }
    }
}

/// Why serve() has ended.
#[derive(PartialEq, Eq)]
enum Ended {
    NoSubscriber,
    NoTopic,
}

pub struct Import {
    shared: Arc<Shared>,
    host: String,
    offer: Offer,
    local: String,
    inbox: Arc<Inbox>,
    counters: Arc<Counters>,
    receiver: Receiver,
    ledger: Ledger,
    partial: Option<Partial>,
    /// What a reliable topic waits for, beside its subscribers, and since when.
    waits: Option<(ErrorKind, Instant)>,
    told: Instant,
    troubles: Every,
}

impl Import {
    pub fn new(
        shared: Arc<Shared>,
        host: &str,
        offer: Offer,
        local: String,
        inbox: Arc<Inbox>,
    ) -> Import {
        Import {
            counters: shared.metrics.of(Way::Import, host, &offer.topic),
            receiver: Receiver::new(shared.generation(), shared.config.window),
            host: host.to_string(),
            ledger: Ledger::default(),
            partial: None,
            waits: None,
            told: Instant::now(),
            troubles: Every::default(),
            shared,
            offer,
            local,
            inbox,
        }
    }

    /// Runs until the topic has ended.
    pub fn run(mut self) {
        while !self.is_over() {
            let publisher = match self.publisher() {
                Ok(publisher) => publisher,
                Err(e) => {
                    self.trouble(&e);
                    continue;
                }
            };
            if self.await_subscriber(&publisher) && self.serve(&publisher) == Ended::NoTopic {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        let standing = lock(&self.inbox.standing);
        standing.replaced
            || self.shared.is_stopping()
            || standing.withdrawn.is_some_and(|since| since.elapsed() > self.shared.config.hold())
    }

    /// Says so, and waits a moment, in which frames are dropped.
    fn trouble(&mut self, e: &dlx::Error) {
        if !self.shared.is_stopping() && self.troubles.is_due() {
            say(format_args!("{} (from {}): {e}", self.local, self.host));
        }
        self.inbox.mailbox.wait(None, REPEAT);
        while self.next_frame().is_some() {}
    }

    /// What is retained is retained while this publisher is there: what a later one begins with
    /// comes from the other host again.
    fn publisher(&self) -> dlx::Result<Publisher> {
        let options = PublisherOptions {
            on_full: if self.offer.reliable { OnFull::Block } else { OnFull::Drop },
            depth: self.offer.depth,
            retain: self.offer.retain,
            retain_for: if self.offer.retain > 0 { RetainFor::Latched } else { RetainFor::Forever },
            ..Default::default()
        };
        self.shared.client.publisher_with(&self.local, &options)
    }

    /// Waits while nobody subscribes; returns whether somebody does.
    fn await_subscriber(&mut self, publisher: &Publisher) -> bool {
        while !self.is_over() {
            match publisher.wait(1, Duration::ZERO) {
                Ok(()) => return true,
                Err(e) if e.kind() == ErrorKind::Timeout => (),
                Err(e) => {
                    self.trouble(&e);
                    continue;
                }
            }
            self.inbox.mailbox.wait(publisher.poll_fd().ok(), IDLE);
            while let Some((frame, ..)) = self.next_frame() {
                if matches!(frame, Frame::Piece { .. } | Frame::Probe { .. }) {
                    self.want(true); // it did not hear that nobody wants it
                    break;
                }
            }
        }
        false
    }

    fn next_frame(&mut self) -> Option<Delivery> {
        let delivery = self.inbox.mailbox.pop()?;
        self.inbox.queued.fetch_sub(delivery.3, Ordering::Relaxed);
        Some(delivery)
    }

    fn want(&mut self, close: bool) {
        let ledger = &self.ledger;
        let want = self.receiver.want(close, || ledger.positions());
        self.told = Instant::now();
        let frame = Frame::Want(want).encode(&self.offer.topic);
        self.shared.path.send(&self.host, true, frame, Vec::new());
    }

    fn restart(&mut self) {
        self.partial = None;
        self.receiver.restart();
        self.begin();
    }

    fn begin(&mut self) {
        self.partial = None;
        self.counters.generations.add(1);
        self.want(false);
    }

    /// Carries messages while somebody subscribes.
    fn serve(&mut self, publisher: &Publisher) -> Ended {
        self.ledger.clear();
        self.restart();
        let mut looked = Instant::now();
        let mut subscribed = Instant::now();
        loop {
            let owes = self.receiver.owed() > 0;
            let pause = if owes { FLUSH } else { REPEAT.saturating_sub(self.told.elapsed()) };
            self.inbox.mailbox.wait(None, pause);
            if owes && self.inbox.mailbox.len() == 0 {
                self.want(false);
            }
            if std::mem::take(&mut lock(&self.inbox.standing).again) {
                self.restart();
            }
            while let Some((frame, received, header, _)) = self.next_frame() {
                if self.on_frame(frame, received, header, publisher) {
                    self.want(true);
                    return Ended::NoTopic;
                }
                if self.receiver.is_due() {
                    self.want(false);
                }
                if self.is_over() {
                    break;
                }
            }
            if self.told.elapsed() >= REPEAT {
                self.want(false);
            }
            if self.is_over() {
                self.want(true);
                return Ended::NoTopic;
            }
            if looked.elapsed() >= REPEAT {
                looked = Instant::now();
                let _ = publisher.wait(0, Duration::ZERO); // reconnects to a restarted daemon
                if publisher.stats().is_ok_and(|stats| stats.n_subscribers > 0) {
                    subscribed = looked;
                } else if subscribed.elapsed() > LINGER {
                    self.want(true);
                    return Ended::NoSubscriber;
                }
            }
        }
    }

    /// Returns whether the topic has ended.
    fn on_frame(
        &mut self,
        frame: Frame,
        received: Received,
        header: usize,
        publisher: &Publisher,
    ) -> bool {
        match frame {
            Frame::Want(_) => false, // those go elsewhere
            Frame::Reset(generation) => {
                if generation == self.receiver.generation() {
                    self.restart();
                }
                false
            }
            Frame::Probe { generation, next } => {
                if self.receiver.on_probe(generation, next) == Arrival::Lost {
                    self.begin();
                }
                false
            }
            Frame::Piece { generation, piece, head, size } => {
                let ends = piece.offset + piece.len == size;
                match self.receiver.on_piece(generation, piece, ends) {
                    Arrival::Ignored => return false,
                    Arrival::Lost => {
                        self.begin();
                        return false;
                    }
                    Arrival::Next => (),
                }
                if piece.offset == 0 {
                    let bytes = received.copy(header, head as usize);
                    let max = self.shared.config.max_message;
                    let parsed = Head::parse(&bytes, size - u64::from(head), max);
                    let partial = parsed.and_then(|head| self.begin_item(head, publisher));
                    let partial = partial.unwrap_or_else(|Malformed(why)| {
                        self.counters.refused.add(1);
                        self.shared.complain(&self.host, &self.offer.topic, &why);
                        Partial::default()
                    });
                    self.partial = Some(Partial { size, ..partial });
                }
                if self.partial.as_ref().is_some_and(|partial| partial.size != size) {
                    let why = "its pieces differ in what they say of the size of their item";
                    self.shared.complain(&self.host, &self.offer.topic, why);
                    self.restart();
                }
                let Some(partial) = &mut self.partial else { return false };
                received.for_each(header + head as usize, |bytes| partial.fill(bytes));
                drop(received);
                self.receiver.on_copied(&piece);
                if !ends {
                    return false;
                }
                let partial = self.partial.take().expect("it was there");
                let ended = self.end_item(partial, publisher);
                self.receiver.on_published();
                ended
            }
        }
    }

    /// Allocates what the item will need.
    fn begin_item(&mut self, head: Head, publisher: &Publisher) -> Result<Partial, Malformed> {
        let mut loans = Vec::new();
        if let Head::Message(message) = &head {
            if message.hops.contains(&self.shared.config.host) {
                return Err(Malformed(format!(
                    "a message has passed this host before: {}",
                    message.hops.join(", ")
                )));
            }
            let mut refused = Ok(());
            for tensor in &message.tensors {
                loop {
                    match publisher.alloc_bytes(tensor.dtype, &tensor.shape) {
                        Ok(loan) => loans.push(loan),
                        Err(e) if self.may_try_again(&e, message) => continue,
                        Err(e) => refused = Err(e),
                    }
                    break;
                }
                if refused.is_err() {
                    break;
                }
            }
            if let Err(e) = refused {
                self.refuse(message, &e);
                loans.clear();
            }
        }
        Ok(Partial { head: Some(head), loans, ..Default::default() })
    }

    /// A reliable topic waits until there is memory, or a subscriber has room, or its flow ends.
    fn may_try_again(&mut self, e: &dlx::Error, message: &MessageHead) -> bool {
        let passes = match e.kind() {
            ErrorKind::Full | ErrorKind::Timeout | ErrorKind::Interrupted => true,
            ErrorKind::NoMemory
            | ErrorKind::Limit
            | ErrorKind::FdLimit
            | ErrorKind::Disconnected => self.offer.reliable,
            _ => false,
        };
        if !passes || self.is_over() {
            return false;
        }
        if !matches!(e.kind(), ErrorKind::Full | ErrorKind::Timeout | ErrorKind::Interrupted) {
            let since = self.waits.map_or_else(Instant::now, |(_, since)| since);
            if self.waits.replace((e.kind(), since)).is_none_or(|(kind, _)| kind != e.kind()) {
                self.counters.waiting.set(1);
                say(format_args!(
                    "{} (from {}): message {} waits: {e}",
                    self.local, self.host, message.source.seq
                ));
            }
            std::thread::sleep(PUBLISH);
        }
        if self.told.elapsed() >= REPEAT {
            self.want(false);
        }
        true
    }

    /// What it waited for is there, or it waits no more.
    fn end_wait(&mut self, what: &str) {
        if let Some((_, since)) = self.waits.take() {
            self.counters.waiting.set(0);
            let seconds = since.elapsed().as_secs_f64();
            say(format_args!("{} (from {}): {what} after {seconds:.1} s", self.local, self.host));
        }
    }

    fn refuse(&mut self, message: &MessageHead, e: &dlx::Error) {
        self.end_wait("waits no more");
        if self.shared.is_stopping() {
            return;
        }
        self.counters.refused.add(1);
        if self.troubles.is_due() {
            say(format_args!(
                "{} (from {}): message {} cannot be published here: {e}; {} could not",
                self.local,
                self.host,
                message.source.seq,
                self.counters.refused.get()
            ));
        }
    }

    fn missed(&mut self, n: u64) {
        if n == 0 {
            return;
        }
        self.counters.missed.add(n);
        if self.troubles.is_due() {
            say(format_args!(
                "{} (from {}): {n} messages were lost on the way here, {} in all",
                self.local,
                self.host,
                self.counters.missed.get()
            ));
        }
    }

    /// All of an item has come. Returns whether the topic has ended.
    fn end_item(&mut self, partial: Partial, publisher: &Publisher) -> bool {
        let message = match partial.head {
            None => return false,
            Some(Head::End) => return true,
            Some(Head::Base(published)) => {
                let missed = self.ledger.on_base(&published);
                self.missed(missed);
                return false;
            }
            Some(Head::Message(message)) => message,
        };
        match self.ledger.on_message(message.source, message.gap) {
            Verdict::Duplicate => {
                self.counters.duplicates.add(1);
                return false;
            }
            Verdict::New { missed } => self.missed(missed),
        }
        if partial.loans.len() < message.tensors.len() {
            return false; // it was refused
        }
        let size = message.tensors.iter().map(|tensor| tensor.size).sum();
        let mut set = Set::new();
        for (tensor, loan) in message.tensors.iter().zip(partial.loans) {
            set = set.tensor(tensor.name.as_str(), loan);
        }
        if !message.meta.is_empty() {
            set = set.meta(message.meta.as_slice());
        }
        let options = PublishOptions {
            timeout: Some(PUBLISH),
            monotonic_ns: Some(monotonic_of(message.realtime_ns)),
            ..Default::default()
        };
        loop {
            match publisher.publish_set_with(set, &options) {
                Ok(_) => break,
                Err(Rejected { error, value }) if self.may_try_again(&error, &message) => {
                    set = value;
                }
                Err(Rejected { error, .. }) => {
                    self.refuse(&message, &error);
                    return false;
                }
            }
        }
        self.end_wait("goes on");
        self.counters.messages.add(1);
        self.counters.bytes.add(size);
        self.counters.age_ns.set(realtime_ns().saturating_sub(message.realtime_ns));
        false
    }
}
