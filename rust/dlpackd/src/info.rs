// SPDX-License-Identifier: Apache-2.0
//! What the daemon knows.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use dlpackd_sys as sys;

use crate::client::Client;
use crate::error::{Result, c_string, check};
use crate::event::text;

/// A publisher, as the daemon knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublisherInfo {
    /// Its topic.
    pub topic: String,
    /// Name of its program: [`ConnectOptions::name`](crate::ConnectOptions::name).
    pub client_name: String,
    /// Id of the publisher, as in [`Message::publisher`](crate::Message::publisher).
    pub publisher: u64,
    /// Its process, as the daemon sees it; 0: unknown.
    pub pid: u32,
    /// The user of its process.
    pub uid: u32,
    /// Messages that it published.
    pub published: u64,
    /// Payload of these messages in bytes.
    pub published_bytes: u64,
    /// Subscriptions that are attached.
    pub n_subscribers: u32,
    /// How many messages a subscriber may be behind.
    pub depth: u32,
    /// How many messages stay readable for later subscriptions.
    pub history: u32,
    /// How many it retains.
    pub retain: u32,
    /// The publisher is gone, and the daemon keeps its messages.
    pub retained: bool,
    /// Does it wait for reliable subscribers?
    pub blocks: bool,
}

impl PublisherInfo {
    fn from_c(c: &sys::dlx_publisher_info) -> PublisherInfo {
        PublisherInfo {
            topic: text(&c.topic),
            client_name: text(&c.client_name),
            publisher: c.publisher,
            pid: c.pid,
            uid: c.uid,
            published: c.published,
            published_bytes: c.published_bytes,
            n_subscribers: c.n_subscribers,
            depth: c.depth,
            history: c.history,
            retain: c.retain,
            retained: c.retained,
            blocks: matches!(c.on_full, sys::DLX_ON_FULL_BLOCK | sys::DLX_ON_FULL_FAIL),
        }
    }
}

/// A pattern of topics, or none.
pub(crate) struct Pattern(Option<CString>);

impl Pattern {
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.0.as_ref().map_or(ptr::null(), |pattern| pattern.as_ptr())
    }
}

pub(crate) fn pattern(topic: Option<&str>) -> Result<Pattern> {
    topic.map(c_string).transpose().map(Pattern)
}

/// What libdlx calls with each entry of a list.
pub(crate) type EntryFn<E> = unsafe extern "C" fn(*const E, *mut c_void) -> c_int;

/// Collects the entries of a list, each made by `make`.
pub(crate) fn collect<E, T>(
    make: fn(&E) -> T,
    list: impl FnOnce(EntryFn<E>, *mut c_void) -> c_int,
) -> Result<Vec<T>> {
    struct Entries<E, T> {
        made: Vec<T>,
        make: fn(&E) -> T,
    }
    /// # Safety
    ///
    /// libdlx calls it with an entry, and with the entries of collect().
    unsafe extern "C" fn add<E, T>(entry: *const E, entries: *mut c_void) -> c_int {
        // SAFETY: nobody else has them during the call of `list`.
        let (entries, entry) = unsafe { (&mut *entries.cast::<Entries<E, T>>(), &*entry) };
        entries.made.push((entries.make)(entry));
        0
    }
    let mut entries = Entries { made: Vec::new(), make };
    check(list(add::<E, T>, (&raw mut entries).cast()))?;
    Ok(entries.made)
}

impl Client {
    /// Lists publishers, ordered by topic, then by id; `topic` may be a pattern, None: all topics.
    pub fn publishers(&self, topic: Option<&str>) -> Result<Vec<PublisherInfo>> {
        let topic = pattern(topic)?;
        collect(PublisherInfo::from_c, |add, entries| {
            // SAFETY: the arguments are valid for the call.
            unsafe { sys::dlx_list_publishers(self.as_raw(), topic.as_ptr(), Some(add), entries) }
        })
    }
}
