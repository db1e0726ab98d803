#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Verifies the models of the protocols with spin, and their memory orders with Relacy: the protocol
# as designed has no error in any interleaving at these sizes, and each broken variant has one (else
# the model looks away). README.md says what is claimed.
#
#   tests/model/run.sh           everything, about fifteen minutes on two processors,
#                                up to 5 GiB at once
#   tests/model/run.sh PATTERN   the cases whose names match (a regular expression)
#   QUICK=1 tests/model/run.sh   the small sizes, about four minutes, up to 1 GiB
#   MODEL_JOBS=N                 so many at once (default: processors, at most 4, as memory allows)
#
# Every access to a shared word is one step, as with seq_cst atomics; a lost wake-up shows as an
# invalid end state. That these orders are needed, Relacy shows (orders.cpp).
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# One line each: what it is | model | parameters | ok or error | quick or full
cases='
ring: drop: one reader                     |ring|LAST=4|ok|quick
ring: drop: longer                         |ring|LAST=6|ok|full
ring: drop: three entries                  |ring|LAST=6 NE=3|ok|full
ring: drop: two messages are kept          |ring|LAST=6 KEPT=2 NE=5|ok|full
ring: drop: latest                         |ring|LAST=4 LATEST0=1|ok|quick
ring: drop: latest, longer                 |ring|LAST=6 LATEST0=1|ok|full
ring: drop: two held                       |ring|LAST=5 B=2|ok|full
ring: drop: takes two at once              |ring|LAST=4 B=2 TWO|ok|quick
ring: drop: takes two at once, longer      |ring|LAST=5 B=2 TWO|ok|full
ring: drop: the reader dies                |ring|LAST=5 DIE|ok|full
ring: drop: batches of two                 |ring|LAST=5 K=2 HIST=1|ok|quick
ring: drop: batches of three               |ring|LAST=6 K=3 NB=5|ok|full
ring: drop: memory for all                 |ring|LAST=5 NOLOSS NB=5 NE=7|ok|quick
ring: drop: memory for all, batches        |ring|LAST=5 NOLOSS NB=5 NE=7 K=2 HIST=1|ok|full
ring: gate: reliable                       |ring|LAST=4 GATING REL0=1|ok|quick
ring: gate: reliable, longer               |ring|LAST=6 GATING REL0=1|ok|full
ring: gate: reliable, few blocks           |ring|LAST=6 GATING REL0=1 NB=2 NE=3|ok|quick
ring: gate: reliable, history              |ring|LAST=6 GATING REL0=1 HIST=1|ok|full
ring: gate: more history than is kept      |ring|LAST=4 GATING REL0=1 HIST=2|ok|quick
ring: gate: the same, longer               |ring|LAST=5 GATING REL0=1 HIST=2|ok|full
ring: gate: two messages are kept, batches |ring|LAST=5 GATING REL0=1 HIST=2 KEPT=2 K=2|ok|full
ring: gate: two held                       |ring|LAST=5 GATING REL0=1 B=2|ok|full
ring: gate: takes two at once              |ring|LAST=5 GATING REL0=1 B=2 TWO HIST=2|ok|full
ring: gate: sleeps and holds             |ring|LAST=4 GATING REL0=1 WINDOW=1 B=2 NB=4 KEEPS|ok|quick
ring: gate: reliable, dies                 |ring|LAST=5 GATING REL0=1 DIE NB=2|ok|quick
ring: gate: not reliable, few blocks       |ring|LAST=6 GATING NB=2|ok|full
ring: gate: latest, few blocks             |ring|LAST=6 GATING NB=2 LATEST0=1|ok|full
ring: gate: not reliable, two held         |ring|LAST=5 GATING NB=2 B=2|ok|full
ring: gate: batches of three, few blocks   |ring|LAST=6 GATING REL0=1 K=3 NB=2 NE=3|ok|quick
ring: gate: batches of three, history      |ring|LAST=6 GATING REL0=1 K=3 NB=4 HIST=1|ok|full
ring: two: both reliable                   |ring|LAST=3 GATING REL0=1 NR=2 REL1=1 NE=3 NB=3|ok|full
ring: two: one reliable, one not           |ring|LAST=2 GATING REL0=1 NR=2 NE=3 NB=3|ok|full
ring: two: drop, one latest                |ring|LAST=2 NR=2 NE=3 LATEST1=1|ok|full
ring: two: reliable, dies; latest    |ring|LAST=2 GATING REL0=1 NR=2 LATEST1=1 NE=3 NB=3 DIE|ok|full
ring: ends: no cycles                      |ring|LAST=4 GATING REL0=1 NB=2 NE=3 CYCLES|ok|full
ring: ends: no cycles, drop                |ring|LAST=4 NE=3 CYCLES|ok|full
ring: needless: second look, if kept       |ring|LAST=5 GATING REL0=1 HIST=1 UNJOINED|ok|full
ring: needless: gen before head            |ring|LAST=5 LATEST0=1 HEADFIRST|ok|full
ring: needless: joins before head is read  |ring|LAST=5 GATING REL0=1 OPENFIRST|ok|full
carry: as designed                         |carry|LAST=3|ok|quick
carry: as designed, longer                 |carry|LAST=4|ok|full
carry: few blocks                          |carry|LAST=4 NB=2|ok|full
carry: three entries                       |carry|LAST=4 NE=3|ok|full
carry: two messages                        |carry|LAST=5 K=2 KEPT=2|ok|full
carry: not reliable                        |carry|LAST=4 UNRELIABLE NB=4|ok|full
carry: a newcomer                          |carry|LAST=3 NEWCOMER|ok|quick
carry: a newcomer, two messages            |carry|LAST=4 K=2 NEWCOMER|ok|quick
carry: a newcomer, and who was there       |carry|LAST=2 NEWCOMER BOTH|ok|full
carry: each block by itself                |carry|LAST=3 OWN|ok|quick
carry: by itself, few blocks, longer       |carry|LAST=4 NB=2 OWN|ok|full
carry: by itself, three entries            |carry|LAST=4 NE=3 OWN|ok|full
carry: by itself, two messages             |carry|LAST=5 K=2 KEPT=2 OWN|ok|full
carry: by itself, not reliable             |carry|LAST=4 UNRELIABLE NB=4 OWN|ok|full
carry: by itself, a newcomer               |carry|LAST=4 K=2 NEWCOMER OWN|ok|quick
carry: by itself, and who was there        |carry|LAST=2 NEWCOMER BOTH OWN|ok|full
carry: by itself, left block not blocked   |carry|LAST=4 NB=2 UNBLOCKED OWN|ok|full
forward: as designed                       |forward|NA=3 LAST=5|ok|quick
forward: as designed, longer               |forward|NA=4 LAST=7|ok|full
claims: two workers                        |claims|LAST=3 NE=3 NB=2|ok|full
claims: one entry at a time, wraps         |claims|LAST=4 NE=2 NB=1|ok|full
claims: news of the daemon is late         |claims|LAST=2 NE=3 NB=2 LATENEWS|ok|quick
claims: a worker dies                      |claims|LAST=2 NE=3 NB=2 DIE|ok|full
claims: a worker dies, wraps               |claims|LAST=3 NE=2 NB=1 DIE|ok|full
claims: each gives one back                |claims|LAST=2 NE=3 NB=2 REJECT|ok|full
claims: gives one back, and one dies       |claims|LAST=1 NE=3 NB=2 REJECT DIE|ok|full
claims: gives one back, and leaves         |claims|LAST=2 NE=3 NB=2 REJECT REJECTLEAVES|ok|full
claims: the second comes after a death     |claims|LAST=4 NE=3 NB=2 LATER|ok|full
claims: the publisher dies                 |claims|LAST=3 NE=4 NB=3 PDIE|ok|full
claims: publisher and worker die           |claims|LAST=2 NE=4 NB=3 PDIE DIE|ok|full
claims: nothing waits while one sleeps     |claims|LAST=3 NE=5 NB=3 LONG|ok|full
claims: nothing waits: one is given back   |claims|LAST=2 NE=4 NB=2 LONG REJECT|ok|full
claims: a lease expires                    |claims|LAST=2 NE=3 NB=2 LEASE|ok|full
claims: three workers, one message         |claims|NW=3 LAST=1 NE=3 NB=2|ok|full
claims: needless: one publisher, no chain  |claims|LAST=3 NE=5 NB=3 LONG NOCHAIN|ok|quick
wake: two publishers, nothing waits        |wake||ok|full
wake: two held, and one more publisher     |wake|HELD=2 M1=1|ok|full
wake: two held and kept, two publishers    |wake|M=1 HELD=2 KEEP=2|ok|quick
wake: two held and kept                    |wake|NP=1 M=4 HELD=2 KEEP=2|ok|quick
wake: three workers                        |wake|NW=3 NP=1 M=3|ok|quick
wake: three workers, two held              |wake|NW=3 NP=1 M=4 HELD=2|ok|full
wake: one is stopped                       |wake|NP=1 M=3 STOP|ok|quick
wake: one is stopped, two publishers       |wake|M=1 STOP|ok|full
wake: one of three is stopped              |wake|NW=3 NP=1 M=2 STOP|ok|full
attempts: given back                       |attempts|NE=2 M=3 MAX=1|ok|full
attempts: given back, tried twice          |attempts|HELD=1|ok|full
attempts: a worker dies                    |attempts|NE=2 MAX=1 DIE|ok|quick
attempts: a worker dies, tried twice       |attempts|HELD=1 DIE|ok|full
attempts: a lease, given back              |attempts|HELD=1 MAX=1 LEASE|ok|full
attempts: a lease, two held                |attempts|M=1 LEASE KEEPS|ok|full
attempts: a lease, and a worker dies       |attempts|M=1 HELD=1 MAX=1 LEASE DIE|ok|full
attempts: three workers                    |attempts|NW=3 HELD=1|ok|quick
attempts: three workers, one dies          |attempts|NW=3 HELD=1 MAX=1 DIE|ok|full
calls: as designed                         |calls||ok|quick
calls: a worker dies                       |calls|DIE|ok|quick
calls: a worker dies, idempotent           |calls|DIE IDEM|ok|full
calls: a worker dies, no time-outs         |calls|DIE PATIENT|ok|quick
calls: the same, idempotent                |calls|DIE IDEM PATIENT|ok|quick
calls: a worker gives back, and dies       |calls|DIE GIVEBACK|ok|full
calls: one in flight                       |calls|F=1 DIE IDEM|ok|full
calls: slots free at once                  |calls|C=4 R=3 ATONCE|ok|full
calls: slots free at once, a worker dies   |calls|R=3 ATONCE DIE|ok|full
calls: slots free at once, idempotent      |calls|R=3 ATONCE DIE IDEM|ok|full
calls: slots free at once, one in flight   |calls|F=1 R=2 ATONCE DIE IDEM|ok|quick
calls: the same, four calls                |calls|C=4 F=1 R=2 ATONCE DIE IDEM|ok|full
carry_claims: another daemon               |carry_claims||ok|quick
opened: as designed                        |opened||ok|quick
opened: three messages                     |opened|M=3|ok|full
restart: two restarts                      |restart|NG=3 LAST=3|ok|quick
restart: late answers                      |restart|NG=3 LAST=3 SLOW|ok|full
restart: a subscriber dies                 |restart|NG=3 LAST=3 SLOW DIE|ok|full
restart: longer, room is short             |restart|NG=3 LAST=5 SLOW|ok|full
restart: three restarts                    |restart|NG=4 LAST=2 SLOW|ok|full
restart: two subscriptions                 |restart|NS=2 NG=2 LAST=1|ok|quick
restart: two subscriptions, longer         |restart|NS=2 NG=2 LAST=2|ok|full
restart: first cursor rings nobody         |restart|NG=2 NORING|ok|full
restart: old block not blocked for ever    |restart|NG=2 OLDUNBLOCKED|ok|full
join: the daemon dies anywhere             |join||ok|quick
join: a packet that is late                |join|MISS|ok|quick
join: joins read after retiring            |join|NOEPOCH1|ok|full
join: joins read before retiring           |join|NOEPOCH2|ok|full
join: two publishers                       |join|NP=2 LAST=1 NS=1|ok|full
blocked: two readers                       |blocked||ok|quick
blocked: a reader with two threads         |blocked|NR=1 NT=2|ok|quick
blocked: two readers, the publisher polls  |blocked|FD|ok|quick
blocked: polls, a reader with two threads  |blocked|FD NR=1 NT=2|ok|quick
blocked: needless: no number afterwards    |blocked|FD NEWAFTER|ok|quick
early: a subscription that was first       |early||ok|quick
early: with a spare link                   |early|SPARE|ok|quick
early: a publisher that blocks             |early|BLOCK|ok|quick
early: blocks, with a spare link           |early|SPARE BLOCK|ok|quick
waiting: as designed                       |waiting|LAST=2|ok|quick
waiting: as designed, longer               |waiting|LAST=3|ok|full
waiting: they sleep                        |waiting|LAST=2 BELLS|ok|quick
retained: as designed                      |retained|K=1|ok|quick
retained: two messages                     |retained|K=2 NR=1|ok|quick
retained: two messages, two readers        |retained|K=2|ok|full
shown: as designed                         |shown||ok|quick
shown: three payloads, longer              |shown|NB=3 LAST=5|ok|quick
shown: three more daemons                  |shown|ND=4|ok|quick
shown: two readers                         |shown|NR=2|ok|full
word: as designed                          |word|LAST=2 NS=1|ok|quick
word: somebody is tired of waiting         |word|LAST=2 NS=1 LATE|ok|quick
word: three messages                       |word|LAST=3 NS=1|ok|full
adopt: a reliable reader                   |adopt|ND=2 LAST=5 ONLY=0|ok|quick
adopt: a newcomer                          |adopt|ND=2 NB=2 LAST=3 ONLY=1|ok|quick
adopt: moves from an unknown reader        |adopt|ND=2 NB=2 LAST=3 ONLY=1 STORE|ok|full
adopt: moves from an unknown link          |adopt|ND=2 NB=2 LAST=3 A=9 ONLY=1 PENDING|ok|quick
adopt: a reader makes no call any more     |adopt|ND=2 NB=4 LAST=5 ONLY=1 KEEP|ok|full
adopt: the same, moves                     |adopt|ND=2 NB=4 LAST=5 ONLY=1 KEEP PENDING|ok|full
adopt: a reliable reader, three daemons    |adopt|LAST=4 ONLY=0|ok|full
adopt: a newcomer, three daemons           |adopt|NB=2 LAST=3 A=9 ONLY=1|ok|full
adopt: both readers                        |adopt|ND=2 NB=2 LAST=3 A=9|ok|full
adopt: moves, three daemons                |adopt|NB=2 LAST=3 A=9 ONLY=1 STORE|ok|full
adopt: the reliable reader dies, late answers|adopt|LAST=3 ONLY=0 DIE=0 SLOW|ok|full
adopt: the newcomer dies                   |adopt|ND=2 NB=2 LAST=3 ONLY=1 DIE=1|ok|full
adopt: the publisher dies                  |adopt|ND=2 NB=2 LAST=4 ONLY=0 DIE=2|ok|full
adopt: two daemons at a time               |adopt|ND=2 NB=2 LAST=3 ONLY=1 OVERLAP|ok|full
adopt: pages may be missing                |adopt|ND=2 LAST=3 ONLY=1 HOSTILE|ok|full
adopt: needless: cursor, then old link     |adopt|ND=2 LAST=5 ONLY=0 CLOSEFIRST|ok|full
adopt: stays, waits for unknown readers |adopt|ND=2 NB=2 LAST=3 A=9 ONLY=1 PENDING NOMOVE=2|ok|full
orders: hold word and gen                  |orders|hold_retire|ok|quick
orders: a reliable take                    |orders|reliable_take|ok|quick
orders: what is passed                     |orders|passed|ok|quick
orders: gen and ticket                     |orders|batch_sleep|ok|quick
orders: cursor and blocked                 |orders|take_blocked|ok|quick
orders: hold word and blocked              |orders|release_blocked|ok|quick
orders: gen and joins                      |orders|joiner|ok|quick
orders: when the newest was published      |orders|newest|ok|quick
orders: what a report counts as missed     |orders|report|ok|quick
orders: what a report counts as gone       |orders|report_hold|ok|quick
orders: ids of freed GPU memory            |orders|freed|ok|quick
orders: held beyond done                   |orders|done_hold|ok|quick
orders: a claim whose lease ends           |orders|claim_hold|ok|quick
orders: what was written before done       |orders|done_chain|ok|quick
orders: two are done at once               |orders|two_done|ok|quick
orders: done and blocked                   |orders|done_blocked|ok|quick
orders: one thread rings for two           |orders|rung_once|ok|quick
orders: even ticket and gen                |orders|disarm|ok|quick
orders: a message that is given back       |orders|given_back|ok|quick
ring: a retired entry is 0                 |ring|LAST=4 ZERO|error|quick
ring: gen not looked at again              |ring|LAST=4 NORECHECK|error|quick
ring: hold word after the second look      |ring|LAST=4 HOLDLATE|error|quick
ring: words copied after it                |ring|LAST=5 NE=3 LATECOPY|error|quick
ring: hold words before gen is marked      |ring|LAST=4 FREEFIRST|error|quick
ring: cursors not looked at                |ring|LAST=4 GATING REL0=1 NOGATE|error|quick
ring: window retires what is not passed    |ring|LAST=4 GATING REL0=1 HIST=1 K=2 EARLY|error|quick
ring: passed is kept over a join           |ring|LAST=5 GATING REL0=1 HIST=1 STALE|error|quick
ring: cursor before hold word              |ring|LAST=4 GATING REL0=1 CURSORFIRST|error|quick
ring: not reliable: cursor first           |ring|LAST=3 NOLOSS NB=3 NE=5 PASSFIRST|error|quick
ring: no second look by a joiner           |ring|LAST=4 GATING REL0=1 HIST=2 UNJOINED|error|quick
ring: no entry for the mark            |ring|LAST=4 GATING REL0=1 KEPT=2 HIST=2 K=2 FULL|error|quick
ring: entries written while LIVE           |ring|LAST=6 K=3 NB=5 NOROOM|error|quick
ring: fewer entries than window + 2        |ring|LAST=5 GATING REL0=1 WINDOW=3 NB=4|error|quick
ring: tickets, then gen                    |ring|LAST=4 BELLFIRST|error|quick
ring: gen, then ticket                     |ring|LAST=4 ARMLATE|error|quick
ring: joins not looked at after gen        |ring|LAST=4 GATING REL0=1 NOPICKUP|error|quick
ring: joins not looked at in reclaim   |ring|LAST=5 GATING REL0=1 K=3 NB=4 NE=5 NOMEMBER|error|quick
ring: release rings nobody                 |ring|LAST=5 GATING NB=2 B=2 NORING|error|quick
ring: take rings nobody    |ring|LAST=4 GATING REL0=1 WINDOW=1 B=2 NB=4 KEEPS NORINGTAKE|error|quick
ring: a joiner believes head               |ring|LAST=5 GATING REL0=1 K=3 NOJOINCHECK|error|quick
ring: joiner begins before joins        |ring|LAST=5 GATING REL0=1 OPENFIRST NOJOINCHECK|error|quick
ring: waits before it has announced        |ring|LAST=6 GATING REL0=1 K=3 NB=2 NOFLUSH|error|quick
ring: holds of the dead count              |ring|LAST=5 GATING REL0=1 NB=2 DIE DEADHOLDS|error|quick
carry: one copy retired                    |carry|LAST=3 NEWCOMER ONECOPY|error|quick
carry: scanned before both are GONE        |carry|LAST=3 NEWCOMER SCANFIRST|error|quick
carry: taken twice                         |carry|LAST=4 NOFOLLOW|error|quick
carry: old link closed first               |carry|LAST=4 CLOSEFIRST|error|quick
carry: closed link not looked at           |carry|LAST=4 DROPCLOSED|error|quick
carry: hold word, then closed              |carry|LAST=4 HOLDFIRST|error|quick
carry: does not wait for who must rejoin   |carry|LAST=4 NOREJOIN|error|quick
carry: one more in the old block           |carry|LAST=4 LATE|error|quick
carry: the new block begins at head        |carry|LAST=3 NEWCOMER BASEHEAD|error|quick
carry: no entry for the mark               |carry|LAST=4 NE=3 FULL|error|quick
carry: left block not blocked              |carry|LAST=3 NB=2 UNBLOCKED|error|quick
carry: by itself, copies are not GONE      |carry|LAST=3 NEWCOMER ONECOPY OWN|error|quick
carry: by itself, scanned, then GONE       |carry|LAST=3 NEWCOMER SCANFIRST OWN|error|quick
carry: by itself, taken twice              |carry|LAST=4 NOFOLLOW OWN|error|quick
carry: by itself, old link closed first    |carry|LAST=4 CLOSEFIRST OWN|error|quick
carry: by itself, closed link not looked at|carry|LAST=4 DROPCLOSED OWN|error|full
carry: by itself, hold word, then closed   |carry|LAST=4 HOLDFIRST OWN|error|full
carry: by itself, goes on too early        |carry|LAST=4 NOREJOIN OWN|error|quick
carry: by itself, one more in the old block|carry|LAST=4 LATE OWN|error|full
carry: by itself, begins at head           |carry|LAST=3 NEWCOMER BASEHEAD OWN|error|full
carry: by itself, no entry for the mark    |carry|LAST=4 NE=3 FULL OWN|error|full
forward: death ends holds at once          |forward|ASWRITTEN|error|quick
forward: attached after death, no lifeline |forward|LATE|error|quick
forward: upstream hold dropped too early   |forward|EARLYCLR|error|quick
claims: by a load and a store              |claims|LAST=2 NE=3 NB=2 PLAIN|error|quick
claims: a cell has no message number       |claims|LAST=2 NE=3 NB=2 NOTAG|error|quick
claims: looks at what is done, then DONE   |claims|LAST=3 NE=2 NB=1 ADVFIRST|error|quick
claims: what is claimed counts as done     |claims|LAST=3 NE=2 NB=1 CLAIMPASSES|error|quick
claims: the same, and one dies             |claims|LAST=3 NE=3 NB=2 CLAIMPASSES DIE|error|quick
claims: what the dead had counts as done   |claims|LAST=2 NE=3 NB=2 DIE DEADDONE|error|quick
claims: nobody hears of a death            |claims|LAST=2 NE=3 NB=2 DIE NOLEFT|error|quick
claims: no hold word                       |claims|LAST=3 NE=2 NB=1 NOHOLD|error|quick
claims: hold word cleared, then used       |claims|LAST=3 NE=2 NB=1 UNHOLDFIRST|error|quick
claims: holds of the dead count            |claims|LAST=3 NE=2 NB=1 DIE DEADHOLDS|error|full
claims: the dead are rung                  |claims|LAST=4 NE=2 NB=1 DIE NOLOOK|error|quick
claims: told of a death, then leaves       |claims|LAST=4 NE=2 NB=1 DIE LEFTFIRST|error|quick
claims: only passed cells are looked at    |claims|LAST=4 NE=2 NB=1 DIE PASSEDONLY|error|full
claims: done rings nobody                  |claims|LAST=3 NE=2 NB=1 NORING DIE|error|quick
claims: tickets, then gen                  |claims|LAST=3 NE=2 NB=1 BELLFIRST|error|quick
claims: gen, then ticket                   |claims|LAST=2 NE=3 NB=2 ARMLATE|error|quick
claims: ticket left as it was              |claims|LAST=3 NE=5 NB=3 LONG NODISARM|error|quick
claims: nobody rung if one is awake        |claims|LAST=3 NE=5 NB=3 LONG RINGNONE|error|quick
claims: who is last tells nobody           |claims|LAST=2 NE=3 NB=2 NOENDNEWS|error|quick
claims: leaves at END, one is undone       |claims|LAST=2 NE=3 NB=2 DIE ENDLEAVES|error|quick
claims: gives back, silently |claims|LAST=2 NE=3 NB=2 REJECT REJECTLEAVES NOREJECTNEWS|error|quick
claims: RETURNED is found by a count       |claims|LAST=1 NE=3 NB=2 REJECT DIE BYCOUNT|error|full
claims: a joiner looks for no claims       |claims|LAST=4 NE=3 NB=2 LATER NOJOINSCAN|error|quick
claims: a slow worker taken for dead       |claims|LAST=2 NE=3 NB=2 REJECT FALSEDEATH|error|quick
claims: DONE whosever claim it is          |claims|LAST=3 NE=2 NB=1 LEASE LEASEBLIND|error|full
wake: no look at the other links           |wake|NOCHAIN|error|quick
wake: only one ticket is lowered           |wake|DISARMONE|error|quick
wake: looks, then lowers the tickets       |wake|LOOKFIRST|error|quick
wake: looks, then raises the ticket        |wake|ARMFIRST|error|quick
wake: two kept, no look at the others      |wake|HELD=2 KEEP=2 NOCHAIN|error|quick
wake: waits, and never looks by itself     |wake|NP=1 M=3 STOP NOTIMEOUT|error|quick
wake: who is full is rung                  |wake|NP=1 M=3 HELD=2 KEEP=2 FULLARMED|error|quick
wake: who was full does not look           |wake|NP=1 M=5 HELD=2 KEEP=2 DONESLEEPS|error|quick
attempts: the attempt is beside the word   |attempts|M=1 MAX=1 LEASE KEEPS NOATTEMPT|error|quick
attempts: a return counts no attempt       |attempts|M=1 HELD=1 NORETURNS|error|quick
attempts: the last attempt stays  |attempts|M=1 MAX=1 LIMIT=1 LEASE KEEPS SATURATES|error|quick
attempts: a dead letter is DONE, then held |attempts|HELD=1 MAX=1 LIMIT=1 DEADNOHOLD|error|quick
attempts: counted, then DONE               |attempts|M=1 HELD=1 MAX=1 LEASE COUNTFIRST|error|quick
attempts: gen not looked at again |attempts|HELD=1 MAX=1 LIMIT=1 LEASE KEEPS NORECHECK|error|quick
attempts: renewals are beside the word     |attempts|M=1 HELD=1 MAX=1 LEASE RENEWAPART|error|quick
attempts: renewals wrap     |attempts|M=1 HELD=1 MAX=1 LEASE RENEWALS=2 RENEWWRAPS|error|quick
attempts: renewed by a store               |attempts|M=1 HELD=1 MAX=1 LEASE RENEWBLIND|error|quick
calls: done, then the reply                |calls|DONEFIRST|error|quick
calls: given to another, not idempotent    |calls|DIE REDELIVER|error|quick
calls: what the dead had stays             |calls|DIE PATIENT DEADLEFT|error|quick
calls: a reply is to the oldest call       |calls|BYORDER|error|quick
calls: slot free at a time-out             |calls|SLOTEARLY|error|quick
calls: slot free at the reply              |calls|DIE IDEM SLOTATREPLY|error|quick
calls: looks at replies, then at done      |calls|DRAINFIRST|error|quick
calls: no look at replies of the dead      |calls|DIE GONEFIRST|error|quick
calls: RETURNED, then hold word cleared    |calls|DIE GIVEBACK RETURNFIRST|error|quick
calls: slots free at once, too little room |calls|R=2 ATONCE|error|quick
calls: slots free at once, no look before  |calls|F=1 R=2 ATONCE NODRAIN|error|quick
calls: slots free at once, run again   |calls|F=1 R=2 ATONCE DIE IDEM NOSTATE|error|quick
carry_claims: claimed at once              |carry_claims|NOWAIT|error|quick
carry_claims: claims are not repeated      |carry_claims|NOCOPYCLAIM|error|quick
carry_claims: DONE is not repeated         |carry_claims|NOCOPYDONE|error|quick
carry_claims: still claims by the old page |carry_claims|STILLOLD|error|quick
carry_claims: started, then repeats        |carry_claims|STARTFIRST|error|quick
carry_claims: what the dead repeated stands|carry_claims|DEADBARS|error|quick
carry_claims: the dead are waited for      |carry_claims|DEADWAIT|error|quick
opened: at once                            |opened|ATONCE|error|quick
opened: when one has its new link          |opened|LINKONLY|error|quick
opened: looks at done, then who is gone    |opened|PASSEDFIRST|error|quick
opened: the dead are waited for            |opened|DEADWAIT|error|quick
opened: no mark                            |opened|NOMARK|error|quick
opened: what the dead had stays            |opened|NORETURN|error|quick
opened: from the first one on              |opened|FROMONE|error|quick
restart: does not wait for who must rejoin |restart|NG=3 LAST=2 NOREJOIN|error|quick
restart: a link of another counts           |restart|NS=2 NG=3 LAST=1 NOREADER|error|full
restart: a link without a cursor counts    |restart|NG=3 LAST=2 NOSTARTED|error|quick
restart: old link socket not drained       |restart|NG=3 LAST=4 NODRAIN|error|quick
restart: a link never opened is not closed |restart|NG=3 LAST=4 NOCLOSED|error|quick
restart: new link is taken from at once    |restart|NG=2 NOAFTER|error|quick
restart: follows the oldest link           |restart|NG=3 LAST=4 AFTEROLD|error|quick
restart: known by the id before            |restart|NG=3 LAST=2 LASTID|error|quick
restart: started before the arena is here  |restart|NG=3 LAST=4 EARLYSTART|error|quick
restart: old link left without a successor |restart|NG=2 EARLYLEAVE|error|quick
restart: old link left, then the cursor    |restart|NG=2 CURSORLATE|error|quick
restart: who waits looks for no daemon     |restart|NG=3 NOLOOK|error|quick
restart: the dead are waited for           |restart|NG=2 DIE NODEAD|error|quick
restart: neither of both rings             |restart|NG=2 NORING OLDUNBLOCKED|error|quick
restart: late answer, given up              |restart|NG=3 LAST=2 SLOW GIVEUP|error|quick
join: joins raised before LinkAdded        |join|JOINFIRST|error|quick
join: LinkOpen before joins is raised      |join|OPENFIRST|error|quick
join: LinkOpen before LinkAdded            |join|ADDLATE|error|quick
join: joins not read after gen             |join|NOPICKUP|error|quick
join: a missing packet is no link          |join|UNCOUNTED MISS|error|quick
join: a link never opened is not closed    |join|NOCLOSED|error|quick
early: PublisherReady answered too early   |early|SPARE BLOCK OKFIRST|error|quick
early: nobody is waited for                |early|BLOCK NOWAIT|error|quick
early: what is missed has no number        |early|UNCOUNTED|error|quick
early: a link not opened is not drained    |early|SPARE BLOCK NODRAIN|error|quick
blocked: a further look, the same number   |blocked|SAMENUMBER|error|quick
blocked: looks, then stores the number     |blocked|LOOKFIRST|error|quick
blocked: looks at it, then makes room      |blocked|LOADFIRST|error|quick
blocked: forgets what was rung too late    |blocked|FD DRAINLATE|error|quick
blocked: polls; the same number            |blocked|FD SAMENUMBER|error|quick
blocked: polls; looks, then stores it      |blocked|FD LOOKFIRST|error|quick
waiting: LinkOpen before joins is raised   |waiting|LAST=3 OPENFIRST|error|quick
waiting: passed by who comes later         |waiting|NL=3 LAST=3 PASSES|error|full
waiting: withdrawn, whatever it holds      |waiting|LAST=3 NOHOLD|error|quick
waiting: joins lowered for who was sent    |waiting|LAST=3 LOWERSENT|error|quick
waiting: joins not lowered                 |waiting|LAST=3 NOTLOWERED|error|quick
waiting: frees what none that it knows has |waiting|LAST=3 FREES|error|quick
waiting: the same memory after a death     |waiting|LAST=3 REUSED|error|quick
waiting: the daemon rings nobody           |waiting|LAST=2 BELLS NORING|error|quick
waiting: the daemon rings, then sends      |waiting|LAST=2 BELLS RINGFIRST|error|quick
waiting: it rings only who is sent         |waiting|NL=3 LAST=2 BELLS RINGONE|error|full
retained: hang-up taken for death          |retained|K=1 HANGUP|error|quick
retained: links not looked at after death  |retained|K=1 NOSETTLE|error|quick
retained: waits for a dead publisher       |retained|K=1 LINKADDED|error|quick
retained: first message replaces           |retained|K=2 EARLY|error|quick
retained: the K-th message is not told     |retained|K=1 NEVER|error|quick
retained: given back while it is read      |retained|K=1 FREE|error|quick
retained: head read before the death       |retained|K=1 HEADLATE|error|quick
shown: looks for locks, then marks         |shown|CHECKFIRST|error|quick
shown: does not look for locks             |shown|NOLOOK|error|quick
shown: handed out, then locked             |shown|LOCKLATE|error|quick
shown: the lock goes with the daemon       |shown|LOCKED|error|quick
shown: id cleared when the next one serves |shown|CLEARLATE|error|quick
shown: unmapped before it lets go          |shown|UNMAPFIRST|error|quick
shown: what was there is never freed       |shown|ALONE|error|quick
shown: the same, with more memory          |shown|ALONE NB=3|error|quick
word: the thread raises no word            |word|LAST=2 NS=1 NORAISE|error|quick
word: the thread stores, and does not raise|word|LAST=2 NS=1 PLAINSTORE|error|quick
word: a word is taken that may be written  |word|LAST=2 NS=1 REUSEEARLY|error|quick
word: the event is before the word         |word|LAST=2 NS=1 EVENTFIRST|error|quick
word: the word is before the work          |word|LAST=2 NS=1 WRITEFIRST|error|quick
word: a word has the same value again      |word|LAST=2 NS=1 SAMEVALUE|error|quick
word: two subscribers have one page        |word|LAST=2 ONEPAGE|error|full
adopt: stays, an unknown reader (store)    |adopt|NB=2 LAST=3 ONLY=1 STORE NOMOVE=1|error|quick
adopt: stays, an unknown link           |adopt|ND=2 NB=2 LAST=3 ONLY=1 PENDING NOMOVE=1|error|quick
adopt: waits for an unknown reader (store)|adopt|NB=4 LAST=5 ONLY=1 STORE KEEP NOMOVE=2|error|quick
adopt: waits for an unknown link   |adopt|ND=2 NB=4 LAST=5 ONLY=1 PENDING KEEP NOMOVE=2|error|quick
adopt: shown before it looks at the line   |adopt|NB=2 LAST=3 A=9 ONLY=1 EARLYSHOW|error|full
adopt: old link socket not drained         |adopt|ND=2 NB=2 LAST=3 ONLY=1 NODRAIN|error|full
adopt: leaves a daemon that is there   |adopt|ND=2 NB=2 LAST=3 ONLY=1 OVERLAP LEAVEALIVE|error|full
adopt: joins not read after the cursors    |adopt|ND=2 LAST=5 ONLY=0 NOLOOK|error|full
adopt: new link begins where newcomers do  |adopt|ND=2 LAST=5 ONLY=0 FROMSTART|error|full
adopt: a link never opened is not closed   |adopt|LAST=4 ONLY=0 NOCLOSED|error|full
adopt: closed link not looked at           |adopt|ND=2 LAST=4 ONLY=0 DROPCLOSED|error|full
adopt: arenas are not handed over          |adopt|ND=2 LAST=3 ONLY=0 ONLYBLOCK|error|full
adopt: nothing is proved                   |adopt|ND=2 LAST=3 ONLY=1 HOSTILE NOPROOF|error|full
adopt: charged twice                       |adopt|ND=2 LAST=3 ONLY=1 STORE TWICE|error|full
adopt: charged when the publisher is dead  |adopt|ND=2 LAST=3 ONLY=0 DIE=2 LEFT|error|full
orders: no fence after the hold word       |orders|hold_retire HOLD_FENCE|error|quick
orders: no fence after GONE                |orders|hold_retire GONE_FENCE|error|quick
orders: weaker gen load                    |orders|hold_retire GEN_LOAD|error|quick
orders: weaker gen store                   |orders|hold_retire GEN_STORE|error|quick
orders: weaker hold load                   |orders|hold_retire HOLD_LOAD|error|quick
orders: weaker hold clear                  |orders|hold_retire HOLD_CLEAR|error|quick
orders: entry written before the fence     |orders|hold_retire REWRITE_FIRST|error|quick
orders: weaker gen load                    |orders|reliable_take GEN_LOAD|error|quick
orders: weaker gen store                   |orders|reliable_take GEN_STORE|error|quick
orders: cursor, then hold word             |orders|reliable_take CURSOR_FIRST|error|quick
orders: weaker cursor store                |orders|reliable_take CURSOR_STORE|error|quick
orders: cursor not looked at               |orders|reliable_take NO_CURSOR|error|quick
orders: weaker hold load                   |orders|reliable_take HOLD_LOAD|error|quick
orders: weaker hold clear                  |orders|reliable_take HOLD_CLEAR|error|quick
orders: cursor, then hold word             |orders|passed PASS_FIRST|error|quick
orders: weaker hold load                   |orders|passed HOLD_LOAD|error|quick
orders: weaker hold clear                  |orders|passed HOLD_CLEAR|error|quick
orders: no fence after gen                 |orders|batch_sleep ANNOUNCE_FENCE|error|quick
orders: no fence after the ticket          |orders|batch_sleep ARM_FENCE|error|quick
orders: seq_cst gen, no fence              |orders|batch_sleep LAST_IS_SC|error|quick
orders: seq_cst ticket, no fence           |orders|batch_sleep TICKET_IS_SC|error|quick
orders: no fence after the cursor          |orders|take_blocked TAKE_FENCE|error|quick
orders: cursor after the fence             |orders|take_blocked LATE_CURSOR|error|quick
orders: no fence after blocked             |orders|take_blocked BLOCKED_FENCE|error|quick
orders: no fence after release             |orders|release_blocked RELEASE_FENCE|error|quick
orders: no fence after blocked             |orders|release_blocked BLOCKED_FENCE|error|quick
orders: no fence after gen                 |orders|joiner ANNOUNCE_FENCE|error|quick
orders: no fence of the joiner             |orders|joiner JOIN_FENCE|error|quick
orders: no fence before the second look    |orders|newest LOOK_FENCE|error|quick
orders: no second look                     |orders|newest NO_SECOND_LOOK|error|quick
orders: no fence after GONE                |orders|newest GONE_FENCE|error|quick
orders: weaker gen load                    |orders|newest GEN_LOAD|error|quick
orders: weaker gen store                   |orders|newest GEN_STORE|error|quick
orders: weaker store of what was missed    |orders|report MISSED_STORE|error|quick
orders: weaker store of the next cursor    |orders|report PASSING_STORE|error|quick
orders: weaker store of the counter        |orders|report LOST_STORE|error|quick
orders: weaker cursor store                |orders|report CURSOR_STORE|error|quick
orders: counter and cursor alone           |orders|report NO_PASSING|error|quick
orders: counters read once                 |orders|report ONE_COPY|error|quick
orders: no fence after the hold word       |orders|report_hold HOLD_FENCE|error|quick
orders: weaker hold clear                  |orders|report_hold HOLD_CLEAR|error|quick
orders: weaker oldest store                |orders|report_hold OLDEST_STORE|error|quick
orders: no fence of the report             |orders|report_hold REPORT_FENCE|error|quick
orders: hold word not looked at            |orders|report_hold NO_HOLD|error|quick
orders: no fence before an id              |orders|freed FREED_FENCE|error|quick
orders: weaker store of the number of ids  |orders|freed FREED_STORE|error|quick
orders: weaker load of the number of ids   |orders|freed FREED_LOAD|error|quick
orders: no fence after the ids             |orders|freed LOOK_FENCE|error|quick
orders: number of ids not looked at again  |orders|freed ONE_LOOK|error|quick
orders: hold word after done               |orders|done_hold HOLD_LATE|error|quick
orders: weaker hold clear                  |orders|done_hold HOLD_CLEAR|error|quick
orders: weaker hold load                   |orders|done_hold HOLD_LOAD|error|quick
orders: no fence after the hold word       |orders|claim_hold HOLD_FENCE|error|quick
orders: gen not looked at again            |orders|claim_hold NO_SECOND_LOOK|error|quick
orders: no fence after GONE                |orders|claim_hold GONE_FENCE|error|quick
orders: weaker swap to DONE                |orders|done_chain DONE_SWAP|error|quick
orders: weaker cell load                   |orders|done_chain CELL_LOAD|error|quick
orders: weaker store of done               |orders|done_chain DONE_STORE|error|quick
orders: weaker load of done                |orders|done_chain DONE_LOAD|error|quick
orders: no fence after DONE                |orders|two_done DONE_FENCE|error|quick
orders: done is stored, and falls          |orders|two_done PLAIN_RAISE|error|quick
orders: no fence after done                |orders|done_blocked DONE_FENCE|error|quick
orders: no fence after blocked             |orders|done_blocked BLOCKED_FENCE|error|quick
orders: no fence after room was made       |orders|rung_once ROOM_FENCE|error|quick
orders: no fence after the number          |orders|rung_once BLOCKED_FENCE|error|quick
orders: the same number again              |orders|rung_once SAME_NUMBER|error|quick
orders: forgets what was rung too late     |orders|rung_once DRAIN_LATE|error|quick
orders: no fence after the even ticket     |orders|disarm DISARM_FENCE|error|quick
orders: no fence after gen                 |orders|disarm ANNOUNCE_FENCE|error|quick
orders: weaker swap to RETURNED            |orders|given_back RETURN_SWAP|error|quick
orders: weaker swap to CLAIMED             |orders|given_back CLAIM_SWAP|error|quick
'

# one <number> <what> <model> <parameters> <expected>: writes $tmp/<number>.line; 1 when it is not
# as expected
one() {
    local number=$1 what=$2 model=$3 params=$4 expected=$5
    local dir=$tmp/$number defines=() p states result verdict start=$SECONDS
    mkdir -p "$dir" && cd "$dir"
    for p in $params; do defines+=("-D$p"); done
    local opt=-O2 # where a run is short (errors, small sizes), compiling takes longer
    if [ "$expected" = error ]; then opt=-O0; elif [ -n "${QUICK:-}" ]; then opt=-O1; fi
    local check=-DSAFETY options=
    [[ $params != *CYCLES* ]] || { check=-DNP options=-l; } # no run without end
    # spin runs the preprocessor over the file; -D has to come before it.
    if [ "$model" = orders ]; then
        # shellcheck disable=SC2086 # words
        "$tmp/orders" $params >pan.out 2>&1 ||
            ! grep -qE '^(DATA RACE|USER ASSERT FAILED)' pan.out || echo 'errors: 1' >>pan.out
    elif spin -a "${defines[@]}" "$here/$model.pml" >spin.out 2>&1 &&
        gcc "$opt" "$check" -DCOLLAPSE -DVECTORSZ=4096 -DMEMLIM=4000 -o pan pan.c \
            >gcc.out 2>&1; then
        # shellcheck disable=SC2086 # words
        ./pan $options -m3000000 -w24 >pan.out 2>&1 || true # what it printed says the result
    fi
    states=$(sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1/p' pan.out 2>/dev/null | head -n 1)
    if ! grep -q 'errors: ' pan.out 2>/dev/null; then
        result=broken
    elif ! grep -q 'errors: 0' pan.out; then
        result=error
    elif grep -qE 'search depth too small|out of memory|Search not completed|reached -DMEMLIM' \
        pan.out; then
        result=cut-short
    else
        result=ok
    fi
    verdict=as-expected
    [ "$result" = "$expected" ] || verdict=WRONG
    printf '%-43s %-38s %11s  %-9s %-8s %4ss  %s\n' \
        "$what" "$params" "${states:--}" "$result" "$expected" "$((SECONDS - start))" "$verdict" \
        >"$tmp/$number.line"
    cat "$tmp/$number.line"
    if [ "$verdict" = WRONG ]; then
        {
            echo "--- $model $params"
            tail -n 40 spin.out gcc.out pan.out 2>/dev/null
            [ "$result" != error ] ||
                spin -k "$model.pml.trail" -p -l "${defines[@]}" "$here/$model.pml" 2>/dev/null |
                tail -n 60
        } >"$tmp/$number.why" || true
    fi
    rm -f pan pan.[cbhmtp] ./*.trail
}

command -v spin >/dev/null || {
    echo "tests/model/run.sh: no spin (tools/setup.sh --model installs it)" >&2
    exit 1
}
jobs=${MODEL_JOBS:-$(nproc)}
gib=$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
[ -n "${QUICK:-}" ] && most=$gib || most=$((gib / 4))
[ "$most" -ge 1 ] || most=1
for limit in 4 "$most"; do [ "$jobs" -le "$limit" ] || jobs=$limit; done

g++ -O1 -w -std=c++11 -o "$tmp/orders" orders.cpp
printf '%-43s %-38s %11s  %-9s %-8s %5s\n' model parameters states result expected time
n=0
while IFS='|' read -r what model params expected size; do
    [ -n "$what" ] || continue
    if [ -n "${QUICK:-}" ] && [ "$size" = full ]; then continue; fi
    [[ $what =~ ${1:-.} ]] || continue
    n=$((n + 1))
    read -r what <<<"$what" # without the blanks at its end
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    (one "$n" "$what" "$model" "$params" "$expected") &
done <<<"$cases"
wait || true

n_right=$(cat "$tmp"/*.line | grep -c 'as-expected$' || true)
cat "$tmp"/*.why 2>/dev/null || true
echo "$n_right of $n as expected, $SECONDS s"
[ "$n_right" = "$n" ]
