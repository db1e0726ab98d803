clients, kick and why; subscriptions that no publisher serves.

  $ . "$TESTDIR/../scene.sh"
  $ dlxctl why cam
  cam has no publisher and no subscriber.
    do: start a publisher on cam: no topic has one
  [1]
  $ command dlxctl echo cam >alone.out 2>&1 & alone=$!
  $ subscribes() { command dlxctl ls --json | grep -q '"subscription"'; }
  $ eventually subscribes
  $ dlxctl ls
  subscriptions that no publisher serves:
    TOPIC  PID  PROGRAM  MODE  RELIABLE
    cam  N  dlxctl  all  no
  dlxctl ls: no publishers
  $ dlxctl ls cam
  subscriptions that no publisher serves:
    TOPIC  PID  PROGRAM  MODE  RELIABLE
    cam  N  dlxctl  all  no
  dlxctl ls: cam: no publisher
  [1]
  $ dlxctl info cam --json 2>&1 | sed -E 's/("subscription": )[0-9]+/\1N/'
  {
    "topic": "cam",
    "publishers": [],
    "unserved": [
      {
        "topic": "cam",
        "publisher": null,
        "subscription": N,
        "pid": N,
        "uid": N,
        "client_name": "dlxctl",
        "latest": false,
        "reliable": false,
        "group": "",
        "refusal": ""
      }
    ]
  }
  dlxctl info: cam: no publisher
  $ dlxctl why cam --for 10ms --json
  {
    "topic": "cam",
    "flows": false,
    "findings": [
      {
        "kind": "unserved",
        "text": "no publisher serves the subscription of dlxctl (pid N, uid N)",
        "do": "start a publisher on cam: no topic has one"
      }
    ]
  }
  [1]
  $ dlxctl clients | sed -E 's/[0-9]{7,}/N/; s/^ +//; s/(dlxctl  )[0-9]+/\1N/'
  ID  PID  PROGRAM  UID  SOCKET  PUBLISHERS  SUBS  LINKS  MEMORY  NOTE
  N  N  dlxctl  N  dlpackd  0  1  0  0 B
  N  N  dlxctl  N  dlpackd  0  0  0  0 B  this command
  $ dlxctl clients --json | sed -E 's/("client": )[0-9]+/\1N/'
  [
    {
      "client": N,
      "pid": N,
      "uid": N,
      "client_name": "dlxctl",
      "socket": "dlpackd",
      "n_publishers": 0,
      "n_subscriptions": 1,
      "n_links": 0,
      "shared_bytes": 0,
      "protocol_minor": 10,
      "own": false
    },
    {
      "client": N,
      "pid": N,
      "uid": N,
      "client_name": "dlxctl",
      "socket": "dlpackd",
      "n_publishers": 0,
      "n_subscriptions": 0,
      "n_links": 0,
      "shared_bytes": 0,
      "protocol_minor": 10,
      "own": true
    }
  ]
  $ dlxctl kick "$alone"
  kicked 1 connection
  $ wait "$alone"; echo "status $?"
  status 1
  $ masked alone.out | sed 's/at [^ ]* has/at SOCKET has/'
  dlxctl echo: cam: no publisher yet, waiting for one
  dlxctl echo: topic cam: dlpackd at SOCKET has disconnected this program, kicked by dlxctl (pid N, uid N): it does not connect again by itself (dlx_connect() does)
  $ grep -o 'dlxctl (pid [0-9]*, uid [0-9]*) kicks dlxctl' daemon.log | masked /dev/stdin
  dlxctl (pid N, uid N) kicks dlxctl

A publisher that waits for a subscriber that is stopped.

  $ command dlxctl pub cam $npy/f4.npy --block --loop 0 --rate 200 --wait 1 2>/dev/null & pub=$!
  $ command dlxctl echo cam --reliable >slow.out 2>&1 & slow=$!
  $ wait_lines slow.out 1
  $ dlxctl why cam --for 100ms | sed -E 's/[0-9]+ messages in [^,]*/N messages in N/'
  cam flows: 1 publisher, N messages in N, 1 subscriber
  $ kill -STOP "$slow"
  $ blocked() { command dlxctl info cam | grep -q BLOCKS; }
  $ eventually blocked
  $ dlxctl why cam --for 100ms | sed -E 's/looked \([^)]*\)/looked (N)/; s/kick [0-9]+/kick N/'
  publisher dlxctl (pid N, uid N) waits for subscriber dlxctl (pid N, uid N), which took nothing while dlxctl looked (N); its next message is N old; it holds 0 of 16; its process is stopped (SIGCONT lets it go on).
    do: see why it makes no take; `dlxctl kick N` cuts it off
  $ dlxctl kick "$slow" --json | sed -E 's/("kicked": )[0-9]+/\1N/'
  {
    "kicked": N,
    "n_kicked": 1,
    "n_older": 0
  }
  $ kill -CONT "$slow"; wait "$slow"; echo "status $?"
  status 1
  $ tail -n 1 slow.out | masked /dev/stdin
  dlxctl echo: topic cam: disconnected: kicked by dlxctl (pid N, uid N): it does not connect again by itself (dlx_connect() does)
  $ kill "$pub"; wait "$pub"

What cannot be.

  $ dlxctl kick
  dlxctl kick: which process, or which ID of `dlxctl clients`?
  [2]
  $ dlxctl kick 0
  dlxctl kick: PID|ID: '0' is not a number from 1 to 18446744073709551615
  [2]
  $ dlxctl kick 4194304
  dlxctl kick: no program of process 4194304 is connected, or it is another user's: `dlxctl clients` lists those that you may kick
  [1]
  $ dlxctl kick 99999999999999 2>&1 | sed 's/`//g'
  dlxctl kick: there is no client 99999999999999, or it is another user's: dlxctl clients lists those that you may kick
  $ dlxctl why 'cam/*'
  dlxctl why: why is about one topic: 'cam/*' is a pattern
  [2]
  $ dlxctl why cam --for 0
  dlxctl why: --for: must be more than 0
  [2]
  $ dlxctl why cam extra
  dlxctl why: extra argument 'extra'
  [2]
  $ DLX_AUTOSPAWN=no command dlxctl --socket nowhere why cam >/dev/null 2>&1; echo "status $?"
  status 2
