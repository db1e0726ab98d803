#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The service of the system as it is installed, with its sandbox and its default configuration,
# under the real service manager: systemd, booted in namespaces of its own. Who may use it and who
# may not; a stream while the daemon is killed, gets stuck, and is given good and bad
# configurations; a full descriptor store; few descriptors.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/service/harness_systemd.sh

systemd_begin
for unit in systemd/system/*; do systemd_unit "$unit"; done
systemd_gpu "$tmp/units"
cp systemd/sysusers.d/dlpackd.conf "$tmp/sysusers.conf"
cp systemd/tmpfiles.d/dlpackd.conf "$tmp/tmpfiles.conf"
sed 's|@sysconfdir@|/etc|g' systemd/dlpackd.conf >"$tmp/dlpackd.conf"
# Stuck for 3 s instead of 10 s, and no core dump of it.
cat >"$tmp/units/dlpackd.service.d/watchdog.conf" <<'EOF'
[Service]
WatchdogSec=3s
TimeoutAbortSec=1s
LimitCORE=0
EOF
systemd_run <<'EOF'
export DLX_AUTOSPAWN=no # the system's daemon, or none
become() { # become <user> <command...>: instead of this shell
    local user=$1
    shift
    exec setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"
}
as() { (become "$@"); } # as <user> <command...>
set_up() { # set_up <name> <<<lines: of the service, until set_back
    { echo "[Service]" && cat; } >"/run/systemd/system/dlpackd.service.d/$1.conf"
    systemctl daemon-reload
    systemctl -q stop dlpackd 2>/dev/null
    : >/mnt/daemon.log
    systemctl start dlpackd
}
set_back() { # set_back <name>
    rm "/run/systemd/system/dlpackd.service.d/$1.conf"
    systemctl daemon-reload
    systemctl -q stop dlpackd 2>/dev/null
}
says() { # says <words> <command...>: it fails, with these words
    local words=$1
    shift
    if "$@" >/tmp/said 2>&1; then fail "$* should have failed"; fi
    grep -qF -- "$words" /tmp/said || fail "$*: '$(cat /tmp/said)' lacks '$words'"
}
status_lacks() { [[ "$(show StatusText)" != *"$1"* ]]; } # status_lacks <words>
ms() { echo $((${EPOCHREALTIME/./} / 1000)); }

# What a package does.
systemd-sysusers /mnt/sysusers.conf
systemd-tmpfiles --create /mnt/tmpfiles.conf
mkdir -p /etc/dlpackd/conf.d
cp /mnt/dlpackd.conf /etc/dlpackd/
[ "$(/mnt/dlpackd --check-config=/etc/dlpackd/dlpackd.conf)" = \
    "/etc/dlpackd/dlpackd.conf: 1 rules" ]
# Two members of the group, and one who is not.
systemd-sysusers - <<END
u dlx-alice -
u dlx-bob -
u dlx-carol -
m dlx-alice dlpack
m dlx-carol dlpack
END
head -c 1000 /dev/urandom >/tmp/raw
pub=("$ctl" pub --dtype uint8 --shape 1000)

# The first connection starts it.
systemctl start dlpackd.socket dlpackd-keeper.socket
socket=/run/dlpackd/dlpackd.sock
[ "$(stat -c '%U %a' ${socket%/*} $socket $socket.keeper | tr '\n' ' ')" = \
    "root 755 root 666 dlpackd 600 " ]
[ "$(show ActiveState)" = inactive ]
as dlx-alice "${pub[@]}" --retain 1 by/alice /tmp/raw >/dev/null
[ "$(show ActiveState)" = active ]
as dlx-carol $ctl get by/alice - | tail -c 1000 | cmp - /tmp/raw
says "uid $(id -u dlx-bob) may not use this daemon" as dlx-bob $ctl ls
says "uid $(id -u dlx-bob) may not use this daemon" as dlx-bob "${pub[@]}" by/bob /tmp/raw
# It is what the unit says.
status=/proc/$(main_pid)/status
fields='Uid|CapBnd|CapPrm|NoNewPrivs|Seccomp'
[ "$(sed -nE "s/^($fields):\s+(\S+).*/\2/p" "$status" | tr '\n' ' ')" = \
    "$(id -u dlpackd) 0000000000000000 0000000000000000 1 2 " ]
grep -q '^Max file size *unlimited' "/proc/$(main_pid)/limits"
echo "members of the group are served, others refused: $(cat /tmp/said)"
# The keeper, in a sandbox of its own, in which drivers find the devices of the system and their
# groups, and what of /proc is not about processes. That they may open NVIDIA's and AMD's is what
# the unit says, and not seen here.
gpu_story() {
    local keeper
    as dlx-alice "${gpu[@]}" put gpu/a 41
    kill_daemon
    [ "$(as dlx-alice "${gpu[@]}" get gpu/a)" = "41 41" ]
    keeper=$(main_pid dlpackd-keeper)
    [ "$(stat -c %U "/proc/$keeper")" = dlpackd ]
    [ "$(show DevicePolicy dlpackd-keeper)" = closed ]
    [ "$(nsenter -t "$keeper" -m stat -fc %i /dev)" = "$(stat -fc %i /dev)" ]
    [ "$(nsenter -t "$(main_pid)" -m stat -fc %i /dev)" != "$(stat -fc %i /dev)" ] # the daemon's
    nsenter -t "$keeper" -m test -r /proc/devices
    for group in video render; do
        grep -qE "^Groups:.*\b$(getent group $group | cut -d: -f3)\b" "/proc/$keeper/status"
    done
    echo "the GPU keeper makes memory in its sandbox, as $(show SupplementaryGroups dlpackd-keeper)"
}
if has_gpu; then gpu_story; fi

# A stream, for all that follows.
become dlx-carol $ctl --json hz stream --reliable --until-gone >/tmp/taken &
subscriber=$!
become dlx-alice "${pub[@]}" --json --block --wait 1 --rate 2000 --loop 0 stream /tmp/raw \
    >/tmp/sent &
publisher=$!
number() { sed -nE "s/^ *\"$1\": ([0-9]+),?$/\1/p" "$2"; } # number <name> <file>
published() {
    as dlx-alice $ctl ls stream --json >/tmp/stream 2>/dev/null || true
    number published /tmp/stream
}
stream_goes_on() { # by a hundred messages
    local n begin
    until n=$(published) && [ -n "$n" ]; do :; done
    begin=$(ms)
    until [ "$(published)" -ge $((n + 100)) ] 2>/dev/null; do
        [ $(($(ms) - begin)) -lt 20000 ] || fail "the stream stands still: $(cat /tmp/stream)"
    done
}
stream_goes_on
longest=0
for _ in 1 2 3 4 5; do
    before=$(main_pid)
    begin=$(ms)
    kill -KILL "$before"
    until [ "$(main_pid)" != "$before" ] &&
        as dlx-carol $ctl get by/alice - 2>/dev/null >/tmp/got; do :; done
    took=$(($(ms) - begin))
    if [ $took -gt $longest ]; then longest=$took; fi
    tail -c 1000 /tmp/got | cmp - /tmp/raw
done
echo "killed 5 times: at most $longest ms until a new client had what is retained"
stream_goes_on

# Good and bad configurations.
before=$(main_pid)
cat >/etc/dlpackd/conf.d/bob.conf <<END
[rule bob]
users = dlx-bob
topics = by/bob
allow = publish
END
systemctl reload dlpackd
until as dlx-bob "${pub[@]}" by/bob /tmp/raw >/tmp/said 2>&1; do :; done
says "may not publish on by/alice" as dlx-bob "${pub[@]}" by/alice /tmp/raw
cat >/etc/dlpackd/conf.d/bob.conf <<END
[rule bob]
users = dlx-nobody-of-that-name
END
says "dlpackd.service failed" systemctl reload dlpackd
grep -q "conf.d/bob.conf:2: there is no user 'dlx-nobody-of-that-name'" /mnt/daemon.log
status_lacks "the new configuration is wrong" # the daemon was not asked
kill -HUP "$before"
wrong="the new configuration is wrong"
while status_lacks "; $wrong: /etc/dlpackd/conf.d/bob.conf:2: there is no user"; do :; done
as dlx-bob "${pub[@]}" by/bob /tmp/raw >/dev/null
rm /etc/dlpackd/conf.d/bob.conf
systemctl reload dlpackd
until status_lacks "wrong"; do :; done
says "uid $(id -u dlx-bob) may not use this daemon" as dlx-bob "${pub[@]}" by/bob /tmp/raw
[ "$(main_pid)" = "$before" ]
[ "$(show ActiveState)" = active ]
echo "reloaded, and refused a wrong configuration"

# Another program at the daemon's path: it takes the place of the one that runs, in the same
# process.
for _ in 1 2 3; do
    cp /mnt/dlpackd /mnt/dlpackd.new
    mv /mnt/dlpackd.new /mnt/dlpackd
    begin=$(ms)
    systemctl reload dlpackd
    until [ "/proc/$before/exe" -ef /mnt/dlpackd ]; do
        [ $(($(ms) - begin)) -lt 20000 ] || fail "the daemon is the old program: $(show StatusText)"
    done
    as dlx-carol $ctl get by/alice - | tail -c 1000 | cmp - /tmp/raw
done
[ "$(main_pid)" = "$before" ]
echo "upgraded 3 times in one process, the last time within $(($(ms) - begin)) ms"
stream_goes_on

# A loop that is stuck.
begin=$(ms)
kill -STOP "$before"
await_other "$before"
took=$(($(ms) - begin))
as dlx-carol $ctl get by/alice - | tail -c 1000 | cmp - /tmp/raw
echo "stuck: another one after $took ms"
stream_goes_on

kill -TERM $publisher
wait $publisher || true
wait $subscriber
[ "$(number lost /tmp/taken) $(number skipped /tmp/taken)" = "0 0" ]
[ "$(number published /tmp/sent)" = "$(number messages /tmp/taken)" ]
n_taken=$(number messages /tmp/taken) oldest=$(($(number max_ns /tmp/taken) / 1000000))
echo "all $n_taken messages of the stream have come, the oldest after $oldest ms"

# A descriptor store that is full: what does not fit is named, and everything else outlives the
# daemon.
set_up store <<END
ExecStart=
ExecStart=/mnt/dlpackd --config=/etc/dlpackd/dlpackd.conf --fd-store=20
FileDescriptorStoreMax=20
END
for i in 1 2 3 4 5 6 7 8; do as dlx-alice "${pub[@]}" --retain 1 full/$i /tmp/raw >/dev/null; done
kill_daemon
n_back=0
for i in 1 2 3 4 5 6 7 8; do
    if grep -q "full/$i: .* will not outlive this daemon" /mnt/daemon.log; then
        lacks full/$i
    else
        $ctl get full/$i - | tail -c 1000 | cmp - /tmp/raw
        n_back=$((n_back + 1))
    fi
done
[ $n_back -ge 3 ] && [ $n_back -le 7 ]
echo "full store: $n_back of 8 outlived the daemon, the others were named"
set_back store

# Few descriptors: said at the start, and what needs more is refused.
set_up files <<<LimitNOFILE=40
grep -q "at most 40 file descriptors" /mnt/daemon.log
before=$(main_pid)
n=0
while as dlx-alice "${pub[@]}" --retain 1 few/$n /tmp/raw >/dev/null 2>/tmp/said; do
    n=$((n + 1))
done
[ $n -ge 1 ]
grep -qE 'open files|file descriptor' /tmp/said
[ "$(main_pid) $(show ActiveState)" = "$before active" ]
echo "few descriptors: $n publishers, then: $(cat /tmp/said)"
set_back files

# Refusals in the journal, with what it can be searched by: the rule, or that there is none.
/lib/systemd/systemd-journald >/dev/null 2>&1 &
until [ -S /run/systemd/journal/socket ]; do :; done
cat >/etc/dlpackd/conf.d/bob.conf <<END
[rule not bob]
users = dlx-bob
topics = secret/**
deny = subscribe
[rule bob]
users = dlx-bob
topics = **
allow = observe
END
set_up with-journal <<<StandardError=journal
says "may not subscribe to secret/a" as dlx-bob $ctl hz secret/a
rm /etc/dlpackd/conf.d/bob.conf
systemctl restart dlpackd
refuse() { # sets $refused: the pid of dlx-bob's dlxctl, which no rule allows anything
    become dlx-bob $ctl ls >/tmp/said 2>&1 &
    refused=$!
    if wait $refused; then fail "dlxctl of dlx-bob should have been refused"; fi
    grep -qF "may not use this daemon" /tmp/said
    journalctl --sync
}
refuse
refusals() { # refusals <field to show> <match...>: of the unit
    local field=$1
    shift
    journalctl -u dlpackd -o cat --output-fields="$field" "DLPACKD_UID=$(id -u dlx-bob)" "$@"
}
[ "$(refusals DLPACKD_RULE DLPACKD_TOPIC=secret/a DLPACKD_ACTION=subscribe)" = "not bob" ]
[ "$(refusals DLPACKD_RULE_PLACE DLPACKD_TOPIC=secret/a)" = /etc/dlpackd/conf.d/bob.conf:2 ]
[ "$(refusals DLPACKD_CLIENT DLPACKD_TOPIC=secret/a)" = dlxctl ]
[ -z "$(refusals DLPACKD_PROGRAM DLPACKD_TOPIC=secret/a)" ]
[[ $(refusals MESSAGE DLPACKD_TOPIC=secret/a) == *"(pid "*", client dlxctl)" ]]
# The sandbox (ProtectProc=invisible) hides the name of the program.
text="refused: uid $(id -u dlx-bob) may not use this daemon: no rule allows it anything"
[ "$(refusals MESSAGE DLPACKD_ACTION=connect)" = "$text (pid $refused)" ]
[ "$(refusals DLPACKD_PID DLPACKD_ACTION=connect)" = $refused ]
[ -z "$(refusals DLPACKD_PROGRAM DLPACKD_ACTION=connect)" ]
echo "refusals are in the journal: $(refusals MESSAGE DLPACKD_TOPIC=secret/a)"
set_back with-journal
set_up with-program <<END
StandardError=journal
ProtectProc=default
END
refuse
[ "$(refusals MESSAGE DLPACKD_PROGRAM=dlxctl)" = "$text (pid $refused, dlxctl)" ]
[ "$(refusals DLPACKD_PROGRAM DLPACKD_PID=$refused DLPACKD_ACTION=connect)" = dlxctl ]
echo "with the name of the program: $(refusals MESSAGE DLPACKD_PROGRAM=dlxctl)"
set_back with-program

# A configuration that is wrong from the start: it is tried again, and comes when the configuration
# is right.
echo nonsense >>/etc/dlpackd/dlpackd.conf
says "dlpackd.service failed" systemctl start dlpackd
until [ "$(show NRestarts)" -ge 3 ]; do :; done
cp /mnt/dlpackd.conf /etc/dlpackd/
until as dlx-alice $ctl ls >/dev/null 2>&1; do :; done
echo "came when its configuration was right"

systemctl stop dlpackd.socket
[ "$(show ActiveState)" = inactive ]
[ ! -e /run/dlpackd/dlpackd.sock ]
EOF
