ls and info. The subscriber comes second: beside its publisher, it may keep more spare room.

  $ . "$TESTDIR/../scene.sh"
  $ command dlxctl pub cam/front $npy/f4.npy --hold --wait 1 2>/dev/null & pub=$!
  $ wait_publisher cam/front
  $ command dlxctl echo cam/front >echo.out 2>/dev/null & echo=$!
  $ wait_lines echo.out 1
  $ dlxctl ls
  TOPIC  ID  PID  PROGRAM  SUBS  MESSAGES  BYTES  MEMORY  BEHIND
  cam/front  N  N  dlxctl  1  1  96 B  36.0 KiB  0
  $ dlxctl --json ls cam/front
  [
    {
      "topic": "cam/front",
      "publisher": N,
      "pid": N,
      "uid": N,
      "client_name": "dlxctl",
      "n_subscribers": 1,
      "published": 1,
      "published_bytes": 96,
      "arena_bytes": 16384,
      "control_bytes": 20480,
      "n_arenas": 1,
      "depth": 16,
      "history": 1,
      "on_full": "drop",
      "retain": 0,
      "retained": false,
      "refused": 0,
      "former": 0,
      "copied": 0,
      "copied_bytes": 0,
      "blocked_ns": N,
      "blocked_at_ns": N,
      "for_everybody": false,
      "blocked": false,
      "behind": 0,
      "full": 0,
      "have_lost": 0,
      "joining": 0,
      "groups": []
    }
  ]
  $ dlxctl info cam/front --newest
  cam/front: 1 publisher
  
  publisher N: dlxctl (pid N, uid N)
    published  1 message, 96 B
    settings  history 1, depth 16, drops the oldest when full
    memory  16.0 KiB in 1 arena, control block 20.0 KiB
    newest  message 1, N old
                 float32 (2, 3, 4)  96 B
    subscribers  1
      PID  PROGRAM  MODE  RELIABLE  TAKEN  SKIPPED  LOST  BEHIND  HELD
      N  dlxctl  all  no  1  0  0  0  0 of 16
  $ dlxctl info cam/front --newest --json
  {
    "topic": "cam/front",
    "publishers": [
      {
        "topic": "cam/front",
        "publisher": N,
        "pid": N,
        "uid": N,
        "client_name": "dlxctl",
        "n_subscribers": 1,
        "published": 1,
        "published_bytes": 96,
        "arena_bytes": 16384,
        "control_bytes": 20480,
        "n_arenas": 1,
        "depth": 16,
        "history": 1,
        "on_full": "drop",
        "retain": 0,
        "retained": false,
        "refused": 0,
        "former": 0,
        "copied": 0,
        "copied_bytes": 0,
        "blocked_ns": N,
        "blocked_at_ns": N,
        "for_everybody": false,
        "blocked": false,
        "behind": 0,
        "full": 0,
        "have_lost": 0,
        "joining": 0,
        "groups": [],
        "newest": {
          "topic": "cam/front",
          "publisher": N,
          "seq": 1,
          "monotonic_ns": N,
          "age_ns": N,
          "gap": 0,
          "meta_bytes": 0,
          "tensors": [
            {
              "dtype": "float32",
              "shape": [
                2,
                3,
                4
              ],
              "nbytes": 96
            }
          ]
        },
        "links": [
          {
            "link": N,
            "pid": N,
            "uid": N,
            "client_name": "dlxctl",
            "latest": false,
            "reliable": false,
            "taken": 1,
            "skipped": 0,
            "lost": 0,
            "n_held": 0,
            "max_held": 16,
            "behind": 0,
            "blocks": false,
            "joining": false,
            "former_bytes": 0,
            "is_publisher": false,
            "group": 0,
            "next_ns": N,
            "held_ns": N
          }
        ]
      }
    ],
    "unserved": []
  }
  $ command dlxctl info cam/front --json | grep -c -e "\"pid\": $pub," -e "\"pid\": $echo,"
  2
  $ dlxctl info | sed -E 's/(daemon +).*/\1.../; s/  [0-9].* of .*/  N/'
  daemon  ...
  socket  SOCKET
  found  by --socket or DLX_SOCKET
  protocol  2.10
  clients  3 (this one included)
  topics  1
  publishers  1
  links  1
  longest turn  N
  shared memory  52.0 KiB, memfd: sealed
  $ dlxctl info --json | grep -e socket -e place -e refused_by -e n_publishers
    "socket": "SOCKET",
    "place": "named",
    "refused_by": "",
    "n_publishers": 1,
  $ command dlxctl info --json | grep -c "\"pid\": $daemon,"
  1

A watch begins without publishers.

  $ dlxctl ls 'nobody/*' --watch --count 2 --interval 0.01
  no publishers
  
  no publishers

The help of each command, and the version.

  $ dlxctl --help
  Usage: dlxctl [OPTION...] COMMAND [ARG...]
  Look at, feed and record the tensors that dlpackd brokers between processes.
  
  Commands:
    ls  list topics and their publishers
    top  show live what flows on topics, and what is dropped
    info  show the daemon, or a topic with its links
    pub  publish .npy, .npz or .safetensors files, or raw bytes
    echo  print messages
    view  draw the newest tensor in the terminal
    get  show or save the newest message of a topic
    rm  drop what is retained on a topic
    save  write messages to .npy, .npz or .safetensors files
    hz  measure rate, loss and age of messages
    bw  measure bytes a second and sizes of messages
    holds  show who holds messages
    queue  show work queues, and who works on what
    quota  show what users use of the daemon, and may have
    clients list the programs that are connected
    kick  cut the connections of a program
    why  say why a topic does not flow, and what to do
    doctor look for what keeps programs from exchanging tensors
    serve  serve metrics for Prometheus
    trace  measure how long messages take, and tell who wakes whom
  
  Programs of their own, which other packages have:
    record record messages in an MCAP file
    play  publish the messages of an MCAP file
    bridge exchange messages with other machines, by zenoh
  
  dlxctl COMMAND --help shows the options of a command.
  
    -j, --json  Print JSON
    -S, --socket=PATH  Socket of the daemon
        --wait-daemon[=TIME]  Wait until a daemon is up, at most for TIME; start
                               none
    -?, --help  Give this help list
        --usage  Give a short usage message
    -V, --version  Print program version
  
  Mandatory or optional arguments to long options are also mandatory or optional
  for any corresponding short options.
  
  Without --socket and $DLX_SOCKET, the daemon is the first one that answers on
  $XDG_RUNTIME_DIR/dlpackd.sock, /run/dlpackd/dlpackd.sock or
  /tmp/dlpackd-UID/dlpackd.sock. If none does, pub, echo, save, hz and bw start a
  private one.
  
  Exit status: 0 done, 1 failed, 2 wrong usage, 128 + N ended early by signal N.
  $ for command in ls info pub echo get rm save hz bw holds queue quota; do
  >   dlxctl $command --help | head -n 1; dlxctl $command -h | grep -c -e --json -e --socket=PATH
  > done
  Usage: dlxctl ls [OPTION...] [TOPIC|PATTERN]
  3
  Usage: dlxctl info [OPTION...] [TOPIC|PATTERN]
  2
  Usage: dlxctl pub [OPTION...] TOPIC [[NAME=]FILE...|-]
  2
  Usage: dlxctl echo [OPTION...] TOPIC|PATTERN
  3
  Usage: dlxctl get [OPTION...] TOPIC|PATTERN [FILE|-]
  2
  Usage: dlxctl rm [OPTION...] TOPIC
  2
  Usage: dlxctl save [OPTION...] TOPIC|PATTERN FILE
  2
  Usage: dlxctl hz [OPTION...] TOPIC|PATTERN
  2
  Usage: dlxctl bw [OPTION...] TOPIC|PATTERN
  2
  Usage: dlxctl holds [OPTION...] [TOPIC|PATTERN]
  3
  Usage: dlxctl queue [OPTION...] [TOPIC|PATTERN]
  3
  Usage: dlxctl quota [OPTION...]
  3
  $ dlxctl --version | sed -E 's/ [0-9].*/ N/'
  dlxctl N
