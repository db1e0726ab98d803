#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `dlxctl top` on a terminal, which is tmux: what is on the screen at several sizes, what keys do, a
# daemon that is killed, and how the terminal is after each way to end.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/cli/harness_script.sh
session=top
. tests/cli/harness_terminal.sh
begin() {
    line "clear; $1 '$build/dlxctl' top -i 100ms ${2:-}; echo ended: \$?"
    shows '^TOPIC .*RATE'
}

start_daemon
npy=$PWD/tests/data/npy/f4.npy
"$build/dlxctl" pub camera/front_left/rgb "$npy" --loop 0 --rate 20 2>/dev/null &
processes+=($!)
"$build/dlxctl" pub lidar "$npy" --hold 2>/dev/null &
processes+=($!)
"$build/dlxctl" pub robot/arm_left/joints/torque "$npy" --hold 2>/dev/null &
processes+=($!)
"$build/dlxctl" echo camera/front_left/rgb >/dev/null 2>&1 &
processes+=($!)
# A program whose name has a sequence that would hide what follows.
strange=$tmp/strange$'\033[8m'
cp "$build/dlxctl" "$strange"
LD_LIBRARY_PATH=$build "$strange" echo lidar >/dev/null 2>&1 &
processes+=($!)
cd "$tmp"
terminal new-session -d -s top -x 80 -y 24 "HISTFILE=/dev/null exec bash --norc --noprofile"
line "PS1='\$ '; stty -g >before"

# -- sizes ----------------------------------------------------------------------------------------
begin ''
shows '^camera/front_left/rgb +(19|20|21)\.?[0-9]*/s .* 1 '
shows '^\.\.\.rm_left/joints/torque  +0/s'
shows '^no room for PUBS .*MEMORY$'
awk 'length($0) > 80 { exit 1 }' <<<"$(screen)" || fail "a line has more than 80 columns"
terminal resize-window -t top -x 200 -y 12
shows '^TOPIC .* RATE .* PUBS .* MEMORY +NOTE$'
hides 'no room for'
# What is blocked is told to the last.
terminal resize-window -t top -x 60 -y 12
shows '^TOPIC +RATE +SUBS +BEHIND +NOTE$'
terminal resize-window -t top -x 30 -y 4
shows '^30x4 is too small: 40x6$'
terminal resize-window -t top -x 80 -y 24
shows '^lidar '

# -- keys -----------------------------------------------------------------------------------------
press '/'
press -l 'lid'
shows '^1 topic of 3: lid '
hides '^camera'
press Enter Enter
shows '^lidar: 1 publisher$'
shows '^publisher [0-9]+: dlxctl \(pid [0-9]+, user '
shows '^  strange[?]\[8m +[0-9]+  [a-z0-9_-]+ '
press Escape
shows '^TOPIC'
press Escape
shows '^3 topics .* drops [0-9.]+/s$'
"$build/dlxctl" echo no/such >/dev/null 2>&1 &
processes+=($!)
shows '^3 topics .*  1 subscription without a publisher$'
press '<'
shows '^camera.*rgb '
press 'p'
shows '^PAUSED'
press '?' G
shows '^  DROPS +messages a second that'
press Escape p
hides '^PAUSED'

# -- a daemon that is killed ----------------------------------------------------------------------
{ kill -KILL "$daemon" && wait "$daemon"; } 2>/dev/null || true
shows '^waiting for dlpackd: '
shows '^lidar '
start_daemon
shows '^[0-9] topics? '
kill -STOP "$daemon"
shows '^waiting for dlpackd: it does not answer$'
press '?'
shows '^KEYS'
press Escape
shows '^TOPIC'
kill -CONT "$daemon"
shows '^[0-9] topics? '
shows '^camera/front_left/rgb +(19|20|21)\.?[0-9]*/s '

# -- the end --------------------------------------------------------------------------------------
press C-z
shows 'Stopped'
line 'clear; stty -g >after; cmp before after && echo stopped modes; fg; echo ended: $?'
shows '^TOPIC'
press q
ended 0
for signal in INT TERM; do
    begin ''
    kill -$signal "$(program_pid)"
    ended 0
done
signals=(ABRT HUP QUIT)
[ -n "${SAN:-}" ] || signals+=(SEGV) # a sanitizer has a handler of its own
for signal in "${signals[@]}"; do
    begin 'ulimit -c 0;'
    number=$(kill -l "$signal")
    kill -"$signal" "$(program_pid)"
    ended $((128 + number))
done

# -- terminals that cannot ------------------------------------------------------------------------
begin NO_COLOR=1 lidar
colours=$'\033\\[[0-9;]*(3[0-7]|4[0-7])m'
if grep -qE "$colours" <<<"$(screen -e)"; then fail "there are colours"; fi
press q
ended 0
line "clear; TERM=dumb '$build/dlxctl' top"
shows '^dlxctl top: a terminal of the type dumb .* has no screen'
line "clear; TERM=no-such '$build/dlxctl' top"
shows '^dlxctl top: the terminal no-such is not known'
line "clear; '$build/dlxctl' top </dev/null"
shows '^dlxctl top: the standard input is no terminal: use --once'

# -- what does not get better ---------------------------------------------------------------------
line "clear; '$build/dlxctl' top a//b; echo ended: \$?"
shows '^dlxctl top: .*a//b'
ended 1
begin ''
"$build/dlxctl" kick "$(program_pid | tr -d ' ')" >/dev/null || fail "dlxctl kick"
shows '^ended: 1'
# Lines that are wrapped are joined.
screen -J | grep 'kicked by dlxctl' >/dev/null || fail "not said: kicked by dlxctl"
ended 1
echo "check_top: sizes, keys, a killed daemon, ends"
