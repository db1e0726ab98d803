// SPDX-License-Identifier: Apache-2.0
//! The file that is written.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mcap::records::{MessageHeader, Metadata};
use mcap::{Compression, McapError, WriteOptions, Writer};

use crate::buffer::Item;
use crate::schema::Kind;
use crate::{Failure, Result};

/// A chunk is complete, and can be read whatever happens then, so often.
const CHUNK_TIME: Duration = Duration::from_secs(1);
/// Or when it has so many bytes.
const CHUNK_BYTES: u64 = 8 << 20;

/// Writes through to the file, and has the kernel begin to store what was written.
struct Disk {
    file: File,
    begun: u64,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    /// The kernel would begin by itself only when a tenth of the memory is dirty, or after 30 s,
    /// and the disk would be idle until then.
    fn flush(&mut self) -> io::Result<()> {
        let end = self.file.stream_position()?;
        let (from, n) = (self.begun as i64, (end - self.begun) as i64);
        // SAFETY: the descriptor is open. It is a hint: file systems without it store later.
        unsafe {
            libc::sync_file_range(self.file.as_raw_fd(), from, n, libc::SYNC_FILE_RANGE_WRITE)
        };
        self.begun = end;
        Ok(())
    }
}

impl Seek for Disk {
    fn seek(&mut self, at: io::SeekFrom) -> io::Result<u64> {
        self.file.seek(at)
    }
}

/// A recording that grows.
pub(crate) struct Recording {
    path: PathBuf,
    mcap: Writer<BufWriter<Disk>>,
    schemas: HashMap<Kind, u16>,
    channels: HashMap<(std::sync::Arc<str>, Kind), u16>,
    chunk_began: Option<Instant>,
    pub(crate) n_messages: u64,
    pub(crate) n_bytes: u64,
}

impl Recording {
    pub(crate) fn create(
        path: &Path,
        overwrites: bool,
        compression: Option<Compression>,
    ) -> Result<Recording> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .truncate(overwrites)
            .create(overwrites)
            .create_new(!overwrites)
            .open(path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Failure::new(format!(
                    "{} exists: name another file, or say --force to replace it",
                    path.display()
                )),
                _ => Failure::of(path.display(), error),
            })?;
        let mcap = WriteOptions::new()
            .compression(compression)
            .chunk_size(Some(CHUNK_BYTES))
            .calculate_data_section_crc(false) // each chunk has its own
            .library(concat!("dlx-record ", env!("CARGO_PKG_VERSION")))
            .create(BufWriter::with_capacity(1 << 20, Disk { file, begun: 0 }))
            .map_err(|error| failure(path, error))?;
        Ok(Recording {
            path: path.into(),
            mcap,
            schemas: HashMap::new(),
            channels: HashMap::new(),
            chunk_began: None,
            n_messages: 0,
            n_bytes: 0,
        })
    }

    fn channel(&mut self, item: &Item) -> std::result::Result<u16, McapError> {
        let key = (item.topic.clone(), item.kind);
        if let Some(&id) = self.channels.get(&key) {
            return Ok(id);
        }
        let schema = match self.schemas.get(&item.kind) {
            Some(&id) => id,
            None => {
                let (name, data) = (item.kind.name(), item.kind.descriptor());
                let id = self.mcap.add_schema(name, "protobuf", &data)?;
                self.schemas.insert(item.kind, id);
                id
            }
        };
        let id = self.mcap.add_channel(schema, &item.topic, "protobuf", &Default::default())?;
        self.channels.insert(key, id);
        Ok(id)
    }

    /// Writes one record, and completes the chunk when it is time.
    pub(crate) fn write(&mut self, item: &Item) -> Result<()> {
        let header = MessageHeader {
            channel_id: self.channel(item).map_err(|error| self.failure(error))?,
            sequence: item.seq as u32,
            log_time: item.log_time,
            publish_time: item.publish_time,
        };
        self.mcap
            .write_to_known_channel(&header, &item.data)
            .map_err(|error| self.failure(error))?;
        self.n_messages += 1;
        self.n_bytes += item.data.len() as u64;
        let began = *self.chunk_began.get_or_insert_with(Instant::now);
        if began.elapsed() >= CHUNK_TIME { self.complete_chunk() } else { Ok(()) }
    }

    /// When the chunk is to be completed, if one has begun.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.chunk_began.map(|began| began + CHUNK_TIME)
    }

    pub(crate) fn complete_chunk(&mut self) -> Result<()> {
        self.chunk_began = None;
        self.mcap.flush().map_err(|error| self.failure(error))
    }

    pub(crate) fn add_metadata(&mut self, name: &str, values: &[(&str, String)]) -> Result<()> {
        let metadata = values.iter().map(|(key, value)| (key.to_string(), value.clone())).collect();
        self.mcap
            .write_metadata(&Metadata { name: name.into(), metadata })
            .map_err(|error| self.failure(error))
    }

    /// Writes the index, and waits until the disk has all of it.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.mcap.finish().map_err(|error| self.failure(error))?;
        let path = self.path;
        let stored = self.mcap.into_inner().into_inner().map_err(|error| error.into_error());
        stored
            .and_then(|disk| disk.file.sync_all())
            .map_err(|error| Failure::of(path.display(), error))
    }

    fn failure(&self, error: McapError) -> Failure {
        let Failure(why) = failure(&self.path, error);
        Failure(format!(
            "{why}; {} messages were written, and what is older than a second can be read",
            self.n_messages
        ))
    }
}

fn failure(path: &Path, error: McapError) -> Failure {
    match error {
        McapError::Io(error) => Failure::of(path.display(), error),
        error => Failure::of(path.display(), error),
    }
}
