// SPDX-License-Identifier: Apache-2.0
//! Exchange DLPack tensors between processes of one machine without copying them: libdlx for Rust.
//!
//! ```no_run
//! # fn main() -> dlx::Result<()> {
//! let client = dlx::Client::connect()?;
//! let publisher = client.publisher("cam/front")?;
//! let mut image = publisher.alloc::<u8>(&[480, 640, 3])?; // shared memory
//! image.fill(128);
//! publisher.publish(image)?; // copies nothing
//! # Ok(())
//! # }
//! ```
//!
//! In another process, in Rust, C, C++ or Python:
//!
//! ```no_run
//! # fn main() -> dlx::Result<()> {
//! let client = dlx::Client::connect()?;
//! let subscription = client.subscribe("cam/front")?;
//! for message in &subscription {
//!     let message = message?;
//!     let image = message.tensor::<u8>(0)?;
//!     println!("{:?}, mean {}", image.shape(), image.iter().map(|&p| p as f64).sum::<f64>());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The package is `dlpackd`, the library `dlx`. If no daemon answers, [`Client::connect`] starts a
//! private one.
//!
//! # Threads
//!
//! A [`Client`] is for any number of threads at once. One thread at a time may use a [`Publisher`],
//! a [`Subscription`], a [`Caller`] or a [`Service`]: they are [`Send`], and not [`Sync`]. Messages
//! and tensors are for any thread, in any order, also after everything else was dropped.
//!
//! ```compile_fail
//! fn is_sync<T: Sync>() {}
//! is_sync::<dlx::Publisher>();
//! ```
//! ```compile_fail
//! fn is_sync<T: Sync>() {}
//! is_sync::<dlx::Subscription>();
//! ```
//!
//! A forked child cannot use handles of its parent: calls fail with [`ErrorKind::Forked`], and
//! tensors are not mapped there.
//!
//! # Features
//!
//! | feature | what |
//! |---|---|
//! | `tokio` | tasks await messages, and room for theirs |
//! | `ndarray` | tensors as arrays, and arrays published |
//! | `dlpark` | tensors for dlpark, and by it for candle, cudarc and others |
//!
//! # What is unsafe and why
//!
//! Received tensors deref to `&[T]`, whose elements Rust takes to be constant. The kernel keeps
//! every *receiver* from writing. The *publisher* has the memory mapped writable: by this crate it
//! cannot write once it has published, since [`Publisher::publish`] consumes the loan, but a
//! program in C, or Python code that kept an array, can. A subscription
//! trusts the publishers that the
//! daemon lets it see as far as that: elements may change while a slice is borrowed. Every pattern
//! of bits is a value of an [`Element`], so what is read is some number; do not take an element of
//! another user's program for checked unless you have copied it first (`to_vec`). Shapes, strides,
//! names and metadata are not in that memory: libdlx has checked and copied them.
//!
//! What this crate cannot check is `unsafe`: [`Element`], and [`ManagedTensor::from_raw`].

#[cfg(feature = "tokio")]
mod aio;
#[cfg(feature = "ndarray")]
mod arrays;
mod call;
mod client;
mod dtype;
mod error;
mod event;
mod info;
mod message;
mod observer;
#[cfg(feature = "dlpark")]
mod park;
mod publisher;
mod queue;
mod set;
mod subscription;
mod tensor;
mod time;
pub mod topic;

#[cfg(feature = "tokio")]
pub use aio::{AsyncCaller, AsyncPublisher, AsyncService, AsyncSubscription};
pub use call::{
    CallError, CallId, CallOptions, CallResult, Caller, CallerOptions, CallerStats, Request,
    Service, ServiceOptions, ServiceStats,
};
pub use client::{Client, ConnectOptions, Interrupt};
pub use dlpackd_sys as sys;
pub use dtype::{DType, Device, Element};
pub use error::{Error, ErrorKind, Rejected, Result};
pub use event::{Event, EventKind};
pub use info::{LinkInfo, PublisherInfo, QuotaInfo};
pub use message::Message;
pub use observer::{Change, Observe, Observed, Observer, Qos};
pub use publisher::{
    OnFull, PublishOptions, Publisher, PublisherOptions, PublisherStats, Report, RetainFor,
};
pub use queue::{ClaimInfo, GroupInfo};
pub use set::Set;
pub use subscription::{
    Ends, History, Messages, Mode, Spin, SubscribeOptions, Subscription, SubscriptionStats,
};
pub use tensor::{Layout, Loan, ManagedTensor, Outgoing, Strided, Tensor};
pub use time::{FOREVER, parse_time};

/// The version of the library that is loaded.
pub fn version() -> &'static str {
    // SAFETY: a static text.
    let version = unsafe { std::ffi::CStr::from_ptr(sys::dlx_version()) };
    version.to_str().unwrap_or("")
}
