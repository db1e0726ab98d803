#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The lint scripts catch what they are for: tiny trees with one violation each, and a good one with
# none.
#
# shellcheck disable=SC2016 # single quotes: text of the trees
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0
n_bad=0
spdx='/* SPDX-License-Identifier: Apache-2.0 */'

# rule <rule or ''> <path> <content...>: a tree with this one file breaks that rule and no other
# ('': breaks none)
rule() {
    local want=$1 path=$2 got
    shift 2
    rm -rf "$tmp/tree"
    mkdir -p "$tmp/tree/$(dirname "$path")"
    printf '%s\n' "$@" >"$tmp/tree/$path"
    got=$("$here/rules" "$tmp/tree" | grep -oE '\[[a-z]+\]' | sort -u | tr -d '\n' || true)
    n=$((n + 1))
    if [ "$got" != "${want:+[$want]}" ]; then
        echo "selftest: $path ($1${2:+ ...}): expected '${want:+[$want]}', got '$got'"
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

# -- includes --------------------------------------------------------------------------------------
c include daemon/objects/x.c '#include "client/y.h"'
c include client/control/x.c '#include "daemon/base/y.h"'
c include client/control/x.h '#  include "daemon/base/y.h"'
c include common/x.c '#include "daemon/base/y.h"'
c include common/x.c '#include "client/y.h"'
c include common/x.c '#include "ring/y.h"'
c include ring/x.c '#include "client/y.h"'
c include ring/x.c '#include "gpu/y.h"'
c include common/x.c '#include "gpu/y.h"'
c include daemon/base/x.c '#include "gpu/y.h"'
c include gpu/x.c '#include "client/y.h"'
c '' gpu/lib/x.c '#include "keeper/wire.h"'
c include gpu/lib/x.c '#include "daemon/base/y.h"'
c '' gpu/lib/x.c '#include "client/control/y.h"'
c include common/x.c '#include "keeper/wire.h"'
c include daemon/base/x.c '#include "keeper/memory.h"'
c include client/control/x.c '#include "keeper/keeper.h"'
c include keeper/x.c '#include "daemon/base/log.h"'
c include keeper/x.c '#include "gpu/exports.h"'
c '' daemon/base/x.c '#include "keeper/wire.h"'
c include client/control/x.c '#include "keeper/wire.h"'
c '' keeper/x.c '#include "gpu/handle.h"' '#include "gpu/backend.h"'
c include gpu/x.c '#include "ring/y.h"'
c include client/control/x.c '#include <cuda.h>'
c include cli/x.c '#include "gpu/y.h"'
c '' gpu/x.c '#include "common/y.h"' '#include <cuda.h>' '#include <hip/hip_runtime_api.h>'
c include client/control/x.c '#include "gpu/y.h"'
c include ring/x.h '#include "daemon/base/y.h"'
c include ring/x.c '#include <proto/dlx.pb-c.h>'
c include daemon/server/loop.c '#include "proto/dlx.pb-c.h"'
c include client/subscribe/take.c '#include "proto/dlx.pb-c.h"'
c include common/packet.c '#include <proto/dlx.pb-c.h>'
c include cli/x.c '#include "proto/dlx.pb-c.h"'
c include cli/x.c '#include "ring/layout.h"'
c include cli/x.c '#include "client/link.h"'
c include cli/x.c '#include <ring/layout.h>'
c include examples/x.c '#include "ring/layout.h"'
c include bench/x.c '#include "client/link.h"'
c include bench/x.c '#include "daemon/loop.h"'
c include daemon/objects/x.c '#include "../client/y.h"'
c include common/x.c '#include "tests/harness/run.h"'
c include tests/unit/test_x.c '#include "common/x.c"'
c include include/dlx/x.h '#include "common/x.h"'
c include include/dlx/x.h '#include <common/x.h>'
c '' daemon/protocol/dispatch.c '#include "proto/dlx.pb-c.h"' '#include "common/x.h"' \
    '#include "daemon/base/y.h"'
c '' ring/x.c '#include "ring/y.h"' '#include "common/x.h"' '#include <dlpack/dlpack.h>' \
    '#include <dlx/error.h>'
c '' daemon/objects/x.c '#include "ring/y.h"'
c '' client/control/x.c '#include "ring/y.h"'
c include daemon/base/x.c '#include "daemon/server/y.h"'
c include daemon/objects/x.h '#include "daemon/persist/y.h"'
c include daemon/memory/x.c '#include <daemon/objects/y.h>'
c include daemon/server/x.c '#include "daemon/other/y.h"'
c include daemon/server/x.c '#include "daemon/flat.h"'
c ring client/publish/x.c 'uint64_t n = p->core.head;'
c ring client/publish/x.h '    link->core.dead = true;'
c '' client/publish/x.c 'uint64_t n = dlx__writer_head(&p->core);' 'f(&x.core, core.y);'
c layer daemon/flat.c 'int x;'
c layer daemon/other/x.c 'int x;'
c layer daemon/server/deep/x.h 'int x;'
c include client/heap/x.c '#include "client/publish/y.h"'
c include client/message/x.h '#include "client/publish/y.h"'
c include client/control/x.c '#include <client/subscribe/y.h>'
c include client/start/x.c '#include "client/server/y.h"'
c layer client/x.c 'int x;'
c layer client/server/x.c 'int x;'
c include client/publish/call.c '#include "proto/dlx.pb-c.h"'
c include daemon/base/x.c '#include "client/y.h"'
c '' daemon/objects/x.c '#include "daemon/objects/y.h"' '#include "daemon/memory/y.h"' \
    '#include "daemon/base/y.h"'
c '' daemon/server/x.c '#include "daemon/protocol/y.h"' '#include "ring/y.h"' \
    '#include "common/y.h"'
c '' client/subscribe/x.c '#include "client/message/y.h"' '#include "client/base/y.h"' \
    '#include "client/subscribe/y.h"'
c '' daemon/protocol/handler_x.c '#include "proto/dlx.pb-c.h"'
c '' daemon/protocol/handler_x.c '#include "proto/dlx.pb-c.h"'
c '' client/control/call.c '#include "proto/dlx.pb-c.h"' '#include <dlx/dlx.h>'
c '' common/proto.h '#include "proto/dlx.pb-c.h"'
c '' tests/unit/test_x.c '#include "proto/dlx.pb-c.h"' '#include "daemon/base/y.h"' \
    '#include "client/y.h"'
c '' cli/x.c '#include "cli/y.h"' '#include "y.h"' '#include <jansson.h>' '#include <dlx/dlx.h>' \
    '#include <sys/mman.h>'
c '' bench/x.c '#include "ring/layout.h"' '#include "bench/y.h"'
c '' examples/x.c '#include "examples/y.h"' '#include <dlpack/dlpack.h>'
c '' include/dlx/x.h '#include <stdint.h>' '#include <dlx/error.h>' '#include <dlpack/dlpack.h>'
c include include/dlx/x.hpp '#include "common/x.h"'
c '' include/dlx/x.hpp '#include <chrono>' '#include <dlx/dlx.h>'
c '' tests/package/cpp/x.cpp '#include <dlx/dlx.hpp>' '#include <chrono>' '#include <poll.h>'
c '' client/control/x.c '#include "daemon/base/y.h" /* lint-allow: include: a reason */'

# -- length, licence, blanks -----------------------------------------------------------------------
mapfile -t long < <(seq -f '/* %g */' 1200)
c length common/x.c "${long[@]}"
rule '' common/x.c "$spdx" "${long[@]:1}"
rule '' docs/long.md "${long[@]}"
rule spdx common/x.c 'int x;'
rule spdx include/dlx/x.h 'int x;'
rule spdx include/dlx/x.hpp 'int x;'
rule spdx tests/package/cpp/x.cpp 'int x;'
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

# -- columns, names of static functions ------------------------------------------------------------
printf -v wide '%0101d' 0
c columns common/x.c "/* a comment ${wide:6} */"
rule columns docs/x.md "a text ${wide:6}"
rule columns mk/x.mk '# SPDX-License-Identifier: Apache-2.0' "	x: ${wide:10}"
c '' common/x.c "/* ${wide:6} */"
c '' common/x.c "/* ${wide} */"
rule '' docs/x.txt "a text ${wide:6}"
c '' common/x.c 'static int look(void)'
printf '%s\n' "$spdx" 'static int look(void)' >"$tmp/tree/common/y.c"
expect 1 'two static functions of one name' "$here/rules" "$tmp/tree"
rm "$tmp/tree/common/y.c"
mkdir -p "$tmp/tree/cli"
printf '%s\n' "$spdx" 'static int look(void)' >"$tmp/tree/cli/y.c"
expect 0 'static functions of one name in two programs' "$here/rules" "$tmp/tree"

# -- pipes -----------------------------------------------------------------------------------------
rule pipe tools/x '#!/bin/bash' '# SPDX-License-Identifier: Apache-2.0' 'set -euo pipefail' \
    'ldd x |'' grep -q libdlx'
rule pipe tools/x '#!/bin/bash' '# SPDX-License-Identifier: Apache-2.0' 'set -uo pipefail' \
    'ldd x |'' grep -E -qx libdlx'
rule '' tools/x '#!/bin/bash' '# SPDX-License-Identifier: Apache-2.0' 'ldd x |'' grep -q libdlx'
rule '' tools/x '#!/bin/bash' '# SPDX-License-Identifier: Apache-2.0' 'set -euo pipefail' \
    'ldd x |'' grep libdlx >/dev/null'

# -- sleeps, paths, hosts --------------------------------------------------------------------------
for call in 'usleep(1000)' 'sleep(1)' 'nanosleep(&t, NULL)' 'clock_nanosleep(0, 0, &t, 0)' \
    'thrd_sleep(&t, 0)'; do
    c sleep tests/unit/test_x.c "void f(void) { $call; }"
done
c fork tests/client/e2e_x.c 'pid_t pid = fork();'
c '' tests/client/e2e_x.c 'pid_t pid = dlx_test_fork();'
c '' tests/harness/x.c 'pid_t pid = fork();'
rule sleep tests/x/check_x.sh '#!/bin/bash' '# SPDX-License-Identifier: Apache-2.0' 'true; sleep 1'
rule sleep tests/x.py '# SPDX-License-Identifier: Apache-2.0' 'time.sleep(1)'
rule sleep tests/x/run '#!/usr/bin/env python3' '# SPDX-License-Identifier: Apache-2.0' \
    'time.sleep(1)'
rule sleep tests/x/go '#!/bin/bash' '# SPDX-License-Identifier: Apache-2.0' 'sleep 1'
c '' tests/unit/test_x.c '/* lint-allow: sleep: the pause between two polls of a file */' \
    'nanosleep(&t, NULL);'
c '' tests/unit/test_x.c 'assert(is_asleep(x)); subscriber_sleep_count(x);'
c '' daemon/objects/x.c 'nanosleep(&t, NULL);'
c clock ring/x.c 'clock_gettime(CLOCK_REALTIME, &t);'
for folder in work/x home/me/x root/x Users/me; do
    c path common/x.c "const char *p = \"/$folder\";"
done
folder=work/home/x
c '' common/x.c "const char *p = \"/proc/self/fd\"; /* \$HOME/$folder, frame$folder */"
rule registry tools/x.sh '# SPDX-License-Identifier: Apache-2.0' "curl https://py""pi.org/simple"

# -- symbols ---------------------------------------------------------------------------------------
lib() { # lib <source line> <map text>
    mkdir -p "$tmp/include/dlx"
    printf '%s\n' 'int dlx_one(int (*f)(void));' 'const char *dlx_two(void);' \
        'static inline int dlx_three(void) { return dlx_one(0); }' >"$tmp/include/dlx/dlx.h"
    printf '%s\n' "$1" | "${CC:-gcc}" -shared -fPIC -x c \
        -Wl,--version-script="$2" -o "$tmp/lib.so" -
}
both='int dlx_one(void) { return 1; } int dlx_two(void) { return 2; }'
printf 'DLX_0.1 {\n  global: /* a note */\n    dlx_one;\n    dlx_two;\n  local: *;\n};\n' \
    >"$tmp/good.map"
printf 'DLX_0.1 { global: dlx_*; local: *; };\n' >"$tmp/pattern.map"
printf 'DLX_0.1 { global: dlx_one; local: *; };\n' >"$tmp/fewer.map"
printf 'DLX_0.1 { global: dlx_one; dlx_two; other; local: *; };\n' >"$tmp/other.map"
printf 'DLX_0.1 { global: dlx_one; dlx_two; dlx_four; local: *; };\n' >"$tmp/more.map"
private='int dlx__a(void) { return 3; } int dlx__b(void) { return 4; }'
printf '%s\n' 'DLX_0.1 { global: dlx_one; dlx_two; local: *; };' \
    'DLX_PRIVATE_0 { global: dlx__a; dlx__b; };' >"$tmp/private.map"
printf '%s\n' 'DLX_0.1 { global: dlx_one; dlx_two; local: *; };' \
    'DLX_PRIVATE_0 { global: dlx__a; };' >"$tmp/one-private.map"
gpu_lib() { # gpu_lib <functions that it calls...>
    printf 'int %s(void);\n' "$@" >"$tmp/gpu.c"
    printf 'int dlx_gpu(void) { return 0%s; }\n' "$(printf ' + %s()' "$@")" >>"$tmp/gpu.c"
    "${CC:-gcc}" -shared -fPIC -o "$tmp/gpu.so" "$tmp/gpu.c" "$tmp/lib.so"
}
lib "$both $private" "$tmp/private.map"
private_symbols() { "$here/symbols" "$tmp/lib.so" "$tmp/$1" "$tmp/include" "$tmp/gpu.so"; }
gpu_lib dlx__a dlx__b
expect 0 'private symbols' private_symbols private.map
expect 1 'a private symbol that is not in the map' private_symbols one-private.map
gpu_lib dlx__a
expect 1 'a private symbol that is not called' private_symbols private.map
gpu_lib dlx__a dlx__b dlx_one
expect 1 'a public function that the GPU library calls' private_symbols private.map

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

# -- abi -------------------------------------------------------------------------------------------
if command -v abidiff >/dev/null; then
    abi_lib() { # abi_lib <members of the struct> <further source>
        printf '%s\n' '#pragma once' "struct dlx_pair { $1 };" 'int dlx_sum(struct dlx_pair *p);' \
            >"$tmp/include/dlx/dlx.h"
        printf '%s\n' '#include <dlx/dlx.h>' 'int dlx_sum(struct dlx_pair *p) { return p->a; }' \
            "$2" | "${CC:-gcc}" -g -shared -fPIC -x c -I"$tmp/include" -o "$tmp/lib.so" -
    }
    abi() { "$here/abi" "$@" "$tmp/lib.so" "$tmp/lib.abi" "$tmp/include"; }
    abi_lib 'int a; int b;' ''
    expect 0 'an ABI is written' abi --write
    expect 0 'the same ABI' abi
    abi_lib 'int b; int a;' ''
    expect 1 'members in another order' abi
    abi_lib 'int a; int b; int c;' ''
    expect 1 'a larger struct' abi
    abi_lib 'int a; int b;' 'int dlx_more(void) { return 1; }'
    expect 1 'one more function' abi
    rm "$tmp/include/dlx/dlx.h"
fi

# -- headers ---------------------------------------------------------------------------------------
header() { # header <status> <what> <lines...>
    local status=$1 what=$2
    shift 2
    printf '%s\n' "$@" >"$tmp/include/dlx/dlx.h"
    expect "$status" "$what" "$here/headers" "$tmp/include"
}
header 0 'a good header' '#ifndef X_H' '#define X_H' '#include <stdint.h>' 'uint32_t f(void);' \
    '#endif'
header 1 'needs another header' '#ifndef X_H' '#define X_H' 'uint32_t f(void);' '#endif'
header 1 'no include guard' 'struct x { int a; };'
header 1 'a C++ keyword' '#ifndef X_H' '#define X_H' 'int f(int class);' '#endif'
header 1 'a C23 feature' '#ifndef X_H' '#define X_H' 'void f(void) { typeof(1) x = nullptr; }' \
    '#endif'

rm "$tmp/include/dlx/dlx.h"
header_cpp() { # header_cpp <status> <what> <lines...>: likewise, for C++ only
    local status=$1 what=$2
    shift 2
    printf '%s\n' "$@" >"$tmp/include/dlx/dlx.hpp"
    expect "$status" "$what" "$here/headers" "$tmp/include"
}
header_cpp 0 'a good C++ header' '#ifndef X_H' '#define X_H' '#include <string>' \
    'std::string f();' '#endif'
header_cpp 1 'a C++20 feature' '#ifndef X_H' '#define X_H' '#include <span>' 'std::span<int> f();' \
    '#endif'
header_cpp 1 'not C++20 any more' '#ifndef X_H' '#define X_H' \
    'inline const char *f() { return u8"x"; }' '#endif'

# -- manual pages ----------------------------------------------------------------------------------
m=$tmp/m
mkdir -p "$m/include/dlx" "$m/docs/man" "$m/bin"
sheet() { # sheet <name> <section> <lines...>: a page
    local name=$1 section=$2
    shift 2
    printf '%s\n' '.Dd November 21, 2026' ".Dt ${name^^} $section" '.Os x' '.Sh NAME' ".Nm $name" \
        '.Nd x' '.Sh DESCRIPTION' "$@" >"$m/docs/man/$name.$section"
}
program() { # program <name> <lines of --help...>: of dlxctl those of `x --help` in $m/bin/x
    local name=$1
    shift
    printf '%s\n' "$@" >"$m/bin/$name.help"
    printf '#!/bin/sh\ncase $1 in -*) f=%s ;; *) f=$1 ;; esac\ncat "$(dirname "$0")/$f.help"\n' \
        "$name" >"$m/bin/$name"
    chmod +x "$m/bin/$name"
}
put_good() {
    printf '%s\n' 'X(BAD, -1, "bad")' >"$m/include/dlx/error.h"
    printf '%s\n' '/* ---- one --- */' '/** Do it. Returns 0; DLX_E_BAD (why: `x`). */' \
        'DLX_API int dlx_one(int a);' '' '/** More. */' 'DLX_API int dlx_two(void);' \
        >"$m/include/dlx/dlx.h"
    printf '{ global: dlx_one; dlx_two; };\n' >"$m/map"
    sheet dlx 7 '@ERRORS@'
    sheet dlpackd 8 '.Bl -tag -width x' '.It Fl s , Fl \-socket Ns = Ns Ar PATH' 'Text.' \
        '.It Fl \-help' 'Text.' '.El'
    sheet dlxctl 1 '.Bl -tag -width x' '.It Fl \-help' 'Text.' '.El' '.Sh COMMANDS' \
        '.Ss ls Oo Ar TOPIC Oc' '.Bl -tag -width x' '.It Xo' '.Fl \-all , \-fast' '.Xc' 'Text.' \
        '.El' '.Sh SEE ALSO' '.Xr dlx 7'
    program dlpackd '  -s, --socket=PATH   listen' '  -?, --help   help' 'see --nothing'
    printf 'x:1: [a] has no %s: one, two\n' '?' >"$m/bin/keys"
    program dlxctl 'Commands:' '  ls  list' '' '  -?, --help   help'
    printf '%s\n' '      --all   all' '      --fast   fast' '  -?, --help   help' >"$m/bin/ls.help"
}
pages() { # make them and look at them
    rm -rf "$m/out"
    "$here/../man" "$m/out" 1 "$m" && "$here/man" "$m/out" "$m/map" "$m/bin/dlxctl" "$m/bin/dlpackd"
}
# manual <status> <what> [<file> <sed expression>]: that status, after this change
manual() {
    put_good
    if [ $# -gt 2 ]; then
        cp "$m/$3" "$m/before"
        sed -i "$4" "$m/$3"
        if cmp -s "$m/$3" "$m/before"; then
            echo "selftest: $2: nothing changed"
            n_bad=$((n_bad + 1))
        fi
    fi
    expect "$1" "$2" pages
}
manual 0 'good pages'
expect 0 'the list of errors' grep -A1 -x '.It Dv DLX_E_BAD' "$m/out/man3/dlx_one.3"
expect 0 'the reason of an error' grep -x 'why: .fBx.fP' "$m/out/man3/dlx_one.3"
expect 0 'functions of one heading share a page' grep -x '.so man3/dlx_one.3' \
    "$m/out/man3/dlx_two.3"
expect 0 'the table of errors' grep -x '.It Dv DLX_E_BAD Pq -1' "$m/out/man7/dlx.7"
manual 1 'a function without a comment' include/dlx/dlx.h '/More/d'
manual 1 'a function that is not declared' map 's/dlx_two/dlx_two; dlx_three/'
manual 1 'an error that is not there' include/dlx/dlx.h 's/DLX_E_BAD/DLX_E_OTHER/'
manual 0 'one more function' include/dlx/dlx.h \
    '$a\\n/** Even more. */\nDLX_API int dlx_three(void);'
manual 1 'an option of dlpackd is missing' bin/dlpackd.help '1i\      --new  new'
manual 1 'an option of dlpackd too many' bin/dlpackd.help '/socket/d'
manual 1 'an option of dlxctl is missing' bin/dlxctl.help '$a\      --new  new'
manual 1 'an option of a command is missing' bin/ls.help '1i\      --new  new'
manual 1 'an option of a command too many' bin/ls.help '/fast/d'
manual 1 'a command is missing' docs/man/dlxctl.1 's/^\.Ss ls/.Ss la/'
manual 1 'a command too many' docs/man/dlxctl.1 '/^\.Sh SEE/i.Ss new'
# configured <status> <what> [<file> <sed expression>]: of a daemon that has a configuration
configured() {
    local put
    put=$(declare -f put_good)
    eval "put_good_${put#put_good}"
    put_good() {
        put_good_
        sed -i '/Fl .-help/i.It Fl \\-check\\-config' "$m/docs/man/dlpackd.8"
        echo '      --check-config' >>"$m/bin/dlpackd.help"
        cat >"$m/bin/dlpackd" <<'PROGRAM'
#!/bin/sh
case $1 in
--help) cat "${0%/*}/dlpackd.help" ;;
--check-config=*)
    if grep '?]' "${1#*=}" >/dev/null; then
        echo "x: there is [a]"
    else
        cat "${0%/*}/keys"
    fi
    ;;
esac
PROGRAM
        sheet dlpackd.conf 5 '.Ss The section [a]' '.Bl -tag -width x' '.It Cm one' 'Text.' \
            '.It Cm two' 'Text.' '.El'
    }
    manual "$@"
    eval "$put"
}
configured 0 'a good page of a configuration'
configured 1 'a key is missing' bin/keys 's/$/, three/'
configured 1 'a key too many' bin/keys 's/, two//'
configured 1 'a section is missing' docs/man/dlpackd.conf.5 's/\[a\]/[b]/'
manual 1 'a reference to no page' docs/man/dlxctl.1 's/^\.Xr dlx 7/.Xr dlx_nothing 3/'
if command -v mandoc >/dev/null; then
    manual 1 'a page that mandoc warns of' docs/man/dlpackd.8 's/^\.El$//'
fi

# -- figures -----------------------------------------------------------------------------------------
# figures <status> <what> <sed of link.h>: after that change, of a tree whose figures were written
figures() {
    local tree=$tmp/thin link=client/message/subscriber_link.h
    rm -rf "$tree"
    mkdir -p "$tree"/{tools/lint,tests,client/message,build/obj/client/message}
    echo 'TEST(a_ring_is_full)' >"$tree/tests/test_ring.c"
    printf '%s\n' 'struct dlx_link_part {' '    int one, *two;' '};' \
        'struct dlx_subscriber_link {' '    struct dlx_link_part part;' '    bool is_here;' '};' \
        'void b(void);' >"$tree/$link"
    for file in a b; do
        printf '%s\n' '#include "client/message/subscriber_link.h"' 'void a(void);' \
            "void $file(void)" '{' '}' >"$tree/client/message/$file.c"
    done
    sed -i 's/^{/{ a();/' "$tree/client/message/b.c"
    git -C "$tree" init -q
    ratchet() {
        (cd "$tree" && for file in a b; do
            cc -w -include stdbool.h -I. -c "client/message/$file.c" \
                -o "build/obj/client/message/$file.o"
        done && "$here/figures" "$@")
    }
    expect 0 'figures are written' ratchet --renew
    sed -i "$3" "$tree/${4:-$link}"
    expect "$1" "figures: $2" ratchet --check
}
worse_figures() { # as above: they are not written down
    figures 1 "$@"
    expect 1 "figures: $1 is written down" ratchet --renew
}
figures 0 'nothing changed' ''
worse_figures 'a name of a test without a subject' 's/a_ring/what/' tests/test_ring.c
worse_figures 'a member more' 's/bool is_here;/bool is_here, is_there;/'
figures 1 'a member of a part more' 's/one, /one, three, /'
figures 1 'a boolean instead of a number' 's/int one/bool one/'
figures 1 'a member less, which is not written down' 's/one, //'
figures 1 'a word of flags' 's/bool is_here/unsigned flags/'
figures 1 'a line more' '$s/$/\n/'
worse_figures 'a call that closes a circle' 's/^{/{ b();/' client/message/a.c
figures 1 'a call that may move a publisher' 's/^{/{ dlx__publisher_go_on();/' client/message/a.c

# -- format ----------------------------------------------------------------------------------------
if clang-format --version 2>/dev/null | grep 'version 14' >/dev/null; then
    printf '%s\n' "$spdx" '#include <dlx/b.h>' '#include <dlx/a.h>' '' 'int f(char *p)' '{' \
        '    if (*p) {' '        return 1;' '    }' '    return 0;' '}' >"$tmp/f.c"
    format=(clang-format --style=file:"$here/../../.clang-format" --dry-run -Werror)
    expect 0 'good format' "${format[@]}" "$tmp/f.c"
    sed -i 's/^int f(char \*p)$/int f(char* p) {/; s/^{$//' "$tmp/f.c"
    expect 1 'bad format' "${format[@]}" "$tmp/f.c"
fi

# -- python --------------------------------------------------------------------------------------
ruff=$here/../../build/venv/bin/ruff
if [ -x "$ruff" ]; then
    python() { expect "$1" "$2" "$ruff" check -q --no-cache --config "$here/../../pyproject.toml" \
        --stdin-filename "tools/x.py" -; }
    python 0 'good Python' <<<$'import os\nimport sys\n\nprint(os, sys)'
    python 1 'imports out of order' <<<$'import sys\nimport os\n\nprint(os, sys)'
    python 1 'an import that is not used' <<<'import sys'
    python 1 'a name that is not there' <<<'print(nothing)'
    python 1 'a line of more than 100 columns' <<<"print('$(printf 'x %.0s' {1..60})')"
fi

echo "selftest: $n cases, $n_bad wrong"
[ "$n_bad" = 0 ]
