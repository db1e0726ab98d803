# shellcheck shell=bash disable=SC2154,SC2119,SC2120 # others set and pass these
# SPDX-License-Identifier: Apache-2.0
#
# For scripts that source this after harness_script.sh: a terminal, which is tmux, with a shell on
# it. Its session has the name in $session.
#
#   shows PATTERN, hides PATTERN   waits until the screen has, or has not, a line that matches
#   press KEY..., line TEXT        keys; a command line
#   ended STATUS                   waits until the program says so, and compares the modes
#   program_pid                    the process that the shell on the terminal has started
#   start_daemon                   sets $daemon
command -v tmux >/dev/null || skip "no tmux (tools/setup.sh installs it)"
export LC_ALL=C.UTF-8
unset NO_COLOR
terminal() { tmux -S "$tmp/tmux" -f /dev/null "$@"; }
end_terminal() {
    terminal kill-server 2>/dev/null || true
    clean
}
trap end_terminal EXIT
screen() { terminal capture-pane -p -t "$session" "$@"; }
show() { screen || true; }
has() { grep -qE -- "$1" <<<"$(screen)"; }
has_not() { ! has "$1"; }
wait_until() {
    local end=$((SECONDS + 30))
    until "$1" "$2"; do
        [ "$SECONDS" -lt "$end" ] || fail "not within 30 s: $1 $2"
        sleep 0.02 # lint-allow: sleep: before the next look
    done
}
shows() { wait_until has "$1"; }
hides() { wait_until has_not "$1"; }
press() { terminal send-keys -t "$session" "$@"; }
line() {
    press -l -- "$1"
    press Enter
}
program_pid() {
    local shell
    shell=$(terminal display-message -p -t "$session" '#{pane_pid}')
    cat "/proc/$shell/task/$shell/children"
}
# The modes of the terminal must be those that the shell has kept in the file `before`.
ended() {
    shows "^ended: $1$"
    line 'clear; stty -g >after; cmp before after && echo same modes'
    shows '^same modes'
}
start_daemon() {
    "$build/dlpackd" --socket "$DLX_SOCKET" --ready-fd 3 3>"$tmp/ready" 2>"$tmp/log" &
    daemon=$!
    processes+=("$daemon")
    until [ -s "$tmp/ready" ]; do kill -0 "$daemon" || fail "dlpackd: $(cat "$tmp/log")"; done
    rm "$tmp/ready"
}
