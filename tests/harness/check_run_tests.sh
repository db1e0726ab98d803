#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/run-tests itself: toy programs that pass, fail, skip, hang, crash, leave processes and leave
# files, and what it has to say of each. That no toy leaves anything behind is seen when this script
# itself runs under run-tests.
#
# shellcheck disable=SC2016 # single quotes: the text of another script
set -euo pipefail
cd "$(dirname "$0")/../.."
runner=$PWD/tools/run-tests
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
unset SAN VALGRIND TEST_TIMEOUT TEST_JOBS
n_bad=0

toy() {
    { echo '#!/bin/bash' && cat; } >"$tmp/$1"
    chmod +x "$tmp/$1"
}

# expect <status> <last line> <text that the output has to contain, or ''> <run-tests arguments...>
expect() {
    local status=$1 last=$2 text=$3 got=0
    shift 3
    "$runner" "$@" >"$tmp/output" 2>&1 || got=$?
    if [ "$got" != "$status" ] || [ "$(tail -n 1 "$tmp/output")" != "$last" ] ||
        ! grep -qF -- "$text" "$tmp/output"; then
        echo "run-tests ${*##*/}: status $got, expected $status;" \
            "last line expected '$last'; text '$text'"
        sed 's/^/    /' "$tmp/output"
        n_bad=$((n_bad + 1))
    fi
}

toy passes <<<'exit 0'
toy checks <<<'echo "100%: Checks: 5, Failures: 0, Errors: 0"'
toy checks_skips <<<'echo "SKIP: no such device"; echo "100%: Checks: 5, Failures: 0, Errors: 0"'
toy checks_fails <<<'echo "60%: Checks: 5, Failures: 1, Errors: 1"; echo the reason; exit 1'
toy checks_none <<<'echo "100%: Checks: 0, Failures: 0, Errors: 0"'
toy lies <<<'echo "100%: Checks: 5, Failures: 0, Errors: 0"; exit 1'
toy fails <<<'echo what went wrong; exit 3'
toy skips <<<'echo "SKIP: not on this machine"'
toy skips_77 <<<'exit 77'
toy skips_and_fails <<<'echo "SKIP: not on this machine"; exit 1'
toy crashes <<<'kill -SEGV $$'
toy hangs <<<'exec tail -f /dev/null'
toy hangs_deaf <<<'trap "" TERM INT HUP; tail -f /dev/null & wait'
toy leaks <<<'tail -f /dev/null & exit 0'
toy leaks_detached <<<'(setsid tail -f /dev/null >/dev/null 2>&1 </dev/null &) ; exit 0'
toy late <<<'(exec 2>/dev/null; read -r -t 0.1 <> <(:); exit 0) & exit 0'
toy leaves_tmp <<<'touch "$TMPDIR/forgotten"'
toy leaves_dir <<<'mkdir -p "$TMPDIR/a/b"'
toy leaves_run <<<'touch "$XDG_RUNTIME_DIR/forgotten.sock"'
toy leaves_home <<<'touch "$HOME/forgotten"'
toy tidy <<<'set -e; f=$(mktemp); [[ $f == "$TMPDIR"/* ]]; echo x >"$f"; rm "$f"'
toy private <<<'[ -z "$(ls -A "$TMPDIR" "$HOME" "$XDG_RUNTIME_DIR" | grep -v :)" ] &&
    [ "$(stat -c %a "$XDG_RUNTIME_DIR")" = 700 ]'

toy memory <<<'[ -z "${DLX_MEMORY-}" ] || { echo "on $DLX_MEMORY"; exit 1; }'
toy leaves_shm <<<'touch "$SHM/dlpackd.$(id -u).$$.1.0"'
toy shm_alive <<<'touch "$SHM/dlpackd.$(id -u).1.1.0"'

t=$tmp
expect 0 '1 passed, 0 failed, 0 skipped' '' "$t/passes"
expect 0 '5 passed, 0 failed, 0 skipped' '' "$t/checks"
expect 0 '4 passed, 0 failed, 1 skipped' 'skipped: no such device' "$t/checks_skips"
expect 1 '3 passed, 2 failed, 0 skipped' 'the reason' "$t/checks_fails"
expect 1 '0 passed, 1 failed, 0 skipped' 'ran no test at all' "$t/checks_none"
expect 1 '5 passed, 1 failed, 0 skipped' 'exit status 1' "$t/lies"
expect 1 '0 passed, 1 failed, 0 skipped' 'what went wrong' "$t/fails"
expect 0 '0 passed, 0 failed, 1 skipped' 'not on this machine' "$t/skips"
expect 0 '0 passed, 0 failed, 1 skipped' '' "$t/skips_77"
expect 1 '0 passed, 1 failed, 0 skipped' '' "$t/skips_and_fails"
expect 1 '0 passed, 1 failed, 0 skipped' 'SIGSEGV' "$t/crashes"
expect 1 '0 passed, 1 failed, 0 skipped' 'did not end within 0.3 s' --timeout 0.3 "$t/hangs"
expect 1 '0 passed, 1 failed, 0 skipped' 'did not end within 0.3 s' --timeout 0.3 "$t/hangs_deaf"
expect 1 '0 passed, 1 failed, 0 skipped' 'tail -f /dev/null (waits in ' --timeout 0.3 "$t/hangs"
expect 1 '0 passed, 1 failed, 0 skipped' 'left a process behind' "$t/leaks"
expect 1 '0 passed, 1 failed, 0 skipped' 'tail -f /dev/null' "$t/leaks_detached"
expect 0 '1 passed, 0 failed, 0 skipped' '' "$t/late"
expect 1 '0 passed, 1 failed, 0 skipped' 'left in $TMPDIR: forgotten' "$t/leaves_tmp"
expect 1 '0 passed, 1 failed, 0 skipped' 'a/b' "$t/leaves_dir"
expect 1 '0 passed, 1 failed, 0 skipped' 'left in $XDG_RUNTIME_DIR: forgotten.sock' "$t/leaves_run"
expect 1 '0 passed, 1 failed, 0 skipped' 'left in $HOME: forgotten' "$t/leaves_home"
expect 0 '1 passed, 0 failed, 0 skipped' '' "$t/tidy"
expect 0 '1 passed, 0 failed, 0 skipped' '' "$t/private"
expect 1 '0 passed, 1 failed, 0 skipped' 'may not be executed' "$t/output"
expect 1 '0 passed, 1 failed, 0 skipped' 'no such program' "$t/not_there"
expect 1 '0 passed, 0 failed, 0 skipped' 'no test programs'
expect 0 '1 passed, 0 failed, 0 skipped' '' --only passes "$t/passes" "$t/fails"
expect 1 '7 passed, 3 failed, 1 skipped' 'fails' --jobs 4 \
    "$t/passes" "$t/checks" "$t/fails" "$t/skips" "$t/leaks" "$t/tidy" "$t/leaves_tmp"

# One that runs alone comes when the others have ended, which here wait for each other.
mkdir -p "$tmp/tests/subject"
echo '/* RUN_ALONE=yes */' >"$tmp/tests/subject/alone.c"
mkfifo "$tmp/fifo"
toy alone <<<"[ \"\$(cat '$tmp/ended')\" = 2 ]"
toy one <<<"echo x >'$tmp/fifo'; echo 2 >'$tmp/ended'"
toy two <<<"read -r _ <'$tmp/fifo'"
SRCDIR=$tmp expect 0 '3 passed, 0 failed, 0 skipped' '' --jobs 3 "$t/alone" "$t/one" "$t/two"

# The second run, on another memory, and what it leaves.
mkdir "$tmp/shm"
export SHM=$tmp/shm
expect 0 '3 passed, 0 failed, 0 skipped' 'passes (posix)' --posix 'passes other' "$t/passes"
expect 1 '2 passed, 1 failed, 0 skipped' 'on posix' --posix memory "$t/memory"
DLX_MEMORY=posix expect 0 '1 passed, 0 failed, 0 skipped' '' "$t/memory"
expect 1 '2 passed, 1 failed, 0 skipped' "left in $SHM: dlpackd." \
    --shm "$SHM" --posix leaves_shm "$t/leaves_shm"
expect 0 '3 passed, 0 failed, 0 skipped' '' --shm "$SHM" --posix shm_alive "$t/shm_alive"

# A sanitizer's report from a process whose exit status nobody looked at. Scripts get no sanitizer
# options, so a binary.
if command -v "${CC:-gcc}" >/dev/null; then
    cat >"$tmp/toy.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void)
{
    const char *options = getenv("ASAN_OPTIONS");
    const char *log = options ? strstr(options, "log_path=") : 0;
    char path[4096];
    if (!log || sscanf(log, "log_path=%4000[^:]", path) != 1)
        return 0;
    FILE *file = fopen(strcat(path, ".1"), "w");
    fputs("ERROR: a report\n", file);
    return fclose(file);
}
C
    "${CC:-gcc}" -o "$tmp/reports" "$tmp/toy.c"
    expect 0 '1 passed, 0 failed, 0 skipped' '' "$t/reports"
    SAN=address expect 1 '0 passed, 1 failed, 0 skipped' 'a report of a sanitizer' "$t/reports"
fi

# What valgrind found in a process that was killed.
if command -v "${CC:-gcc}" >/dev/null && command -v valgrind >/dev/null; then
    cat >"$tmp/toy.c" <<'C'
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
    char *volatile freed = malloc(1), byte;
    int ready[2];
    free(freed);
    pid_t pid = pipe(ready) == 0 ? fork() : -1;
    if (pid == 0) {
        if (FAULT)
            *freed = 1;
        for (;;)
            (void)(write(ready[1], "", 1) == 1 && pause());
    }
    read(ready[0], &byte, 1);
    close(ready[0]);
    close(ready[1]);
    kill(pid, SIGKILL);
    return waitpid(pid, NULL, 0) != pid;
}
C
    "${CC:-gcc}" -w -DFAULT=0 -o "$tmp/killed" "$tmp/toy.c"
    "${CC:-gcc}" -w -DFAULT=1 -o "$tmp/killed_faulty" "$tmp/toy.c"
    VALGRIND=1 expect 0 '1 passed, 0 failed, 0 skipped' '' "$t/killed"
    VALGRIND=1 expect 1 '0 passed, 1 failed, 0 skipped' 'Invalid write of size 1' "$t/killed_faulty"
fi

[ "$n_bad" = 0 ] && echo "run-tests: all toys judged rightly"
[ "$n_bad" = 0 ]
