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
    /// Shared memory for payloads in bytes.
    pub arena_bytes: u64,
    /// Shared memory for its control block in bytes.
    pub control_bytes: u64,
    /// Arenas.
    pub n_arenas: u32,
    /// Publishes that failed for lack of room; None: the daemon is too old to say.
    pub refused: Option<u64>,
    /// Messages that were copied into shared memory; None: likewise.
    pub copied: Option<u64>,
    /// Payload that was copied, in bytes; None: likewise.
    pub copied_bytes: Option<u64>,
    /// How long publishes have waited for room, in nanoseconds, with one that waits now; None:
    /// likewise.
    pub blocked_ns: Option<u64>,
    /// When the wait began that goes on, in nanoseconds of CLOCK_MONOTONIC; None: none does.
    pub blocked_at_ns: Option<u64>,
    /// A rule of the daemon lets every user observe the topic.
    pub for_everybody: bool,
}

/// A figure that a daemon may be too old to know.
fn known(figure: u64) -> Option<u64> {
    Some(figure).filter(|&n| n != sys::DLX_FIGURE_UNKNOWN)
}

/// A time or a number that is 0 where there is none.
fn nonzero<T: Default + PartialEq>(n: T) -> Option<T> {
    Some(n).filter(|n| *n != T::default())
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
            arena_bytes: c.arena_bytes,
            control_bytes: c.control_bytes,
            n_arenas: c.n_arenas,
            refused: known(c.refused),
            copied: known(c.copied),
            copied_bytes: known(c.copied_bytes),
            blocked_ns: known(c.blocked_ns),
            blocked_at_ns: known(c.blocked_at_ns).and_then(nonzero),
            for_everybody: c.for_everybody,
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
    /// The subscription takes the newest message, and passes over older ones.
    pub latest: bool,
    /// When the next message for it was published, in nanoseconds of CLOCK_MONOTONIC; None: there
    /// is none, or that is not known.
    pub next_ns: Option<u64>,
    /// Likewise of the oldest message that it holds, or a later time.
    pub held_ns: Option<u64>,
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
            behind: known(c.behind),
            reliable: c.reliable,
            blocks: c.blocks,
            joining: c.joining,
            group: nonzero(c.group),
            latest: c.mode == sys::DLX_MODE_LATEST,
            next_ns: nonzero(c.next_ns),
            held_ns: nonzero(c.held_ns),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fmt::Debug;

    fn fields(value: &impl Debug) -> BTreeSet<String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let text = format!("{value:#?}");
        text.lines()
            .filter_map(|line| line.strip_prefix("    ")?.split_once(": "))
            .filter(|(name, _)| name.chars().all(is_name))
            .map(|(name, _)| name.to_owned())
            .collect()
    }

    /// Checks that `ours` has all fields of `c` but those that it leaves out or calls otherwise.
    fn has_all(c: &impl Debug, ours: &impl Debug, others: &[&str]) {
        let (c, ours) = (fields(c), fields(ours));
        assert!(c.len() > others.len());
        for name in others {
            assert!(c.contains(*name), "there is no {name}");
        }
        let missing: Vec<_> =
            c.difference(&ours).filter(|name| !others.contains(&name.as_str())).collect();
        assert!(missing.is_empty(), "missing: {missing:?}");
    }

    #[test]
    fn every_figure_of_c_is_there() {
        let p = sys::dlx_publisher_info::default();
        // `former` is of dlx_list_gone_publishers()
        has_all(&p, &PublisherInfo::from_c(&p), &["size", "on_full", "former"]);
        let l = sys::dlx_link_info::default();
        let others = ["size", "mode", "is_publisher", "former_bytes"];
        has_all(&l, &LinkInfo::from_c(&l), &others);
        let q = sys::dlx_quota_info::default();
        has_all(&q, &QuotaInfo::from_c(&q), &["size"]);
    }
}
