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

/// A link: a publisher and a subscription that are attached to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkInfo {
    /// Name of the subscriber's program.
    pub client_name: String,
    /// Id of the link, as in [`Event::link`](crate::Event::link).
    pub link: u64,
    /// Id of the publisher.
    pub publisher: u64,
    /// Process of the subscriber, as the daemon sees it; 0: unknown.
    pub pid: u32,
    /// The user of that process.
    pub uid: u32,
    /// Messages that it has taken.
    pub taken: u64,
    /// Messages that mode latest passed over.
    pub skipped: u64,
    /// Messages that it can never take.
    pub lost: u64,
    /// Messages that it holds.
    pub n_held: u32,
    /// Messages that it may hold.
    pub max_held: u32,
    /// Messages that it can still take; None: the daemon is too old to say.
    pub behind: Option<u64>,
    /// The publisher waits for it instead of dropping messages.
    pub reliable: bool,
    /// The publisher waits for it now.
    pub blocks: bool,
    /// It learns of the link in its next call.
    pub joining: bool,
    /// Of a worker: the number of its group.
    pub group: Option<u32>,
}

impl LinkInfo {
    fn from_c(c: &sys::dlx_link_info) -> LinkInfo {
        LinkInfo {
            client_name: text(&c.client_name),
            link: c.link,
            publisher: c.publisher,
            pid: c.pid,
            uid: c.uid,
            taken: c.taken,
            skipped: c.skipped,
            lost: c.lost,
            n_held: c.n_held,
            max_held: c.max_held,
            behind: Some(c.behind).filter(|&n| n != sys::DLX_BEHIND_UNKNOWN),
            reliable: c.reliable,
            blocks: c.blocks,
            joining: c.joining,
            group: Some(c.group).filter(|&n| n != 0),
        }
    }
}

/// How much of a resource a user of the daemon has, and may have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaInfo {
    /// What: the key in dlpackd.conf(5), such as "bytes".
    pub name: String,
    /// Bytes, or a number.
    pub used: u64,
    /// The limit now; None: there is none.
    pub max: Option<u64>,
    /// The user.
    pub uid: u32,
    /// Name of the listening socket: a uid is another user on each.
    pub socket: String,
    /// The class of the user, which has the limits.
    pub quota_class: String,
}

impl QuotaInfo {
    fn from_c(c: &sys::dlx_quota_info) -> QuotaInfo {
        QuotaInfo {
            name: text(&c.name),
            used: c.used,
            max: Some(c.max).filter(|&n| n != sys::DLX_QUOTA_UNLIMITED),
            uid: c.uid,
            socket: text(&c.socket),
            quota_class: text(&c.quota_class),
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

    /// Lists the links of a publisher, ordered by id.
    pub fn links(&self, publisher: u64) -> Result<Vec<LinkInfo>> {
        collect(LinkInfo::from_c, |add, entries| {
            // SAFETY: the arguments are valid for the call.
            unsafe { sys::dlx_list_links(self.as_raw(), publisher, Some(add), entries) }
        })
    }

    /// Lists the quotas of this user; for root, and for the daemon's own user, those of all users.
    pub fn quotas(&self) -> Result<Vec<QuotaInfo>> {
        collect(QuotaInfo::from_c, |add, entries| {
            // SAFETY: the arguments are valid for the call.
            unsafe { sys::dlx_list_quotas(self.as_raw(), Some(add), entries) }
        })
    }
}
