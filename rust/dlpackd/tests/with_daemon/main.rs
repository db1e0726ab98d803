// SPDX-License-Identifier: Apache-2.0
//! What programs do with the crate, each test on a daemon of its own.

#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

#[cfg(all(feature = "dlpark", feature = "ndarray"))]
mod arrays;
mod calls;
mod daemon;
mod examples;
mod gpu;
mod lifetimes;
mod messages;
mod observers;
mod peers;
mod queues;
mod sets;
#[cfg(feature = "tokio")]
mod tasks;
mod threads;
mod topics;
mod waiting;
