// SPDX-License-Identifier: Apache-2.0
//! Recording: one thread takes messages, another one writes them.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dlx::topic::matches;
use dlx::{Client, Ends, ErrorKind, Message, SubscribeOptions, Subscription};
use mcap::Compression;

use crate::buffer::{Buffer, Item};
use crate::cli::say;
use crate::schema::{Gpu, Record};
use crate::writer::Recording;
use crate::{Failure, Result};

/// What to record, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Topics, or patterns of topics.
    pub topics: Vec<String>,
    /// The file.
    pub output: PathBuf,
    /// Replace the file if it exists.
    pub overwrites: bool,
    /// How chunks are compressed.
    pub compression: Option<Compression>,
    /// Publishers wait for the recorder instead of dropping messages.
    pub reliable: bool,
    /// Images become `foxglove.RawImage`.
    pub finds_images: bool,
    /// Tensors on a GPU are copied, or refused.
    pub gpu: Gpu,
    /// Ends after so long.
    pub duration: Option<Duration>,
    /// Ends after so many messages.
    pub messages: Option<u64>,
    /// How many bytes may wait for the disk.
    pub buffer: usize,
}

/// What was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages in the file.
    pub messages: u64,
    /// Their encoded bytes, before compression.
    pub bytes: u64,
    /// Messages that publishers dropped before they were taken.
    pub missed: u64,
    /// Messages with a tensor that cannot be recorded.
    pub refused: u64,
}

/// The clock of a recording: CLOCK_REALTIME as it was when this was made, so times of a file never
/// jump.
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// CLOCK_REALTIME less CLOCK_MONOTONIC in nanoseconds.
    offset: u64,
}

impl Clock {
    fn new() -> Clock {
        let monotonic = read(libc::CLOCK_MONOTONIC);
        Clock { offset: read(libc::CLOCK_REALTIME).wrapping_sub(monotonic) }
    }

    fn at(self, monotonic: u64) -> u64 {
        monotonic.wrapping_add(self.offset)
    }

    fn now(self) -> u64 {
        self.at(read(libc::CLOCK_MONOTONIC))
    }
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is valid for the call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What both threads count.
#[derive(Debug, Default)]
struct Shared {
    messages: AtomicU64,
    bytes: AtomicU64,
}

/// What a turn of taking has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// No subscription has a message now.
    Idle,
    /// There may be more.
    Busy,
    /// It is time to end.
    Last,
}

/// Takes messages and passes them on.
struct Taker<'a> {
    options: &'a Options,
    subscriptions: Vec<Subscription>,
    buffer: &'a Buffer,
    clock: Clock,
    topics: HashMap<String, Arc<str>>,
    /// Of each publisher with a refused message: how many messages the file lacks after the newest
    /// one that it has, refused ones and those that the publisher dropped.
    refused: HashMap<u64, u64>,
    n_taken: u64,
    n_refused: u64,
    /// Messages that publishers dropped, as the records say.
    n_missed: u64,
    /// Messages dropped before those that another subscription is for.
    n_missed_again: u64,
}

impl Taker<'_> {
    /// Passes a message of a subscription on, unless an earlier one is for its topic, too. False:
    /// it is time to end.
    fn take(&mut self, i: usize, message: Message) -> bool {
        let (publisher, topic) = (message.publisher(), message.topic());
        if self.options.topics[..i].iter().any(|pattern| matches(pattern, &topic)) {
            self.n_missed_again += message.gap();
            return true;
        }
        let missed = message.gap() + self.refused.get(&publisher).copied().unwrap_or(0);
        let publish_time = self.clock.at(message.monotonic_ns());
        let Options { finds_images, gpu, .. } = *self.options;
        let record = Record::new(&message, publish_time, missed, finds_images, gpu);
        self.n_missed += message.gap();
        let record = match record {
            Ok(record) => record,
            Err(why) => {
                if !self.refused.contains_key(&publisher) {
                    say(format_args!(
                        "dlx-record: {topic} of publisher {publisher} is not recorded: {why}; \
                         let it publish a copy in memory of the CPU, or \
                         record those on a GPU with --gpu=stage\n"
                    ));
                }
                self.n_refused += 1;
                self.refused.insert(publisher, missed + 1);
                return true;
            }
        };
        if let Some(n) = self.refused.get_mut(&publisher) {
            *n = 0;
        }
        let mut data = self.buffer.spare();
        record.encode(&mut data);
        let topic = match self.topics.get(&*topic) {
            Some(topic) => topic.clone(),
            None => {
                let shared: Arc<str> = topic.as_ref().into();
                self.topics.insert(topic.into_owned(), shared.clone());
                shared
            }
        };
        let item = Item {
            topic,
            kind: record.kind(),
            seq: message.seq(),
            log_time: self.clock.now(),
            publish_time,
            data,
        };
        drop((record, message)); // before a wait for room
        self.n_taken += 1;
        self.buffer.put(item) && self.options.messages != Some(self.n_taken)
    }

    /// Takes up to so many messages of each subscription in turn.
    fn take_some(&mut self) -> Result<Turn> {
        const N: usize = 16;
        let mut turn = Turn::Idle;
        for i in 0..self.subscriptions.len() {
            for n in 0..N {
                match self.subscriptions[i].try_take() {
                    Ok(Some(message)) => {
                        if !self.take(i, message) {
                            return Ok(Turn::Last);
                        }
                        if n == N - 1 {
                            turn = Turn::Busy;
                        }
                    }
                    Ok(None) => break,
                    Err(error) if goes_on(error.kind()) => {
                        say(format_args!("dlx-record: {}: {error}\n", self.options.topics[i]));
                        turn = Turn::Busy;
                        break;
                    }
                    Err(error) => return Err(Failure::of(&self.options.topics[i], error)),
                }
            }
        }
        Ok(turn)
    }

    /// Messages that publishers dropped, also those that no record tells: what was dropped after
    /// the newest message counts for each subscription to the topic.
    fn n_missed(&self) -> u64 {
        let lost: u64 = self
            .subscriptions
            .iter()
            .filter_map(|subscription| subscription.stats().ok())
            .map(|stats| stats.lost + stats.skipped)
            .sum();
        self.n_missed.max(lost.saturating_sub(self.n_missed_again))
    }
}

/// The subscription has told something, and takes go on.
fn goes_on(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PublisherGone
            | ErrorKind::PublisherNotResponding
            | ErrorKind::Disconnected
            | ErrorKind::BadPeer
            | ErrorKind::Qos
            | ErrorKind::Interrupted
    )
}

/// Waits until one of the descriptors is readable. True: `stop` is.
pub(crate) fn poll(
    fds: &[BorrowedFd<'_>],
    stop: BorrowedFd<'_>,
    timeout: Duration,
) -> io::Result<bool> {
    let mut fds: Vec<libc::pollfd> = fds
        .iter()
        .chain([&stop])
        .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let ms = timeout.as_micros().div_ceil(1000).min(60_000) as i32;
    // SAFETY: the array is valid for the call.
    if unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) } < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) };
    }
    Ok(fds[fds.len() - 1].revents != 0)
}

/// Says how it goes, once a second, where a person looks.
struct Progress<'a> {
    began: Instant,
    next: Instant,
    bytes_before: u64,
    is_seen: bool,
    shared: &'a Shared,
}

impl Progress<'_> {
    const EVERY: Duration = Duration::from_secs(1);

    fn say(&mut self, taker: &Taker<'_>, now: Instant) {
        if now < self.next {
            return;
        }
        self.next = now + Progress::EVERY;
        let bytes = self.shared.bytes.load(Relaxed);
        if self.is_seen {
            say(format_args!(
                "\r{:6.0} s  {} messages  {}  {}/s  missed {}  refused {}\x1b[K",
                self.began.elapsed().as_secs_f64(),
                self.shared.messages.load(Relaxed),
                crate::cli::amount(bytes),
                crate::cli::amount(bytes - self.bytes_before),
                taker.n_missed(),
                taker.n_refused
            ));
        }
        self.bytes_before = bytes;
    }

    fn end(&self) {
        if self.is_seen {
            say(format_args!("\r\x1b[K"));
        }
    }
}

fn write_all(recording: &mut Recording, buffer: &Buffer, shared: &Shared) -> Result<()> {
    loop {
        match buffer.take(recording.deadline()) {
            Some(item) => {
                recording.write(&item)?;
                buffer.reuse(item.data);
                shared.messages.store(recording.n_messages, Relaxed);
                shared.bytes.store(recording.n_bytes, Relaxed);
            }
            None if buffer.has_ended() => return Ok(()),
            None => recording.complete_chunk()?,
        }
    }
}

fn take_until_the_end(taker: &mut Taker<'_>, shared: &Shared, stop: BorrowedFd<'_>) -> Result<()> {
    let began = Instant::now();
    let is_seen = io::stderr().is_terminal();
    let mut progress =
        Progress { began, next: began + Progress::EVERY, bytes_before: 0, is_seen, shared };
    let end = taker.options.duration.and_then(|duration| began.checked_add(duration));
    loop {
        let turn = taker.take_some()?;
        let now = Instant::now();
        if turn == Turn::Last || end.is_some_and(|end| end <= now) {
            break;
        }
        progress.say(taker, now);
        let mut fds = Vec::new();
        let mut time = Duration::ZERO;
        if turn == Turn::Idle {
            for subscription in &taker.subscriptions {
                fds.push(subscription.poll_fd()?);
            }
            let until = end.map_or(progress.next, |end| end.min(progress.next));
            time = until.saturating_duration_since(now);
        }
        if poll(&fds, stop, time).map_err(|error| Failure::of("poll", error))? {
            break;
        }
    }
    progress.end();
    Ok(())
}

/// Records until `stop` is readable, or as long as the options say.
pub fn record(client: &Client, options: &Options, stop: impl AsFd) -> Result<Counts> {
    let subscribe =
        SubscribeOptions { reliable: options.reliable, ends: Ends::Never, ..Default::default() };
    let subscriptions = options
        .topics
        .iter()
        .map(|topic| client.subscribe_with(topic, &subscribe).map_err(Failure::from))
        .collect::<Result<_>>()?;
    let clock = Clock::new();
    let mut recording =
        Recording::create(&options.output, options.overwrites, options.compression)?;
    recording.add_metadata(
        "dlx.clock",
        &[("realtime_minus_monotonic_ns", (clock.offset as i64).to_string())],
    )?;
    let (buffer, shared) = (Buffer::new(options.buffer), Shared::default());
    let mut taker = Taker {
        options,
        subscriptions,
        buffer: &buffer,
        clock,
        topics: HashMap::new(),
        refused: HashMap::new(),
        n_taken: 0,
        n_refused: 0,
        n_missed: 0,
        n_missed_again: 0,
    };
    let (taken, written) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let _closing = buffer.close_at_end();
            write_all(&mut recording, &buffer, &shared)
        });
        let closing = buffer.close_at_end();
        let taken = take_until_the_end(&mut taker, &shared, stop.as_fd());
        drop(closing);
        (taken, writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    written?;
    let counts = Counts {
        messages: recording.n_messages,
        bytes: recording.n_bytes,
        missed: taker.n_missed(),
        refused: taker.n_refused,
    };
    recording.add_metadata(
        "dlx.counts",
        &[
            ("messages", counts.messages.to_string()),
            ("missed", counts.missed.to_string()),
            ("refused", counts.refused.to_string()),
            ("waited_for_disk_ms", buffer.full_for().as_millis().to_string()),
        ],
    )?;
    recording.finish()?;
    taken.map(|()| counts)
}
