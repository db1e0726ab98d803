// SPDX-License-Identifier: Apache-2.0
//! What a thread is told by others, and how it waits for that and for descriptors of libdlx.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lock;

/// A queue with one reader, whose descriptor is readable while there may be something.
pub struct Mailbox<T> {
    queue: Mutex<VecDeque<T>>,
    bell: OwnedFd,
}

impl<T> Mailbox<T> {
    pub fn new() -> io::Result<Arc<Mailbox<T>>> {
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that nobody else has.
        let bell = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Arc::new(Mailbox { queue: Mutex::new(VecDeque::new()), bell }))
    }

    /// Never waits.
    pub fn push(&self, what: T) {
        let mut queue = lock(&self.queue);
        queue.push_back(what);
        if queue.len() == 1 {
            self.ring();
        }
    }

    /// Ends a wait, or the next one: the reader looks at what else has changed.
    pub fn ring(&self) {
        let one = 1_u64;
        // SAFETY: 8 bytes are read from `one`. It cannot fail: the counter is far from full.
        unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    pub fn len(&self) -> usize {
        lock(&self.queue).len()
    }

    pub fn pop(&self) -> Option<T> {
        lock(&self.queue).pop_front()
    }

    /// Waits until there is something, or `other` is readable. Returns whether one of these, or a
    /// ring, ended it.
    pub fn wait(&self, other: Option<BorrowedFd<'_>>, timeout: Duration) -> bool {
        self.wait_for(other, None, timeout)
    }

    /// Likewise, or until a descriptor has one of these events of poll(2).
    pub fn wait_for(
        &self,
        other: Option<BorrowedFd<'_>>,
        events: Option<(BorrowedFd<'_>, i16)>,
        timeout: Duration,
    ) -> bool {
        if !lock(&self.queue).is_empty() {
            return true;
        }
        let poll = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut fds = [
            poll(self.bell.as_raw_fd(), libc::POLLIN),
            poll(other.map_or(-1, |fd| fd.as_raw_fd()), libc::POLLIN),
            events.map_or(poll(-1, 0), |(fd, events)| poll(fd.as_raw_fd(), events)),
        ];
        let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: three entries; one with a negative descriptor is passed over.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), 3, ms) };
        if ready > 0 && fds[0].revents != 0 {
            let mut count = 0_u64;
            // SAFETY: 8 bytes are written to `count`.
            unsafe { libc::read(self.bell.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
        ready > 0
    }
}
