// SPDX-License-Identifier: Apache-2.0
//! Flow control of one topic from one host to another: two state machines without I/O.
//!
//! A flow carries *items* (mostly messages), each a string of bytes: its head and its payload. The
//! importing side grants credits: how many bytes of the current *generation* may be sent. Items
//! stay at the exporting side until the importing side has acknowledged them. Whatever goes wrong
//! in between (a transport that zenoh closed, a peer that was killed) has one answer: the importing
//! side begins a new generation, and the exporting side sends everything again that was not
//! acknowledged.
//!
//! ```text
//!     importing side                               exporting side
//!     Want(begin, generation, limit, positions) ->
//!                                               <- pieces, while sent < limit
//!     Want(generation, acked, limit)            ->  forgets what is acknowledged
//!                                               <- Probe(next), once a second while items wait
//!     (a piece or probe beyond what was expected: pieces were lost)
//!     Want(begin, generation + 1, ...)          ->
//!                                               <- Reset(generation): "I do not know that one"
//!     Want(begin, generation + 2, ...)          ->
//! ```

use std::collections::{HashMap, VecDeque};

/// What a frame costs beside its bytes, so that credits bound the number of small frames, too.
pub const FRAME_COST: u64 = 64;
/// Most bytes of payload in a frame.
pub const PIECE: u64 = 1 << 20;
/// Most items that wait for an acknowledgement.
pub const MAX_UNACKED: usize = 32;
/// Most publishers of a topic whose positions are known.
const MAX_POSITIONS: usize = 256;

/// One attempt to carry a flow without a loss: by which process of the importing host, and which
/// attempt of that process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Generation {
    /// A random number of the importing process.
    pub instance: u64,
    /// Counts up.
    pub count: u64,
}

/// The last message of a publisher that was published at the importing side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Id of the publisher at its own daemon.
    pub publisher: u64,
    /// Number of the message.
    pub seq: u64,
}

/// What the importing side says: everything it has to say, each time.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Want {
    /// Which attempt.
    pub generation: Generation,
    /// Nothing of this generation has come yet: begin it.
    pub begin: bool,
    /// No subscriber is left.
    pub close: bool,
    /// Items of this generation that are published, and need not be kept.
    pub acked: u64,
    /// Bytes of this generation that may be sent.
    pub limit: u64,
    /// With `begin`: what need not be sent.
    pub positions: Vec<Position>,
}

/// Where a piece belongs: bytes `offset..offset + len` of item `number` of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the item in its generation.
    pub number: u64,
    /// In bytes of head and payload together; 0: the whole head is in this piece.
    pub offset: u64,
    /// Its size.
    pub len: u64,
}

impl Piece {
    fn cost(&self) -> u64 {
        self.len + FRAME_COST
    }
}

// ---- the exporting side ---------------------------------------------------------------------

struct Entry<I> {
    item: I,
    /// Of a message: where it comes from.
    source: Option<Position>,
    head: u64,
    size: u64, // of head and payload
}

/// What a Want did.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// Credits and acknowledgements.
    Continues,
    /// A new generation.
    Begins,
    /// Of a generation that this side does not know: answer with Reset.
    Unknown,
    /// Of an earlier generation.
    Stale,
}

/// The exporting side.
pub struct Sender<I> {
    generation: Option<Generation>,
    /// Acknowledged messages that a new process of the importing host gets again, as a late
    /// subscriber gets retained messages: the newest `retain`.
    retained: VecDeque<Entry<I>>,
    retain: usize,
    items: VecDeque<Entry<I>>, // sent or to be sent, not acknowledged
    first: u64,                // number of items[0]
    at: usize,                 // items[at] is being sent
    offset: u64,               // so far
    sent: u64,
    limit: u64,
}

impl<I> Sender<I> {
    pub fn new(retain: usize) -> Sender<I> {
        Sender {
            generation: None,
            retained: VecDeque::new(),
            retain,
            items: VecDeque::new(),
            first: 0,
            at: 0,
            offset: 0,
            sent: 0,
            limit: 0,
        }
    }

    pub fn generation(&self) -> Generation {
        self.generation.unwrap_or_default()
    }

    pub fn on_want(&mut self, want: &Want) -> Heard {
        let Generation { instance, count } = want.generation;
        match self.generation {
            Some(own) if own == want.generation => {
                self.acknowledge(want.acked);
                self.limit = self.limit.max(want.limit);
                return Heard::Continues;
            }
            Some(own) if own.instance == instance && own.count > count => return Heard::Stale,
            _ if !want.begin => return Heard::Unknown,
            _ => (),
        }
        let same = self.generation.is_some_and(|own| own.instance == instance);
        self.generation = Some(want.generation);
        if !same {
            while let Some(entry) = self.retained.pop_back() {
                self.items.push_front(entry);
            }
        }
        let known: HashMap<u64, u64> =
            want.positions.iter().map(|p| (p.publisher, p.seq)).collect();
        self.items.retain(|entry| {
            let Some(Position { publisher, seq }) = entry.source else { return true };
            known.get(&publisher).is_none_or(|&known| seq > known)
        });
        (self.first, self.at, self.offset, self.sent) = (0, 0, 0, 0);
        self.limit = want.limit;
        Heard::Begins
    }

    /// Forgets items, of those that were sent completely.
    fn acknowledge(&mut self, acked: u64) {
        while self.first < acked && self.at > 0 {
            let entry = self.items.pop_front().expect("items[..at] are there");
            self.first += 1;
            self.at -= 1;
            if self.retain > 0 && entry.source.is_some() {
                self.retained.push_back(entry);
                if self.retained.len() > self.retain {
                    self.retained.pop_front();
                }
            }
        }
    }

    /// May another item be added? Not without credits: a topic that drops then drops its oldest
    /// messages at the publisher, and the newest are sent when there are credits again. Small ones
    /// are added and sent several at a time, so that their publisher is not woken for each.
    pub fn has_room(&self) -> bool {
        let unsent = self.unsent();
        self.items.len() < MAX_UNACKED && unsent < PIECE && self.sent + unsent < self.limit
    }

    /// Bytes that are to be sent, and what their frames cost.
    fn unsent(&self) -> u64 {
        let items = self.items.range(self.at..);
        items.map(|entry| entry.size + FRAME_COST).sum::<u64>() - self.offset
    }

    pub fn push(&mut self, item: I, source: Option<Position>, head: u64, payload: u64) {
        self.items.push_back(Entry { item, source, head, size: head + payload });
    }

    /// Says what to send next, if anything may be sent.
    pub fn next_piece(&mut self) -> Option<(Piece, &I)> {
        if self.sent >= self.limit {
            return None;
        }
        let entry = self.items.get(self.at)?;
        let end = if self.offset == 0 {
            entry.size.min(entry.head.max(PIECE)) // the head is in one piece
        } else {
            entry.size.min(self.offset + PIECE)
        };
        let piece = Piece {
            number: self.first + self.at as u64,
            offset: self.offset,
            len: end - self.offset,
        };
        self.sent += piece.cost();
        if end == entry.size {
            (self.at, self.offset) = (self.at + 1, 0);
            return Some((piece, &self.items[self.at - 1].item));
        }
        self.offset = end;
        Some((piece, &entry.item))
    }

    /// What comes next, for Probe.
    pub fn next(&self) -> Piece {
        Piece { number: self.first + self.at as u64, offset: self.offset, len: 0 }
    }

    pub fn unacked(&self) -> usize {
        self.items.len()
    }

    pub fn n_retained(&self) -> usize {
        self.retained.len()
    }

    /// Gives the oldest acknowledged message up; returns whether there was one.
    pub fn forget_retained(&mut self) -> bool {
        self.retained.pop_front().is_some()
    }

    pub fn credits(&self) -> u64 {
        self.limit.saturating_sub(self.sent)
    }
}

// ---- the importing side ---------------------------------------------------------------------

/// What a piece or a probe means.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next one.
    Next,
    /// It is of an earlier generation, or there was nothing to learn.
    Ignored,
    /// Something before it was lost: the flow has begun a new generation.
    Lost,
}

/// The importing side.
pub struct Receiver {
    generation: Generation,
    window: u64,
    begun: bool, // something of this generation has come
    number: u64,
    offset: u64,
    /// Bytes of the generation that were used up, and the limit in the last Want.
    consumed: u64,
    granted: u64,
    acked: u64,
    told: u64, // of `acked`
}

impl Receiver {
    /// The first generation is greater than any earlier one of this process for the same topic.
    pub fn new(generation: Generation, window: u64) -> Receiver {
        Receiver {
            generation,
            window,
            begun: false,
            number: 0,
            offset: 0,
            consumed: 0,
            granted: 0,
            acked: 0,
            told: 0,
        }
    }

    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Begins a new generation. An item that has come in part is to be thrown away.
    pub fn restart(&mut self) {
        let Generation { instance, count } = self.generation;
        *self = Receiver::new(Generation { instance, count: count + 1 }, self.window);
    }

    /// A piece has come; `ends` says whether its item ends with it.
    pub fn on_piece(&mut self, generation: Generation, piece: Piece, ends: bool) -> Arrival {
        if generation != self.generation {
            return Arrival::Ignored;
        }
        if (piece.number, piece.offset) != (self.number, self.offset) {
            self.restart();
            return Arrival::Lost;
        }
        self.begun = true;
        if ends {
            (self.number, self.offset) = (self.number + 1, 0);
        } else {
            self.offset += piece.len;
        }
        Arrival::Next
    }

    /// The exporting side says what it sends next. What it sent before has come before this.
    pub fn on_probe(&mut self, generation: Generation, next: Piece) -> Arrival {
        if self.has_all(generation, next) {
            return Arrival::Ignored;
        }
        self.restart();
        Arrival::Lost
    }

    /// Has all come that the exporting side has sent?
    pub fn has_all(&self, generation: Generation, next: Piece) -> bool {
        generation != self.generation || (next.number, next.offset) == (self.number, self.offset)
    }

    /// A piece was copied: its credits go back.
    pub fn on_copied(&mut self, piece: &Piece) {
        self.consumed += piece.cost();
    }

    /// The oldest item that was not acknowledged is published.
    pub fn on_published(&mut self) {
        self.acked += 1;
    }

    /// How many acknowledgements have not been told.
    pub fn owed(&self) -> u64 {
        self.acked - self.told
    }

    /// Is there enough to say at once? The exporting side goes on meanwhile.
    pub fn is_due(&self) -> bool {
        self.owed() >= MAX_UNACKED as u64 / 4
            || self.consumed + self.window - self.granted >= self.window / 4
    }

    pub fn want(&mut self, close: bool, positions: impl FnOnce() -> Vec<Position>) -> Want {
        self.granted = self.consumed + self.window;
        self.told = self.acked;
        Want {
            generation: self.generation,
            begin: !self.begun,
            close,
            acked: self.acked,
            limit: self.granted,
            positions: if self.begun { Vec::new() } else { positions() },
        }
    }
}

// ---- what was missed ------------------------------------------------------------------------

/// What has come from each publisher of a topic, and so what is missing.
#[derive(Default)]
pub struct Ledger {
    positions: HashMap<u64, u64>,
}

/// What to do with a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Publish it; so many of its publisher were lost before it.
    New { missed: u64 },
    /// It was published before.
    Duplicate,
}

impl Ledger {
    /// A message has come: by its publisher's count, `gap` were lost before it at its own machine.
    pub fn on_message(&mut self, at: Position, gap: u64) -> Verdict {
        match self.positions.get_mut(&at.publisher) {
            Some(seq) if *seq >= at.seq => Verdict::Duplicate,
            Some(seq) => {
                let missed = at.seq - *seq - 1;
                *seq = at.seq;
                Verdict::New { missed }
            }
            None => {
                self.insert(at);
                Verdict::New { missed: gap.min(at.seq - 1) }
            }
        }
    }

    /// The exporting side subscribes anew: what these publishers published until then and has not
    /// come by now will not come. Returns how many messages that are.
    pub fn on_base(&mut self, published: &[Position]) -> u64 {
        let mut missed = 0_u64;
        for at in published {
            match self.positions.get_mut(&at.publisher) {
                Some(seq) if *seq < at.seq => {
                    missed = missed.saturating_add(at.seq - *seq);
                    *seq = at.seq;
                }
                Some(_) => (),
                None => self.insert(*at),
            }
        }
        missed
    }

    fn insert(&mut self, at: Position) {
        if self.positions.len() == MAX_POSITIONS {
            // a newer publisher has a greater id: the oldest is the least likely to go on
            let oldest = *self.positions.keys().min().expect("there are some");
            self.positions.remove(&oldest);
        }
        self.positions.insert(at.publisher, at.seq);
    }

    pub fn positions(&self) -> Vec<Position> {
        self.positions.iter().map(|(&publisher, &seq)| Position { publisher, seq }).collect()
    }

    /// No subscriber was there for a while: nothing was missed.
    pub fn clear(&mut self) {
        self.positions.clear();
    }
}

#[cfg(test)]
mod tests;
