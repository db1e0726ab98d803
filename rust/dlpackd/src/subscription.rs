// SPDX-License-Identifier: Apache-2.0
//! Subscriptions.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::time::Duration;

use dlpackd_sys as sys;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result, c_string, check};
use crate::event::{Event, next_event};
use crate::message::Message;
use crate::publisher::borrow_fd;
use crate::time::{to_ns, to_ns_or_default};

/// Which messages a subscription gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Every message in order.
    #[default]
    All,
    /// Only the newest; those that it passes over count as skipped.
    Latest,
}

/// With which earlier messages a subscription begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum History {
    /// Those that publishers retain.
    #[default]
    Retained,
    /// Up to so many, at most what the publisher offers.
    Newest(u32),
    /// None, even if retained.
    None,
}

/// How long a take waits busily before it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// 20 us, and less while waits are longer than that.
    #[default]
    Default,
    /// So long.
    Time(Duration),
    /// Not at all.
    Never,
    /// As long as the wait lasts.
    Always,
}

impl Spin {
    pub(crate) fn to_ns(self) -> i64 {
        match self {
            Spin::Default => 0,
            Spin::Time(time) => to_ns_or_default(Some(time)),
            Spin::Never => sys::DLX_SPIN_NEVER,
            Spin::Always => sys::DLX_SPIN_ALWAYS,
        }
    }
}

/// When a take fails with [`ErrorKind::PublisherGone`], which ends an iterator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ends {
    /// When the last publisher has left; never for a pattern.
    #[default]
    Default,
    /// When so many publishers have left, and none is attached.
    After(u32),
    /// Never: a take waits for the next publisher.
    Never,
}

/// What a subscription asks for. 0 and None select the defaults of libdlx.
#[derive(Clone, Debug, Default)]
pub struct SubscribeOptions {
    /// Which messages.
    pub mode: Mode,
    /// From which one.
    pub history: History,
    /// The publisher waits for this subscription instead of dropping messages; it must be one that
    /// blocks.
    pub reliable: bool,
    /// With `reliable`: be reliable where that is offered, and take messages of publishers that
    /// drop as well; [`Message::is_reliable`] says which.
    pub accepts_unreliable: bool,
    /// How many messages may be held at once.
    pub max_held: u32,
    /// How long a take waits busily.
    pub spin: Spin,
    /// When it ends.
    pub ends: Ends,
    /// The group whose workers share the messages.
    pub group: Option<String>,
    /// Of a worker: how long it keeps a message that it neither does nor renews; None: as long as
    /// its process lives.
    pub lease: Option<Duration>,
    /// Of a worker: how often a message is delivered until it is a dead letter.
    pub max_attempts: u32,
    /// Of a worker: the topic for copies of dead letters.
    pub dead_letters: Option<String>,
}

/// Counters of a subscription, as in C.
pub type SubscriptionStats = sys::dlx_subscription_stats;

/// A subscription. One thread at a time may use it, and it may move between threads.
#[derive(Debug)]
pub struct Subscription(NonNull<sys::dlx_subscription>);

// SAFETY: "One thread at a time may use a publisher or a subscription" (dlx.h): it may be another
// one each time. So it is not Sync.
unsafe impl Send for Subscription {}

impl Subscription {
    pub(crate) fn new(
        client: &Client,
        topic: &str,
        options: &SubscribeOptions,
    ) -> Result<Subscription> {
        let topic = c_string(topic)?;
        let group = options.group.as_deref().map(c_string).transpose()?;
        let dead_letters = options.dead_letters.as_deref().map(c_string).transpose()?;
        let args = sys::dlx_subscribe_args {
            size: size_of::<sys::dlx_subscribe_args>(),
            mode: match options.mode {
                Mode::All => sys::DLX_MODE_ALL,
                Mode::Latest => sys::DLX_MODE_LATEST,
            },
            history: match options.history {
                History::Retained => 0,
                History::Newest(n) => n,
                History::None => sys::DLX_HISTORY_NONE,
            },
            reliable: options.reliable,
            accepts_unreliable: options.accepts_unreliable,
            max_held: options.max_held,
            spin_ns: options.spin.to_ns(),
            n_publishers: match options.ends {
                Ends::Default => 0,
                Ends::After(n) => n,
                Ends::Never => sys::DLX_PUBLISHERS_ANY,
            },
            group: group.as_ref().map_or(ptr::null(), |s| s.as_ptr()),
            lease_ns: to_ns_or_default(options.lease),
            max_attempts: options.max_attempts,
            dead_letters: dead_letters.as_ref().map_or(ptr::null(), |s| s.as_ptr()),
            ..Default::default()
        };
        let mut subscription = ptr::null_mut();
        // SAFETY: the arguments are valid for the call.
        check(unsafe {
            sys::dlx_subscribe(client.as_raw(), topic.as_ptr(), &args, &mut subscription)
        })?;
        Ok(Subscription(NonNull::new(subscription).expect("a subscription")))
    }

    fn as_raw(&self) -> *mut sys::dlx_subscription {
        self.0.as_ptr()
    }

    #[inline]
    fn take_ns(&self, timeout_ns: i64) -> std::result::Result<Message, c_int> {
        let mut message = ptr::null_mut();
        // SAFETY: the arguments are valid for the call.
        match unsafe { sys::dlx_take(self.as_raw(), timeout_ns, &mut message) } {
            // SAFETY: a message of libdlx that belongs to the caller.
            sys::DLX_OK => Ok(unsafe { Message::from_raw(message) }),
            code => Err(code),
        }
    }

    /// Takes the next message; waits for it without a limit.
    #[inline]
    pub fn take(&self) -> Result<Message> {
        self.take_ns(sys::DLX_FOREVER).map_err(Error::last)
    }

    /// Takes the next message; fails with [`ErrorKind::Timeout`] if none comes in time.
    pub fn take_timeout(&self, timeout: Duration) -> Result<Message> {
        match self.take_ns(to_ns(timeout)) {
            Ok(message) => Ok(message),
            Err(code) => Err(Error::last(code)),
        }
    }

    /// Takes the next message if there is one.
    #[inline]
    pub fn try_take(&self) -> Result<Option<Message>> {
        match self.take_ns(0) {
            Ok(message) => Ok(Some(message)),
            Err(sys::DLX_E_EMPTY) => Ok(None),
            Err(code) => Err(Error::last(code)),
        }
    }

    /// Waits for a message, and takes up to `n` that are there. It costs less than to take each.
    pub fn take_many(&self, n: usize, timeout: Duration) -> Result<Vec<Message>> {
        let n = n.min(4096); // more cannot be held
        let mut messages = vec![ptr::null_mut(); n];
        let mut taken = 0;
        // SAFETY: there is room for `n` messages.
        check(unsafe {
            sys::dlx_take_n(
                self.as_raw(),
                n as u32,
                to_ns(timeout),
                messages.as_mut_ptr(),
                &mut taken,
            )
        })?;
        messages.truncate(taken as usize);
        // SAFETY: messages of libdlx that belong to the caller.
        Ok(messages.into_iter().map(|m| unsafe { Message::from_raw(m) }).collect())
    }

    /// Iterates over messages, and waits for each without a limit. It ends when the publishers have
    /// left, see [`SubscribeOptions::ends`]; other failures are items.
    pub fn messages(&self) -> Messages<'_> {
        Messages(self)
    }

    /// The next event; None: there is none. The descriptor becomes readable for events, too.
    pub fn next_event(&self) -> Result<Option<Event>> {
        // SAFETY: the arguments are valid for the call.
        next_event(|event| unsafe { sys::dlx_subscription_next_event(self.as_raw(), event) })
    }

    /// The counters.
    pub fn stats(&self) -> Result<SubscriptionStats> {
        let mut stats =
            SubscriptionStats { size: size_of::<SubscriptionStats>(), ..Default::default() };
        // SAFETY: the arguments are valid for the call.
        check(unsafe { sys::dlx_subscription_get_stats(self.as_raw(), &mut stats) })?;
        Ok(stats)
    }

    /// A descriptor for poll(2) and the like, which has `AsFd`: take until there is no message,
    /// then poll it for reading. It is for nothing else. To ask for it costs later takes something,
    /// so this is no `AsFd` of the subscription itself.
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: this owns the subscription.
        borrow_fd(unsafe { sys::dlx_subscription_fd(self.as_raw()) })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        unsafe { sys::dlx_subscription_unref(self.as_raw()) };
    }
}

/// The messages of a subscription: [`Subscription::messages`].
#[derive(Debug)]
pub struct Messages<'a>(&'a Subscription);

impl Iterator for Messages<'_> {
    type Item = Result<Message>;

    fn next(&mut self) -> Option<Result<Message>> {
        match self.0.take() {
            Err(e) if e.kind() == ErrorKind::PublisherGone => None,
            result => Some(result),
        }
    }
}

impl<'a> IntoIterator for &'a Subscription {
    type Item = Result<Message>;
    type IntoIter = Messages<'a>;

    fn into_iter(self) -> Messages<'a> {
        self.messages()
    }
}
