top --once: a line for each topic, with sums of its publishers. The screen is in check_top.sh.

  $ . "$TESTDIR/../scene.sh"
  $ dlxctl top --once --interval 10ms
  dlxctl top: no publishers
  $ command dlxctl pub cam/front $npy/f4.npy --hold --wait 1 2>/dev/null & pub=$!
  $ wait_publisher cam/front
  $ command dlxctl echo cam/front >echo.out 2>/dev/null & echo=$!
  $ wait_lines echo.out 1
  $ command dlxctl pub cam/back $npy/f4.npy --hold --retain 1 >/dev/null 2>&1 &
  $ wait_publisher cam/back
  $ dlxctl top --once --interval 10ms --sort topic
  TOPIC  RATE  DATA  PUBS  SUBS  BEHIND  HELD  OLDEST  DROPS  DROPPED  REFUSED  BLOCKED  COPIED  MESSAGES  MEMORY
  cam/back  0/s  N/s  1  0  0  0  -  -  0  0  0 s  0 B  1  36.0 KiB
  cam/front  0/s  N/s  1  1  0  0  -  0/s  0  0  0 s  0 B  1  36.0 KiB
  $ dlxctl top 'cam/f*' --once --interval 10ms --json
  [
    {
      "topic": "cam/front",
      "messages_per_s": 0.0,
      "bytes_per_s": N,
      "n_publishers": 1,
      "n_subscribers": 1,
      "behind": 0,
      "n_held": 0,
      "held_age_ns": null,
      "dropped_per_s": 0.0,
      "dropped": 0,
      "refused": 0,
      "blocked_ns": N,
      "copied_bytes": 0,
      "published": 1,
      "memory_bytes": 36864,
      "published_bytes": 96,
      "copied": 0,
      "held_bytes": 0,
      "next_age_ns": null,
      "lost": 0,
      "skipped": 0,
      "blocked": false,
      "full": 0,
      "joining": 0,
      "n_retained": 0
    }
  ]
  $ dlxctl top no/such --once --interval 10ms
  dlxctl top: no/such: no publisher
  [1]

  $ dlxctl top
  dlxctl top: the standard output is no terminal: use --once or --json
  [1]
  $ dlxctl top --once --sort no-such
  dlxctl top: --sort: there is no column 'no-such' (columns: TOPIC, RATE, DATA, PUBS, SUBS, BEHIND, HELD, OLDEST, DROPS, DROPPED, REFUSED, BLOCKED, COPIED, MESSAGES, MEMORY, NOTE)
  [2]
