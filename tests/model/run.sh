#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Verifies the models of the take, reclaim, bell, move, carry, join, wait, restart, retain, forward and queue protocols with spin: the protocol as designed has no
# error in any interleaving at these sizes, and each broken variant has one (else the model looks away).
#
#   tests/model/run.sh           everything, about ten minutes on two processors, up to 4 GiB at once
#   QUICK=1 tests/model/run.sh   the small sizes, under 120 s, up to 1 GiB
#   MODEL_JOBS=N                 so many at once (default: processors, at most 4, as memory allows)
#
# Every access to a shared word is one step, as with seq_cst atomics; a lost wake-up shows as an invalid end state. That
# these orders are needed, Relacy shows (orders.cpp).
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# One line each: what it is | model | parameters | ok or error | quick or full
cases='
reliable: as designed                      |reliable|NR=1 NS=3 LAST=5|ok|quick
reliable: no history, one slot             |reliable|NR=1 NS=1 H=0 LAST=3|ok|quick
reliable: a "latest" one keeps messages    |reliable|NR=1 NS=3 LAST=6 LATEST=0|ok|full
reliable: closed, holds for ever           |reliable|NR=1 NS=3 LAST=5 HOLDFOREVER|ok|quick
reliable: epoch read once, after           |reliable|NR=1 NS=3 LAST=5 NOEPOCH1|ok|full
reliable: epoch read once, before          |reliable|NR=1 NS=3 LAST=5 NOEPOCH2|ok|full
reliable: two subscribers                  |reliable|NR=2 NS=2 LAST=2|ok|quick
reliable: two subscribers, longer          |reliable|NR=2 NS=2 LAST=3|ok|full
move: as designed                          |move|NR=1 LAST=5|ok|quick
move: as designed, longer                  |move|NR=1 LAST=7|ok|full
move: two subscribers                      |move|NR=2 N1=2 LAST=3|ok|full
move: twice                                |move|NR=1 NB=3 N2=3 LAST=4|ok|quick
move: twice, longer                        |move|NR=1 NB=3 N2=4 LAST=6|ok|full
move: two hold words                       |move|NR=1 B=2 N0=3 N1=3 LAST=5|ok|full
move: twice, two hold words                |move|NR=1 B=2 NB=3 N0=3 N1=4 N2=5 LAST=5|ok|full
carry: as designed                         |carry|LAST=3|ok|quick
carry: as designed, longer                 |carry|LAST=4|ok|full
carry: two messages                        |carry|LAST=5 K=2 N0=3 N1=4|ok|full
carry: a newcomer                          |carry|LAST=3 NEWCOMER|ok|full
reliable: history of two                   |reliable|NR=1 NS=4 H=2 LAST=5|ok|full
move: history of two                       |move|NR=1 H=2 LAST=5 N0=3 N1=4|ok|full
forward: as designed                       |forward|NA=3 LAST=5|ok|quick
forward: as designed, longer               |forward|NA=4 LAST=7|ok|full
queue: as designed                         |queue||ok|full
restart: two restarts                      |restart|NG=3 LAST=3|ok|quick
restart: late answers                      |restart|NG=3 LAST=3 SLOW|ok|full
restart: a subscriber dies                 |restart|NG=3 LAST=3 SLOW DIE|ok|full
restart: longer, slots are short           |restart|NG=3 LAST=5 SLOW|ok|full
restart: three restarts                    |restart|NG=4 LAST=2 SLOW|ok|full
restart: two subscriptions                 |restart|NS=2 NG=2 LAST=1|ok|quick
restart: two subscriptions, longer         |restart|NS=2 NG=2 LAST=2 CAP=1|ok|full
restart: first cursor rings nobody         |restart|NG=2 NORING|ok|full
restart: old block not blocked for ever    |restart|NG=2 OLDUNBLOCKED|ok|full
join: the daemon dies anywhere             |join||ok|quick
join: a packet that is late                |join|MISS|ok|quick
join: joins read after retiring            |join|NOEPOCH1|ok|full
join: joins read before retiring           |join|NOEPOCH2|ok|full
join: two publishers                       |join|NP=2 LAST=1 NS=1|ok|full
waiting: as designed                       |waiting|LAST=2|ok|quick
waiting: as designed, longer               |waiting|LAST=3|ok|full
waiting: they sleep                        |waiting|LAST=2 BELLS|ok|quick
retained: as designed                      |retained|K=1|ok|quick
retained: two messages                     |retained|K=2 NR=1|ok|quick
retained: two messages, two readers        |retained|K=2|ok|full
orders: hold word and gen                  |orders|hold_retire|ok|quick
orders: a store, then a load               |orders|store_then_load|ok|quick
orders: the brief                          |orders|brief|ok|quick
reliable: retired before cursors were read |reliable|ASWRITTEN NR=1 NS=3 LAST=5|error|quick
reliable: load of blocked passes release   |reliable|RELORDER NR=1 NS=1 H=0 LAST=3|error|quick
reliable: closed cursor still gates        |reliable|NOCLOSE HOLDFOREVER NR=1 NS=3 LAST=5|error|quick
reliable: no bell after a failed take      |reliable|SKIPNORING NR=1 NS=3 LAST=6 LATEST=0|error|quick
reliable: hang-ups not polled              |reliable|NOHUP NR=1 NS=3 LAST=5|error|quick
reliable: bell before head                 |reliable|BELLFIRST NR=1 NS=3 LAST=5|error|quick
reliable: no pick-up after head            |reliable|NOPICKUP NR=1 NS=3 LAST=5|error|quick
move: mark not looked at before sleeping   |move|NORECHECK NR=1 LAST=5|error|quick
move: only attached links gate             |move|ATTACHGATE NR=1 LAST=6|error|quick
move: new block starts at 0                |move|NOBASE NR=1 LAST=5|error|quick
move: first hold word only                 |move|NR=1 B=2 N0=3 N1=3 LAST=5 ONEWORD|error|quick
move: on to the newest block               |move|NR=1 NB=3 N2=3 LAST=5 TONEWEST|error|quick
carry: one copy retired                    |carry|LAST=4 ONECOPY|error|quick
carry: taken twice                         |carry|LAST=4 NOFOLLOW|error|quick
carry: old link closed first               |carry|LAST=4 CLOSEFIRST|error|quick
carry: closed link not looked at           |carry|LAST=4 DROPCLOSED|error|quick
carry: hold word, then closed              |carry|LAST=4 HOLDFIRST|error|quick
carry: does not wait for who must rejoin   |carry|LAST=4 NOREJOIN|error|quick
carry: one more in the old block           |carry|LAST=4 STALE|error|quick
carry: the new block begins at head        |carry|LAST=3 NEWCOMER BASEHEAD|error|quick
forward: death ends holds at once          |forward|ASWRITTEN|error|quick
forward: attached after death, no lifeline |forward|LATE|error|quick
forward: upstream hold dropped too early   |forward|EARLYCLR|error|quick
queue: cursors gate, addressee is rung     |queue|ASWRITTEN1|error|quick
queue: hold ends with its holder           |queue|ASWRITTEN2|error|quick
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
join: joins not read after head            |join|NOPICKUP|error|quick
join: a missing packet is no link          |join|UNCOUNTED MISS|error|quick
join: a link never opened is not closed    |join|NOCLOSED|error|quick
waiting: LinkOpen before joins is raised   |waiting|LAST=3 OPENFIRST|error|quick
waiting: passed by who comes later         |waiting|NL=3 LAST=3 PASSES|error|full
waiting: withdrawn, whatever it holds      |waiting|LAST=3 NOHOLD|error|quick
waiting: joins lowered for who was sent    |waiting|LAST=3 LOWERSENT|error|quick
waiting: joins not lowered                 |waiting|LAST=3 NOTLOWERED|error|quick
waiting: frees what none that it knows has |waiting|LAST=3 FREES|error|quick
waiting: the same slots after a death      |waiting|LAST=3 REUSED|error|quick
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
orders: weaker hold store                  |orders|hold_retire HOLD_STORE|error|quick
orders: weaker gen load                    |orders|hold_retire GEN_LOAD|error|quick
orders: weaker gen store                   |orders|hold_retire GEN_STORE|error|quick
orders: weaker hold load                   |orders|hold_retire HOLD_LOAD|error|quick
orders: weaker gen commit                  |orders|hold_retire GEN_COMMIT|error|quick
orders: weaker hold clear                  |orders|hold_retire HOLD_CLEAR|error|quick
orders: weaker head store                  |orders|store_then_load SLEEP_HEAD_STORE|error|quick
orders: weaker ticket load                 |orders|store_then_load SLEEP_TICKET_LOAD|error|quick
orders: weaker ticket store                |orders|store_then_load SLEEP_TICKET_STORE|error|quick
orders: weaker head load                   |orders|store_then_load SLEEP_HEAD_LOAD|error|quick
orders: weaker word store                  |orders|brief BRIEF_WORD_STORE|error|quick
orders: weaker word load                   |orders|brief BRIEF_WORD_LOAD|error|quick
orders: weaker head store                  |orders|brief BRIEF_HEAD_STORE|error|quick
orders: weaker head load                   |orders|brief BRIEF_HEAD_LOAD|error|quick
orders: weaker hold store                  |orders|brief BRIEF_HOLD_STORE|error|quick
orders: weaker hold load                   |orders|brief BRIEF_HOLD_LOAD|error|quick
orders: no head                            |orders|brief BRIEF_NO_HEAD|error|quick
orders: no word                            |orders|brief BRIEF_NO_WORD|error|quick
'

# one <number> <what> <model> <parameters> <expected>: writes $tmp/<number>.line; 1 when it is not as expected
one() {
    local number=$1 what=$2 model=$3 params=$4 expected=$5
    local dir=$tmp/$number defines=() p states result verdict start=$SECONDS
    mkdir -p "$dir" && cd "$dir"
    for p in $params; do defines+=("-D$p"); done
    local opt=-O2 # who fails does so soon: then compiling is what takes long
    [ "$expected" = ok ] || opt=-O0
    # spin runs the preprocessor over the file; -D has to come before it.
    if [ "$model" = orders ]; then
        # shellcheck disable=SC2086 # words
        "$tmp/orders" $params >pan.out 2>&1 || ! grep -qE '^(DATA RACE|USER ASSERT FAILED)' pan.out || echo 'errors: 1' >>pan.out
    elif spin -a "${defines[@]}" "$here/$model.pml" >spin.out 2>&1 &&
        gcc "$opt" -DSAFETY -DCOLLAPSE -DVECTORSZ=4096 -DMEMLIM=4000 -o pan pan.c >gcc.out 2>&1; then
        ./pan -m2000000 -w24 >pan.out 2>&1 || true # what it printed says the result
    fi
    states=$(sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1/p' pan.out 2>/dev/null | head -n 1)
    if ! grep -q 'errors: ' pan.out 2>/dev/null; then
        result=broken
    elif ! grep -q 'errors: 0' pan.out; then
        result=error
    elif grep -qE 'search depth too small|out of memory|Search not completed|reached -DMEMLIM' pan.out; then
        result=cut-short
    else
        result=ok
    fi
    verdict=as-expected
    [ "$result" = "$expected" ] || verdict=WRONG
    printf '%-43s %-38s %11s  %-9s %-8s %4ss  %s\n' "$what" "$params" "${states:--}" "$result" "$expected" \
        "$((SECONDS - start))" "$verdict" >"$tmp/$number.line"
    cat "$tmp/$number.line"
    if [ "$verdict" = WRONG ]; then
        {
            echo "--- $model $params"
            tail -n 40 spin.out gcc.out pan.out 2>/dev/null
            [ "$result" != error ] || spin -k "$model.pml.trail" -p -l "${defines[@]}" "$here/$model.pml" 2>/dev/null | tail -n 60
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
