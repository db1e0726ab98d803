#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Verifies the models of the take, reclaim, bell, move, forward and queue protocols with spin: the protocol as designed has no
# error in any interleaving at these sizes, and each broken variant has one (else the model looks away).
#
#   tests/model/run.sh           everything, about three minutes on two processors, up to 4 GiB at once
#   QUICK=1 tests/model/run.sh   the small sizes, under 90 s, up to 1 GiB
#   MODEL_JOBS=N                 so many at once (default: processors, at most 4, as memory allows)
#
# Every access to a shared word is one step, as with seq_cst atomics; a lost wake-up shows as an invalid end state.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# One line each: what it is | model | parameters | ok or error | quick or full
cases='
reliable: as designed                      |reliable|NR=1 NS=3 LAST=5|ok|quick
reliable: no history, one slot             |reliable|NR=1 NS=1 H=0 LAST=3|ok|quick
reliable: a "latest" one keeps messages    |reliable|NR=1 NS=3 LAST=6 LATEST=0|ok|quick
reliable: closed, holds for ever           |reliable|NR=1 NS=3 LAST=5 HOLDFOREVER|ok|quick
reliable: epoch read once, after           |reliable|NR=1 NS=3 LAST=5 NOEPOCH1|ok|quick
reliable: epoch read once, before          |reliable|NR=1 NS=3 LAST=5 NOEPOCH2|ok|quick
reliable: two subscribers                  |reliable|NR=2 NS=2 LAST=2|ok|quick
reliable: two subscribers, longer          |reliable|NR=2 NS=2 LAST=3|ok|full
move: as designed                          |move|NR=1 LAST=5|ok|quick
move: as designed, longer                  |move|NR=1 LAST=7|ok|quick
move: two subscribers                      |move|NR=2 N1=2 LAST=3|ok|full
forward: as designed                       |forward|NA=3 LAST=5|ok|quick
forward: as designed, longer               |forward|NA=4 LAST=7|ok|full
queue: as designed                         |queue||ok|quick
restart: two restarts                      |restart|NG=3 LAST=3|ok|quick
restart: late answers                      |restart|NG=3 LAST=3 SLOW|ok|full
restart: a subscriber dies                 |restart|NG=3 LAST=3 SLOW DIE|ok|full
restart: longer, slots are short           |restart|NG=3 LAST=5 SLOW|ok|full
restart: three restarts                    |restart|NG=4 LAST=2 SLOW|ok|full
restart: two subscriptions                 |restart|NS=2 NG=2 LAST=1|ok|quick
restart: two subscriptions, longer         |restart|NS=2 NG=2 LAST=2 CAP=1|ok|full
restart: first cursor rings nobody         |restart|NG=2 NORING|ok|full
restart: old block not blocked for ever    |restart|NG=2 OLDUNBLOCKED|ok|full
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
forward: death ends holds at once          |forward|ASWRITTEN|error|quick
forward: attached after death, no lifeline |forward|LATE|error|quick
forward: upstream hold dropped too early   |forward|EARLYCLR|error|quick
queue: cursors gate, addressee is rung     |queue|ASWRITTEN1|error|quick
queue: hold ends with its holder           |queue|ASWRITTEN2|error|quick
restart: does not wait for who must rejoin |restart|NG=3 LAST=2 NOREJOIN|error|quick
restart: anybody's link counts             |restart|NS=2 NG=3 LAST=1 NOREADER|error|full
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
restart: late answer, announcement given up|restart|NG=3 LAST=2 SLOW GIVEUP|error|quick
'

# one <number> <what> <model> <parameters> <expected>: writes $tmp/<number>.line; 1 when it is not as expected
one() {
    local number=$1 what=$2 model=$3 params=$4 expected=$5
    local dir=$tmp/$number defines=() p states result verdict start=$SECONDS
    mkdir -p "$dir" && cd "$dir"
    for p in $params; do defines+=("-D$p"); done
    # spin runs the preprocessor over the file; -D has to come before it.
    if spin -a "${defines[@]}" "$here/$model.pml" >spin.out 2>&1 &&
        gcc -O2 -DSAFETY -DCOLLAPSE -DVECTORSZ=4096 -DMEMLIM=4000 -o pan pan.c >gcc.out 2>&1; then
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
