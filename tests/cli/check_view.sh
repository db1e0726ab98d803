#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `dlxctl view` on a terminal, which is tmux: images, heat maps and histograms at several sizes, a
# publisher that leaves, a daemon that is killed, and how the terminal is after each way to end.
# Then on terminals that have graphics (view_terminal.py), and without a terminal.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
. tests/cli/harness_script.sh
session=view
. tests/cli/harness_terminal.sh
needs chafa
export COLORTERM=truecolor
# "LINES COLUMNS": so large is the white picture.
drawn() {
    local n
    n=$(screen -e -N | grep -cE $'\033\\[48;2;255;255;255m {'"${1#* }}") || true
    [ "$n" = "${1% *}" ]
}
# Starts dlxctl view, which has drawn when a line matches.
begin() { # ARGUMENTS MATCH [ENVIRONMENT]
    line "clear; ${3:-} '$build/dlxctl' view $1; echo ended: \$?"
    shows "$2"
}
# Runs view without a terminal; standard error goes with the output.
plain() { "$build/dlxctl" view "$@" >"$tmp/plain" 2>&1 </dev/null; }
plain_has() { grep -qE -- "$1" "$tmp/plain" || fail "no $1 in: $(cat "$tmp/plain")"; }

start_daemon
npy=$PWD/tests/data/npy
head -c 3600 /dev/zero | tr '\0' '\377' >"$tmp/white"
pub() {
    "$build/dlxctl" pub "$@" 2>/dev/null &
    publisher=$!
    processes+=("$publisher")
}
pub heat "$npy/i4_big.npy" --hold
pub lidar "$npy/f2.npy" --hold
# A tensor whose name has a sequence that would hide what follows.
pub set --set $'strange\033[8m='"$npy/f4.npy" "second=$npy/bool.npy" --hold
pub camera "$tmp/white" --dtype uint8 --shape 40,30,3 --loop 0 --rate 50
cd "$tmp"
terminal new-session -d -s view -x 80 -y 24 "HISTFILE=/dev/null exec bash --norc --noprofile"
line "PS1='\$ '; stty -g >before"
# A tmux that knows sixel would get it.
blocks=--graphics=blocks

# -- pictures -------------------------------------------------------------------------------------
begin "$blocks camera" '^camera  #[0-9]+  uint8 \(40, 30, 3\)  3\.52 KiB  .* old$'
shows '^image$'
# The picture keeps its proportions.
wait_until drawn '21 31'
terminal resize-window -t view -x 30 -y 10
hides '^ {12}' # of the larger picture
wait_until drawn '7 10'
terminal resize-window -t view -x 30 -y 4
shows '^30x4 is too small: 20x5$'
terminal resize-window -t view -x 80 -y 24
shows '^camera  #'
press x Escape '[A' # no key of it
press q
ended 0
begin "$blocks heat" '^heat map from '
screen -e | grep '48;2;253;231;37m' >/dev/null || fail "no yellow: $(screen -e)"
press C-c
ended 0
begin "$blocks lidar" '^histogram of 5 values from '
shows '^ +[0-9.-]+ +[1-9] █+$'
press q
ended 0
begin "$blocks set" '^set  #1  tensor 0 of 2  strange[?]\[8m  float32'
press q
ended 0
begin "$blocks set --tensor=1" '^set  #1  tensor 1 of 2  second  bool '
press q
ended 0
begin "$blocks set --tensor=2" '^no picture: the message has 2 tensors: there is no tensor 2$'
press q
ended 0
begin camera '^[ .:=+*#%@-]+$' NO_COLOR=1
colours=$'\033\\[[0-9;]*[34]8[;:]'
if grep -qE "$colours" <<<"$(screen -e)"; then fail "there are colours"; fi
press q
ended 0

# -- a topic that vanishes, and a daemon that is killed -------------------------------------------
begin "$blocks camera" '^image$'
kill "$publisher"
shows '^the publisher has left, waiting for another  image$'
pub camera "$tmp/white" --dtype uint8 --shape 40,30,3 --loop 0 --rate 50
shows '^image$'
kill "$publisher"
shows '^the publisher has left'
press q
ended 0
begin "$blocks --until-gone heat" '^heat map'
press q
ended 0
begin "$blocks camera" '^no publisher yet, waiting for one$'
{ kill -KILL "$daemon" && wait "$daemon"; } 2>/dev/null || true
shows 'no publisher is attached and dlpackd is gone$'
start_daemon
pub camera "$tmp/white" --dtype uint8 --shape 40,30,3 --loop 0 --rate 50
shows '^image$'
kill "$publisher"
shows '^the publisher has left'
pub camera "$tmp/white" --dtype uint8 --shape 40,30,3 --loop 0 --rate 50
shows '^image$'
press q
ended 0
begin "$blocks --until-gone camera" '^image$'
kill "$publisher"
ended 0
line "clear; '$build/dlxctl' view $blocks --timeout=100ms camera; echo ended: \$?"
shows '^dlxctl view: camera: no message within 100 ms: no publisher$'
ended 1
pub camera "$tmp/white" --dtype uint8 --shape 40,30,3 --hold

# -- the end --------------------------------------------------------------------------------------
begin "$blocks camera" '^image$'
press C-z
shows 'Stopped'
line 'clear; stty -g >after; cmp before after && echo stopped modes; fg; echo ended: $?'
shows '^camera  #'
shows '^image$'
press q
ended 0
for signal in INT TERM; do
    begin "$blocks camera" '^image$'
    kill -$signal "$(program_pid)"
    ended 0
done
for signal in ABRT HUP QUIT; do
    begin "$blocks camera" '^image$' 'ulimit -c 0;'
    number=$(kill -l "$signal")
    kill -"$signal" "$(program_pid)"
    ended $((128 + number))
done
line "clear; TERM=dumb '$build/dlxctl' view camera"
shows '^dlxctl view: a terminal of the type dumb .* has no screen: use --once'
line "clear; '$build/dlxctl' view camera </dev/null"
shows '^dlxctl view: the standard input is no terminal: use --once'

# -- without a terminal ---------------------------------------------------------------------------
plain camera || fail "view: $(cat plain)"
plain_has '^camera  #[0-9]+  uint8'
plain_has '^@{30,}$'
plain_has '^image$'
if grep $'\033' plain; then fail "a sequence without a terminal"; fi
plain camera --graphics=sixel
plain_has $'^\033P0;1;0q'
if plain camera --tensor=7; then fail "tensor 7"; fi
plain_has '^dlxctl view: camera: no picture: the message has 1 tensor: there is no tensor 7$'
if plain camera --json; then fail "JSON"; fi
plain_has 'dlxctl get --json shows values$'
if plain camera --graphics=braille; then fail "braille"; fi
plain_has "'braille' is none of auto, kitty, sixel, blocks and characters$"
if DLX_SOCKET=$tmp/no plain camera; then fail "no daemon"; fi
plain_has '^dlxctl view: '

# -- terminals that have graphics -----------------------------------------------------------------
pub depth "$npy/i4_big.npy" --hold
TERM=xterm-256color "$root/tests/cli/view_terminal.py" "$build/dlxctl" depth ||
    fail "view_terminal.py"
echo "check_view: pictures, a topic that vanishes, a killed daemon, ends, graphics"
