// SPDX-License-Identifier: Apache-2.0
//! The importing side of a flow: a thread that publishes one topic of one other host here.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlx::{
    ErrorKind, Loan, OnFull, PublishOptions, Publisher, PublisherOptions, Rejected, RetainFor, Set,
};

use crate::bridge::Shared;
use crate::clock::{monotonic_of, realtime_ns};
use crate::direct::{Inlet, Outlet, Pass, Reach, Stream};
use crate::flow::{Arrival, FRAME_COST, Ledger, PIECE, Piece, Receiver, Verdict};
use crate::mailbox::Mailbox;
use crate::metrics::{Counters, Way};
use crate::offer::Offer;
use crate::path::{Body, Received};
use crate::wire::{Frame, HEAD_MAX, Head, Malformed, MessageHead};
use crate::{Every, lock, say};

/// How often the other side hears of this one, at least.
const REPEAT: Duration = Duration::from_secs(1);
/// How long an acknowledgement waits for others.
const FLUSH: Duration = Duration::from_millis(1);
/// How long a publisher waits for a reliable subscriber, before this side is heard of again.
const PUBLISH: Duration = Duration::from_millis(200);
/// How long there is no subscriber until nothing is sent any more.
const LINGER: Duration = Duration::from_secs(2);
/// How many probes, one a second, tell of bytes that do not come, until a stream is broken: as long
/// as zenoh waits for a sign of life.
const SILENCE: u32 = 10;
/// How often a topic without a subscriber is looked at, should nothing tell of one.
const IDLE: Duration = Duration::from_secs(5);

/// Most frames that may wait where a probe is added: the next one says the same and more.
const MAX_PROBES: usize = 64;

/// A frame, its body, and the credits that it takes.
type Delivery = (Frame, Body, u64);

/// How the topic stands at the other host. A thread that waits for memory hears of it, too.
#[derive(Default)]
struct Standing {
    /// The other host offers it again: it was not reachable, or is another process now.
    again: bool,
    /// Since when the other host offers it no more, or is not reachable, and is not heard of.
    withdrawn: Option<Instant>,
    /// Another thread takes the topic over.
    replaced: bool,
}

/// The mailbox of a flow, which takes no more than the credits allow.
pub struct Inbox {
    mailbox: Arc<Mailbox<Delivery>>,
    /// A stream that the other host has opened, until the flow takes it.
    stream: Mutex<Option<Stream>>,
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
            stream: Mutex::default(),
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

    fn welcome(&self, stream: Stream) {
        *lock(&self.stream) = Some(stream);
        self.mailbox.ring();
    }

    /// The process ends.
    pub fn ring(&self) {
        self.mailbox.ring();
    }

    /// For callbacks: never waits. Returns false if the other side ignores the credits.
    pub fn push(&self, frame: Frame, received: Received, header: usize) -> bool {
        if let Some(since) = &mut lock(&self.standing).withdrawn {
            *since = Instant::now();
        }
        if matches!(frame, Frame::Probe { .. }) && self.mailbox.len() >= MAX_PROBES {
            return true;
        }
        let cost = (received.total - header) as u64 + FRAME_COST;
        if self.queued.fetch_add(cost, Ordering::Relaxed) + cost > self.limit {
            self.queued.fetch_sub(cost, Ordering::Relaxed);
            return false;
        }
        self.mailbox.push((frame, received.into_body(header), cost));
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
    /// Reads what comes next, at most so many bytes: into its tensor, or into nothing if the item
    /// is refused.
    fn read(&mut self, from: &mut dyn Read, most: usize) -> io::Result<usize> {
        while self.loans.get(self.tensor).is_some_and(|loan| self.at == loan.len()) {
            (self.tensor, self.at) = (self.tensor + 1, 0);
        }
        let Some(loan) = self.loans.get_mut(self.tensor) else { return skip(from, most) };
        let end = loan.len().min(self.at.saturating_add(most));
        let n = from.read(&mut loan[self.at..end])?;
        self.at += n;
        Ok(n)
    }
}

/// Reads at most so many bytes, and forgets them.
fn skip(from: &mut dyn Read, most: usize) -> io::Result<usize> {
    let mut nowhere = [0; 16 << 10];
    let end = most.min(nowhere.len());
    from.read(&mut nowhere[..end])
}

/// A piece whose body is being read.
struct Arriving {
    piece: Piece,
    /// Bytes of the item's head at its beginning, those that were read, and bytes that are left.
    head: usize,
    start: Vec<u8>,
    left: usize,
    /// The size of its item.
    size: u64,
    /// False: it is of an earlier generation, or the flow has begun a new one since.
    is_wanted: bool,
}

/// Until what the stream was read.
enum ReadUntil {
    /// The end of a frame: there is something else to do.
    Frame,
    /// The end of the topic.
    End,
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
    pass: Option<Pass>,
    /// Not here while it is being read.
    inlet: Option<Inlet>,
    /// The other end of the same stream, by which wants go.
    outlet: Option<Outlet>,
    /// The piece that is coming by `inlet`.
    arriving: Option<Arriving>,
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
        let pass = shared.ways.door.as_ref().map(|door| {
            let own = inbox.clone();
            door.invite(Box::new(move |stream| own.welcome(stream)))
        });
        Import {
            counters: shared.metrics.of(Way::Import, host, &offer.topic),
            receiver: Receiver::new(shared.generation(), shared.config.window),
            host: host.to_string(),
            ledger: Ledger::default(),
            partial: None,
            pass,
            inlet: None,
            outlet: None,
            arriving: None,
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
            if self.await_subscriber(&publisher) {
                let ended = self.serve(&publisher);
                self.take_stream(None);
                if ended == Ended::NoTopic {
                    return;
                }
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

    /// Waits while there is no subscriber; returns whether there is one.
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
                    self.want(true); // it did not hear that no subscriber is left
                    break;
                }
            }
        }
        false
    }

    fn next_frame(&mut self) -> Option<Delivery> {
        let delivery = self.inbox.mailbox.pop()?;
        self.inbox.queued.fetch_sub(delivery.2, Ordering::Relaxed);
        Some(delivery)
    }

    fn want(&mut self, close: bool) {
        let ledger = &self.ledger;
        let want = self.receiver.want(close, || ledger.positions());
        // A stream may be dead without a word; then the other side hears of this one by zenoh.
        let repeats = self.told.elapsed() >= REPEAT;
        self.told = Instant::now();
        let reach = match &self.pass {
            _ if self.outlet.is_some() => Reach::Stream,
            Some(pass) if want.begin => pass.invitation().map_or(Reach::Zenoh, Reach::Door),
            _ => Reach::Zenoh,
        };
        let (begin, close) = (want.begin, want.close);
        let frame = Frame::Want(want, reach).encode(&self.offer.topic);
        // While an earlier one is not written, none is added: the next one says the same and more.
        // The inlet tells of errors.
        if let Some(outlet) = &mut self.outlet
            && (close || !begin)
            && outlet.flush().is_ok_and(|all| all)
        {
            outlet.push(&frame, Vec::new());
            let _ = outlet.flush();
        }
        if begin || close || repeats || self.outlet.is_none() {
            self.shared.ways.path.send(&self.host, true, frame, Vec::new());
        }
    }

    fn restart(&mut self) {
        self.partial = None;
        self.receiver.restart();
        self.begin();
    }

    fn begin(&mut self) {
        self.partial = None;
        self.arriving.iter_mut().for_each(|arriving| arriving.is_wanted = false);
        self.counters.generations.add(1);
        self.want(false);
    }

    /// Carries messages while there is a subscriber.
    fn serve(&mut self, publisher: &Publisher) -> Ended {
        self.ledger.clear();
        lock(&self.inbox.stream).take(); // of an earlier flow
        self.restart();
        let mut looked = Instant::now();
        let mut subscribed = Instant::now();
        let mut read_all = true;
        loop {
            let owes = self.receiver.owed() > 0;
            let pause = match (read_all, owes) {
                (false, _) => Duration::ZERO,
                (true, true) => FLUSH,
                (true, false) => REPEAT.saturating_sub(self.told.elapsed()),
            };
            let fd = self.inlet.as_ref().map(Inlet::as_fd);
            if !self.inbox.mailbox.wait(fd, pause) && owes && read_all {
                self.want(false);
            }
            let opened = lock(&self.inbox.stream).take();
            if opened.is_some() {
                self.take_stream(opened);
            }
            if std::mem::take(&mut lock(&self.inbox.standing).again) {
                self.restart();
            }
            while let Some((frame, body, _)) = self.next_frame() {
                let mut arriving = self.on_frame(frame);
                let body = &mut body.reader();
                let ended = arriving.as_mut().is_some_and(|arriving| {
                    self.read(arriving, body, publisher).is_ok_and(|end| end)
                });
                if ended {
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
            let ended = match self.read_stream(publisher) {
                Ok(ReadUntil::Frame) => {
                    read_all = false;
                    false
                }
                Ok(ReadUntil::End) => true,
                Err(e) => {
                    read_all = true;
                    if e.kind() != io::ErrorKind::WouldBlock {
                        self.lose_stream(&e);
                    }
                    false
                }
            };
            if self.told.elapsed() >= REPEAT {
                self.want(false);
            }
            if ended || self.is_over() {
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

    fn take_stream(&mut self, stream: Option<Stream>) {
        self.counters.direct.set(stream.is_some().into());
        self.outlet = stream.clone().map(Outlet::new);
        (self.inlet, self.arriving) = (stream.map(Inlet::new), None);
    }

    /// The exporting side sends all again that was not acknowledged. A stream without a frame came
    /// too late to be used.
    fn lose_stream(&mut self, e: &io::Error) {
        let is_used = self.inlet.as_ref().is_some_and(|inlet| inlet.is_used);
        self.take_stream(None);
        if is_used {
            if self.troubles.is_due() {
                let (local, host) = (&self.local, &self.host);
                say(format_args!("{local} (from {host}): the stream broke: {e}"));
            }
            self.restart();
        }
    }

    /// Reads the stream until nothing more is there (WouldBlock), there is something else to do,
    /// or the topic has ended.
    fn read_stream(&mut self, publisher: &Publisher) -> io::Result<ReadUntil> {
        let Some(mut inlet) = self.inlet.take() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let mut arriving = self.arriving.take();
        let mut result = self.read_frames(&mut inlet, &mut arriving, publisher);
        if inlet.unheard > SILENCE {
            result = Err(io::ErrorKind::TimedOut.into());
        }
        (self.inlet, self.arriving) = (Some(inlet), arriving);
        result
    }

    fn read_frames(
        &mut self,
        inlet: &mut Inlet,
        arriving: &mut Option<Arriving>,
        publisher: &Publisher,
    ) -> io::Result<ReadUntil> {
        loop {
            if arriving.is_none() {
                let (header, body) = inlet.header()?;
                *arriving = self.on_frame(self.parse(&header, body)?);
            }
            if let Some(piece) = arriving {
                if self.read(piece, inlet, publisher)? {
                    return Ok(ReadUntil::End);
                }
                *arriving = None;
            }
            if self.receiver.is_due() || self.told.elapsed() >= REPEAT {
                self.want(false);
            }
            if self.inbox.mailbox.len() > 0 || self.is_over() {
                return Ok(ReadUntil::Frame);
            }
        }
    }

    fn parse(&self, header: &[u8], body: usize) -> io::Result<Frame> {
        let parsed = Frame::parse(header, header.len() + body);
        let parsed = parsed.and_then(|(topic, frame, n)| match frame {
            Frame::Piece { .. } if topic == self.offer.topic && n == header.len() => Ok(frame),
            _ => Err(Malformed("it does not belong into the stream of the topic".into())),
        });
        parsed.map_err(|Malformed(why)| {
            self.shared.complain(&self.host, &self.offer.topic, &why);
            io::Error::new(io::ErrorKind::InvalidData, why)
        })
    }

    /// Returns the piece whose body is to be read.
    fn on_frame(&mut self, frame: Frame) -> Option<Arriving> {
        match frame {
            Frame::Want(..) => None, // those go elsewhere
            Frame::Reset(generation) => {
                if generation == self.receiver.generation() {
                    self.take_stream(None); // at the other side it is broken, or none is known
                    self.restart();
                }
                None
            }
            Frame::Invite(generation, invitation) => {
                if generation == self.receiver.generation() {
                    let topic = &self.offer.topic;
                    self.take_stream(self.shared.open_stream(&self.host, topic, &invitation));
                }
                None
            }
            Frame::Probe { generation, next } => {
                if let Some(inlet) = &mut self.inlet {
                    // what was sent may be on its way
                    let has_all = self.receiver.has_all(generation, next);
                    inlet.unheard += u32::from(!has_all);
                } else if self.receiver.on_probe(generation, next) == Arrival::Lost {
                    self.begin();
                }
                None
            }
            Frame::Piece { generation, piece, head, size } => {
                let ends = piece.offset + piece.len == size;
                let arrival = self.receiver.on_piece(generation, piece, ends);
                if arrival == Arrival::Lost {
                    self.begin();
                }
                let mut is_wanted = arrival == Arrival::Next;
                let partial = self.partial.as_ref();
                if is_wanted && piece.offset > 0 && partial.is_some_and(|item| item.size != size) {
                    let why = "its pieces differ in what they say of the size of their item";
                    self.shared.complain(&self.host, &self.offer.topic, why);
                    self.restart();
                    is_wanted = false;
                }
                let (head, left) = (head as usize, piece.len as usize);
                Some(Arriving { piece, head, start: Vec::new(), left, size, is_wanted })
            }
        }
    }

    /// Reads the body of a piece, as far as it is there. Returns whether the topic has ended.
    fn read(
        &mut self,
        arriving: &mut Arriving,
        from: &mut dyn Read,
        publisher: &Publisher,
    ) -> io::Result<bool> {
        while arriving.left > 0 {
            let filled = arriving.start.len();
            let n = if !arriving.is_wanted {
                skip(from, arriving.left)?
            } else if filled < arriving.head {
                arriving.start.resize(arriving.head, 0);
                let read = from.read(&mut arriving.start[filled..]);
                arriving.start.truncate(filled + read.as_ref().map_or(0, |&n| n));
                read?
            } else {
                self.partial.get_or_insert_default().read(from, arriving.left)?
            };
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            arriving.left -= n;
            if arriving.is_wanted && filled < arriving.head && arriving.start.len() == arriving.head
            {
                self.begin_item(arriving, publisher);
            }
        }
        if !arriving.is_wanted {
            return Ok(false);
        }
        self.receiver.on_copied(&arriving.piece);
        if arriving.piece.offset + arriving.piece.len < arriving.size {
            return Ok(false);
        }
        let ended = self.partial.take().is_some_and(|partial| self.end_item(partial, publisher));
        self.receiver.on_published();
        Ok(ended)
    }

    /// The head of an item has come.
    fn begin_item(&mut self, arriving: &Arriving, publisher: &Publisher) {
        let payload = arriving.size - arriving.head as u64;
        let parsed = Head::parse(&arriving.start, payload, self.shared.config.max_message);
        let partial = parsed.and_then(|head| self.allocate(head, publisher));
        let partial = partial.unwrap_or_else(|Malformed(why)| {
            self.counters.refused.add(1);
            self.shared.complain(&self.host, &self.offer.topic, &why);
            Partial::default()
        });
        self.partial = Some(Partial { size: arriving.size, ..partial });
    }

    /// Allocates what the item will need.
    fn allocate(&mut self, head: Head, publisher: &Publisher) -> Result<Partial, Malformed> {
        let mut loans = Vec::new();
        if let Head::Message(message) = &head {
            if message.hops.contains(&self.shared.config.host) {
                return Err(Malformed(format!(
                    "a message has passed this host before: {}",
                    message.hops.join(", ")
                )));
            }
            let tensors = message.tensors.iter();
            let specs: Vec<_> = tensors.map(|tensor| (tensor.dtype, &tensor.shape[..])).collect();
            // All or none: what waits for memory keeps none from others.
            loop {
                match publisher.alloc_set(&specs) {
                    Ok(all) => loans = all,
                    Err(e) if self.may_try_again(&e, message) => continue,
                    Err(e) => self.refuse(message, &e),
                }
                break;
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
        self.counters.bytes.add(size);
        self.counters.messages.add(1);
        self.counters.age_ns.set(realtime_ns().saturating_sub(message.realtime_ns));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Generation;

    #[test]
    fn probes_do_not_fill_the_inbox_of_a_flow_that_stands_still() {
        let inbox = Inbox::new(1024).unwrap();
        let generation = Generation { instance: 1, count: 1 };
        for number in 0..300_000 {
            let next = Piece { number, offset: 0, len: 0 };
            let frame = Frame::Probe { generation, next };
            let header = frame.encode("topic");
            let n = header.len();
            let received = Received::new(header.into());
            assert!(inbox.push(frame, received, n), "probe {number} counts as beyond the credits");
        }
        assert_eq!(inbox.mailbox.len(), MAX_PROBES);
    }
}
