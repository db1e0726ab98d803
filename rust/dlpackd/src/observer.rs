// SPDX-License-Identifier: Apache-2.0
//! Observers: which publishers and subscriptions there are, and which come and go.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::time::Duration;

use dlpackd_sys as sys;

use crate::client::Client;
use crate::error::{Error, Result, c_string, check};
use crate::event::text;
use crate::publisher::{OnFull, RetainFor, borrow_fd};
use crate::subscription::Mode;
use crate::time::to_ns;

/// What an observer is told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Observe {
    /// Publishers and subscriptions.
    #[default]
    Both,
    /// Publishers alone.
    Publishers,
    /// Subscriptions alone.
    Subscriptions,
}

/// What a publisher offers: of a message, or of an observed publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Qos {
    /// [`OnFull::Block`] or [`OnFull::Drop`].
    pub on_full: OnFull,
    /// How many messages a subscriber may be behind; 0: the daemon is older than protocol 2.9.
    pub depth: u32,
    /// How many messages stay readable for later subscriptions.
    pub history: u32,
    /// How many it retains.
    pub retain: u32,
    /// For how long.
    pub retain_for: RetainFor,
}

impl Qos {
    pub(crate) fn new(on_full: u32, depth: u32, history: u32, retain: u32, ns: i64) -> Qos {
        Qos {
            on_full: if on_full == sys::DLX_ON_FULL_DROP { OnFull::Drop } else { OnFull::Block },
            depth,
            history,
            retain,
            retain_for: match ns {
                sys::DLX_RETAIN_LATCHED => RetainFor::Latched,
                ns if ns > 0 => RetainFor::Time(Duration::from_nanos(ns.unsigned_abs())),
                _ => RetainFor::Forever,
            },
        }
    }
}

/// What both kinds have that an observer is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observed {
    /// Id of the publisher, as [`Publisher::id`](crate::Publisher::id), or of the subscription. It
    /// has another one once it has reconnected to a restarted daemon.
    pub id: u64,
    /// It is gone: all else is as it was told before.
    pub gone: bool,
    /// It was made with the client of the observer.
    pub own: bool,
    /// Its topic; of a subscription also a pattern.
    pub topic: String,
    /// Name of its program: [`ConnectOptions::name`](crate::ConnectOptions::name).
    pub client_name: String,
    /// Its process, as the daemon sees it; 0: unknown.
    pub pid: u32,
    /// The user of its process.
    pub uid: u32,
}

/// What an observer is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The present state of a publisher.
    Publisher {
        /// Which one.
        observed: Observed,
        /// The publisher is gone, and the daemon keeps its messages.
        retained: bool,
        /// What it offers.
        qos: Qos,
        /// The groups of workers for which it keeps messages.
        groups: Vec<String>,
    },
    /// The present state of a subscription.
    Subscription {
        /// Which one.
        observed: Observed,
        /// Which messages it takes.
        mode: Mode,
        /// It asks publishers to wait.
        reliable: bool,
        /// With `reliable`: it takes messages of publishers that drop, too.
        accepts_unreliable: bool,
        /// The group of a worker.
        group: Option<String>,
    },
    /// All that is there was told: once in the beginning, and after all was told again, as by a
    /// restarted daemon.
    AllTold,
}

/// An observer. One thread at a time may use it, and it may move between threads.
#[derive(Debug)]
pub struct Observer(NonNull<sys::dlx_observer>);

// SAFETY: a call on an observer that another thread uses is refused, and nothing of it belongs to
// a thread (observe.h): it may be another one each time. So it is not Sync.
unsafe impl Send for Observer {}

impl Observer {
    fn as_raw(&self) -> *mut sys::dlx_observer {
        self.0.as_ptr()
    }

    fn next_ns(&self, timeout_ns: i64) -> Result<Option<Change>> {
        let mut c =
            sys::dlx_observed { size: size_of::<sys::dlx_observed>(), ..Default::default() };
        // SAFETY: the arguments are valid for the call.
        match unsafe { sys::dlx_observer_next(self.as_raw(), timeout_ns, &mut c) } {
            // SAFETY: libdlx has filled it, and there was no other call since.
            sys::DLX_OK => Ok(Some(unsafe { change(&c) })),
            sys::DLX_E_EMPTY => Ok(None),
            code => Err(Error::last(code)),
        }
    }

    /// Waits for what is there, or has changed, next.
    pub fn next(&self) -> Result<Change> {
        self.next_ns(sys::DLX_FOREVER).map(|change| change.expect("a wait ends with a change"))
    }

    /// The same; fails with [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) if nothing changes in
    /// time.
    pub fn next_timeout(&self, timeout: Duration) -> Result<Change> {
        match self.next_ns(to_ns(timeout))? {
            Some(change) => Ok(change),
            None => Err(Error::new(sys::DLX_E_TIMEOUT, "nothing has changed")),
        }
    }

    /// What is there, or has changed, next, if there is something.
    pub fn try_next(&self) -> Result<Option<Change>> {
        self.next_ns(0)
    }

    /// A descriptor for poll(2) and the like: call [`Observer::try_next`] until there is nothing,
    /// then poll it for reading. It is for nothing else.
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: this owns the observer.
        borrow_fd(unsafe { sys::dlx_observer_fd(self.as_raw()) })
    }
}

/// # Safety
///
/// The groups of `c` are texts.
unsafe fn change(c: &sys::dlx_observed) -> Change {
    let observed = Observed {
        id: c.id,
        gone: c.gone,
        own: c.own,
        topic: text(&c.topic),
        client_name: text(&c.client_name),
        pid: c.pid,
        uid: c.uid,
    };
    match c.kind {
        sys::DLX_OBSERVED_PUBLISHER => Change::Publisher {
            observed,
            retained: c.retained,
            qos: Qos::new(c.on_full, c.depth, c.history, c.retain, c.retain_for_ns),
            groups: (0..c.n_groups as usize)
                .map(|i| {
                    // SAFETY: the caller says so.
                    let name = unsafe { CStr::from_ptr(*c.groups.add(i)) };
                    name.to_string_lossy().into_owned()
                })
                .collect(),
        },
        sys::DLX_OBSERVED_SUBSCRIPTION => Change::Subscription {
            observed,
            mode: if c.mode == sys::DLX_MODE_LATEST { Mode::Latest } else { Mode::All },
            reliable: c.reliable,
            accepts_unreliable: c.accepts_unreliable,
            group: Some(text(&c.group)).filter(|group| !group.is_empty()),
        },
        _ => Change::AllTold,
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        unsafe { sys::dlx_observer_unref(self.as_raw()) };
    }
}

impl Client {
    /// Observes a topic, or all that match a pattern: first what is there, then what changes.
    pub fn observe(&self, topic: &str, what: Observe) -> Result<Observer> {
        let topic = c_string(topic)?;
        let args = sys::dlx_observer_args {
            size: size_of::<sys::dlx_observer_args>(),
            kinds: match what {
                Observe::Both => 0,
                Observe::Publishers => sys::DLX_OBSERVED_PUBLISHER,
                Observe::Subscriptions => sys::DLX_OBSERVED_SUBSCRIPTION,
            },
        };
        let mut observer = ptr::null_mut();
        // SAFETY: the arguments are valid for the call.
        check(unsafe {
            sys::dlx_observer_new(self.as_raw(), topic.as_ptr(), &args, &mut observer)
        })?;
        Ok(Observer(NonNull::new(observer).expect("an observer")))
    }
}
