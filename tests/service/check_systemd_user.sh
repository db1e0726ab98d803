#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The units for users under a real manager of a user, `systemd --user`, which a systemd that was
# booted in namespaces runs: start by the first connection, a kill, an upgrade by reload, and a
# further socket by the template, with a configuration of the user's.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/service/harness_systemd.sh

systemd_begin
mkdir "$tmp/user-units"
for unit in systemd/user/*; do sed 's|@bindir@|/mnt|g' "$unit" >"$tmp/user-units/${unit##*/}"; done
systemd_gpu "$tmp/user-units"
systemd_run <<'EOF'
export DLX_AUTOSPAWN=no # the user's daemon, or none
systemd-sysusers - <<END
u dlx-alice - "Alice" /tmp/alice /bin/bash
u dlx-bob - "Bob" /tmp/bob /bin/bash
END
uid=$(id -u dlx-alice) runtime=/run/user-of-alice
install -d -o dlx-alice -m 700 /tmp/alice $runtime
install -d -o dlx-alice /tmp/alice/.config /tmp/alice/.config/systemd /tmp/alice/.config/dlpackd
cp -r /mnt/user-units /tmp/alice/.config/systemd/user
chown -R dlx-alice /tmp/alice/.config
head -c 1000 /dev/urandom >/tmp/raw

# As user@UID.service of systemd has it, without a login.
cat >/run/systemd/system/manager.service <<END
[Unit]
DefaultDependencies=no
[Service]
Type=notify
User=dlx-alice
Environment=HOME=/tmp/alice XDG_RUNTIME_DIR=$runtime
ExecStart=/lib/systemd/systemd --user --log-target=null
KillMode=mixed
Delegate=yes
END
systemctl daemon-reload
systemctl start manager

as() { # as <user> <command...>
    setpriv --reuid="$1" --regid="$1" --init-groups -- env HOME="/tmp/${1#dlx-}" "${@:2}"
}
alice() { as dlx-alice env XDG_RUNTIME_DIR=$runtime "$@"; }
manager() { alice systemctl --user "$@"; }
user_show() { manager show -P "$1" "${2:-dlpackd}"; }
says() { # says <words> <command...>: it fails, with these words
    local words=$1
    shift
    if "$@" >/tmp/said 2>&1; then fail "$* should have failed"; fi
    grep -qF -- "$words" /tmp/said || fail "$*: '$(cat /tmp/said)' lacks '$words'"
}
gets() { alice $ctl get "$1" - | tail -c 1000 | cmp - /tmp/raw; } # gets <topic>
pub=("$ctl" pub --dtype uint8 --shape 1000)

# The first connection starts it, where clients of that user look.
manager -q enable --now dlpackd.socket dlpackd-keeper.socket
[ "$(user_show ActiveState)" = inactive ]
alice "${pub[@]}" --retain 1 by/alice /tmp/raw >/dev/null
before=$(user_show MainPID)
[ "$(user_show ActiveState) $(stat -c %u "/proc/$before")" = "active $uid" ]
[ "$(alice $ctl --json info | sed -nE 's/^ *"socket": "(.*)",?$/\1/p')" = $runtime/dlpackd.sock ]
chmod 711 $runtime
says "may not use this daemon" as dlx-bob env DLX_SOCKET=$runtime/dlpackd.sock $ctl ls
echo "another user is refused: $(cat /tmp/said)"

# The keeper, whose memory outlives its publisher and the daemon.
if has_gpu; then alice "${gpu[@]}" put gpu/a 41; fi

# Killed: another one has what was retained.
kill -KILL "$before"
until [ "$(user_show MainPID)" != "$before" ] && [ "$(user_show ActiveState)" = active ]; do :; done
gets by/alice
if has_gpu; then [ "$(alice "${gpu[@]}" get gpu/a)" = "41 41" ]; fi

# Another program at its path: a reload has it take the place of the one that runs.
before=$(user_show MainPID)
cp /mnt/dlpackd /mnt/dlpackd.new
mv /mnt/dlpackd.new /mnt/dlpackd
manager reload dlpackd
until [ "/proc/$before/exe" -ef /mnt/dlpackd ]; do :; done
gets by/alice
[ "$(user_show MainPID) $(user_show ActiveState)" = "$before active" ]
echo "killed, and upgraded by a reload: what was retained is there"

# A further socket, as dlpackd(8) says.
cat >/tmp/alice/.config/dlpackd/dlpackd.conf <<END
[socket pods]
[rule pods]
users = *
sockets = pods
topics = by/**
allow = subscribe
END
mkdir /tmp/alice/.config/systemd/user/dlpackd.service.d
cat >/tmp/alice/.config/systemd/user/dlpackd.service.d/override.conf <<END
[Service]
ExecStart=
ExecStart=/mnt/dlpackd --fd-store=1000 --config=%E/dlpackd/dlpackd.conf
END
manager -q enable dlpackd@pods.socket
manager daemon-reload
manager restart dlpackd
gets by/alice
pods=$runtime/dlpackd/pods/dlpackd.sock
as dlx-bob env DLX_SOCKET=$pods $ctl get by/alice - | tail -c 1000 | cmp - /tmp/raw
says "by socket pods may not publish on by/bob" \
    as dlx-bob env DLX_SOCKET=$pods "${pub[@]}" by/bob /tmp/raw
says "by socket pods may not publish on by/alice" \
    alice env DLX_SOCKET=$pods "${pub[@]}" by/alice /tmp/raw
alice "${pub[@]}" --retain 1 other /tmp/raw >/dev/null
echo "by socket pods: $(cat /tmp/said)"

manager stop dlpackd.socket dlpackd@pods.socket
[ "$(user_show ActiveState)" = inactive ]
[ ! -e $runtime/dlpackd.sock ] && [ ! -e $pods ]
systemctl stop manager
EOF
