// SPDX-License-Identifier: Apache-2.0
//! Events: peers that come and go, and a daemon that was replaced.

use std::ffi::{CStr, c_char, c_int};

use dlpackd_sys as sys;

use crate::error::{Error, Result};

/// What happened. The peer of a publisher is a subscriber, and the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A peer is attached.
    Joined,
    /// A peer closed; if a publisher, everything it published was taken.
    Left,
    /// A peer died, or its link was cut.
    Lost,
    /// This publisher or subscription has reconnected to a daemon.
    Reconnected,
    /// A subscription has no messages of a publisher that came and left.
    Unseen,
    /// A worker found a message that was given back too often.
    DeadLetter,
    /// Another one, such as of a GPU: `enum dlx_event_kind`.
    Other(u32),
}

/// An event of a publisher or a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Process of the peer, as the daemon sees it; 0: unknown.
    pub pid: u32,
    /// Id of the link.
    pub link: u64,
    /// Id of the publisher.
    pub publisher: u64,
    /// Events dropped before this one.
    pub missed: u64,
    /// Topic of the publisher.
    pub topic: String,
    /// Why.
    pub reason: String,
}

/// Copies a text of a struct of libdlx.
pub(crate) fn text(chars: &[c_char]) -> String {
    // SAFETY: it is terminated inside of its array.
    unsafe { CStr::from_ptr(chars.as_ptr()) }.to_string_lossy().into_owned()
}

pub(crate) fn next_event(next: impl FnOnce(&mut sys::dlx_event) -> c_int) -> Result<Option<Event>> {
    let mut event = sys::dlx_event { size: size_of::<sys::dlx_event>(), ..Default::default() };
    match next(&mut event) {
        sys::DLX_OK => Ok(Some(Event {
            kind: match event.kind {
                sys::DLX_EVENT_JOINED => EventKind::Joined,
                sys::DLX_EVENT_LEFT => EventKind::Left,
                sys::DLX_EVENT_LOST => EventKind::Lost,
                sys::DLX_EVENT_RECONNECTED => EventKind::Reconnected,
                sys::DLX_EVENT_UNSEEN => EventKind::Unseen,
                sys::DLX_EVENT_DEAD_LETTER => EventKind::DeadLetter,
                other => EventKind::Other(other),
            },
            pid: event.pid,
            link: event.link,
            publisher: event.publisher,
            missed: event.missed,
            topic: text(&event.topic),
            reason: text(&event.reason),
        })),
        sys::DLX_E_EMPTY => Ok(None),
        code => Err(Error::last(code)),
    }
}
