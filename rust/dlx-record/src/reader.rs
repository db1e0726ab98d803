// SPDX-License-Identifier: Apache-2.0
//! Recordings that are read: whole ones, and those whose recorder was killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use mcap::read::{Options, RawMessageStream};
use mcap::{Channel, MAGIC};
use memmap2::Mmap;

use crate::schema::{Kind, Record};
use crate::{Failure, Result};

/// A file that is open. Nobody may shorten it meanwhile: a read behind its end is a bus error.
#[derive(Debug)]
pub struct Recording {
    name: String,
    map: Mmap,
}

/// A message of a file.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Its topic, encoding and schema.
    pub channel: Arc<Channel<'a>>,
    /// When it was recorded, nanoseconds of CLOCK_REALTIME.
    pub log_time: u64,
    /// When it was published.
    pub publish_time: u64,
    /// The encoded record.
    pub data: Bytes,
}

impl Entry<'_> {
    /// The kind of record that it is; None: one of another program.
    pub fn kind(&self) -> Option<Kind> {
        let schema = self.channel.schema.as_ref()?;
        Kind::of_schema(&schema.name, &schema.encoding)
    }

    /// The record.
    pub fn record(&self) -> Result<Record> {
        let Some(kind) = self.kind() else {
            let name = self.channel.schema.as_ref().map_or("", |schema| &schema.name);
            return Err(Failure::new(format!("a message of schema {name:?}")));
        };
        Record::decode(kind, self.data.clone())
    }
}

impl Recording {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Recording> {
        let name = path.display().to_string();
        let fail = |error: io::Error| Failure::of(&name, error);
        let file = File::open(path).map_err(fail)?;
        if !file.metadata().map_err(fail)?.is_file() {
            return Err(Failure::of(name, "no regular file"));
        }
        // SAFETY: the documentation of the struct says what its user must not do.
        let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
        if !map.starts_with(MAGIC) {
            return Err(Failure::of(name, "no MCAP file"));
        }
        let _ = map.advise(memmap2::Advice::Sequential);
        Ok(Recording { name, map })
    }

    /// Its path, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its bytes.
    pub fn size(&self) -> u64 {
        self.map.len() as u64
    }

    /// Did its recorder finish it?
    pub fn is_finished(&self) -> bool {
        self.map.len() >= 2 * MAGIC.len() && self.map.ends_with(MAGIC)
    }

    /// The messages in the order of the file. A failure ends it: what follows cannot be read.
    pub fn entries(&self) -> Result<impl Iterator<Item = Result<Entry<'_>>>> {
        let fail = |error| Failure::of(&self.name, error);
        let mut stream =
            RawMessageStream::new_with_options(&self.map, Options::IgnoreEndMagic.into())
                .map_err(fail)?;
        let mut has_failed = false;
        Ok(std::iter::from_fn(move || {
            if has_failed {
                return None;
            }
            let message = match stream.next()? {
                Ok(message) => message,
                Err(error) => {
                    has_failed = true;
                    return Some(Err(Failure::new(error.to_string())));
                }
            };
            let channel = stream.get_channel(message.header.channel_id)?;
            Some(Ok(Entry {
                channel,
                log_time: message.header.log_time,
                publish_time: message.header.publish_time,
                data: message.data.into_owned().into(),
            }))
        }))
    }

    /// Counts what is in it: it reads the whole file.
    pub fn summary(&self) -> Result<Summary> {
        let mut summary = Summary { bytes: self.size(), ..Default::default() };
        for entry in self.entries()? {
            match entry {
                Ok(entry) => summary.add(&entry),
                Err(Failure(why)) => summary.ends_early = Some(why),
            }
        }
        if !self.is_finished() {
            summary.ends_early.get_or_insert_with(|| "its recorder did not finish it".into());
        }
        Ok(summary)
    }
}

/// What a recording has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of the file.
    pub bytes: u64,
    /// The first and the last time of publication, nanoseconds of CLOCK_REALTIME.
    pub times: Option<(u64, u64)>,
    /// Its topics, each with the name of its schema.
    pub topics: BTreeMap<(String, String), Topic>,
    /// Why its end is missing.
    pub ends_early: Option<String>,
}

/// A topic of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topic {
    /// How many messages of it are there.
    pub messages: u64,
    /// Their encoded bytes.
    pub bytes: u64,
    /// How many are missing between them.
    pub missed: u64,
    /// The first and the last time of publication.
    pub times: (u64, u64),
    /// What the first message is, such as "uint8 480x640x3".
    pub what: String,
    /// Messages that are none of their schema.
    pub invalid: u64,
}

impl Summary {
    fn add(&mut self, entry: &Entry<'_>) {
        let time = entry.publish_time;
        let schema = entry.channel.schema.as_ref().map_or("", |schema| &schema.name);
        let key = (entry.channel.topic.clone(), schema.to_string());
        let topic = self.topics.entry(key).or_insert_with(|| Topic {
            times: (time, time),
            what: what(entry).unwrap_or_default(),
            ..Default::default()
        });
        topic.messages += 1;
        topic.bytes += entry.data.len() as u64;
        topic.times = (topic.times.0.min(time), topic.times.1.max(time));
        if entry.kind().is_some() {
            match entry.record() {
                Ok(record) if record.contents().is_ok() => {
                    topic.missed += record.origin().map_or(0, |origin| origin.missed);
                }
                _ => topic.invalid += 1,
            }
        }
        let (first, last) = self.times.unwrap_or((time, time));
        self.times = Some((first.min(time), last.max(time)));
    }
}

/// Words for the tensors of a message.
fn what(entry: &Entry<'_>) -> Option<String> {
    let record = entry.record().ok()?;
    let contents = record.contents().ok()?;
    let parts = contents.iter().take(3).map(|content| {
        let shape: Vec<_> = content.shape.iter().map(usize::to_string).collect();
        let name =
            if content.name.is_empty() { String::new() } else { format!("{}: ", content.name) };
        format!(
            "{name}{} {}",
            content.dtype,
            if shape.is_empty() { "scalar".into() } else { shape.join("x") }
        )
    });
    let mut words = parts.collect::<Vec<_>>().join(", ");
    if contents.len() > 3 {
        words += &format!(", {} more", contents.len() - 3);
    }
    Some(words)
}
