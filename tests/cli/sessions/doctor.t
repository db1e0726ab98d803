dlxctl doctor: what depends on the machine is left out.

  $ . "$TESTDIR/../scene.sh"
  $ command dlxctl doctor >out || true
  $ masked out | grep -e ^daemon -e ^versions | sed -E 's/[0-9]+\.[0-9.]+/V/g'
  daemon  ok  SOCKET answers, which --socket or DLX_SOCKET names
  versions ok  dlxctl V, libdlx V, dlpackd V (protocol V)
  $ command dlxctl doctor --json | grep -A 1 -e '"daemon.socket"' -e '"quotas.used"'
        "check": "daemon.socket",
        "status": "ok",
  --
        "check": "quotas.used",
        "status": "ok",

No daemon answers where one is named.

  $ dlxctl doctor -S /no/such/socket | grep -A 2 ^daemon | sed -E 's/  +/  /g'
  daemon  problem  no dlpackd at /no/such/socket: No such file or directory
    means  programs fail: where a socket is named, none starts a dlpackd
    do  start it: `dlpackd --socket=/no/such/socket`; or unset DLX_SOCKET, and leave out --socket
  $ command dlxctl doctor -S /no/such/socket >/dev/null
  [1]
  $ dlxctl doctor now
  dlxctl doctor: extra argument 'now'
  [2]
