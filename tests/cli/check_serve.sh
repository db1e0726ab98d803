#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `dlxctl serve`: what it shows with the token and without, to whom, and what it refuses; a daemon
# that is killed and started again; and Debian's Prometheus, which scrapes it with the files of
# packaging/prometheus, whose rules promtool checks.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/cli/harness_script.sh
needs libmicrohttpd
cat >"$tmp/conf" <<END
[rule everybody]
users = *
topics = cam/rear
allow = observe
END
start_daemon() {
    "$build/dlpackd" --foreground --socket "$DLX_SOCKET" --config "$tmp/conf" \
        >"$tmp/dlpackd.said" 2>&1 &
    daemon=$!
    processes+=("$daemon")
    eventually "$build/dlxctl" ls --wait-daemon
}
publish() { # publish TOPIC
    "$build/dlxctl" pub "$1" tests/data/npy/f4.npy --loop 0 --rate 50 >/dev/null 2>&1 &
    publisher=$!
    processes+=("$publisher")
    eventually "$build/dlxctl" ls "$1"
}
serve() { # serve NAME OPTION...: its first line is in NAME.said
    "$build/dlxctl" serve --interval 100ms "${@:2}" >"$tmp/$1.said" 2>&1 &
    server=$!
    processes+=("$server")
    eventually grep -q '^serving ' "$tmp/$1.said"
}
metrics() { curl -sf -m 10 -H "Authorization: Bearer $(cat "$tmp/token")" "$url"; }
has_metric() { metrics | grep -E -- "$1" >/dev/null; }
value() { metrics | sed -n "s|^$1 ||p"; }
# Has the metric a value that is larger?
grew() { [ "$(value "$1")" -gt "$2" ]; }
expect_status() { # expect_status STATUS CURL-ARGUMENT...
    local got
    got=$(curl -s -m 10 -o "$tmp/body" -w '%{http_code}' "${@:2}")
    [ "$got" = "$1" ] || fail "status $got, not $1, of: ${*:2}"
}
refused() { # refused WORDS OPTION...
    if timeout 20 "$build/dlxctl" serve "${@:2}" >"$tmp/refused.said" 2>&1; then fail "no error"; fi
    grep -qF -- "$1" "$tmp/refused.said" || fail "not '$1'"
}

# Before there is a daemon.
serve main --listen 127.0.0.1:0 --token-file "$tmp/token" --max-topics 1
url=$(sed -nE 's|^serving (http://[0-9.:]+/metrics):.*|\1|p' "$tmp/main.said")
[ "$(stat -c %a "$tmp/token")" = 600 ] || fail "mode of the token"
eventually has_metric '^dlx_up 0$'

start_daemon
publish cam/front
eventually has_metric '^dlx_published_messages_total\{topic="cam/front"\} '
eventually grep -qF 'dlpackd answers' "$tmp/main.said"
publish cam/rear
eventually has_metric '^dlx_published_messages_total\{topic="\(other\)"\} '
if metrics | grep cam/rear >/dev/null; then fail "--max-topics 1 has two"; fi

# Without the token: no user, and of topics those that have series and that all may observe.
serve open --listen 127.0.0.1:0
open=$(sed -nE 's|^serving (http://[0-9.:]+/metrics):.*|\1|p' "$tmp/open.said")
shows_rear() { curl -sf -m 10 "$open" | grep -F 'dlx_published_messages_total{topic="cam/rear"} '; }
eventually shows_rear
for address in "$url" "$open"; do
    curl -sf "$address" >"$tmp/open"
    grep -q '^dlx_up 1$' "$tmp/open" || fail "no dlx_up without the token"
    if grep -E 'uid=|cam/front|\(other\)' "$tmp/open"; then fail "too much without the token"; fi
done
expect_status 401 -H 'Authorization: Bearer 0123456789abcdef0123456789abcdef' "$url"
expect_status 403 -H 'Host: rebound.example' "$url"
expect_status 403 -H 'Host: localhost.rebound.example' "$url"
expect_status 403 -H 'Host:' "$url"
expect_status 200 -H 'Host: localhost' "$url"
expect_status 405 -X POST -d x "$url"
expect_status 404 "${url%/metrics}/"
expect_status 200 -I "$url"
head -c 40000 /dev/zero | tr '\0' a >"$tmp/long"
expect_status 431 -H "@-" "$url" < <(printf 'X: ' && cat "$tmp/long")

# Counters keep what ended publishers counted, also across a restart of the daemon.
front='dlx_published_messages_total{topic="cam/front"}'
before=$(value "$front")
kill -9 "$daemon"
eventually has_metric '^dlx_up 0$'
start_daemon
eventually has_metric '^dlx_up 1$'
eventually grew "$front" "$before"
before=$(value "$front")
other='dlx_published_messages_total{topic="(other)"}'
kill "$publisher" # of cam/rear
wait "$publisher" || true
rear=$(value "$other")
publish cam/rear
eventually grew "$other" "$rear"
[ "$(value "$front")" -ge "$before" ] || fail "a counter fell"

# One that is kicked ends, and says who it was.
serve kicked --listen 127.0.0.1:0 --token-file "$tmp/token"
kicked=$(sed -nE 's|^serving (http://[0-9.:]+/metrics):.*|\1|p' "$tmp/kicked.said")
kicked_is_up() { curl -sf -m 10 "$kicked" | grep '^dlx_up 1$'; }
eventually kicked_is_up
"$build/dlxctl" kick "$server" >/dev/null
if wait "$server"; then fail "serve goes on after a kick, or ends without an error"; fi
grep -qE 'dlxctl serve: .* disconnected this program, .*dlxctl' "$tmp/kicked.said" ||
    fail "who kicked it"

# A Unix socket is its owner's, and needs no token.
serve unix --listen "unix:$tmp/http"
[ "$(stat -c %a "$tmp/http")" = 600 ] || fail "mode of the socket"
unix_has() { curl -sf --unix-socket "$tmp/http" http://localhost/metrics |
    grep -F -- "$1" >/dev/null; }
eventually unix_has 'topic="cam/front"'
refused 'is no socket that a killed dlxctl left' --listen "unix:$tmp/http"
kill -9 "$server"
wait "$server" || true
serve unix --listen "unix:$tmp/http"
kill "$server"
wait "$server" || fail "serve ends with status $?"
[ ! -e "$tmp/http" ] || fail "the socket stays"

# What is refused.
address=${url#http://}
address=${address%/metrics}
refused "another program listens on $address" --listen "$address"
refused "neither 127.0.0.1:PORT" --listen 127.0.0.2:0 # its requests would be refused
refused "neither 127.0.0.1:PORT" --listen 0.0.0.0:0
refused "neither 127.0.0.1:PORT" --listen example.org:80
refused "neither 127.0.0.1:PORT" --listen 127.0.0.1:65536
echo 0123456789abcdef >"$tmp/open_token"
chmod 644 "$tmp/open_token"
refused "has mode 0644" --listen 127.0.0.1:0 --token-file "$tmp/open_token"
: >"$tmp/empty" && chmod 600 "$tmp/empty"
refused "must be a token of 16 to 255 letters" --listen 127.0.0.1:0 --token-file "$tmp/empty"
echo '0123456789abcdef%41' >"$tmp/empty" # the link of the page could not have it as it is
refused "must be a token of 16 to 255 letters" --listen 127.0.0.1:0 --token-file "$tmp/empty"

if ! command -v promtool prometheus >/dev/null; then
    echo "check_serve: no prometheus (tools/setup.sh --lint installs it): its part is left out"
    exit 0
fi
metrics >"$tmp/all"
promtool check metrics <"$tmp/all" || fail "promtool check metrics"
promtool check metrics <"$tmp/open" || fail "promtool check metrics, without the token"
promtool check rules packaging/prometheus/dlpackd.rules.yml || fail "promtool check rules"
# Each metric of the rules and of the dashboard is one that is served.
grep -ohE '\bdlx_[a-z_]+' packaging/prometheus/dlpackd.rules.yml packaging/grafana/dlpackd.json |
    sort -u >"$tmp/used"
while read -r name; do
    grep -q "^# TYPE $name " "$tmp/all" || fail "$name is not served"
done <"$tmp/used"

sed -e "s|127.0.0.1:9464|$address|; s|/etc/prometheus/dlpackd.token|$tmp/token|" \
    packaging/prometheus/dlpackd.yml >"$tmp/prometheus.yml"
printf 'global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n' >>"$tmp/prometheus.yml"
cp packaging/prometheus/dlpackd.rules.yml "$tmp"
promtool check config "$tmp/prometheus.yml" || fail "promtool check config"
free=$(python3 -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
prometheus --config.file="$tmp/prometheus.yml" --storage.tsdb.path="$tmp/tsdb" \
    --web.listen-address="127.0.0.1:$free" >"$tmp/prometheus.said" 2>&1 &
processes+=($!)
ask() { promtool query instant "http://127.0.0.1:$free" "$1"; }
answers() { ask "$1" | grep '=> [^0]' >/dev/null; }
eventually answers 'up{job="dlpackd"}'
eventually answers dlx_up
eventually answers 'rate(dlx_published_messages_total{topic="cam/front"}[10s])'
echo "check_serve: Prometheus scraped $(grep -vc '^#' "$tmp/all") series"
