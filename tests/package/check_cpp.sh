#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# include/dlx/dlx.hpp: compiles without a warning as C++17 and C++20, without run-time type
# information, with every compiler that is there; what must not compile does not; and
# tests/package/cpp/stories.cpp, with the snippet of README.md in it, passes against a daemon of its
# own, with the sanitizers of the build.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
san=${SAN:-}
cxx=(g++)
read -ra cc <<<"${CC:-gcc}"
case ${cc[0]} in *clang*) cxx=("${cc[0]/clang/clang++}") ;; esac
flags=(-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror -fno-rtti -Iinclude)

tmp=$(mktemp -d)
daemon=
clean_up() {
    if [ -n "$daemon" ]; then kill "$daemon" && wait "$daemon"; fi
    rm -rf "$tmp"
}
trap clean_up EXIT

awk '/^## /{ on = $0 == "## In C++" } on && /^    /' README.md >"$tmp/readme.inc"
[ "$(wc -l <"$tmp/readme.inc")" -ge 6 ] || {
    echo "README.md: no snippet below '## In C++'" >&2
    exit 1
}
flags+=("-DDLX_README=\"$tmp/readme.inc\"")

n=0
for compiler in g++ clang++; do
    command -v "$compiler" >/dev/null || continue
    for standard in c++17 c++20; do
        "$compiler" -std=$standard "${flags[@]}" -fsyntax-only tests/package/cpp/stories.cpp
        n=$((n + 1))
    done
done
[ "$n" -gt 0 ]

# `what it is|statement`: the first has to compile, so that the others fail for their own reason.
f='void f(dlx::client &c, dlx::publisher &p, dlx::message &m, dlx::tensor &t)'
n_refused=0
while IFS='|' read -r what statement; do
    printf '%s\n' '#include <dlx/dlx.hpp>' "$f;" "$f { $statement }" >"$tmp/bad.cpp"
    if "${cxx[@]}" -std=c++17 -Iinclude -fsyntax-only "$tmp/bad.cpp" 2>"$tmp/said"; then
        [ "$what" = good ] || {
            echo "compiles: $what" >&2
            exit 1
        }
    elif [ "$what" = good ]; then
        cat "$tmp/said" >&2
        exit 1
    else
        n_refused=$((n_refused + 1))
    fi
done <<'LIST'
good|(void)c; (void)m; p.publish(std::move(t));
a copied client|dlx::client d = c; (void)p; (void)m; (void)t;
a copied tensor|dlx::tensor u = t; (void)c; (void)p; (void)m;
publishing without giving away|p.publish(t); (void)c; (void)m;
writing to a received message|*m.data<float>(0) = 1; (void)c; (void)p; (void)t;
a type without a data type|t.data<std::string>(); (void)c; (void)p; (void)m;
a number for a time|dlx::subscription(c, "x").take(5); (void)p; (void)m; (void)t;
a client from a pointer|dlx::client d = c.get(); (void)p; (void)m; (void)t;
LIST
[ "$n_refused" = 7 ]

# Thread sanitizer cannot map its shadow where more than 28 bits are randomised.
prefix=()
if [[ $san == *thread* ]] && setarch -R true 2>/dev/null; then prefix=(setarch -R); fi
"${cxx[@]}" -std=c++17 -g -O1 "${flags[@]}" ${san:+"-fsanitize=$san" -fno-omit-frame-pointer} \
    -pthread -o "$tmp/stories" tests/package/cpp/stories.cpp -L"$build" -ldlx \
    -Xlinker -rpath -Xlinker "$(realpath "$build")"

export DLX_SOCKET=$tmp/dlpackd.sock UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1 TSAN_OPTIONS=halt_on_error=1
gpu=()
if [ -e "$build/tests/standin/libcuda.so.1" ]; then # 16 MiB of memory
    gpu=(env "LD_LIBRARY_PATH=$build/tests/standin" STANDIN_MEMORY=16777216)
fi
mkfifo "$tmp/log"
"${gpu[@]}" "${prefix[@]}" "$build/dlpackd" --foreground --socket "$DLX_SOCKET" 2>"$tmp/log" &
daemon=$!
exec 3<"$tmp/log"
while read -r line <&3; do
    case $line in *"listening on"*) break ;; esac
    echo "$line"
done
cat <&3 >"$tmp/daemon.log" & # a full pipe would stop it
reader=$!
status=0
"${gpu[@]}" "${prefix[@]}" "$tmp/stories" || status=$?
kill "$daemon"
wait "$daemon" || status=$?
daemon=
wait "$reader"
# The GPU keeper that the daemon started, if the stories used a GPU, waits for the next daemon.
pkill -f -- "--socket $DLX_SOCKET.keeper" || true
if [ "$status" != 0 ]; then cat "$tmp/daemon.log"; fi
echo "$n compilations, $n_refused refused"
[ "$status" = 0 ]
