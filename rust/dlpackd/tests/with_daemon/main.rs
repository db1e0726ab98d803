// SPDX-License-Identifier: Apache-2.0
//! What programs do with the crate, each test on a daemon of its own.

#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod daemon;
mod lifetimes;
mod messages;
mod threads;
mod waiting;
