Messages that stay: pub --retain and --latch, get, rm, and how ls and info show them.

  $ . "$TESTDIR/../scene.sh"

What pub retains stays until it is dropped.

  $ dlxctl pub w/policy $reference --retain 1
  w/policy: 1 message is retained
  $ for i in 1 2; do dlxctl get w/policy out.safetensors && cmp out.safetensors $reference; done
  $ dlxctl rm w/policy
  $ dlxctl ls
  dlxctl ls: no publishers
  $ dlxctl get w/policy none.safetensors
  dlxctl get: topic w/policy has no message: nobody publishes it at SOCKET (--timeout waits for one)
  [1]
  $ ls none.safetensors 2>/dev/null
  [2]
  $ dlxctl rm w/policy
  dlxctl rm: nothing is retained on w/policy
  [1]

A new file replaces the one before.

  $ for file in f4 f2; do dlxctl pub w $npy/$file.npy --retain-for 60; done
  w: 1 message is retained for 1 min 0 s
  w: 1 message is retained for 1 min 0 s
  $ dlxctl ls --json | grep -e published_bytes -e '"retain'
      "published_bytes": 10,
      "retain": 1,
      "retained": true,
  $ dlxctl get w out.npy && cmp out.npy $npy/f2.npy
  $ command dlxctl get w - | cmp - $npy/f2.npy
  $ dlxctl rm w

Several messages stay, and the history fits.

  $ dlxctl pub a $npy/f4.npy --loop 9 --retain 6 --json | grep -e '"published"' -e retained
    "published": 9,
    "retained": 6
  $ dlxctl echo a --json --until-gone | sed -E 's/.*"seq":([0-9]+),.*/\1/' | tr '\n' ' '
  4 5 6 7 8 9  (no-eol)

Of two, one is there to be retained: it does not replace the others.

  $ dlxctl pub a $npy/f2.npy --retain 2
  a: 1 message is retained
  $ dlxctl info a | head -n 1
  a: 0 publishers, 2 retained
  $ dlxctl rm a --json
  {
    "topic": "a",
    "dropped": true
  }
  $ dlxctl ls
  dlxctl ls: no publishers

Retained messages expire.

  $ dlxctl pub a $npy/f4.npy --retain 1 --retain-for 0.2
  a: 1 message is retained for 200 ms
  $ is_gone() { [ "$(command dlxctl ls --json 2>/dev/null)" = '[]' ]; }
  $ eventually is_gone

Latched messages are for those who come meanwhile, who are subscribers as well: pub says nothing.

  $ command dlxctl pub a $npy/f4.npy --latch --hold 2>pub.err & pub=$!
  $ dlxctl get a out.npy --timeout 60 && cmp out.npy $npy/f4.npy
  $ command dlxctl ls --json | grep -c "\"pid\": $pub,"
  1
  $ dlxctl ls --json | grep '"retain'
      "retain": 1,
      "retained": false,
  $ dlxctl info a | grep settings
    settings  history 1, depth 16, drops the oldest when full, retains 1
  $ dlxctl rm a
  dlxctl rm: what is retained on a is of publisher dlxctl (pid N), which is still there: end it first
  [1]
  $ kill $pub && wait $pub; cat pub.err
  $ dlxctl ls
  dlxctl ls: no publishers

Retained publishers are not shown as alive.

  $ dlxctl pub w/a $npy/bool.npy $npy/f2.npy --retain 2
  w/a: 2 messages are retained
  $ dlxctl ls
  TOPIC  ID  PID  PROGRAM  SUBS  MESSAGES  BYTES  MEMORY
  w/a  N  retained  dlxctl  0  2  13 B  36.0 KiB
  $ dlxctl info w/a --newest
  w/a: 0 publishers, 1 retained
  
  publisher N: dlxctl (retained, its process has gone; uid N)
    published  2 messages, 13 B
    settings  history 2, depth 16, drops the oldest when full, retains 2
    memory  16.0 KiB in 1 arena, control block 20.0 KiB
    newest  message 2, N old
                 float16 (5,)  10 B
    subscribers  none
  $ dlxctl info w/a --newest --json | grep -e retain -e seq
        "retain": 2,
        "retained": true,
          "seq": 2,

get shows what echo shows.

  $ dlxctl get w/a --values 2
  #2  N  float16 (5,)  10 B  [0 1 ...]
  $ dlxctl get 'w/*'
  w/a  #2  N  float16 (5,)  10 B  [0 1 2 3 4]
  $ dlxctl get 'w/**' --json
  {"topic":"w/a","publisher":N,"seq":2,"monotonic_ns":N,"age_ns":N,"gap":1,"meta_bytes":0,"tensors":[{"dtype":"float16","shape":[5],"nbytes":10,"values":[0.0,1.0,2.0,3.0,4.0]}]}
  $ dlxctl get w/a out.npy --json
  {"topic":"w/a","publisher":N,"seq":2,"monotonic_ns":N,"age_ns":N,"gap":1,"meta_bytes":0,"tensors":[{"dtype":"float16","shape":[5],"nbytes":10}],"file":"out.npy","descr":"<f2"}
  $ dlxctl rm w/a

One tensor of a set.

  $ dlxctl pub w $reference --retain 1
  w: 1 message is retained
  $ dlxctl get w | head -n 1
  #1  N  22 tensors, 367 B, 36 B of metadata
  $ dlxctl get w out.npy --tensor 6
  dlxctl get: w: 36 bytes of metadata are left out: .npy has no room for them, .safetensors has for a JSON object
  dlxctl get: w: message 1 has 22 tensors: tensor 6 is saved (--tensor), the others are left out; .safetensors or .npz has room for all
  $ tail -c 4 out.npy | od -A n -f
               1.5
  $ dlxctl get w - --tensor 22
  dlxctl get: w: message 1 has 22 tensors, there is no tensor 22
  [1]
  $ dlxctl rm w

get waits for the first message.

  $ dlxctl get a out.npy --timeout 60 &
  $ dlxctl pub a $npy/f4.npy --wait 1 && wait $! && cmp out.npy $npy/f4.npy

A topic that nobody publishes may be misspelt; one without a message yet is not.

  $ command dlxctl pub quiet $npy/f4.npy --wait 2 2>/dev/null & pub=$!
  $ wait_publisher quiet
  $ dlxctl get quiet
  dlxctl get: topic quiet has no message (--timeout waits for one)
  [1]
  $ dlxctl get nope
  dlxctl get: topic nope has no message: nobody publishes it at SOCKET (--timeout waits for one)
  [1]
  $ kill $pub; wait $pub
  [143]

hz and bw say that what is retained has no publisher, if they wait for one.

  $ dlxctl pub rig/old $npy/two.npy --retain 2
  rig/old: 2 messages are retained
  $ for command in hz bw; do dlxctl $command rig/old --count 2 >/dev/null; done
  dlxctl hz: rig/old: only retained messages: no publisher yet, waiting for one
  dlxctl bw: rig/old: only retained messages: no publisher yet, waiting for one
  $ for command in hz bw; do dlxctl $command rig/old --until-gone >/dev/null; done

They do not if a publisher of the pattern is there.

  $ command dlxctl pub rig/z $npy/f4.npy --hold 2>/dev/null & pub=$!
  $ wait_publisher rig/z
  $ dlxctl hz 'rig/*' --count 1 >/dev/null
  $ kill $pub; wait $pub

hz leaves what was published before it began out of rates and ages: it comes in a burst, and may be
hours old.

  $ dlxctl hz 'rig/*' --count 5 --reliable --json 2>/dev/null >hz.out &
  $ dlxctl pub rig/new $npy/f4.npy --loop 3 --wait 1 --block && wait $!
  $ cat hz.out
  {
    "topic": "rig/*",
    "elapsed_ns": N,
    "messages": 5,
    "bytes": 316,
    "skipped": 0,
    "lost": 0,
    "window": 5,
    "rate": {
      "mean_hz": N,
      "min_hz": N,
      "max_hz": N,
      "jitter_ns": N,
      "bytes_per_s": N
    },
    "age": {
      "p50_ns": N,
      "p99_ns": N,
      "max_ns": N
    },
    "topics": [
      {
        "topic": "rig/new",
        "messages": 3,
        "bytes": 288,
        "missed": 0,
        "window": 3,
        "rate": {
          "mean_hz": N,
          "min_hz": N,
          "max_hz": N,
          "jitter_ns": N,
          "bytes_per_s": N
        },
        "age": {
          "p50_ns": N,
          "p99_ns": N,
          "max_ns": N
        }
      },
      {
        "topic": "rig/old",
        "messages": 2,
        "bytes": 28,
        "missed": 0,
        "window": 2,
        "rate": null,
        "age": null
      }
    ]
  }

What is retained or latched outlives a daemon that is killed, and history alone does not.

  $ command dlxctl pub latched $npy/bool.npy --hold --latch 2>/dev/null & latched=$!
  $ command dlxctl pub plain $npy/bool.npy --hold 2>/dev/null & plain=$!
  $ wait_publisher latched; wait_publisher plain
  $ dlxctl echo latched --count 1 | cut -c 1-2
  #1
  $ dlxctl echo plain --history 1 --count 1 | cut -c 1-2
  #1
  $ { kill -KILL $daemon; wait $daemon; } 2>/dev/null; start_daemon
  $ wait_publisher latched; wait_publisher plain
  $ dlxctl echo latched --count 1 | cut -c 1-2
  #1
  $ dlxctl echo plain --history 1 --count 1 --timeout 1s
  dlxctl echo: plain: no message within 1.00 s: 1 publisher attached
  [1]
  $ kill $latched $plain; wait $latched $plain
