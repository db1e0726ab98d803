// SPDX-License-Identifier: Apache-2.0
//! Encoded records between the thread that takes messages and the one that writes them: while the
//! disk pauses, messages wait here instead of being dropped by their publishers.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::schema::Kind;

/// A record on its way to the file.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) topic: std::sync::Arc<str>,
    pub(crate) kind: Kind,
    pub(crate) seq: u64,
    /// When it was taken, CLOCK_REALTIME.
    pub(crate) log_time: u64,
    pub(crate) publish_time: u64,
    pub(crate) data: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    /// Of `items`.
    n_bytes: usize,
    /// Vectors to be filled again: their pages are there already.
    spare: Vec<Vec<u8>>,
    /// One of both threads has ended: nothing is put any more.
    is_closed: bool,
    full_for: Duration,
}

/// A queue that has a bound in bytes, for one thread at each end.
#[derive(Debug)]
pub(crate) struct Buffer {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
}

impl Buffer {
    pub(crate) fn new(limit: usize) -> Buffer {
        Buffer { state: Mutex::default(), changed: Condvar::new(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the lock")
    }

    /// An empty vector.
    pub(crate) fn spare(&self) -> Vec<u8> {
        self.lock().spare.pop().unwrap_or_default()
    }

    /// Closes it when the guard is dropped, so also when the thread that has it panics: the other
    /// thread waits no longer.
    pub(crate) fn close_at_end(&self) -> Closing<'_> {
        Closing(self)
    }

    /// Waits for room, which one item always has in an empty buffer. False: it is closed, and the
    /// item is lost.
    pub(crate) fn put(&self, item: Item) -> bool {
        let mut state = self.lock();
        let is_full =
            |state: &State| !state.items.is_empty() && state.n_bytes + item.data.len() > self.limit;
        if is_full(&state) && !state.is_closed {
            let since = Instant::now();
            while is_full(&state) && !state.is_closed {
                state = self.changed.wait(state).expect("no thread panics with the lock");
            }
            state.full_for += since.elapsed();
        }
        if state.is_closed {
            return false;
        }
        state.n_bytes += item.data.len();
        state.items.push_back(item);
        self.changed.notify_all();
        true
    }

    /// The next item; None: there is none until `deadline`, or there will be none.
    pub(crate) fn take(&self, deadline: Option<Instant>) -> Option<Item> {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                state.n_bytes -= item.data.len();
                self.changed.notify_all();
                return Some(item);
            }
            if state.is_closed {
                return None;
            }
            state = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return None,
                Some(time) => {
                    self.changed
                        .wait_timeout(state, time)
                        .expect("no thread panics with the lock")
                        .0
                }
                None => self.changed.wait(state).expect("no thread panics with the lock"),
            };
        }
    }

    /// Gives the vector of an item back.
    pub(crate) fn reuse(&self, mut data: Vec<u8>) {
        let mut state = self.lock();
        let spare: usize = state.spare.iter().map(Vec::capacity).sum();
        if spare + data.capacity() <= self.limit {
            data.clear();
            state.spare.push(data);
        }
    }

    /// Is it closed, and was all of it taken?
    pub(crate) fn has_ended(&self) -> bool {
        let state = self.lock();
        state.is_closed && state.items.is_empty()
    }

    /// How long the taker has waited for room.
    pub(crate) fn full_for(&self) -> Duration {
        self.lock().full_for
    }
}

/// See [`Buffer::close_at_end`].
pub(crate) struct Closing<'a>(&'a Buffer);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(n_bytes: usize) -> Item {
        Item {
            topic: "t".into(),
            kind: Kind::Message,
            seq: n_bytes as u64,
            log_time: 0,
            publish_time: 0,
            data: vec![0; n_bytes],
        }
    }

    #[test]
    fn items_wait_for_room_and_come_in_order() {
        let buffer = Buffer::new(100);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _closing = buffer.close_at_end();
                for n in [60, 40, 300, 1] {
                    assert!(buffer.put(item(n)));
                }
            });
            while buffer.lock().n_bytes < 100 {
                std::thread::yield_now();
            }
            for n in [60, 40, 300, 1] {
                let item = buffer.take(None).unwrap();
                assert_eq!(item.seq, n);
                buffer.reuse(item.data);
            }
            assert!(buffer.take(None).is_none() && buffer.has_ended());
        });
        assert!(buffer.full_for() > Duration::ZERO);
        assert!(buffer.spare().capacity() > 0);
    }

    #[test]
    fn put_ends_with_the_writer() {
        let buffer = Buffer::new(100);
        std::thread::scope(|scope| {
            let putter = scope.spawn(|| buffer.put(item(100)) && buffer.put(item(1)));
            while buffer.lock().n_bytes < 100 {
                std::thread::yield_now();
            }
            drop(buffer.close_at_end());
            assert!(!putter.join().unwrap());
        });
        assert!(!buffer.put(item(1)));
        assert!(buffer.take(Some(Instant::now())).is_some());
        assert!(buffer.take(Some(Instant::now())).is_none() && buffer.has_ended());
    }

    #[test]
    fn panic_at_one_end_lets_the_other_one_end() {
        let buffer = Buffer::new(100);
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| buffer.take(None));
            let panics = scope.spawn(|| {
                let _closing = buffer.close_at_end();
                panic!("as tests do");
            });
            assert!(panics.join().is_err());
            assert!(taker.join().unwrap().is_none());
        });
    }
}
