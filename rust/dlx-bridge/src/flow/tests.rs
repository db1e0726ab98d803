// SPDX-License-Identifier: Apache-2.0
//! The two state machines against each other, over a transport that loses everything now and then,
//! between processes that are killed.

use std::collections::VecDeque;

use super::*;
use crate::dice::Dice;

const PUBLISHER: u64 = 7;
const WINDOW: u64 = 3 << 20;
const HEAD: u64 = 40;

enum ToImport {
    /// With the number of the message, 0 for Base, which has `base`; and the size of its item.
    Piece {
        generation: Generation,
        piece: Piece,
        size: u64,
        seq: u64,
        base: u64,
    },
    Probe(Generation, Piece),
    Reset(Generation),
}

#[derive(Clone, Copy)]
struct Item {
    seq: u64,
    size: u64,
    base: u64,
}

/// A publisher, two bridges, and the transport between them.
struct World {
    dice: Dice,
    published: u64,
    /// What the exporting side takes next, and what had been published when it subscribed.
    next: u64,
    base: Option<u64>,
    sender: Sender<Item>,
    forth: VecDeque<ToImport>,
    back: VecDeque<Want>,
    receiver: Receiver,
    instance: u64,
    ledger: Ledger,
    inbox: u64, // most bytes of payload that were under way
    delivered: Vec<u64>,
    missed: u64,
    duplicates: u64,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            dice: Dice(seed),
            published: 0,
            next: 1,
            base: None,
            sender: Sender::new(0),
            forth: VecDeque::new(),
            back: VecDeque::new(),
            receiver: Receiver::new(Generation { instance: 1, count: 1 }, WINDOW),
            instance: 1,
            ledger: Ledger::default(),
            inbox: 0,
            delivered: Vec::new(),
            missed: 0,
            duplicates: 0,
        }
    }

    fn want(&mut self) {
        let ledger = &self.ledger;
        self.back.push_back(self.receiver.want(false, || ledger.positions()));
    }

    /// What a flow of export.rs does.
    fn export(&mut self) {
        while let Some(want) = self.back.pop_front() {
            if self.sender.on_want(&want) == Heard::Unknown {
                self.forth.push_back(ToImport::Reset(want.generation));
            }
        }
        while self.sender.has_room() && self.next <= self.published {
            let size = HEAD + self.dice.below(5 << 20) * self.dice.below(2);
            let item = Item { seq: self.next, size, base: 0 };
            let source = Position { publisher: PUBLISHER, seq: self.next };
            self.sender.push(item, Some(source), HEAD, size - HEAD);
            self.next += 1;
            self.send();
        }
        if self.sender.has_room()
            && let Some(base) = self.base.take()
        {
            self.sender.push(Item { seq: 0, size: HEAD, base }, None, HEAD, 0);
        }
        self.send();
    }

    fn send(&mut self) {
        let generation = self.sender.generation();
        while let Some((piece, &Item { seq, size, base })) = self.sender.next_piece() {
            self.forth.push_back(ToImport::Piece { generation, piece, size, seq, base });
        }
        let under_way = self.forth.iter().map(|frame| match frame {
            ToImport::Piece { piece, generation, .. }
                if *generation == self.sender.generation() =>
            {
                piece.len
            }
            _ => 0,
        });
        self.inbox = self.inbox.max(under_way.sum());
    }

    fn probe(&mut self) {
        if self.sender.unacked() > 0 {
            self.forth.push_back(ToImport::Probe(self.sender.generation(), self.sender.next()));
        }
    }

    /// What a flow of import.rs does with one frame.
    fn import(&mut self) {
        let arrival = match self.forth.pop_front() {
            None => return,
            Some(ToImport::Reset(generation)) => {
                if generation == self.receiver.generation() {
                    self.receiver.restart();
                    self.want();
                }
                return;
            }
            Some(ToImport::Probe(generation, next)) => self.receiver.on_probe(generation, next),
            Some(ToImport::Piece { generation, piece, size, seq, base }) => {
                let ends = piece.offset + piece.len == size;
                let arrival = self.receiver.on_piece(generation, piece, ends);
                if arrival == Arrival::Next {
                    self.receiver.on_copied(&piece);
                    if ends {
                        self.end_item(seq, base);
                        self.receiver.on_published();
                    }
                }
                arrival
            }
        };
        if arrival == Arrival::Lost || self.receiver.is_due() || self.forth.is_empty() {
            self.want();
        }
    }

    fn end_item(&mut self, seq: u64, base: u64) {
        if seq == 0 {
            self.missed += self.ledger.on_base(&[Position { publisher: PUBLISHER, seq: base }]);
            return;
        }
        match self.ledger.on_message(Position { publisher: PUBLISHER, seq }, 0) {
            Verdict::Duplicate => self.duplicates += 1,
            Verdict::New { missed } => {
                self.missed += missed;
                self.delivered.push(seq);
            }
        }
    }

    fn lose_transport(&mut self) {
        self.forth.clear();
        self.back.clear();
    }

    fn kill_exporter(&mut self) {
        self.lose_transport();
        self.sender = Sender::new(0);
        self.next = self.published + 1;
        self.base = Some(self.published);
    }

    fn kill_importer(&mut self) {
        self.lose_transport();
        self.instance += 1;
        self.receiver = Receiver::new(Generation { instance: self.instance, count: 1 }, WINDOW);
        self.ledger = Ledger::default();
    }

    fn run(&mut self, steps: u64, mut trouble: impl FnMut(&mut World)) {
        for _ in 0..steps {
            match self.dice.below(8) {
                0 => self.published += self.dice.below(4),
                1 | 2 => self.export(),
                3 => self.want(),
                4 => self.probe(),
                _ => self.import(),
            }
            if self.dice.below(100) == 0 {
                trouble(self);
            }
        }
        // Everything that is repeated is repeated, until all is quiet.
        for _ in 0..self.published + 100 {
            self.want();
            self.export();
            self.probe();
            while !self.forth.is_empty() {
                self.import();
            }
        }
        assert_eq!(self.sender.unacked(), 0);
        let bound = WINDOW + PIECE;
        assert!(self.inbox <= bound, "{} bytes under way (bound {bound})", self.inbox);
    }

    fn assert_in_order(&self) {
        assert!(self.delivered.is_sorted_by(|a, b| a < b), "{:?}", self.delivered);
    }
}

#[test]
fn nothing_is_lost_while_both_live() {
    for seed in 0..300 {
        let mut world = World::new(seed);
        world.want();
        world.run(2000, World::lose_transport);
        world.assert_in_order();
        assert_eq!(world.delivered.len() as u64, world.published, "seed {seed}");
        assert_eq!(world.missed, 0, "seed {seed}");
    }
}

#[test]
fn what_a_killed_exporter_had_is_counted() {
    let mut lost = 0;
    for seed in 0..300 {
        let mut world = World::new(seed);
        world.want();
        // one message tells the importing side which publisher there is
        world.published = 1;
        while world.delivered.is_empty() {
            world.export();
            world.import();
        }
        world.run(2000, World::kill_exporter);
        world.assert_in_order();
        assert_eq!(world.delivered.len() as u64 + world.missed, world.published, "seed {seed}");
        lost += world.missed;
    }
    assert!(lost > 0, "the test lost nothing, and so tells nothing");
}

#[test]
fn a_killed_importer_loses_nothing() {
    let mut repeated = 0;
    for seed in 0..300 {
        let mut world = World::new(seed);
        world.want();
        world.run(2000, World::kill_importer);
        let n = world.delivered.len() as u64;
        world.delivered.sort_unstable();
        world.delivered.dedup();
        assert_eq!(world.delivered.len() as u64, world.published, "seed {seed}");
        assert_eq!(world.missed, 0, "seed {seed}");
        repeated += n - world.published;
    }
    assert!(repeated > 0, "no acknowledgement was lost, and so the test tells nothing");
}

#[test]
fn credits_hold_the_sender() {
    let mut sender = Sender::new(0);
    let generation = Generation { instance: 1, count: 1 };
    let mut want = Want { generation, begin: true, limit: 1, ..Default::default() };
    assert!(!sender.has_room(), "no subscriber wants anything");
    assert_eq!(sender.on_want(&want), Heard::Begins);
    sender.push((), None, 10, 3 * PIECE);
    let (piece, ()) = sender.next_piece().unwrap();
    assert_eq!(piece, Piece { number: 0, offset: 0, len: PIECE });
    assert!(sender.next_piece().is_none() && !sender.has_room());
    want = Want { begin: false, limit: PIECE + FRAME_COST + 1, ..want };
    assert_eq!(sender.on_want(&want), Heard::Continues);
    assert_eq!(sender.next_piece().unwrap().0.offset, PIECE);
    assert!(sender.next_piece().is_none());
    // A want that is late takes no credits back.
    assert_eq!(sender.on_want(&Want { limit: 0, ..want.clone() }), Heard::Continues);
    assert_eq!(sender.on_want(&Want { limit: 1 << 40, ..want }), Heard::Continues);
    let rest: Vec<_> = std::iter::from_fn(|| sender.next_piece().map(|p| p.0.len)).collect();
    assert_eq!(rest, [PIECE, 10]);
    assert!(sender.has_room());
}

#[test]
fn acknowledgements_that_lie_take_nothing_away() {
    let mut sender = Sender::new(0);
    let generation = Generation { instance: 1, count: 1 };
    let want = Want { generation, begin: true, limit: 1, acked: u64::MAX, ..Default::default() };
    sender.on_want(&want);
    sender.push(1, None, 10, 2 * PIECE);
    sender.next_piece().unwrap();
    sender.on_want(&Want { limit: 1 << 30, ..want });
    assert_eq!(sender.unacked(), 1, "it was not sent completely");
    assert_eq!(sender.next_piece().unwrap().0.offset, PIECE);
}

#[test]
fn new_processes_get_what_is_retained() {
    let generation = Generation { instance: 1, count: 1 };
    let want = Want { generation, begin: true, limit: 1 << 30, ..Default::default() };
    let mut sender = Sender::new(2);
    sender.on_want(&want);
    for seq in 1..=4 {
        sender.push(seq, Some(Position { publisher: PUBLISHER, seq }), 10, 0);
        sender.next_piece().unwrap();
    }
    sender.on_want(&Want { acked: 3, begin: false, ..want.clone() });
    // The same process: only what it did not acknowledge.
    let again = Generation { count: 2, ..generation };
    sender.on_want(&Want { generation: again, ..want.clone() });
    let sent = |sender: &mut Sender<u64>| {
        std::iter::from_fn(|| sender.next_piece().map(|p| *p.1)).collect::<Vec<_>>()
    };
    assert_eq!(sent(&mut sender), [4]);
    let other = Generation { instance: 2, count: 1 };
    sender.on_want(&Want { generation: other, ..want.clone() });
    assert_eq!(sent(&mut sender), [2, 3, 4]);
    // One that says where it is.
    let positions = vec![Position { publisher: PUBLISHER, seq: 3 }];
    let last = Generation { instance: 3, count: 1 };
    sender.on_want(&Want { generation: last, positions, ..want.clone() });
    assert_eq!(sent(&mut sender), [4]);
    assert_eq!(sender.on_want(&Want { begin: false, ..want }), Heard::Unknown);
}

#[test]
fn bases_that_lie_do_no_harm() {
    let mut ledger = Ledger::default();
    let at = |publisher, seq| Position { publisher, seq };
    ledger.on_message(at(1, 1), 0);
    ledger.on_message(at(2, 1), 0);
    assert_eq!(ledger.on_base(&[at(1, u64::MAX), at(2, u64::MAX)]), u64::MAX);
}

#[test]
fn many_publishers_come_and_go() {
    let mut ledger = Ledger::default();
    for publisher in 1..=3 * MAX_POSITIONS as u64 {
        let verdict = ledger.on_message(Position { publisher, seq: 5 }, 4);
        assert_eq!(verdict, Verdict::New { missed: 4 });
    }
    assert_eq!(ledger.positions().len(), MAX_POSITIONS);
    let newest = Position { publisher: 3 * MAX_POSITIONS as u64, seq: 5 };
    assert_eq!(ledger.on_message(newest, 0), Verdict::Duplicate);
}

#[test]
fn small_items_are_added_several_at_a_time() {
    let generation = Generation { instance: 1, count: 1 };
    let want = |limit| Want { generation, begin: true, limit, ..Default::default() };
    let added = |limit, size| {
        let mut sender = Sender::new(0);
        sender.on_want(&want(limit));
        let mut n = 0;
        while sender.has_room() {
            sender.push((), None, 10, size);
            n += 1;
        }
        n
    };
    assert_eq!(added(1 << 30, 0), MAX_UNACKED);
    assert_eq!(added(1 << 30, PIECE / 4), 4);
    assert_eq!(added(1 << 30, 2 * PIECE), 1);
    assert_eq!(added(PIECE / 4, PIECE / 4), 1, "not without credits");
    assert_eq!(added(0, 0), 0);
}
