// SPDX-License-Identifier: Apache-2.0
//! Playing: publishes what a recording has, with the time between messages as it was.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dlx::topic::matches;
use dlx::{Client, OnFull, PublishOptions, Publisher, PublisherOptions, Set};

use crate::reader::{Entry, Recording};
use crate::recorder::poll;
use crate::schema::Record;
use crate::{Failure, Result};

/// What to play, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file.
    pub input: PathBuf,
    /// Patterns of topics; none: all.
    pub topics: Vec<String>,
    /// Put in front of each topic.
    pub prefix: String,
    /// How much faster than it was; infinite: without a wait.
    pub rate: f64,
    /// Begins again at the end, until it is stopped.
    pub repeats: bool,
    /// Waits for reliable subscribers instead of dropping messages.
    pub reliable: bool,
    /// Waits for so many subscribers of each topic before it publishes the first message there.
    pub subscribers: u32,
}

/// What was played.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that were published.
    pub messages: u64,
    /// Messages of each schema that this program does not know.
    pub foreign: BTreeMap<String, u64>,
    /// Messages that could not be published, and why the first one could not.
    pub refused: u64,
    /// Why the first one was refused.
    pub why: Option<String>,
    /// The longest time that a message was late.
    pub late: Duration,
    /// Why the end of the recording could not be read.
    pub ends_early: Option<String>,
}

struct Player<'a> {
    client: &'a Client,
    options: &'a Options,
    stop: BorrowedFd<'a>,
    publishers: BTreeMap<String, Publisher>,
    /// For subscribers of new publishers: the time of the recording stands still meanwhile.
    waited: Duration,
    counts: Counts,
}

/// Names of topics of other systems may begin with a slash; ours do not.
fn topic_of(entry: &Entry) -> &str {
    entry.channel.topic.trim_start_matches('/')
}

impl Player<'_> {
    fn is_wanted(&self, entry: &Entry) -> bool {
        let topics = &self.options.topics;
        topics.is_empty() || topics.iter().any(|pattern| matches(pattern, topic_of(entry)))
    }

    fn publisher(&mut self, topic: &str) -> Result<&Publisher> {
        match self.publishers.entry(format!("{}{topic}", self.options.prefix)) {
            btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            btree_map::Entry::Vacant(entry) => {
                let options = PublisherOptions {
                    on_full: if self.options.reliable { OnFull::Block } else { OnFull::Drop },
                    ..Default::default()
                };
                let publisher = self.client.publisher_with(entry.key(), &options)?;
                let since = Instant::now();
                publisher.wait(self.options.subscribers, dlx::FOREVER)?;
                self.waited += since.elapsed();
                Ok(entry.insert(publisher))
            }
        }
    }

    fn publish(&mut self, topic: &str, record: &Record) -> Result<()> {
        let timeout = self.options.reliable.then_some(dlx::FOREVER);
        let publisher = self.publisher(topic)?;
        let mut set = Set::new();
        for content in record.contents()? {
            let mut loan = publisher.alloc_bytes(content.dtype, &content.shape)?;
            loan.copy_from_slice(&content.data);
            set = set.tensor(content.name, loan);
        }
        if let Some(meta) = record.origin().and_then(|origin| origin.meta.as_ref()) {
            set = set.meta(&meta[..]);
        }
        let options = PublishOptions { timeout, ..Default::default() };
        publisher.publish_set_with(set, &options).map_err(dlx::Error::from)?;
        Ok(())
    }

    /// Waits until a message is due. False: it was stopped.
    fn wait(&mut self, due: Instant) -> Result<bool> {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if poll(&[], self.stop, left).map_err(|error| Failure::of("poll", error))? {
                return Ok(false);
            }
            if left.is_zero() {
                return Ok(true);
            }
        }
    }

    /// Plays the file once. False: it was stopped.
    fn play_once(&mut self, recording: &Recording) -> Result<bool> {
        let (mut first, began) = (None, Instant::now());
        self.waited = Duration::ZERO;
        for entry in recording.entries() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Failure(why)) => {
                    self.counts.ends_early = Some(why);
                    break;
                }
            };
            if !self.is_wanted(&entry) {
                continue;
            }
            if entry.kind().is_none() {
                let name = entry.channel.schema.as_ref().map_or("", |schema| &schema.name);
                *self.counts.foreign.entry(name.to_string()).or_default() += 1;
                continue;
            }
            let time = entry.publish_time.saturating_sub(*first.get_or_insert(entry.publish_time));
            let after = Duration::try_from_secs_f64(time as f64 / 1e9 / self.options.rate)
                .map_err(|error| Failure::of("--rate", error))?;
            let due = |waited| {
                let after = after.checked_add(waited)?;
                began.checked_add(after)
            };
            if !self.wait(due(self.waited).unwrap_or(began))? {
                return Ok(false);
            }
            let published =
                entry.record().and_then(|record| self.publish(topic_of(&entry), &record));
            match published {
                Ok(()) => {
                    self.counts.messages += 1;
                    if self.options.rate.is_finite() {
                        let due = due(self.waited).unwrap_or(began);
                        self.counts.late = self.counts.late.max(due.elapsed());
                    }
                }
                Err(why) if poll(&[], self.stop, Duration::ZERO).unwrap_or(true) => {
                    drop(why); // its wait was interrupted
                    return Ok(false);
                }
                Err(Failure(why)) => {
                    self.counts.refused += 1;
                    self.counts.why.get_or_insert(format!("{}: {why}", entry.channel.topic));
                }
            }
        }
        Ok(true)
    }
}

/// Plays until the end, or until `stop` is readable.
pub fn play(client: &Client, options: &Options, stop: impl AsFd) -> Result<Counts> {
    let recording = Recording::open(&options.input)?;
    let mut player = Player {
        client,
        options,
        stop: stop.as_fd(),
        publishers: BTreeMap::new(),
        waited: Duration::ZERO,
        counts: Counts::default(),
    };
    while player.play_once(&recording)? && options.repeats && player.counts.messages > 0 {}
    if !recording.is_finished() {
        let why = "its recorder did not finish it";
        player.counts.ends_early.get_or_insert_with(|| why.into());
    }
    Ok(player.counts)
}
