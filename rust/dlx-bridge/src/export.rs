// SPDX-License-Identifier: Apache-2.0
//! The exporting side of a flow: a thread that takes messages of one topic for one other host.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlx::{Ends, ErrorKind, Message, SubscribeOptions, Subscription};

use crate::bridge::Shared;
use crate::direct::{INVITED, Inlet, Outlet, Pass, Reach, Stream};
use crate::flow::{Heard, MAX_UNACKED, PIECE, Position, Sender, Want};
use crate::mailbox::Mailbox;
use crate::metrics::{Counters, Way};
use crate::offer::{Offer, is_bridge};
use crate::outgoing::Item;
use crate::wire::{Frame, Head};
use crate::{Every, lock, say};

/// How often the other side is told what was sent.
const PROBE: Duration = Duration::from_secs(1);
/// How long publishers have to attach a new subscription.
const ATTACH: Duration = Duration::from_secs(5);
/// How long a message waits until it is known whether its publisher is a bridge.
const KNOWN: Duration = Duration::from_secs(5);

/// What the thread is told.
pub enum Event {
    Want(Want, Reach),
    /// The topic has no publisher any more, or has one again.
    Gone(bool),
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

/// How the pieces of a generation go. That changes only when a generation begins, so that they stay
/// in order.
enum Course {
    Zenoh,
    /// The other host is invited to open a stream. Nothing is sent meanwhile.
    Invited(Instant),
    /// Wants come by it, too.
    Direct(Outlet, Inlet),
    /// The stream broke: the other host is told to begin a generation.
    Broken,
}

impl Course {
    fn direct(stream: Stream) -> Course {
        Course::Direct(Outlet::new(stream.clone()), Inlet::new(stream))
    }
}

pub struct Export {
    shared: Arc<Shared>,
    host: String,
    offer: Offer,
    mailbox: Arc<Mailbox<Event>>,
    counters: Arc<Counters>,
    sender: Sender<Item>,
    course: Course,
    pass: Option<Pass>,
    /// A stream that the other host has opened, with the ticket of this flow.
    opened: Arc<Mutex<Option<Stream>>>,
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
            course: Course::Zenoh,
            pass: None,
            opened: Arc::default(),
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
            // One that comes too late ends here, and the other side may know it by that.
            let opened = lock(&self.opened).take();
            if let Some(stream) = opened
                && matches!(self.course, Course::Invited(_))
            {
                self.course = Course::direct(stream);
            }
            while let Some(event) = self.next_event() {
                match event {
                    Event::Gone(is_so) => gone = is_so,
                    Event::Want(want, reach) => {
                        heard = Instant::now();
                        self.on_want(&want, reach);
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
            let drained = ended || self.fill();
            // Until all is acknowledged, the topic may be offered again. Nothing follows its end.
            if gone && drained && !ended && self.sender.unacked() == 0 {
                let end = Item::of_head(&Head::End);
                let head = end.head;
                self.sender.push(end, None, head, 0);
                (self.source, ended) = (None, true);
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
            let is_full = !self.flush();
            self.counters.direct.set(matches!(self.course, Course::Direct(..)).into());
            let events = libc::POLLIN | if is_full { libc::POLLOUT } else { 0 };
            let stream = match &self.course {
                Course::Direct(outlet, _) => Some((outlet.as_fd(), events)),
                _ => None,
            };
            let fd = match &self.source {
                Some(source) if drained && !gone && !is_full => source.subscription.poll_fd().ok(),
                _ => None,
            };
            let pending = self.source.as_ref().is_some_and(|source| source.base.is_some());
            let ready = !drained && !is_full && self.sender.has_room() && self.source.is_some();
            let pause = if pending || ready { Duration::from_millis(20) } else { PROBE };
            self.mailbox.wait_for(fd, stream, pause);
        }
    }

    /// What came by the mailbox or by the stream.
    fn next_event(&mut self) -> Option<Event> {
        self.mailbox.pop().or_else(|| {
            let Course::Direct(_, inlet) = &mut self.course else { return None };
            let want = inlet.header().and_then(|(header, body)| {
                match Frame::parse(&header, header.len() + body) {
                    Ok((topic, Frame::Want(want, reach), n))
                        if topic == self.offer.topic && n == header.len() && body == 0 =>
                    {
                        Ok(Event::Want(want, reach))
                    }
                    _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it brings no want")),
                }
            });
            want.map_err(|e| self.on_broken(&e)).ok()
        })
    }

    /// Nothing more can be read, or written, now or for ever.
    fn on_broken(&mut self, e: &io::Error) {
        if e.kind() == io::ErrorKind::WouldBlock {
            return;
        }
        if self.troubles.is_due() {
            let (topic, host) = (&self.offer.topic, &self.host);
            say(format_args!("{topic}: the stream to {host} broke: {e}"));
        }
        self.course = Course::Broken;
        self.send(Frame::Reset(self.sender.generation()), true);
    }

    /// Through zenoh.
    fn send(&self, frame: Frame, urgent: bool) {
        let header = frame.encode(&self.offer.topic);
        self.shared.ways.path.send(&self.host, urgent, header, Vec::new());
    }

    fn on_want(&mut self, want: &Want, reach: Reach) {
        match self.sender.on_want(want) {
            Heard::Begins => {
                self.counters.generations.add(1);
                self.find_course(reach);
            }
            Heard::Unknown => self.send(Frame::Reset(want.generation), true),
            Heard::Continues if matches!(self.course, Course::Broken) => {
                self.send(Frame::Reset(want.generation), true); // it was not heard
            }
            Heard::Continues | Heard::Stale => (),
        }
    }

    /// A stream that is open on both sides stays. Else one is opened, by the side that can reach
    /// the other.
    fn find_course(&mut self, reach: Reach) {
        if matches!((&self.course, &reach), (Course::Direct(..), Reach::Stream)) {
            return;
        }
        let topic = &self.offer.topic;
        if let Reach::Door(invitation) = reach {
            let stream = self.shared.open_stream(&self.host, topic, &invitation);
            self.course = stream.map_or(Course::Zenoh, Course::direct);
            return;
        }
        if self.pass.is_none()
            && let Some(door) = &self.shared.ways.door
        {
            let (mailbox, opened) = (self.mailbox.clone(), self.opened.clone());
            self.pass = Some(door.invite(Box::new(move |stream| {
                *lock(&opened) = Some(stream); // one for each flow, whatever a peer opens
                mailbox.ring();
            })));
        }
        if let Some(invitation) = self.pass.as_ref().and_then(Pass::invitation) {
            self.send(Frame::Invite(self.sender.generation(), invitation), true);
            self.course = Course::Invited(Instant::now());
            return;
        }
        self.course = Course::Zenoh;
        if self.shared.config.direct.as_ref().is_none_or(|places| !places.is_empty()) {
            self.shared.detour(&self.host, topic, "neither host has an address for one now");
        }
    }

    /// Writes what the stream takes now; returns whether all is written.
    fn flush(&mut self) -> bool {
        let Course::Direct(outlet, _) = &mut self.course else { return true };
        let flushed = outlet.flush();
        flushed.inspect_err(|e| self.on_broken(e)).unwrap_or(true)
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
        while self.sender.has_room() && self.flush() {
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
                        if !self.sender.has_room() {
                            self.send_pieces();
                        }
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
        match self.course {
            Course::Invited(since) if since.elapsed() > INVITED => {
                self.shared.detour(
                    &self.host,
                    &self.offer.topic,
                    "it did not come to the door of this host",
                );
                self.course = Course::Zenoh;
            }
            Course::Invited(_) | Course::Broken => return,
            Course::Zenoh | Course::Direct(..) => (),
        }
        let generation = self.sender.generation();
        let mut pushed = 0; // since what was pushed has been written
        while pushed < PIECE && (pushed > 0 || self.flush()) {
            let Some((piece, item)) = self.sender.next_piece() else { break };
            let frame = Frame::Piece {
                generation,
                piece,
                head: if piece.offset == 0 { item.head as u32 } else { 0 },
                size: item.head + item.payload,
            };
            let (header, body) =
                (frame.encode(&self.offer.topic), item.range(piece.offset, piece.len));
            match &mut self.course {
                Course::Direct(outlet, _) => outlet.push(&header, body),
                _ => self.shared.ways.path.send(&self.host, false, header, body),
            }
            pushed += piece.len;
            if pushed >= PIECE && self.flush() {
                pushed = 0;
            }
        }
        self.flush();
    }
}
