# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034 # the sessions use these names
#
# The first line of each session sources this: a daemon of its own, the programs of the build, and
# a folder that goes away, which prysk has made. What runs in the background ends with the session.
PATH=$BUILD:$PATH
socket=$PRYSK_TEMP/socket
export DLX_SOCKET=$socket
npy=$SRCDIR/tests/data/npy
reference=$SRCDIR/tests/data/safetensors/reference.safetensors

ends_with_the_session() {
    local jobs
    # A child that gets a signal before it is its command runs the trap, too, with these jobs.
    [ "$BASHPID" = $$ ] || return 0
    jobs=$(jobs -p)
    # shellcheck disable=SC2086 # a word for each process
    [ -z "$jobs" ] || kill $jobs 2>/dev/null
    wait
}
trap ends_with_the_session EXIT
start_daemon() {
    dlpackd --foreground --socket "$socket" >daemon.log 2>&1 &
    daemon=$!
    command dlxctl --wait-daemon ls >/dev/null 2>&1
}
start_daemon

# Says N for numbers that differ from run to run or between machines, and leaves out argp's last
# line. Columns of a table have two spaces between them.
masked() {
    sed -E -e "s#$socket#SOCKET#g; s#$SRCDIR/tests/data/##g; s#$PWD/##g; s#$PRYSK_TEMP/##g" \
        -e 's#/tmp/dlpackd-[0-9]+#/tmp/dlpackd-UID#' \
        -e '/^Try .dlxctl .*--help/d; s/(\S)   +/\1  /g' \
        -e 's/\b(pid|uid|publisher) [0-9]+\b/\1 N/g' \
        -e 's/^(\S+  )[0-9]{9,}  ([0-9]+|retained)(  dlxctl )/\1N  \2\3/' \
        -e 's/( +)[0-9]+(  dlxctl )/\1N\2/; s/^ +((N  dlxctl|PID  PROGRAM) )/    \1/' \
        -e 's/(#[0-9]+  )[0-9.]+ [a-z]+/\1N/; s/[0-9.]+ [a-z]+ old/N old/' \
        -e 's/ in [0-9.]+ ([mun]?s),/ in N,/; s/[0-9.]+ [A-Za-z]+\/s|[0-9.]+ messages\/s/N\/s/g' \
        -e 's/uses [^,]* and may have [^(]*/uses N and may have N /' \
        -e 's/("(publisher|link|pid|uid|[a-z0-9_]+_ns|[a-z]+_hz|bytes_per_s)": ?)[0-9.]+/\1N/g' \
        "$1"
}
# dlxctl as a user sees it. What is to be killed, or read while it runs, is `command dlxctl`.
dlxctl() {
    local status=0 out err
    out=$(mktemp -p "$PRYSK_TEMP") err=$(mktemp -p "$PRYSK_TEMP")
    command dlxctl "$@" >"$out" 2>"$err" || status=$?
    masked "$out"
    masked "$err" >&2
    rm "$out" "$err"
    return "$status"
}
# The same, and what it prints on standard output is marked.
refused() {
    local status=0
    dlxctl "$@" >"$PRYSK_TEMP/refused" || status=$?
    sed 's/^/standard output: /' "$PRYSK_TEMP/refused"
    return "$status"
}
# Runs a command until it succeeds, for 30 s at most.
eventually() {
    local end=$((SECONDS + 30))
    until "$@" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$end" ]; then
            echo "not within 30 s: $*"
            return 1
        fi
        sleep 0.01 # lint-allow: sleep: before the next look
    done
}
wait_publisher() { # wait_publisher TOPIC
    eventually command dlxctl ls "$1"
}
has_lines() { # has_lines FILE N
    [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]
}
wait_lines() { # wait_lines FILE N
    eventually has_lines "$@"
}
# signalled SIGNAL FILE COMMAND...: what the command prints is in FILE. It gets the signal after its
# first line; returns its status. An earlier command's line in FILE would let the signal come while
# the child is still bash, which ignores SIGINT there or takes it for itself.
signalled() {
    local pid
    rm -f "$2"
    env --default-signal=INT "${@:3}" >"$2" 2>&1 &
    pid=$!
    wait_lines "$2" 1
    kill "-$1" "$pid"
    wait "$pid"
}
