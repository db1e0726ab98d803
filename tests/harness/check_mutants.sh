#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/mutants itself, in a small tree of one tested and one untested function.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v git >/dev/null || { echo "SKIP: no git" && exit 77; }
top=$(mktemp -d "${TMPDIR:-/tmp}/mutants.XXXXXX")
trap 'rm -rf "$top"' EXIT
mkdir -p "$top"/{tools,common,tests/unit,tests/mutants}
cp tools/mutants tools/run-tests "$top/tools/"
cd "$top"
cat >common/limit.c <<'END'
int tested(int n)
{
    return n < 3;
}

int untested(int n)
{
    return n < 7;
}
END
cat >tests/unit/test_limit.c <<'END'
int tested(int n);
int main(void)
{
    return tested(2) && !tested(3) ? 0 : 1;
}
END
cat >Makefile <<'END'
all:
build/obj/%.o: %.c
	@mkdir -p $(@D) && $(or $(CC),cc) $(CFLAGS) -c -o $@ $<
build/tests/test_limit: build/obj/common/limit.o build/obj/tests/unit/test_limit.o
	@mkdir -p $(@D) && $(or $(CC),cc) -o $@ $^
END
printf 'build/\n' >.gitignore
git init -q .

mistake() { # mistake NAME OLD NEW
    printf '@ %s common/limit.c: test_limit\n- %s\n+     %s\n' "$@"
}
expect() { # expect STATUS PATTERN ARGUMENT...
    local status=0 wanted=$1 pattern=$2
    shift 2
    tools/mutants "$@" >out 2>&1 || status=$?
    if [ "$status" != "$wanted" ] || ! grep -qE -e "$pattern" out; then
        echo "tools/mutants $*: status $status, expected $wanted and '$pattern':"
        cat out
        exit 1
    fi
}
mistake tested_one 'return n < 3;' 'return n <= 3;' >mistakes
expect 0 '^tested_one: caught by test_limit$' --set mistakes
mistake hangs 'return n < 3;' 'for (volatile int i = 0; i < 1; i *= 1) {} return n < 3;' >mistakes
expect 0 '^hangs: caught by test_limit$' --set mistakes --limit 1
mistake untested_one 'return n < 7;' 'return n <= 7;' >mistakes
expect 1 '^untested_one: SURVIVED: common/limit.c:8: ' --set mistakes
mistake same_code 'return n < 7;' 'return 7 > n;' >mistakes
expect 1 '^same_code: discarded: ' --set mistakes
mistake does_not_compile 'return n < 7;' 'return m;' >mistakes
expect 1 '^does_not_compile: discarded: ' --set mistakes
expect 0 'all 1 mistakes of mistakes fit' --set mistakes --fits
mistake stale 'return n < 8;' 'return n;' >mistakes
expect 1 'stale: the text to replace is 0 times' --set mistakes --fits
expect 1 'stale: the text to replace is 0 times' --set mistakes
sed -i 's/return n < 3/return n < 4/' common/limit.c
mistake any 'return n < 7;' 'return n;' >mistakes
expect 1 'test_limit fails without any mistake' --set mistakes
