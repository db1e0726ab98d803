Work queues: a group keeps messages before there is a worker, and each worker takes its own.

  $ . "$TESTDIR/../scene.sh"
  $ dlxctl queue
  dlxctl queue: no work queues
  $ dlxctl queue work
  dlxctl queue: work: no work queue
  [1]
  $ command dlxctl pub work $npy/f4.npy --loop 3 --group gpu --group log --hold >/dev/null 2>&1 & pub=$!
  $ wait_publisher work
  $ dlxctl echo work --group gpu --count 2 | cut -d' ' -f 1
  #1
  #2
  $ settled() { command dlxctl queue work | grep -q '1 waiting, 0 in flight.*'; }
  $ eventually settled
  $ dlxctl queue work
  work: group gpu of publisher N (dlxctl, pid N)
    to do  1 waiting, 0 in flight; the oldest, message 3, is N old
    done  2, 0 delivered again, 0 dead letters
    settings  declared by the publisher
    workers  none of uid N: no worker takes the waiting messages
  
  work: group log of publisher N (dlxctl, pid N)
    to do  3 waiting, 0 in flight; the oldest, message 1, is N old
    done  0, 0 delivered again, 0 dead letters
    settings  declared by the publisher
    workers  none of uid N: no worker takes the waiting messages
  $ dlxctl queue 'wo*' --json
  [
    {
      "topic": "work",
      "publisher": N,
      "group": 1,
      "name": "gpu",
      "uid": N,
      "n_workers": 0,
      "max_attempts": 0,
      "lease_ns": N,
      "declared": true,
      "gone": false,
      "waiting": 1,
      "in_flight": 0,
      "done": 2,
      "redelivered": 0,
      "dead": 0,
      "lost": 0,
      "oldest": 3,
      "oldest_ns": N,
      "client_name": "dlxctl",
      "pid": N,
      "away": false,
      "age_ns": N,
      "claims": []
    },
    {
      "topic": "work",
      "publisher": N,
      "group": 2,
      "name": "log",
      "uid": N,
      "n_workers": 0,
      "max_attempts": 0,
      "lease_ns": N,
      "declared": true,
      "gone": false,
      "waiting": 3,
      "in_flight": 0,
      "done": 0,
      "redelivered": 0,
      "dead": 0,
      "lost": 0,
      "oldest": 1,
      "oldest_ns": N,
      "client_name": "dlxctl",
      "pid": N,
      "away": false,
      "age_ns": N,
      "claims": []
    }
  ]
  $ dlxctl ls
  TOPIC  ID  PID  PROGRAM  SUBS  MESSAGES  BYTES  MEMORY  QUEUES
  work  N  N  dlxctl  0  3  288 B  36.0 KiB  1 gpu, 3 log
  $ dlxctl info work
  work: 1 publisher
  
  publisher N: dlxctl (pid N, uid N)
    published  3 messages, 288 B
    settings  history 1, depth 64, blocks when full
    memory  16.0 KiB in 1 arena, control block 20.0 KiB
    queues  gpu: 1 waiting, 0 in flight, 2 done, 0 workers
                 log: 3 waiting, 0 in flight, 0 done, 0 workers
    subscribers  none
  $ dlxctl queue nothing/here
  dlxctl queue: nothing/here: no work queue
  [1]
  $ dlxctl queue --drop
  dlxctl queue: --drop needs a topic
  [2]
  $ dlxctl echo work --group gpu --latest
  dlxctl echo: --group takes each message once, in order: not with --latest, --reliable and --history
  [2]
  $ dlxctl echo work --group 'a b' --timeout 1
  dlxctl echo: subscription to work: the name of a group has byte 0x20 at 1; allowed are A-Z a-z 0-9 _ . -
  [1]

What a worker has is in flight, also when the worker has died, until another one takes it. A pipe
that nobody reads keeps it.

  $ mkfifo pipe.npy
  $ command dlxctl save work pipe.npy --group log 2>/dev/null & worker=$!
  $ taken() { command dlxctl queue work | grep -q '2 waiting, 1 in flight.*'; }
  $ eventually taken
  $ dlxctl queue work | sed -n '/group log/,$p' | sed -E 's/[0-9.]+ m?s$/N/; s/(dlxctl +)[0-9]+/\1N/'
  work: group log of publisher N (dlxctl, pid N)
    to do  2 waiting, 1 in flight; the oldest, message 1, is N old
    done  0, 0 delivered again, 0 dead letters
    settings  declared by the publisher, 5 attempts
    workers  1 of uid N
      PID  PROGRAM  UID  MESSAGE  ATTEMPT  AGE
      N  dlxctl  N  1  1 of 5  N
  $ dlxctl queue work --json | grep -A 9 '"claims": .$'
      "claims": [
        {
          "seq": 1,
          "link": N,
          "pid": N,
          "uid": N,
          "client_name": "dlxctl",
          "attempt": 1,
          "published_ns": N,
          "age_ns": N
  $ { kill -KILL $worker; wait $worker; } 2>/dev/null
  [137]
  $ gone() { command dlxctl queue work | grep -q 'GONE'; }
  $ eventually gone
  $ dlxctl queue work | sed -n '/MESSAGE/,$p' | sed -E 's/[0-9.]+ m?s  w/N  w/'
      PID  PROGRAM  UID  MESSAGE  ATTEMPT  AGE  NOTE
      -  -  -  1  1  N  worker GONE: the next one takes it
  $ dlxctl echo work --group log --count 1 | cut -d' ' -f 1
  #1

What is not done stays when the publisher has gone, until it is done or dropped.

  $ dlxctl queue work --drop
  dlxctl queue: what groups have not done on work is of publisher dlxctl (pid N), which is still there: end it first
  [1]
  $ kill $pub
  $ wait $pub
  $ dlxctl queue work | head -n 2
  work: group gpu of publisher N (dlxctl, pid N), which has gone
    to do  1 waiting, 0 in flight; the oldest, message 3, is N old
  $ dlxctl ls
  TOPIC  ID  PID  PROGRAM  SUBS  MESSAGES  BYTES  MEMORY  QUEUES
  work  N  retained  dlxctl  0  3  288 B  36.0 KiB  1 gpu, 2 log
  $ dlxctl echo work --group gpu --count 1 | cut -d' ' -f 1
  #3
  $ dlxctl queue work --drop --json
  {
    "topic": "work",
    "dropped": true
  }
  $ dlxctl queue work
  dlxctl queue: work: no work queue
  [1]
  $ dlxctl queue work --drop
  dlxctl queue: nothing that groups have not done is kept on work
  [1]

A publisher waits until all is done.

  $ command dlxctl pub done $npy/f4.npy --loop 100 --group all --drain >/dev/null 2>pub.err & pub=$!
  $ wait_publisher done
  $ dlxctl echo done --group all --count 100 | wc -l
  100
  $ wait $pub
  $ cat pub.err
  $ dlxctl pub alone $npy/f4.npy --group all --drain --timeout 0.05 2>&1 | sed -E 's/[0-9.]+ s ago/N ago/'
  dlxctl pub: topic alone: group all has not done message 1, published N ago: no worker serves it
  $ dlxctl pub alone $npy/f4.npy --drain
  dlxctl pub: --drain waits for groups, and needs --group
  [2]
