#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The lint scripts catch what they are for: tiny trees with one violation each, and a good one with none.
#
# shellcheck disable=SC2016 # single quotes: text of the trees
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0
n_bad=0
spdx='/* SPDX-License-Identifier: Apache-2.0 */'

# rule <rule or ''> <path> <content...>: a tree with this one file breaks that rule and no other ('': breaks none)
rule() {
    local want=$1 path=$2 got
    shift 2
    rm -rf "$tmp/tree"
    mkdir -p "$tmp/tree/$(dirname "$path")"
    printf '%s\n' "$@" >"$tmp/tree/$path"
    got=$("$here/rules" "$tmp/tree" | grep -oE '\[[a-z]+\]' | sort -u | tr -d '\n' || true)
    n=$((n + 1))
    if [ "$got" != "${want:+[$want]}" ]; then
        echo "selftest: $path ($3${4:+ ...}): expected '${want:+[$want]}', got '$got'"
        n_bad=$((n_bad + 1))
    fi
}
c() { # c <rule or ''> <path> <lines...>: a C file with its licence line
    local want=$1 path=$2
    shift 2
    rule "$want" "$path" "$spdx" "$@"
}
# expect <status> <what> <command...>
expect() {
    local want=$1 what=$2 got=0
    shift 2
    "$@" >"$tmp/output" 2>&1 || got=1
    n=$((n + 1))
    if [ "$got" != "$want" ]; then
        echo "selftest: $what: status $got, expected $want"
        sed 's/^/    /' "$tmp/output"
        n_bad=$((n_bad + 1))
    fi
}

# -- includes ----------------------------------------------------------------------------------------------
c include daemon/x.c '#include "client/y.h"'
c include client/x.c '#include "daemon/y.h"'
c include client/x.h '#  include "daemon/y.h"'
c include common/x.c '#include "daemon/y.h"'
c include common/x.c '#include "client/y.h"'
c include daemon/loop.c '#include "proto/dlx.pb-c.h"'
c include client/take.c '#include "proto/dlx.pb-c.h"'
c include common/packet.c '#include <proto/dlx.pb-c.h>'
c include cli/x.c '#include "proto/dlx.pb-c.h"'
c include cli/x.c '#include "common/shm.h"'
c include cli/x.c '#include "client/link.h"'
c include cli/x.c '#include <common/shm.h>'
c include examples/x.c '#include "common/shm.h"'
c include bench/x.c '#include "client/link.h"'
c include bench/x.c '#include "daemon/loop.h"'
c include daemon/x.c '#include "../client/y.h"'
c include common/x.c '#include "tests/harness.h"'
c include tests/test_x.c '#include "common/x.c"'
c include include/dlx/x.h '#include "common/x.h"'
c include include/dlx/x.h '#include <common/x.h>'
c '' daemon/dispatch.c '#include "proto/dlx.pb-c.h"' '#include "common/x.h"' '#include "daemon/y.h"'
c '' daemon/handler_x.c '#include "proto/dlx.pb-c.h"'
c '' client/call.c '#include "proto/dlx.pb-c.h"' '#include <dlx/dlx.h>'
c '' common/proto.h '#include "proto/dlx.pb-c.h"'
c '' tests/test_x.c '#include "proto/dlx.pb-c.h"' '#include "daemon/y.h"' '#include "client/y.h"'
c '' cli/x.c '#include "cli/y.h"' '#include "y.h"' '#include <jansson.h>' '#include <dlx/dlx.h>' '#include <sys/mman.h>'
c '' bench/x.c '#include "common/shm.h"' '#include "bench/y.h"'
c '' examples/x.c '#include "examples/y.h"' '#include <dlpack/dlpack.h>'
c '' include/dlx/x.h '#include <stdint.h>' '#include <dlx/error.h>' '#include <dlpack/dlpack.h>'
c include include/dlx/x.hpp '#include "common/x.h"'
c '' include/dlx/x.hpp '#include <chrono>' '#include <dlx/dlx.h>'
c '' tests/cpp/x.cpp '#include <dlx/dlx.hpp>' '#include <chrono>' '#include <poll.h>'
c '' client/x.c '#include "daemon/y.h" /* lint-allow: include: a reason */'

# -- length, licence, blanks -------------------------------------------------------------------------------
mapfile -t long < <(seq -f '/* %g */' 600)
c length common/x.c "${long[@]}"
rule '' common/x.c "$spdx" "${long[@]:1}"
rule '' docs/long.md "${long[@]}"
rule spdx common/x.c 'int x;'
rule spdx include/dlx/x.h 'int x;'
rule spdx include/dlx/x.hpp 'int x;'
rule spdx tests/cpp/x.cpp 'int x;'
rule spdx tools/x.sh 'true'
rule spdx tools/x '#!/bin/bash' 'true'
rule spdx python/x.py 'pass'
rule spdx Makefile 'all:'
rule spdx proto/x.proto 'syntax = "proto3";'
rule spdx tests/model/x.pml 'init { skip }'
rule '' docs/x.md 'text'
rule '' Makefile '# SPDX-License-Identifier: Apache-2.0' 'all:'
c blank common/x.c 'int x; '
printf '%s\nint x;' "$spdx" >"$tmp/tree/common/x.c"
expect 1 'no newline at the end' "$here/rules" "$tmp/tree"

# -- sleeps, paths, hosts ------------------------------------------------------------------------------------
for call in 'usleep(1000)' 'sleep(1)' 'nanosleep(&t, NULL)' 'clock_nanosleep(0, 0, &t, 0)' 'thrd_sleep(&t, 0)'; do
    c sleep tests/test_x.c "void f(void) { $call; }"
done
rule sleep tests/check_x.sh '#!/bin/bash' '# SPDX-License-Identifier: Apache-2.0' 'true; sleep 1'
rule sleep tests/x.py '# SPDX-License-Identifier: Apache-2.0' 'time.sleep(1)'
c '' tests/test_x.c '/* lint-allow: sleep: the pause between two polls of a file */' 'nanosleep(&t, NULL);'
c '' tests/test_x.c 'assert(is_asleep(x)); subscriber_sleep_count(x);'
c '' daemon/x.c 'nanosleep(&t, NULL);'
for folder in work/x home/me/x root/x Users/me; do
    c path common/x.c "const char *p = \"/$folder\";"
done
c '' common/x.c 'const char *p = "/proc/self/fd"; /* $HOME/work/x, framework/home/x */'
rule registry tools/x.sh '# SPDX-License-Identifier: Apache-2.0' "curl https://py""pi.org/simple"

# -- symbols -------------------------------------------------------------------------------------------------
lib() { # lib <source line> <map text>
    mkdir -p "$tmp/include/dlx"
    printf '%s\n' 'int dlx_one(int (*f)(void));' 'const char *dlx_two(void);' \
        'static inline int dlx_three(void) { return dlx_one(0); }' >"$tmp/include/dlx/dlx.h"
    printf '%s\n' "$1" | "${CC:-gcc}" -shared -fPIC -x c -Wl,--version-script="$2" -o "$tmp/lib.so" -
}
both='int dlx_one(void) { return 1; } int dlx_two(void) { return 2; }'
printf 'DLX_0.1 {\n  global: /* a note */\n    dlx_one;\n    dlx_two;\n  local: *;\n};\n' >"$tmp/good.map"
printf 'DLX_0.1 { global: dlx_*; local: *; };\n' >"$tmp/pattern.map"
printf 'DLX_0.1 { global: dlx_one; local: *; };\n' >"$tmp/fewer.map"
printf 'DLX_0.1 { global: dlx_one; dlx_two; other; local: *; };\n' >"$tmp/other.map"
printf 'DLX_0.1 { global: dlx_one; dlx_two; dlx_four; local: *; };\n' >"$tmp/more.map"
lib "$both" "$tmp/good.map"
expect 0 'good symbols' "$here/symbols" "$tmp/lib.so" "$tmp/good.map" "$tmp/include"
expect 1 'a map that is not the one of the library' "$here/symbols" "$tmp/lib.so" "$tmp/fewer.map"
expect 1 'a name of the map is missing' "$here/symbols" "$tmp/lib.so" "$tmp/more.map"
lib "$both" "$tmp/pattern.map"
expect 1 'patterns in the map' "$here/symbols" "$tmp/lib.so" "$tmp/pattern.map"
lib "$both" "$tmp/fewer.map"
expect 1 'declared, not exported' "$here/symbols" "$tmp/lib.so" "$tmp/fewer.map" "$tmp/include"
lib "$both int other(void) { return 3; }" "$tmp/other.map"
expect 1 'a name without dlx_' "$here/symbols" "$tmp/lib.so" "$tmp/other.map"
lib "$both int dlx_four(void) { return 4; }" "$tmp/more.map"
expect 1 'exported, not declared' "$here/symbols" "$tmp/lib.so" "$tmp/more.map" "$tmp/include"

# -- headers -------------------------------------------------------------------------------------------------
header() { # header <status> <what> <lines...>
    local status=$1 what=$2
    shift 2
    printf '%s\n' "$@" >"$tmp/include/dlx/dlx.h"
    expect "$status" "$what" "$here/headers" "$tmp/include"
}
header 0 'a good header' '#ifndef X_H' '#define X_H' '#include <stdint.h>' 'uint32_t f(void);' '#endif'
header 1 'needs another header' '#ifndef X_H' '#define X_H' 'uint32_t f(void);' '#endif'
header 1 'no include guard' 'struct x { int a; };'
header 1 'a C++ keyword' '#ifndef X_H' '#define X_H' 'int f(int class);' '#endif'
header 1 'a C23 feature' '#ifndef X_H' '#define X_H' 'void f(void) { typeof(1) x = nullptr; }' '#endif'

rm "$tmp/include/dlx/dlx.h"
header_cpp() { # header_cpp <status> <what> <lines...>: likewise, for C++ only
    local status=$1 what=$2
    shift 2
    printf '%s\n' "$@" >"$tmp/include/dlx/dlx.hpp"
    expect "$status" "$what" "$here/headers" "$tmp/include"
}
header_cpp 0 'a good C++ header' '#ifndef X_H' '#define X_H' '#include <string>' 'std::string f();' '#endif'
header_cpp 1 'a C++20 feature' '#ifndef X_H' '#define X_H' '#include <span>' 'std::span<int> f();' '#endif'
header_cpp 1 'not C++20 any more' '#ifndef X_H' '#define X_H' 'inline const char *f() { return u8"x"; }' '#endif'

# -- format --------------------------------------------------------------------------------------------------
if clang-format --version 2>/dev/null | grep -q 'version 14'; then
    printf '%s\n' "$spdx" '#include <dlx/b.h>' '#include <dlx/a.h>' '' 'int f(char *p)' '{' \
        '    if (*p) {' '        return 1;' '    }' '    return 0;' '}' >"$tmp/f.c"
    expect 0 'good format' clang-format --style=file:"$here/../../.clang-format" --dry-run -Werror "$tmp/f.c"
    sed -i 's/^int f(char \*p)$/int f(char* p) {/; s/^{$//' "$tmp/f.c"
    expect 1 'bad format' clang-format --style=file:"$here/../../.clang-format" --dry-run -Werror "$tmp/f.c"
fi

echo "selftest: $n cases, $n_bad wrong"
[ "$n_bad" = 0 ]
