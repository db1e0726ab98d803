// SPDX-License-Identifier: Apache-2.0
//! Recordings that are read: whole ones, and those whose recorder was killed.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes, TryGetError};
use mcap::read::ChannelAccumulator;
use mcap::records::{Record, op};
use mcap::{Channel, MAGIC};
use memmap2::Mmap;

use crate::schema::{self, Kind};
use crate::{Failure, Result};

/// A file that is open. No program may shorten it meanwhile: a read behind its end is a bus error.
#[derive(Debug)]
pub struct Recording {
    name: String,
    bytes: Bytes,
}

/// A message of a file.
#[derive(Debug)]
pub struct Entry {
    /// Its topic, encoding and schema.
    pub channel: Arc<Channel<'static>>,
    /// When it was recorded, nanoseconds of CLOCK_REALTIME.
    pub log_time: u64,
    /// When it was published.
    pub publish_time: u64,
    /// The encoded record.
    pub data: Bytes,
}

impl Entry {
    /// The kind of record that it is; None: one of another program.
    pub fn kind(&self) -> Option<Kind> {
        let schema = self.channel.schema.as_ref()?;
        Kind::of_schema(&schema.name, &schema.encoding)
    }

    /// The record.
    pub fn record(&self) -> Result<schema::Record> {
        let Some(kind) = self.kind() else {
            let name = self.channel.schema.as_ref().map_or("", |schema| &schema.name);
            return Err(Failure::new(format!("a message of schema {name:?}")));
        };
        schema::Record::decode(kind, self.data.clone())
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
        Ok(Recording { name, bytes: Bytes::from_owner(map) })
    }

    /// Its path, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its bytes.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Did its recorder finish it?
    pub fn is_finished(&self) -> bool {
        self.bytes.len() >= 2 * MAGIC.len() && self.bytes.ends_with(MAGIC)
    }

    /// The messages in the order of the file. A failure ends it: what follows cannot be read.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry>> + use<> {
        let mut entries = Entries {
            file: self.bytes.slice(MAGIC.len()..),
            chunk: Bytes::new(),
            chunk_ends_early: None,
            channels: ChannelAccumulator::default(),
        };
        let mut has_failed = false;
        std::iter::from_fn(move || {
            if has_failed {
                return None;
            }
            let entry = entries.next_entry().transpose()?;
            has_failed = entry.is_err();
            Some(entry)
        })
    }

    /// Counts what is in it: it reads the whole file.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary { bytes: self.size(), ..Default::default() };
        for entry in self.entries() {
            match entry {
                Ok(entry) => summary.add(&entry),
                Err(Failure(why)) => summary.ends_early = Some(why),
            }
        }
        if !self.is_finished() {
            summary.ends_early.get_or_insert_with(|| "its recorder did not finish it".into());
        }
        summary
    }
}

/// Reads messages. Sizes that a file tells may lie: memory is allocated for what is there.
struct Entries {
    /// What was not read yet.
    file: Bytes,
    /// Likewise, of the chunk.
    chunk: Bytes,
    /// Why the rest of the chunk is missing.
    chunk_ends_early: Option<Failure>,
    channels: ChannelAccumulator<'static>,
}

/// Takes the next record: its opcode, and its body or as much of it as is there.
fn take_record(bytes: &mut Bytes) -> Option<(u8, Bytes, bool)> {
    let opcode = bytes.try_get_u8().ok()?;
    let size = bytes.try_get_u64_le().unwrap_or(u64::MAX);
    let n = size.min(bytes.len() as u64);
    Some((opcode, bytes.split_to(n as usize), n == size))
}

impl Entries {
    /// Begins with a chunk, which may lack its end.
    fn open_chunk(&mut self, mut body: Bytes) -> std::result::Result<(), TryGetError> {
        body.try_get_u128_le()?; // the first and the last time, which the messages have
        let size = body.try_get_u64_le()?;
        body.try_get_u32_le()?; // a checksum
        let n = body.try_get_u32_le()?;
        let compression = body.split_to(body.len().min(n as usize));
        let packed_size = body.try_get_u64_le()?;
        body.truncate(packed_size.min(body.len() as u64) as usize);
        let mut unpacked = Vec::new();
        let read = match &compression[..] {
            b"" => Ok(0),
            b"lz4" => lz4::Decoder::new(&body[..])
                .and_then(|lz4| lz4.take(size).read_to_end(&mut unpacked)),
            b"zstd" => zstd::Decoder::new(&body[..])
                .and_then(|zstd| zstd.take(size).read_to_end(&mut unpacked)),
            _ => Err(io::Error::other("its compression is neither lz4 nor zstd")),
        };
        self.chunk = if compression.is_empty() { body } else { unpacked.into() };
        let why = match read {
            Ok(_) if self.chunk.len() as u64 == size => return Ok(()),
            Ok(_) => format!("it has {} of {size} bytes", self.chunk.len()),
            Err(error) => error.to_string(),
        };
        self.chunk_ends_early = Some(Failure::of("a chunk", why));
        Ok(())
    }

    fn message(&self, mut body: Bytes) -> Result<Entry> {
        let id = body.try_get_u16_le().map_err(damaged)?;
        body.try_get_u32_le().map_err(damaged)?; // the low half of its number
        let log_time = body.try_get_u64_le().map_err(damaged)?;
        let publish_time = body.try_get_u64_le().map_err(damaged)?;
        let Some(channel) = self.channels.get(id) else {
            return Err(Failure::new(format!("a message of channel {id}, which is not there")));
        };
        Ok(Entry { channel, log_time, publish_time, data: body })
    }

    /// The next message; None: that was the last one.
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        loop {
            let in_chunk = !self.chunk.is_empty();
            if !in_chunk && let Some(why) = self.chunk_ends_early.take() {
                return Err(why);
            }
            let bytes = if in_chunk { &mut self.chunk } else { &mut self.file };
            let Some((opcode, body, is_whole)) = take_record(bytes) else {
                return Err(Failure::new("the record that ends the messages is missing"));
            };
            match opcode {
                op::CHUNK if !in_chunk => self.open_chunk(body).map_err(damaged)?,
                _ if !is_whole => return Err(Failure::new("the last record is not whole")),
                op::MESSAGE => return self.message(body).map(Some),
                op::DATA_END => return Ok(None),
                op::SCHEMA | op::CHANNEL => match mcap::parse_record(opcode, &body) {
                    Ok(Record::Schema { header, data }) => {
                        self.channels.add_schema_from_slice(header, &data)
                    }
                    Ok(Record::Channel(channel)) => self.channels.add_channel(channel),
                    other => other.map(|_| ()),
                }
                .map_err(damaged)?,
                _ => {}
            }
        }
    }
}

fn damaged(why: impl fmt::Display) -> Failure {
    Failure::of("a record is damaged", why)
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
    fn add(&mut self, entry: &Entry) {
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
                    let missed = record.origin().map_or(0, |origin| origin.missed);
                    topic.missed = topic.missed.saturating_add(missed);
                }
                _ => topic.invalid += 1,
            }
        }
        let (first, last) = self.times.unwrap_or((time, time));
        self.times = Some((first.min(time), last.max(time)));
    }
}

/// Words for the tensors of a message.
fn what(entry: &Entry) -> Option<String> {
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
