#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# gpu/ compiles against each version of cuda.h that tools/setup.sh fetches, and without any: then
# each kind of memory is refused by name (tests/gpu/test_gpu_absent.c).
set -euo pipefail
cd "$(dirname "$0")/../.."
read -ra cc <<<"${CC:-gcc}"
read -ra check <<<"$(pkg-config --cflags --libs check)"
flags=(-std=c11 -D_GNU_SOURCE -pthread -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion
    -Wmissing-prototypes -Werror -Iinclude -I.)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

"${cc[@]}" "${flags[@]}" -o "$tmp/absent" tests/gpu/test_gpu_absent.c tests/harness/run.c \
    gpu/backend.c gpu/gpu.c gpu/handle.c gpu/exports.c gpu/imports.c common/error.c \
    "${check[@]}" -lm -lrt
"$tmp/absent"

n=0
for header in build/cache/cuda1[23]/nvidia/*/include/cuda.h; do
    [ -f "$header" ] || continue
    version=$(sed -nE 's/^#define CUDA_VERSION +([0-9]+).*/\1/p' "$header")
    for file in gpu/cuda_*.c; do
        "${cc[@]}" "${flags[@]}" -isystem "$(dirname "$header")" -fsyntax-only "$file" || {
            echo "$file does not compile against cuda.h $version"
            exit 1
        }
    done
    echo "cuda.h $version: gpu/cuda_*.c compile"
    n=$((n + 1))
done
if [ "$n" -lt 2 ]; then
    echo "SKIP: $n of 2 versions of cuda.h are in build/cache (tools/setup.sh fetches them)"
    exit 77
fi
