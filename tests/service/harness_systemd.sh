# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# For tests that source this: a story, a script that runs as a service under the real systemd, which
# is booted in namespaces of its own. Needs root and the right to make namespaces; without them the
# test says SKIP and ends.
#
#   systemd_begin                 makes $tmp, which the inner world sees as /mnt, with the programs
#                                 of this build
#   systemd_unit FILE             installs a unit of systemd/, with the paths of the inner world
#   systemd_gpu FOLDER            gives the keeper's unit in this folder the stand-in driver, which
#                                 tests/gpu/keeper_actor finds in a story by the same environment
#   systemd_run <<'EOF' ...       boots systemd with the story of the standard input, prints its
#                                 log, and ends the test
#
# The inner world has a /run, a /tmp, a /var/tmp, a /proc and an /etc of its own, the latter a copy,
# no journal and no udev.
build=$(realpath "${BUILD:-build}")
namespaces=(--pid --fork --mount --uts --ipc --cgroup --net --kill-child --propagation private)

skip() {
    echo "SKIP: $1"
    exit 0
}

systemd_begin() {
    [ -z "${SAN:-}" ] || skip "systemd restarts the daemon of a plain build"
    [ -x /lib/systemd/systemd ] || skip "systemd is not installed"
    [ "$(id -u)" = 0 ] || skip "only root may boot systemd in namespaces"
    unshare "${namespaces[@]}" mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null ||
        skip "no namespaces, or no cgroup2, here"
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    chmod 755 "$tmp" # other users run its programs
    mkdir "$tmp/units"
    cp "$build/dlpackd" "$build/dlpackd-keeper" "$build/dlxctl" "$build/tests/keeper_actor" "$tmp/"
    cp -L "$build"/libdlx.so* "$tmp/"
    cat >"$tmp/units/story.target" <<'END'
[Unit]
DefaultDependencies=no
Wants=story.service
END
    cat >"$tmp/units/story.service" <<'END'
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
Environment=HOME=/tmp
ExecStart=/mnt/story
END
}

# The rest of the system is not there: no unit needs it. What the daemon and the keeper say is in
# daemon.log.
systemd_unit() {
    local name=${1##*/}
    sed -e 's|@bindir@|/mnt|g' -e 's|@sysconfdir@|/etc|g' "$1" >"$tmp/units/$name"
    mkdir -p "$tmp/units/$name.d"
    printf '[Unit]\nDefaultDependencies=no\n' >"$tmp/units/$name.d/test.conf"
    case $name in *.service)
        printf '[Service]\nStandardError=append:/mnt/daemon.log\n' >>"$tmp/units/$name.d/test.conf"
        ;;
    esac
}

# A machine of one GPU, which the processes of all users share.
systemd_gpu() {
    [ -e "$build/tests/standin/libcuda.so.1" ] || {
        echo "SKIP: stories of the GPU keeper: no cuda.h, so no stand-in for NVIDIA's driver"
        return
    }
    mkdir -p "$tmp/gpu" "$1/dlpackd-keeper.service.d"
    cp "$build/tests/standin/libcuda.so.1" "$tmp/gpu/"
    touch "$tmp/gpu/machine"
    chmod 666 "$tmp/gpu/machine"
    cat >"$1/dlpackd-keeper.service.d/gpu.conf" <<'END'
[Service]
Environment=LD_LIBRARY_PATH=/mnt/gpu STANDIN_MACHINE=/mnt/gpu/machine
ReadWritePaths=/mnt/gpu/machine
END
}

systemd_run() {
    cat >"$tmp/boot" <<'END'
#!/bin/bash
set -e
mount --bind "$1" /mnt
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /var/tmp
mount -t proc proc /proc
mount -t cgroup2 none /sys/fs/cgroup
cp -a /etc /run/etc
mount --bind /run/etc /etc
mkdir -p /run/systemd/system
cp -r /mnt/units/* /run/systemd/system/
exec env -i PATH="$PATH" container=test /lib/systemd/systemd --unit=story.target --log-target=null
END
    cat >"$tmp/story" <<'END'
#!/bin/bash
set -eE
exec >>/mnt/story.log 2>&1
finish() {
    if [ "$1" = 0 ]; then echo "done" >/mnt/result; fi
    systemctl --force --force poweroff # of these namespaces
}
trap 'finish $?' EXIT
trap 'echo "story, line $LINENO: $BASH_COMMAND: status $?" >>/mnt/story.log' ERR
ctl=/mnt/dlxctl
fail() {
    echo "$1"
    exit 1
}
show() { systemctl show -P "$1" "${2:-dlpackd}"; } # show <property> [<unit>]
main_pid() { show MainPID "$@"; }
await_other() { # await_other <pid>: until another process serves
    # In this order: before systemd has heard of its death the one that was killed is active.
    until [ "$(main_pid)" != "$1" ] && [ "$(show ActiveState)" = active ]; do :; done
}
kill_daemon() {
    local before
    before=$(main_pid)
    kill -KILL "$before"
    await_other "$before"
}
check() { # check <topic> <file>
    $ctl get "$1" /tmp/got.npy >/dev/null
    cmp /tmp/got.npy "$2"
}
has_gpu() { [ -e /mnt/gpu ]; }
gpu=(env LD_LIBRARY_PATH=/mnt/gpu STANDIN_MACHINE=/mnt/gpu/machine /mnt/keeper_actor)
lacks() { # lacks <topic>; `!` would not end this script
    if $ctl get "$1" /tmp/got.npy 2>/dev/null; then fail "$1 is still there"; fi
}
END
    cat >>"$tmp/story"
    chmod +x "$tmp/boot" "$tmp/story"
    timeout --signal=KILL 60 unshare "${namespaces[@]}" "$tmp/boot" "$tmp" || true
    if [ -s "$tmp/story.log" ]; then
        cat "$tmp/story.log"
    else
        echo "systemd did not get as far as the story"
    fi
    if [ "$(cat "$tmp/result" 2>/dev/null)" != "done" ]; then
        tail -n 20 "$tmp/daemon.log" 2>/dev/null || true
        exit 1
    fi
}
