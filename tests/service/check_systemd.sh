#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What is retained outlives the daemon under the real service manager: systemd, booted in namespaces
# of its own, runs the units for users of systemd/ with this build; the daemon is killed, restarted
# and stopped, and started by its socket unit. The GPU keeper has units of its own, and outlives all
# that.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/service/harness_systemd.sh
rounds=${ROUNDS:-20}

systemd_begin
for unit in systemd/user/*; do systemd_unit "$unit"; done
systemd_gpu "$tmp/units"
echo "rounds=$rounds" >"$tmp/rounds"
systemd_run <<'EOF'
. /mnt/rounds
# %t of the system's manager is /run.
export DLX_SOCKET=/run/dlpackd.sock
n_kept() { show NFileDescriptorStore; }
systemctl start dlpackd
[ "$(show ActiveState dlpackd-keeper)" = inactive ]
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
# The keeper is started by its socket when the daemon first connects: for a publisher, or to claim
# what it may have of publishers that a former daemon knew. It has a group of its own, so that its
# memory outlives the daemon, as it does its publishers.
gpu_story() {
    keeper_pid() { main_pid dlpackd-keeper; }
    holds() { [ "$("${gpu[@]}" get "$1")" = "$2 $2" ]; } # holds <topic> <word>
    local keeper
    "${gpu[@]}" put gpu/a 41
    "${gpu[@]}" put gpu/b 42
    keeper=$(keeper_pid)
    [ "$keeper" != 0 ]
    holds gpu/a 41
    kill_daemon
    holds gpu/a 41
    holds gpu/b 42
    systemctl restart dlpackd
    holds gpu/a 41
    holds gpu/b 42
    [ "$(keeper_pid)" = "$keeper" ]
    # One that is killed has lost what it had, which readers are told, and the next one is started
    # by the socket.
    kill -KILL "$keeper"
    until [ "$(keeper_pid)" != "$keeper" ]; do :; done
    if "${gpu[@]}" get gpu/a; then fail "what a keeper had outlived it"; fi
    "${gpu[@]}" put gpu/c 43
    holds gpu/c 43
    for topic in gpu/a gpu/b gpu/c; do $ctl rm $topic; done
    echo "the GPU keeper outlived the daemon, and was started again"
}
if has_gpu; then gpu_story; fi
# A unit that is stopped keeps nothing: so says systemd.service(5).
systemctl stop dlpackd
systemctl start dlpackd
lacks weights/2
# Whoever connects starts the daemon, which listens on systemd's socket and leaves it there.
systemctl stop dlpackd
n_starts() { show NRestarts; }
[ "$(show ActiveState)" = inactive ]
$ctl pub --dtype uint8 --shape $((rounds * 1000)) --retain 1 by/socket /tmp/raw >/dev/null
$ctl get by/socket /tmp/socket.npy >/dev/null
[ "$(n_starts)" = 0 ]
kill_daemon
check by/socket /tmp/socket.npy
[ "$(n_starts)" = 1 ]
[ ! -e $DLX_SOCKET.lock ]
systemctl stop dlpackd
[ -S $DLX_SOCKET ]
lacks by/socket
[ "$(show ActiveState)" = active ]
[ "$(n_starts)" = 0 ]
echo "started by its socket, killed and stopped"
# A new program in the place of the daemon's, and SIGHUP: the same process runs it, with all that is
# retained, also by a publisher that sleeps, and the store is as it was.
upgrade_story() {
    local daemon kept starts publisher
    $ctl pub --dtype uint8 --shape $((rounds * 1000)) --retain 1 up/left /tmp/raw >/dev/null
    $ctl pub --dtype uint8 --shape $((rounds * 1000)) --retain 1 --hold up/live /tmp/raw \
        >/dev/null &
    publisher=$!
    until $ctl get up/live /tmp/live.npy >/dev/null 2>&1; do :; done
    $ctl get up/left /tmp/left.npy >/dev/null
    kill -STOP $publisher
    # The ledger, and of each a control block and an arena; and a pidfd.
    until [ "$(n_kept)" = 6 ]; do :; done
    daemon=$(main_pid) kept=$(n_kept) starts=$(n_starts)
    for _ in 1 2 3; do
        cp /mnt/dlpackd /mnt/dlpackd.new
        mv /mnt/dlpackd.new /mnt/dlpackd
        [ "$(readlink "/proc/$daemon/exe")" != /mnt/dlpackd ]
        systemctl kill --kill-who=main --signal=HUP dlpackd
        until [ "$(readlink "/proc/$daemon/exe")" = /mnt/dlpackd ]; do :; done
        check up/left /tmp/left.npy
        check up/live /tmp/live.npy
    done
    [ "$(main_pid)" = "$daemon" ]
    [ "$(n_kept)" = "$kept" ]
    [ "$(n_starts)" = "$starts" ]
    kill_daemon
    check up/left /tmp/left.npy
    check up/live /tmp/live.npy
    kill -KILL $publisher
    echo "upgraded 3 times in one process: $kept descriptors are kept"
}
upgrade_story
EOF
