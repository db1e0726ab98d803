#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What is retained outlives the daemon under the real service manager: systemd, booted in namespaces of its own, runs the unit of
# systemd/ with this build; the daemon is killed, restarted and stopped, and started by a socket unit. The GPU keeper has units of its
# own, and outlives all that. Needs root and the right to make namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "${BUILD:-build}")
rounds=${ROUNDS:-20}

skip() {
    echo "skipped: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
[ -z "${SAN:-}" ] || skip "systemd restarts the daemon of a plain build"
[ -x /lib/systemd/systemd ] || skip "systemd is not installed"
[ "$(id -u)" = 0 ] || skip "only root may boot systemd in namespaces"
namespaces=(--pid --fork --mount --uts --ipc --cgroup --net --kill-child --propagation private)
unshare "${namespaces[@]}" mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null || skip "no namespaces, or no cgroup2, here"

# Everything that the inner world needs of the outer one: it has a /tmp and a /run of its own.
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cp "$build/dlpackd" "$build/dlpackd-keeper" "$build/dlxctl" "$build/tests/keeper_actor" "$tmp/"
cp -L "$build"/libdlx.so* "$tmp/"

cat >"$tmp/boot" <<'EOF'
#!/bin/bash
set -e
mount --bind "$1" /mnt
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /var/tmp
mount -t proc proc /proc
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /run/systemd/system
cp /mnt/*.service /mnt/*.socket /mnt/story.target /run/systemd/system/
exec env -i PATH="$PATH" container=test /lib/systemd/systemd --unit=story.target --log-target=null
EOF
cat >"$tmp/story.target" <<'EOF'
[Unit]
DefaultDependencies=no
Wants=story.service
EOF
cat >"$tmp/story.service" <<'EOF'
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
Environment=LD_LIBRARY_PATH=/mnt HOME=/tmp
ExecStart=/mnt/story
EOF
sed -e 's|@bindir@|/mnt|g' -e '/^\[Unit\]/a DefaultDependencies=no' \
    -e '/^\[Service\]/a Environment=DLX_SOCKET=/run/s LD_LIBRARY_PATH=/mnt\nStandardError=append:/mnt/daemon.log' \
    systemd/dlpackd.service >"$tmp/dlpackd.service"
sed -e 's|@bindir@|/mnt|g' -e '/^\[Unit\]/a DefaultDependencies=no' \
    -e '/^\[Service\]/a StandardError=append:/mnt/daemon.log' \
    systemd/dlpackd-keeper.service >"$tmp/dlpackd-keeper.service"
sed -e 's|%t/dlpackd.sock|/run/s|' -e '/^\[Unit\]/a DefaultDependencies=no' \
    systemd/dlpackd-keeper.socket >"$tmp/dlpackd-keeper.socket"
cat >"$tmp/dlpackd.socket" <<'EOF'
[Unit]
DefaultDependencies=no
[Socket]
ListenSequentialPacket=/run/s
EOF
cat >"$tmp/story" <<EOF
#!/bin/bash
rounds=$rounds
EOF
cat >>"$tmp/story" <<'EOF'
set -e
exec >/mnt/story.log 2>&1
finish() {
    if [ "$1" = 0 ]; then echo "done" >/mnt/result; fi
    systemctl --force --force poweroff # of these namespaces
}
trap 'finish $?' EXIT
export DLX_SOCKET=/run/s
ctl=/mnt/dlxctl
n_kept() { systemctl show -P NFileDescriptorStore dlpackd; }
main_pid() { systemctl show -P MainPID dlpackd; }
kill_daemon() {
    local before
    before=$(main_pid)
    kill -KILL "$before"
    # In this order: before systemd has heard of its death the one that was killed is active.
    until [ "$(main_pid)" != "$before" ] && [ "$(systemctl show -P ActiveState dlpackd)" = active ]; do :; done
}
check() { # check <topic> <file>
    $ctl get "$1" /tmp/got.npy >/dev/null
    cmp /tmp/got.npy "$2"
}
lacks() { # lacks <topic>; `!` would not end this script
    if $ctl get "$1" /tmp/got.npy 2>/dev/null; then
        echo "$1 is still there"
        exit 1
    fi
}
systemctl start dlpackd
[ "$(systemctl show -P ActiveState dlpackd-keeper)" = inactive ]
for i in $(seq "$rounds"); do
    head -c $((i * 1000)) /dev/urandom >/tmp/raw
    $ctl pub --dtype uint8 --shape $((i * 1000)) --retain 1 weights/$i /tmp/raw >/dev/null
    kill_daemon # at once: what was answered is safe
    $ctl get weights/$i /tmp/$i.npy >/dev/null
    tail -c $((i * 1000)) /tmp/$i.npy | cmp - /tmp/raw
done
for i in $(seq "$rounds"); do check weights/$i /tmp/$i.npy; done
[ "$(n_kept)" = $((rounds * 2 + 1)) ]
echo "killed $rounds times: $(n_kept) descriptors are kept"
systemctl restart dlpackd
check weights/1 /tmp/1.npy
$ctl rm weights/1
systemctl restart dlpackd
lacks weights/1
check weights/2 /tmp/2.npy
# A publisher that sleeps while its daemon is killed, and dies later.
$ctl pub --dtype uint8 --shape $((rounds * 1000)) --retain 1 --hold live /tmp/raw >/dev/null &
publisher=$!
until $ctl get live /tmp/live.npy >/dev/null 2>&1; do :; done
kill -STOP $publisher
kill_daemon
kill -KILL $publisher
until $ctl get live /tmp/got.npy >/dev/null 2>&1; do :; done
cmp /tmp/got.npy /tmp/live.npy
# The keeper is started by its socket when the daemon first connects: for a publisher, or to claim what it may hold of publishers
# that a former daemon knew. It has a group of its own, so that what it holds outlives the daemon.
keeper_pid() { systemctl show -P MainPID dlpackd-keeper; }
holds() { [ "$(/mnt/keeper_actor get "$1")" = "$2" ]; } # holds <topic> <allocation>
a=$(/mnt/keeper_actor put gpu/a 300)
b=$(/mnt/keeper_actor put gpu/b 2)
keeper=$(keeper_pid)
[ "$keeper" != 0 ]
holds gpu/a "$a"
kill_daemon
holds gpu/a "$a"
holds gpu/b "$b"
systemctl restart dlpackd
holds gpu/a "$a"
holds gpu/b "$b"
[ "$(keeper_pid)" = "$keeper" ]
# One that is killed has lost what it held, which readers are told, and the next one is started by the socket.
kill -KILL "$keeper"
until [ "$(keeper_pid)" != "$keeper" ]; do :; done
if /mnt/keeper_actor get gpu/a; then
    echo "what a keeper held outlived it"
    exit 1
fi
c=$(/mnt/keeper_actor put gpu/c 2)
holds gpu/c "$c"
for topic in gpu/a gpu/b gpu/c; do $ctl rm $topic; done
echo "the GPU keeper outlived the daemon, and was started again"
# A unit that is stopped keeps nothing: so says systemd.service(5).
systemctl stop dlpackd
systemctl start dlpackd
lacks weights/2
# A socket unit in front of it: whoever connects starts the daemon, which listens on systemd's socket and leaves it there.
systemctl stop dlpackd
systemctl start dlpackd.socket
n_starts() { systemctl show -P NRestarts dlpackd; }
[ "$(systemctl show -P ActiveState dlpackd)" = inactive ]
$ctl pub --dtype uint8 --shape $((rounds * 1000)) --retain 1 by/socket /tmp/raw >/dev/null
$ctl get by/socket /tmp/socket.npy >/dev/null
[ "$(n_starts)" = 0 ]
kill_daemon
check by/socket /tmp/socket.npy
[ "$(n_starts)" = 1 ]
[ ! -e /run/s.lock ]
systemctl stop dlpackd
[ -S /run/s ]
lacks by/socket
[ "$(systemctl show -P ActiveState dlpackd)" = active ]
[ "$(n_starts)" = 0 ]
echo "started by its socket, killed and stopped"
EOF
chmod +x "$tmp/boot" "$tmp/story"

timeout --signal=KILL 60 unshare "${namespaces[@]}" "$tmp/boot" "$tmp" || true
if [ -s "$tmp/story.log" ]; then cat "$tmp/story.log"; else echo "systemd did not get as far as the story"; fi
if [ "$(cat "$tmp/result" 2>/dev/null)" != "done" ]; then
    tail -n 20 "$tmp/daemon.log" 2>/dev/null || true
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
echo "1 passed, 0 failed, 0 skipped"
