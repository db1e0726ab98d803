// SPDX-License-Identifier: Apache-2.0
//! Recordings of dlpackd's topics in MCAP files: what `dlx-record` and `dlx-play` do.
//!
//! An image becomes a `foxglove.RawImage`, any other message a `dlx.Message`; both are protobuf,
//! and their schemas are in the file. docs/RECORD.md has the rest.

#![warn(missing_docs)]

mod buffer;
pub mod cli;
pub mod player;
pub mod reader;
pub mod recorder;
pub mod schema;
mod writer;

use std::fmt;

/// Why recording or playing ended, in words for people.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    fn new(words: impl Into<String>) -> Failure {
        Failure(words.into())
    }

    /// The same with what it is about in front.
    fn of(what: impl fmt::Display, why: impl fmt::Display) -> Failure {
        Failure(format!("{what}: {why}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<dlx::Error> for Failure {
    fn from(error: dlx::Error) -> Failure {
        Failure(error.to_string())
    }
}

/// The result of what may fail.
pub type Result<T> = std::result::Result<T, Failure>;
