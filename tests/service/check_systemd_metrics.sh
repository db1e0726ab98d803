#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The service of metrics as it is installed, with its sandbox and its user, under the real service
# manager: systemd, booted in namespaces of its own. What it serves without a rule, with the rule of
# docs/METRICS.md, and while dlpackd is started again.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/service/harness_systemd.sh

systemd_begin
"$build/dlxctl" --version | grep 'built without.*libmicrohttpd' >/dev/null &&
    skip "a dlxctl without libmicrohttpd"
type -P ip >/dev/null || skip "no ip, which brings loopback up: tools/setup.sh --rust installs it"
for unit in systemd/system/*; do systemd_unit "$unit"; done
cp systemd/sysusers.d/dlpackd.conf "$tmp/sysusers.conf"
cp systemd/tmpfiles.d/dlpackd.conf "$tmp/tmpfiles.conf"
sed 's|@sysconfdir@|/etc|g' systemd/dlpackd.conf >"$tmp/dlpackd.conf"
# The rule is the one that the document gives.
sed -n '/^    \[rule metrics\]$/,/^$/s/^    //p' docs/METRICS.md >"$tmp/metrics.conf"
systemd_run <<'END_OF_STORY'
export DLX_AUTOSPAWN=no # the system's daemon, or none
ip link set lo up
systemd-sysusers /mnt/sysusers.conf
systemd-tmpfiles --create /mnt/tmpfiles.conf
mkdir -p /etc/dlpackd/conf.d
cp /mnt/dlpackd.conf /etc/dlpackd/
token=/var/lib/dlpackd-metrics/token
scrape() { # scrape [<token>]: what is served, with its headers
    exec 3<>/dev/tcp/127.0.0.1/9464
    printf 'GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\nConnection: close\r\n' >&3
    if [ $# = 1 ]; then printf 'Authorization: Bearer %s\r\n' "$1" >&3; fi
    printf '\r\n' >&3
    cat <&3
    exec 3>&-
}
await() { # await <pattern> [<token>]: until a line that is served matches
    until scrape "${@:2}" 2>/dev/null | grep -E "$1" >/dev/null; do
        [ "$(show ActiveState dlpackd-metrics)" != failed ] || fail "dlpackd-metrics has failed"
    done
}
head -c 1000 /dev/urandom >/tmp/raw
systemctl start dlpackd.socket dlpackd
systemctl start dlpackd-metrics
$ctl pub --dtype uint8 --shape 1000 --retain 1 cam/front /tmp/raw >/dev/null

# Without a rule its user may do nothing, and it says so.
until grep -q 'dlxctl serve: .*may not use this daemon' /mnt/daemon.log; do :; done
await '^dlx_up 0$'
echo "without a rule: $(grep -m 1 -o 'dlxctl serve: .*' /mnt/daemon.log)"

cp /mnt/metrics.conf /etc/dlpackd/conf.d/
systemctl reload dlpackd
await '^dlx_up 1$'
[ "$(stat -c '%U %a' "$token")" = "dlpackd-metrics 600" ]
if scrape | grep 'cam/front' >/dev/null; then fail "a topic is named without the token"; fi
await '^dlx_published_messages_total\{topic="cam/front"\} 1$' "$(cat "$token")"
scrape "${token//?/x}" | grep '^HTTP/1.1 401 ' >/dev/null
echo "with the rule and the token, topics are served; with another token: 401"

# It is what the unit says.
pid=$(main_pid dlpackd-metrics)
fields='Uid|CapBnd|CapPrm|NoNewPrivs|Seccomp'
[ "$(sed -nE "s/^($fields):\s+(\S+).*/\2/p" "/proc/$pid/status" | tr '\n' ' ')" = \
    "$(id -u dlpackd-metrics) 0000000000000000 0000000000000000 1 2 " ]

kill_daemon
await '^dlx_published_messages_total\{topic="cam/front"\} 1$' "$(cat "$token")"
[ "$(main_pid dlpackd-metrics)" = "$pid" ]
echo "it goes on when dlpackd was killed, and no counter falls"
END_OF_STORY
