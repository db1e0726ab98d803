#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `dlxctl trace` on the kernel that runs here, as root: latencies, wakes and holders of programs in
# C and Python, that were there before and that come later, static ones, and with a library of
# another mount namespace; Chrome's format; and what it says where it cannot look: no privilege, no
# BPF, no BTF, a program without probes, another user's file, a topic and a daemon that go away.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/cli/harness_script.sh
needs libbpf
echo '#include <sys/sdt.h>' | ${CC:-gcc} -E - >/dev/null 2>&1 ||
    skip "this build has no probes: there is no sys/sdt.h"
[ "$(id -u)" = 0 ] || skip "traces need root"
for tool in setpriv unshare objcopy; do
    command -v $tool >/dev/null || skip "$tool is not installed"
done
chmod 755 "$tmp"
# A library that is preloaded comes before the sanitizer's.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0
show() { tail -n 40 "$tmp"/*.said "$tmp/exits" 2>/dev/null || true; }
starts() { # starts NAME COMMAND...: in the background; its pid is in $last
    "${@:2}" >"$tmp/$1.said" 2>&1 &
    last=$!
    processes+=("$last")
}
start_daemon() {
    starts dlpackd "$build/dlpackd" --foreground --socket "$DLX_SOCKET"
    daemon=$last
    eventually "$build/dlxctl" ls --wait-daemon
}
trace() { # trace NAME OPTION...: traces in the background, until `interrupt`
    # What a shell runs in the background ignores SIGINT.
    env --default-signal=INT "$build/dlxctl" trace "${@:2}" >"$tmp/$1" 2>"$tmp/$1.said" &
    tracer=$!
    processes+=("$tracer")
    eventually grep -q '^tracing ' "$tmp/$1.said"
}
interrupt() { # interrupt STATUS
    local status=0
    kill -INT "$tracer"
    wait "$tracer" || status=$?
    [ "$status" = "$1" ] || fail "the trace ended with $status, not $1"
}
fails_with() { # fails_with TEXT COMMAND...
    local status=0
    timeout 60 "${@:2}" >"$tmp/fails.said" 2>&1 || status=$?
    [ "$status" = 1 ] || fail "status $status instead of 1: ${*:2}"
    grep -qF -- "$1" "$tmp/fails.said" || fail "not said: '$1', but $(cat "$tmp/fails.said")"
}
# The kernel of a container may refuse what its root may do elsewhere: one of a test that does not
# say so is a failure, which this is not.
start_daemon
if ! "$build/dlxctl" trace --duration 10ms >"$tmp/first" 2>"$tmp/first.said"; then
    grep -E 'this kernel has no|cannot be read|does not let this process' "$tmp/first.said" >&2 &&
        skip "this kernel lets root trace nothing"
    grep -q 'no program with probes was found' "$tmp/first.said" || fail "a first trace"
fi
pub=("$build/dlxctl" pub --loop 0 --rate 200)
f4=$PWD/tests/data/npy/f4.npy
held_by() { "$build/dlxctl" holds "$1" | awk 'NR > 1 { print $2 }' | grep -x "$2"; }

# ---- programs in C, an interrupt, Chrome's format, a pipe ----------------------------------------
starts publisher "${pub[@]}" traced/front "$f4"
publisher=$last
eventually "$build/dlxctl" ls traced/front
starts subscriber "$build/dlxctl" echo traced/front
subscriber=$last
trace c traced/front --chrome "$tmp/chrome.json"
grep -qF 'tracing 2 programs' "$tmp/c.said" || fail "how many programs"
starts later "$build/dlxctl" echo traced/front --count 20 # it comes while the trace runs
wait "$last" || fail "a later subscriber"
interrupt 0
grep -qE '^traced/front: [1-9][0-9]+ published \([0-9.]+ [KMG]?i?B\), [1-9][0-9]+ taken' "$tmp/c" ||
    fail "no counts"
for what in 'publish to take' 'take to release'; do
    grep -qE "^  $what  p50 [0-9.]+ [nmu]?s  p90 .* max " "$tmp/c" || fail "no '$what'"
done
grep -qE '^ +[0-9.]+ [nmu]?s to [0-9.]+ [nmu]?s +\|#+ *\| [0-9]+$' "$tmp/c" || fail "no histogram"
grep -qE "^dlxctl +$publisher +dlxctl +$subscriber +a message +traced/front +[0-9]+\$" "$tmp/c" ||
    fail "who wakes whom"
python3 - "$tmp/chrome.json" "$publisher" "$subscriber" <<'END' || fail "Chrome's format"
import json
import sys

path, publisher, subscriber = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path) as f:
    events = json.load(f)["traceEvents"]
open_spans, ended = {}, set()
for e in events:
    if e["ph"] == "b":
        assert (e["cat"], e["id"]) not in open_spans | {x: 0 for x in ended}, e
        open_spans[e["cat"], e["id"]] = e
    elif e["ph"] == "e":
        begin = open_spans.pop((e["cat"], e["id"]))
        assert begin["ts"] <= e["ts"] and begin["pid"] == e["pid"], (begin, e)
        ended.add((e["cat"], e["id"]))
assert not open_spans, open_spans
kinds = {(e["cat"], e["pid"]) for e in events if "cat" in e}
expected = {("publish", publisher), ("bell", publisher), ("on the way", subscriber)}
assert expected | {("held", subscriber)} <= kinds, kinds
assert {e["name"] for e in events if "cat" in e} == {"traced/front"}
names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
assert names[publisher] == names[subscriber] == "dlxctl", names
END
"$build/dlxctl" trace traced/front --duration 500ms 2>"$tmp/pipe.said" | cat >"$tmp/pipe"
grep -q '^traced/front: ' "$tmp/pipe" || fail "nothing in a pipe"
if grep -qP '[\x00-\x09\x0b-\x1f]' "$tmp/pipe"; then fail "control characters in a pipe"; fi
"$build/dlxctl" trace 'traced/*' --duration 500ms --json >"$tmp/json" 2>"$tmp/json.said"
python3 - "$tmp/json" <<'END' || fail "JSON"
import json
import sys

with open(sys.argv[1]) as f:
    trace = json.load(f)
(topic,) = trace["topics"]
assert topic["topic"] == "traced/front" and topic["published"] > 0 and trace["exits"] == []
for times in topic["publish_to_take"], topic["take_to_release"]:
    assert times["count"] == sum(x["count"] for x in times["histogram"]) > 0
    assert 0 < times["p50_ns"] <= times["p90_ns"] <= times["p99_ns"] <= times["max_ns"]
    assert all(x["from_ns"] < x["to_ns"] for x in times["histogram"])
(wake,) = (x for x in trace["wakes"] if x["end"] == "publisher")
assert wake["count"] > 0 and wake["topic"] == "traced/front"
END
fails_with 'other: no program published or took a message' \
    "$build/dlxctl" trace other --duration 300ms

# ---- what is missing -----------------------------------------------------------------------------
user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
fails_with 'lacks CAP_BPF and CAP_PERFMON, which' "${user[@]}" "$build/dlxctl" trace
fails_with 'lacks CAP_PERFMON, which' \
    "${user[@]}" --inh-caps +bpf --ambient-caps +bpf "$build/dlxctl" trace
fails_with '/sys/kernel/btf/vmlinux cannot be read (No such file or directory)' \
    unshare -m sh -c 'mount -t tmpfs none /sys/kernel/btf && exec "$@"' - "$build/dlxctl" trace
fails_with 'this kernel has no uprobes' unshare -m sh -c \
    'mount -t tmpfs none /sys/bus/event_source/devices && exec "$@"' - "$build/dlxctl" trace
# A sanitizer's own process cannot be traced by another.
if command -v strace >/dev/null && [ -z "${SAN:-}" ]; then
    fails_with 'this kernel has no BPF' \
        strace -o /dev/null -e inject=bpf:error=ENOSYS "$build/dlxctl" trace
    fails_with 'does not let this process load a BPF program: Operation not permitted' \
        strace -o /dev/null -e inject=bpf:error=EPERM:when=2+ "$build/dlxctl" trace
fi
fails_with 'there is no process 4194303' "$build/dlxctl" trace --pid 4194303
status=0
"$build/dlxctl" trace --pid x >"$tmp/usage.said" 2>&1 || status=$?
[ "$status" = 2 ] || fail "--pid x: $status"
fails_with "$tmp/none/x: No such file or directory" "$build/dlxctl" trace --chrome "$tmp/none/x"
if [ -e /dev/full ]; then
    fails_with '/dev/full: No space left on device' \
        "$build/dlxctl" trace traced/front --duration 500ms --chrome /dev/full
fi
# No other privilege is needed to trace one's own: here with another user's eyes.
capabilities=+bpf,+perfmon,+sys_ptrace,+dac_read_search
"${user[@]}" --inh-caps $capabilities --ambient-caps $capabilities \
    "$build/dlxctl" trace --duration 300ms >"$tmp/capable.said" 2>&1 || true
grep -qE 'Permission denied|may not|not allowed|refuse' "$tmp/capable.said" ||
    grep -q '^traced/front: ' "$tmp/capable.said" || fail "with capabilities alone"
kill "$subscriber"

# ---- programs without probes, of other users, of other mount namespaces, static ones -------------
lib=$(readlink -f "$build/libdlx.so")
objcopy --remove-section .note.stapsdt "$lib" "$tmp/without.so"
starts without env LD_PRELOAD="$tmp/without.so" "${pub[@]}" plain "$f4"
without=$last
eventually "$build/dlxctl" ls plain
fails_with "(pid $without) has no probes: its libdlx was built without sys/sdt.h" \
    "$build/dlxctl" trace --pid "$without"
fails_with 'plain: no program published or took a message' \
    "$build/dlxctl" trace plain --duration 300ms
kill "$without"
cp "$lib" "$tmp/theirs.so"
chown 65534 "$tmp/theirs.so"
starts theirs env LD_PRELOAD="$tmp/theirs.so" "${pub[@]}" theirs "$f4"
theirs=$last
eventually "$build/dlxctl" ls theirs
others="$tmp/theirs.so, which uid 65534 or others can change, so it is not read: --pid $theirs"
fails_with "$others" \
    "$build/dlxctl" trace theirs --duration 300ms
"$build/dlxctl" trace theirs --pid "$theirs" --duration 500ms >"$tmp/named" 2>"$tmp/named.said" ||
    fail "a program that was named"
grep -qE '^theirs: [1-9]' "$tmp/named" || fail "a program that was named: $(cat "$tmp/named")"
kill "$theirs"
mkdir "$tmp/mount"
# shellcheck disable=SC2016 # of the inner shell
starts inside unshare -m sh -c 'mount -t tmpfs none "$1" && cp "$2" "$1/libdlx.so.0" &&
    export LD_PRELOAD="$1/libdlx.so.0" && shift 2 && exec "$@"' - "$tmp/mount" "$lib" \
    "${pub[@]}" inside "$f4"
inside=$last
eventually "$build/dlxctl" ls inside
[ ! -e "$tmp/mount/libdlx.so.0" ] || fail "the library of a mount namespace is seen outside"
"$build/dlxctl" trace inside --duration 500ms >"$tmp/inside" 2>"$tmp/inside.said" ||
    fail "another mount namespace"
grep -qE '^inside: [1-9]' "$tmp/inside" || fail "another mount namespace: $(cat "$tmp/inside")"
kill "$inside"

# Takes one message, tells so, and holds it until it is told to end.
cat >"$tmp/holder.c" <<'END'
#include <dlx/dlx.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    const struct dlx_connect_args args = {.size = sizeof args, .name = argv[2]};
    struct dlx_client *c;
    struct dlx_subscription *s;
    struct dlx_message *m;
    if (dlx_connect(&args, &c) < 0 || dlx_subscribe(c, argv[1], NULL, &s) < 0 ||
        dlx_take(s, INT64_C(30000000000), &m) < 0)
        return 1;
    (void)puts("holds");
    (void)fflush(stdout);
    (void)getchar();
    if (argc > 3)
        (void)execlp("cat", "cat", NULL);
    return 0;
}
END
read -ra pbc < <(pkg-config --libs libprotobuf-c)
san=()
if [ -n "${SAN:-}" ]; then san=(-fsanitize="$SAN"); fi
read -ra cc <<<"${CC:-gcc}"
"${cc[@]}" "${san[@]}" -Iinclude -o "$tmp/holder" "$tmp/holder.c" "$build/libdlx.a" "${pbc[@]}" \
    -pthread
# The same file, in which the probes count already, by another name.
bad=$'hold\e[31mer\n'
ln "$tmp/holder" "$tmp/$bad"
holds() { # holds NAME TOPIC PROGRAM [exec]: its pid is in $last, its standard input is fd 9
    local run=$tmp/holder
    [ "$3" != "$bad" ] || run=$tmp/$bad
    mkfifo "$tmp/$1.fifo"
    "$run" "${@:2}" <"$tmp/$1.fifo" >"$tmp/$1.said" 2>&1 &
    last=$!
    processes+=("$last")
    exec 9>"$tmp/$1.fifo"
    eventually grep -q holds "$tmp/$1.said"
}

# ---- who ends while it holds ---------------------------------------------------------------------
export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0
holds before traced/front earlier
earlier=$last
exec 8>&9
eventually held_by traced/front "$earlier"
trace exits traced/front
holds killed traced/front "$bad"
killed=$last
kill -KILL "$killed"
one='while it held 1 message of traced/front'
eventually grep -qE "^hold.\[31mer. \(pid $killed\) ended $one, for " "$tmp/exits"
exec 9>&-
holds execs traced/front exec exec
execs=$last
echo >&9
eventually grep -qE "\(pid $execs\) executed another program $one" "$tmp/exits"
exec 9>&-
echo >&8
exec 8>&-
eventually grep -qF "earlier (pid $earlier) ended $one, taken before" "$tmp/exits"
# A program that releases all it took is not named.
"$build/dlxctl" echo traced/front --count 5 >"$tmp/clean.said"
interrupt 0
[ "$(grep -c ' while it held ' "$tmp/exits")" = 3 ] || fail "who ended: $(cat "$tmp/exits")"
if grep -qP '\x1b' "$tmp/exits"; then fail "an escape sequence was printed"; fi

# ---- a program that lies ------------------------------------------------------------------------
# Its events never end, each with another name, and it takes and releases what others hold.
cat >"$tmp/liar.c" <<'END'
#include <dlx/dlx.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sdt.h>
int main(int argc, char **argv)
{
    const struct dlx_connect_args args = {.size = sizeof args, .name = "liar"};
    unsigned long publisher = strtoul(argv[1], NULL, 10), link = strtoul(argv[2], NULL, 10);
    struct dlx_client *c;
    if (argc < 3 || dlx_connect(&args, &c) < 0)
        return 1;
    if (!publisher) /* never: for the other probes of libdlx.a */
        printf("%p %p %p", (void *)dlx_publish, (void *)dlx_take, (void *)dlx_message_unref);
    DTRACE_PROBE5(libdlx, attach, publisher, link, "traced/lie", 1, 0);
    for (unsigned long n = 0;; n++) {
        DTRACE_PROBE3(libdlx, release, publisher, n % 100000, link);
        DTRACE_PROBE5(libdlx, attach, 1000000 + n, link, "traced/lie", 1, 0);
    }
}
END
"${cc[@]}" "${san[@]}" -Iinclude -o "$tmp/liar" "$tmp/liar.c" "$build/libdlx.a" "${pbc[@]}" \
    -pthread
holds victim traced/front victim
victim=$last
exec 8>&9
eventually held_by traced/front "$victim"
trace lies 'traced/*'
holds told traced/front told
told=$last
read -r source link < <("$build/dlxctl" info traced/front --json | python3 -c '
import json, sys
for p in json.load(sys.stdin)["publishers"]:
    for link in p["links"]:
        if link["pid"] == int(sys.argv[1]):
            print(p["publisher"], link["link"])' "$told")
starts liar "$tmp/liar" "$source" "$link"
liar=$last
eventually grep -qF 'further ones are left out' "$tmp/lies.said"
timeout 60 "$build/dlxctl" trace 'traced/*' --duration 500ms >"$tmp/short" 2>&1 ||
    fail "a trace of a liar does not end: $?"
kill "$liar"
# While another trace begins and ends, the first one reads what the liar has sent: no end is lost.
"$build/dlxctl" trace 'traced/*' --duration 100ms >/dev/null 2>&1 || fail "a trace after a liar: $?"
kill -KILL "$told"
eventually grep -qE "\\(pid $told\\) ended $one, for " "$tmp/lies"
exec 9>&-
interrupt 0
if grep -qF traced/lie "$tmp/lies"; then fail "a name of a liar: $(cat "$tmp/lies")"; fi
echo >&8
exec 8>&-

# ---- a topic and a daemon that go away -----------------------------------------------------------
# The probes of this file count from the beginning.
holds known traced/front known
exec 8>&9
trace ends --json --chrome "$tmp/ends.json" traced/front
holds last traced/front $'\e[2Jname"'
exec 7>&9
kill "$publisher"
wait "$publisher" || true
kill -KILL "$daemon"
wait "$daemon" || true
eventually grep -q 'dlxctl trace: ' "$tmp/ends.said"
interrupt 0
python3 - "$tmp/ends" "$tmp/ends.json" "$last" <<'END' || fail "after the daemon's end"
import json
import sys

with open(sys.argv[1]) as f:
    trace = json.load(f)
assert [x["topic"] for x in trace["topics"]] == ["traced/front"]
with open(sys.argv[2]) as f:
    events = json.load(f)["traceEvents"]
held = [e for e in events if e.get("args", {}).get("not released")]
assert [e["pid"] for e in held] == [int(sys.argv[3])], held
END
exec 7>&- 8>&- 9>&-

# ---- Python --------------------------------------------------------------------------------------
python=build/venv/bin/python # it has NumPy, unless tools/setup.sh was not run
if [ -e "$build/python/dlx/_dlx.abi3.so" ] && [ -z "${SAN:-}" ] &&
    "$python" -c 'import numpy' 2>/dev/null; then
    start_daemon
    # What comes and goes between two looks at the daemon has its name by a probe, in a file that an
    # earlier program maps.
    starts mapped env PYTHONPATH="$build/python" "$python" -c \
        'import dlx, signal; c = dlx.connect(name="mapped"); signal.pause()'
    mapped=$last
    sees_mapped() { "$build/dlxctl" clients | grep mapped; }
    eventually sees_mapped
    trace python --json py
    cat >"$tmp/stream.py" <<'END'
import dlx
import numpy as np

with dlx.connect(name="stream") as c, c.publisher("py") as p, c.subscribe("py") as s:
    for i in range(200):
        p.publish(np.full(8, i))
        with s.take(timeout=30) as m:
            assert np.asarray(m)[0] == i
END
    PYTHONPATH=$build/python "$python" "$tmp/stream.py" >"$tmp/stream.said" 2>&1 ||
        fail "the stream of Python"
    interrupt 0
    kill "$mapped"
    python3 - "$tmp/python" <<'END' || fail "Python"
import json
import sys

with open(sys.argv[1]) as f:
    (topic,) = json.load(f)["topics"]
assert topic["topic"] == "py", topic
assert topic["published"] == topic["taken"] == topic["released"] == 200, topic
END
fi
echo "check_trace: passed"
