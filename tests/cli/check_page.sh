#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The page of `dlxctl serve --page`: who gets it and its figures, and who does not; then in a
# headless Chromium, where there is one: tests/cli/page_stories.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/cli/harness_script.sh
needs libmicrohttpd
serve() { # serve NAME OPTION...: what it says is in NAME.said
    "$build/dlxctl" serve --page --interval 100ms "${@:2}" >"$tmp/$1.said" 2>&1 &
    processes+=($!)
    eventually grep -q '^page: ' "$tmp/$1.said"
}
expect_status() { # expect_status STATUS CURL-ARGUMENT...
    local got
    got=$(curl -s -m 10 -o "$tmp/body" -D "$tmp/headers" -w '%{http_code}' "${@:2}")
    [ "$got" = "$1" ] || fail "status $got, not $1, of: ${*:2}"
}
has_header() { grep -qiF -- "$1" "$tmp/headers" || fail "no header '$1': $(cat "$tmp/headers")"; }
# Is the expression of Python true of the figures?
state_is() { # state_is EXPRESSION CURL-ARGUMENT...
    curl -sf -m 10 "${@:2}" |
        python3 -c "import json, sys; s = json.load(sys.stdin); sys.exit(not ($1))"
}

cat >"$tmp/conf" <<END
[socket pods]
path = $tmp/pods
[rule secret]
sockets = pods
users = *
topics = secret/**
deny = subscribe
[rule pods]
sockets = pods
users = *
topics = **
allow = publish, subscribe
[rule all]
users = *
topics = **
allow = publish, subscribe, observe
END
"$build/dlpackd" --foreground --socket "$DLX_SOCKET" --config "$tmp/conf" \
    >"$tmp/dlpackd.said" 2>&1 &
daemon=$!
processes+=("$daemon")
eventually "$build/dlxctl" ls --wait-daemon
for topic in cam/front cam/rear lidar; do
    "$build/dlxctl" pub $topic tests/data/npy/f4.npy --loop 0 --rate 50 >/dev/null 2>&1 &
    processes+=($!)
    eventually "$build/dlxctl" ls $topic
done

# The page is open, and names no topic; its figures need the token of the link.
serve main --listen 127.0.0.1:0
link=$(sed -n 's/^page: //p' "$tmp/main.said")
url=${link%#*}
token=${link#*#token=}
with=(-H "Authorization: Bearer $token")
[ ${#token} -ge 32 ] || fail "the token is '$token'"
for file in '' page.css page.js; do
    expect_status 200 "$url$file"
    if grep -q cam/front "$tmp/body"; then fail "/$file names a topic"; fi
done
expect_status 200 "$url"
has_header "Content-Security-Policy: default-src 'none'; script-src 'self'"
has_header "frame-ancestors 'none'"
has_header 'X-Content-Type-Options: nosniff'
has_header 'Cross-Origin-Resource-Policy: same-origin'
has_header 'Content-Type: text/html; charset=utf-8'
expect_status 401 "${url}state"
expect_status 401 -H 'Authorization: Bearer 0123456789abcdef0123456789abcdef' "${url}state"
expect_status 401 "${url}state?token=$token"
expect_status 200 "${with[@]}" "${url}state"
has_header 'Content-Type: application/json'
if grep -qi access-control "$tmp/headers"; then fail "other sites may read the figures"; fi
expect_status 200 "${with[@]}" -I "${url}state"
for host in rebound.example localhost.rebound.example ''; do
    expect_status 403 "${with[@]}" -H "Host:$host" "${url}state"
    expect_status 403 -H "Host:$host" "$url"
done
for method in POST PUT DELETE OPTIONS; do
    expect_status 405 "${with[@]}" -X $method -d x "${url}state"
done
expect_status 404 "${with[@]}" "${url}state/"
expect_status 404 "${with[@]}" "${url}../etc/passwd"
"$build/dlxctl" serve --page --listen "${url:7:-1}" >"$tmp/refused.said" 2>&1 &&
    fail "two servers on a port"
grep -q 'another program listens on' "$tmp/refused.said" || fail "no word of the port in use"

# What a page asks for.
eventually state_is 's["up"] and s["n_topics"] == 3 and
    all(t["messages_per_s"] > 0 for t in s["topics"])' "${with[@]}" "${url}state"
state_is '[t["topic"] for t in s["topics"]] == ["lidar", "cam/rear"] and s["n_found"] == 3' \
    "${with[@]}" "${url}state?sort=TOPIC&reverse=1&n=2" || fail "order: $(cat "$tmp/body")"
state_is 's["n_found"] == 2 and s["n_topics"] == 3' "${with[@]}" "${url}state?filter=cam/*" ||
    fail "filter"
state_is 's["n_found"] == 3' "${with[@]}" "${url}state?sort=%3Cb%3E&n=x&reverse=9" ||
    fail "values that are none"
state_is 's["topic"] is None' "${with[@]}" "${url}state?topic=none" || fail "a topic"
"$build/dlxctl" hz cam/front >/dev/null 2>&1 &
processes+=($!)
eventually state_is 's["topic"]["publishers"][0]["links"][0]["taken_per_s"] > 0' "${with[@]}" \
    "${url}state?topic=cam/front"

# The token of a file is not in what is printed to a file, since a journal is one.
serve file --listen 127.0.0.1:0 --token-file "$tmp/token"
grep -qF "with the token in $tmp/token" "$tmp/file.said" || fail "where the token is"
if grep -qF "$(cat "$tmp/token")" "$tmp/file.said"; then fail "the token is printed"; fi
file_url=$(sed -nE 's/^page: ([^#]*)#.*/\1/p' "$tmp/file.said")
expect_status 401 "${with[@]}" "${file_url}state"
expect_status 200 -H "Authorization: Bearer $(cat "$tmp/token")" "${file_url}state"

# A Unix socket needs no token, but a name of loopback: a browser reaches it through a proxy there.
serve unix --listen "unix:$tmp/http"
[ "$(stat -c %a "$tmp/http")" = 600 ] || fail "mode of the socket"
expect_status 200 --unix-socket "$tmp/http" http://localhost:8080/state
expect_status 403 --unix-socket "$tmp/http" http://rebound.example:8080/state

# Without --page there is none.
"$build/dlxctl" serve --listen 127.0.0.1:0 --token-file "$tmp/token" >"$tmp/none.said" 2>&1 &
processes+=($!)
eventually grep -q '^serving ' "$tmp/none.said"
none=$(sed -nE 's|^serving (http://[0-9.:]+/)metrics.*|\1|p' "$tmp/none.said")
expect_status 404 "$none"
expect_status 404 -H "Authorization: Bearer $(cat "$tmp/token")" "${none}state"

# Pictures are a switch of their own, and of the topics that it names.
head -c 9216 /dev/zero | tr '\0' '\200' >"$tmp/raw"
pub_image=("$build/dlxctl" pub --dtype uint8 --shape 48x64x3 --retain 1)
for topic in image/front other/image secret/image; do "${pub_image[@]}" $topic "$tmp/raw"; done
"$build/dlxctl" pub --dtype uint8 --shape 9216 --retain 1 image/none "$tmp/raw"
expect_status 403 "${with[@]}" "${url}picture?topic=image/front"
serve pictures --listen 127.0.0.1:0 --pictures 'image/*' --pictures other/one --picture-rate 10
pictures=$(sed -n 's/^page: //p' "$tmp/pictures.said")
with=(-H "Authorization: Bearer ${pictures#*#token=}")
pictures=${pictures%#*}
expect_status 401 "${pictures}picture?topic=image/front"
expect_status 200 "${with[@]}" "${pictures}picture?topic=image/front"
has_header 'Content-Type: image/png'
has_header 'X-Caption: uint8 (48, 64, 3)'
python3 - "$tmp/body" <<'END' || fail "the picture"
import struct, sys, zlib

png = open(sys.argv[1], "rb").read()
assert png[:8] == b"\x89PNG\r\n\x1a\n"
assert struct.unpack(">II", png[16:24]) == (64, 48), png[16:24]
assert b"\x80\x80\x80" in zlib.decompress(png[png.index(b"IDAT") + 4 : -16])
END
for topic in other/image 'image/**' '*' ''; do
    expect_status 403 "${with[@]}" "${pictures}picture?topic=$topic"
done
expect_status 404 "${with[@]}" "${pictures}picture?topic=image/none"
grep -qF 'uint8 (9216,)' "$tmp/body" || fail "why there is no picture: $(cat "$tmp/body")"
expect_status 404 "${with[@]}" "${pictures}picture?topic=image/no_publisher"
grep -q 'has no message' "$tmp/body" || fail "why there is no picture: $(cat "$tmp/body")"
expect_status 405 "${with[@]}" -X POST -d x "${pictures}picture?topic=image/front"
[ "$("$build/dlxctl" --json holds)" = '[]' ] || fail "a picture holds a message"
"$build/dlxctl" serve --pictures x >"$tmp/refused.said" 2>&1 && fail "pictures without a page"
grep -q -- '--pictures is for --page' "$tmp/refused.said" || fail "no word of --page"

# A user that may not observe sees no topic, and that there are some.
serve blind --listen 127.0.0.1:0 --socket "$tmp/pods" --pictures '**'
blind=$(sed -n 's/^page: //p' "$tmp/blind.said")
eventually state_is 's["up"] and s["n_hidden"] == 7 and s["topics"] == []' \
    -H "Authorization: Bearer ${blind#*#token=}" "${blind%#*}state"
expect_status 403 -H "Authorization: Bearer ${blind#*#token=}" \
    "${blind%#*}picture?topic=secret/image"
grep -q 'may not subscribe to secret/image' "$tmp/body" || fail "which right is missing"
expect_status 200 -H "Authorization: Bearer ${blind#*#token=}" \
    "${blind%#*}picture?topic=image/front"

# Its right comes and goes while it runs.
blind_is() {
    state_is "$1" -H "Authorization: Bearer ${blind#*#token=}" "${blind%#*}state"
}
eventually grep -qF "rules hide 7 publishers from this user" "$tmp/blind.said"
cp "$tmp/conf" "$tmp/conf.before"
sed -i '/^.rule pods.$/,/^allow/s/^allow.*/&, observe/' "$tmp/conf"
kill -HUP "$daemon"
eventually blind_is 's["n_hidden"] == 0 and s["n_topics"] == 7'
eventually grep -qF "rules hide no publisher any more" "$tmp/blind.said"
cp "$tmp/conf.before" "$tmp/conf"
kill -HUP "$daemon"
eventually blind_is 's["up"] and s["n_hidden"] == 7 and s["topics"] == []'

if ! command -v chromium >/dev/null; then
    echo "check_page: no chromium (tools/setup.sh --lint installs it): its part is left out"
    exit 0
fi
kill "${processes[@]}"
wait
processes=()
BUILD=$build python3 tests/cli/page_stories.py "$tmp"
