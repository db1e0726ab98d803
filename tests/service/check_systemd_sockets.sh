#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Further sockets of the system's service, instances of dlpackd@.socket, under the real service
# manager: systemd, booted in namespaces of its own. Who came in by one has its rules and its
# quotas, and a container that mounted its file goes on with the next daemon, whether the one that
# was there is upgraded, killed, or restarted.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/service/harness_systemd.sh

systemd_begin
for unit in systemd/system/*; do systemd_unit "$unit"; done
cp systemd/sysusers.d/dlpackd.conf "$tmp/sysusers.conf"
cp systemd/tmpfiles.d/dlpackd.conf "$tmp/tmpfiles.conf"
systemd_run <<'EOF'
export DLX_AUTOSPAWN=no # the system's daemon, or none
pods=/run/dlpackd/pods/dlpackd.sock
by() { DLX_SOCKET=$1 "${@:2}"; } # by <socket> <command...>
says() { # says <words> <command...>: it fails, with these words
    local words=$1
    shift
    if "$@" >/tmp/said 2>&1; then fail "$* should have failed"; fi
    grep -qF -- "$words" /tmp/said || fail "$*: '$(cat /tmp/said)' lacks '$words'"
}
systemd-sysusers /mnt/sysusers.conf
systemd-tmpfiles --create /mnt/tmpfiles.conf
mkdir -p /etc/dlpackd/conf.d
touch /etc/dlpackd/dlpackd.conf
head -c 1000 /dev/urandom >/tmp/raw
pub=("$ctl" pub --dtype uint8 --shape 1000)
systemctl start dlpackd.socket dlpackd-keeper.socket
"${pub[@]}" --retain 1 cam/front /tmp/raw >/dev/null
"${pub[@]}" --retain 1 secret /tmp/raw >/dev/null

# A socket that is enabled while the daemon runs: systemd makes it when the daemon is restarted,
# which loses nothing.
cat >/etc/dlpackd/conf.d/pods.conf <<END
[socket pods]
quota = small
[quota small]
patterns = 0
[rule pods]
users = *
sockets = pods
topics = cam/**
allow = subscribe
END
systemctl -q enable dlpackd@pods.socket
systemctl reload dlpackd
if systemctl start dlpackd@pods.socket 2>/tmp/said; then
    fail "systemd made a socket of a service that runs"
fi
systemctl restart dlpackd
[ "$(show ActiveState dlpackd@pods.socket) $(stat -c '%U %a' $pods)" = "active root 666" ]
by $pods $ctl get cam/front - | tail -c 1000 | cmp - /tmp/raw

# Its rules hold, for root as well, and its quotas; by the main socket root may do everything.
says "by socket pods may not subscribe to secret" by $pods $ctl get secret -
says "by socket pods may not publish on cam/rear" by $pods "${pub[@]}" cam/rear /tmp/raw
$ctl get secret - | tail -c 1000 | cmp - /tmp/raw
[ "$(by $pods $ctl --json info | sed -nE 's/^ *"socket": "(.*)",?$/\1/p')" = $pods ]
says "(quota patterns of class small)" by $pods $ctl hz 'cam/**'
echo "by socket pods: $(cat /tmp/said)"

# A container that mounted the file of the socket.
touch /tmp/mounted
cat >/tmp/container <<'END'
#!/bin/bash
mount --bind /run/dlpackd/pods/dlpackd.sock /tmp/mounted
mount -t tmpfs tmpfs /run
export DLX_SOCKET=/tmp/mounted DLX_AUTOSPAWN=no
while read -r line <&3 && [ "$line" = look ]; do
    until /mnt/dlxctl get cam/front - 2>/tmp/container-said | tail -c 1000 |
        cmp -s - /tmp/raw; do :; done
    echo "seen" >&4
done
END
mkfifo /tmp/to /tmp/from
unshare --mount --propagation private bash /tmp/container 3</tmp/to 4>/tmp/from &
container=$!
exec 3>/tmp/to 4</tmp/from
sees() { # the container goes on with the daemon that is there now
    local seen
    echo look >&3
    read -r seen <&4
    [ "$seen" = "seen" ]
}
sees
before=$(main_pid)
cp /mnt/dlpackd /mnt/dlpackd.new
mv /mnt/dlpackd.new /mnt/dlpackd
systemctl reload dlpackd
until [ "/proc/$before/exe" -ef /mnt/dlpackd ]; do :; done
sees
[ "$(main_pid)" = "$before" ]
kill_daemon
sees
systemctl restart dlpackd
sees
exec 3>&-
wait $container
says "by socket pods may not publish on cam/rear" by $pods "${pub[@]}" cam/rear /tmp/raw
echo "a container that mounted the file of socket pods went on after an upgrade," \
    "a kill and a restart"

# A socket without a section keeps the daemon from starting, and the log says which one.
systemctl -q enable dlpackd@podz.socket
systemctl restart dlpackd &
restart=$!
until grep -q "(podz) is a socket that the configuration does not describe" \
    /mnt/daemon.log; do :; done
printf '[socket podz]\n' >/etc/dlpackd/conf.d/podz.conf
wait $restart || true
until by /run/dlpackd/podz/dlpackd.sock $ctl ls >/dev/null 2>/tmp/said; [ -s /tmp/said ]; do :; done
grep -qF "may not use this daemon by its socket podz" /tmp/said || fail "podz: $(cat /tmp/said)"
systemctl stop 'dlpackd@*.socket'
[ ! -e $pods ]
EOF
