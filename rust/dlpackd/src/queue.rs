// SPDX-License-Identifier: Apache-2.0
//! Work queues: each message goes to one of the workers of a group.

use std::time::Duration;

use dlpackd_sys as sys;

use crate::client::Client;
use crate::error::{Result, c_string, check};
use crate::event::text;
use crate::info::{collect, pattern};
use crate::message::Message;
use crate::publisher::Publisher;
use crate::time::to_ns;

/// What a worker says of a message: of a subscription with a
/// [`group`](crate::SubscribeOptions::group).
///
/// A message is delivered at least once, until a worker says that it is done. One that is released
/// without that is given back, also when the worker panics: another one gets it, with a higher
/// attempt.
///
/// ```
/// # fn main() -> dlx::Result<()> {
/// # let client = dlx::Client::connect()?;
/// let groups = vec!["gpu".to_string()];
/// let options = dlx::PublisherOptions { groups, ..Default::default() };
/// let publisher = client.publisher_with("frames", &options)?;
/// publisher.publish_slice(&[1.0_f32, 2.0], &[2])?;
///
/// let group = Some("gpu".to_string());
/// let options = dlx::SubscribeOptions { group, ..Default::default() };
/// let worker = client.subscribe_with("frames", &options)?;
/// let message = worker.take()?;
/// println!("attempt {}: {:?}", message.attempt(), message.slice::<f32>(0)?);
/// message.done()?;
///
/// publisher.drain(dlx::FOREVER)?; // all is done
/// # Ok(())
/// # }
/// ```
impl Message {
    /// Says that the message is done: nobody gets it again. It stays valid until it is released.
    pub fn done(&self) -> Result<()> {
        // SAFETY: this holds the message, here and below.
        check(unsafe { sys::dlx_message_done(self.as_raw()) })
    }

    /// Has the release of the message and its tensors say that it is done, such as when the work of
    /// a GPU is.
    pub fn done_at_release(&self) -> Result<()> {
        // SAFETY: this holds the message.
        check(unsafe { sys::dlx_message_done_at_release(self.as_raw()) })
    }

    /// Gives the message back: another worker, or this one, takes it again.
    pub fn give_back(&self) -> Result<()> {
        // SAFETY: this holds the message.
        check(unsafe { sys::dlx_message_give_back(self.as_raw()) })
    }

    /// Begins the lease of the message anew.
    pub fn renew(&self) -> Result<()> {
        // SAFETY: this holds the message.
        check(unsafe { sys::dlx_message_renew(self.as_raw()) })
    }

    /// Which delivery of the message this is, 1 for the first; 0 without a group.
    pub fn attempt(&self) -> u32 {
        // SAFETY: this holds the message.
        unsafe { sys::dlx_message_attempt(self.as_raw()) }
    }
}

impl Publisher {
    /// Waits until every declared group has done, or given up, all that was published before.
    pub fn drain(&self, timeout: Duration) -> Result<()> {
        // SAFETY: this owns the publisher.
        check(unsafe { sys::dlx_publisher_drain(self.as_raw(), to_ns(timeout)) })
    }
}

/// A group of a publisher, as the daemon knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupInfo {
    /// Topic of the publisher.
    pub topic: String,
    /// Name of the group.
    pub name: String,
    /// Id of the publisher.
    pub publisher: u64,
    /// Number of the group at this publisher.
    pub group: u32,
    /// Workers that are in it now.
    pub n_workers: u32,
    /// Messages are kept without workers, too.
    pub declared: bool,
    /// The publisher is gone, and the daemon keeps what is not done.
    pub gone: bool,
    /// Messages that no worker has.
    pub waiting: u64,
    /// Messages that a worker has.
    pub in_flight: u64,
    /// Messages that are done.
    pub done: u64,
    /// Deliveries of messages after the first one.
    pub redelivered: u64,
    /// Dead letters.
    pub dead: u64,
    /// Messages that the publisher dropped before a worker had them.
    pub lost: u64,
    /// Program of the publisher.
    pub client_name: String,
    /// Process of the publisher, as the daemon sees it.
    pub pid: u32,
    /// An earlier daemon knew the publisher, and it has made no call since: no worker joins the
    /// group before it does.
    pub away: bool,
}

impl GroupInfo {
    fn from_c(c: &sys::dlx_group_info) -> GroupInfo {
        GroupInfo {
            topic: text(&c.topic),
            name: text(&c.name),
            publisher: c.publisher,
            group: c.group,
            n_workers: c.n_workers,
            declared: c.declared,
            gone: c.gone,
            waiting: c.waiting,
            in_flight: c.in_flight,
            done: c.done,
            redelivered: c.redelivered,
            dead: c.dead,
            lost: c.lost,
            client_name: text(&c.client_name),
            pid: c.pid,
            away: c.away,
        }
    }
}

/// A message that a worker of a group has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimInfo {
    /// Number of the message.
    pub seq: u64,
    /// When it was published, CLOCK_MONOTONIC; None: it was dropped since.
    pub published_ns: Option<u64>,
    /// Name of the worker's program.
    pub client_name: String,
    /// Id of the worker's link; None: it is gone, and another one will take the message.
    pub link: Option<u64>,
    /// Process of the worker, as the daemon sees it.
    pub pid: u32,
    /// The user of that process.
    pub uid: u32,
    /// Which delivery this is, from 1.
    pub attempt: u32,
}

impl ClaimInfo {
    fn from_c(c: &sys::dlx_claim_info) -> ClaimInfo {
        ClaimInfo {
            seq: c.seq,
            published_ns: Some(c.published_ns).filter(|&n| n != 0),
            client_name: text(&c.client_name),
            link: Some(c.link).filter(|&n| n != 0),
            pid: c.pid,
            uid: c.uid,
            attempt: c.attempt,
        }
    }
}

impl Client {
    /// Lists what the workers of a group have, ordered by message: the ids are those of
    /// [`GroupInfo`].
    pub fn claims(&self, publisher: u64, group: u32) -> Result<Vec<ClaimInfo>> {
        collect(ClaimInfo::from_c, |add, entries| {
            // SAFETY: the arguments are valid for the call.
            unsafe { sys::dlx_list_claims(self.as_raw(), publisher, group, Some(add), entries) }
        })
    }

    /// Lists groups, ordered by topic, publisher and number; `topic` may be a pattern, None: all
    /// topics.
    pub fn groups(&self, topic: Option<&str>) -> Result<Vec<GroupInfo>> {
        let topic = pattern(topic)?;
        collect(GroupInfo::from_c, |add, entries| {
            // SAFETY: the arguments are valid for the call.
            unsafe { sys::dlx_list_groups(self.as_raw(), topic.as_ptr(), Some(add), entries) }
        })
    }

    /// Drops what declared groups of publishers that are gone have not done.
    pub fn drop_queue(&self, topic: &str) -> Result<()> {
        let topic = c_string(topic)?;
        // SAFETY: the arguments are valid for the call.
        check(unsafe { sys::dlx_drop_queue(self.as_raw(), topic.as_ptr()) })
    }
}
