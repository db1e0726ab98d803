Patterns of topics, in each command that takes one.

  $ . "$TESTDIR/../scene.sh"
  $ dlxctl pub cam/front $npy/f4.npy --retain 2
  cam/front: 1 message is retained
  $ dlxctl pub cam/rear $npy/two.npy --retain 2
  cam/rear: 2 messages are retained
  $ dlxctl pub cam/rear/depth $npy/f2.npy --retain 2
  cam/rear/depth: 1 message is retained

echo names the topics.

  $ dlxctl echo 'cam/*' --until-gone
  cam/front  #1  N  float32 (2, 3, 4)  96 B  [0 1 2 3 4 5 ...]
  cam/rear  #1  N  uint16 (2,)  4 B  [0 1]
  cam/rear  #2  N  int64 (3,)  24 B  [0 1 2]
  $ dlxctl echo 'cam/rear/**' --until-gone --json
  {"topic":"cam/rear/depth","publisher":N,"seq":1,"monotonic_ns":N,"age_ns":N,"gap":0,"meta_bytes":0,"tensors":[{"dtype":"float16","shape":[5],"nbytes":10,"values":[0.0,1.0,2.0,3.0,4.0]}]}
  $ dlxctl echo cam/rear/depth --until-gone
  #1  N  float16 (5,)  10 B  [0 1 2 3 4]

hz and bw add up, and tell the topics apart; of one topic they do not.

  $ for command in hz bw; do dlxctl $command 'cam/*' --until-gone; done
  cam/*: 3 messages, 124 B in N, 0 lost, 0 skipped
    (rate, data and age without 3 messages published before the start)
  cam/front: 1 message, 96 B, 0 missed
    (rate, data and age without 1 message published before the start)
  cam/rear: 2 messages, 28 B, 0 missed
    (rate, data and age without 2 messages published before the start)
  cam/*: 3 messages, 124 B in N, 0 lost, 0 skipped
    size  mean 41 B  min 4 B  max 96 B
    (data without 3 messages published before the start)
  cam/front: 1 message, 96 B, 0 missed
    size  mean 96 B  min 96 B  max 96 B
    (data without 1 message published before the start)
  cam/rear: 2 messages, 28 B, 0 missed
    size  mean 14 B  min 4 B  max 24 B
    (data without 2 messages published before the start)
  $ for command in hz bw; do dlxctl $command 'cam/*' --until-gone --json; done
  {
    "topic": "cam/*",
    "elapsed_ns": N,
    "messages": 3,
    "bytes": 124,
    "skipped": 0,
    "lost": 0,
    "window": 3,
    "rate": null,
    "age": null,
    "topics": [
      {
        "topic": "cam/front",
        "messages": 1,
        "bytes": 96,
        "missed": 0,
        "window": 1,
        "rate": null,
        "age": null
      },
      {
        "topic": "cam/rear",
        "messages": 2,
        "bytes": 28,
        "missed": 0,
        "window": 2,
        "rate": null,
        "age": null
      }
    ]
  }
  {
    "topic": "cam/*",
    "elapsed_ns": N,
    "messages": 3,
    "bytes": 124,
    "skipped": 0,
    "lost": 0,
    "window": 3,
    "rate": null,
    "size": {
      "mean_bytes": 41.333333333333336,
      "min_bytes": 4,
      "max_bytes": 96
    },
    "topics": [
      {
        "topic": "cam/front",
        "messages": 1,
        "bytes": 96,
        "missed": 0,
        "window": 1,
        "rate": null,
        "size": {
          "mean_bytes": 96.0,
          "min_bytes": 96,
          "max_bytes": 96
        }
      },
      {
        "topic": "cam/rear",
        "messages": 2,
        "bytes": 28,
        "missed": 0,
        "window": 2,
        "rate": null,
        "size": {
          "mean_bytes": 14.0,
          "min_bytes": 4,
          "max_bytes": 24
        }
      }
    ]
  }
  $ for command in hz bw; do dlxctl $command cam/rear --until-gone --json | grep -c topics; done
  0
  0
  [1]

They say which topic missed messages.

  $ dlxctl hz 'cam/*' --latest --until-gone --json | grep -e missed -e skipped -e messages
    "messages": 2,
    "skipped": 1,
        "messages": 1,
        "missed": 0,
        "messages": 1,
        "missed": 1,

save names files by topic.

  $ dlxctl save 'cam/**' {topic}-{seq}.npy --until-gone && ls *.npy
  cam+front-000001.npy
  cam+rear+depth-000001.npy
  cam+rear-000001.npy
  cam+rear-000002.npy
  $ cmp cam+front-000001.npy $npy/f4.npy; cmp cam+rear+depth-000001.npy $npy/f2.npy
  $ dlxctl save 'cam/*' {seq}.npy --until-gone
  dlxctl save: file name '{seq}.npy': messages of several topics may have the same number, {topic} or %d is needed, too
  [2]
  $ dlxctl save 'cam/*' n.npy --count 3 && ls n*.npy
  n-000001.npy
  n-000002.npy
  n-000003.npy

ls, info and holds list what matches.

  $ for topic in front rear rear/depth; do dlxctl rm cam/$topic; done
  $ pids=
  $ for topic in cam/front cam/rear lidar; do
  >   command dlxctl pub $topic $npy/f4.npy --wait 1 --hold & pids="$pids $!"
  > done
  $ command dlxctl echo '**' >echo.out 2>/dev/null & echo=$!
  $ wait_lines echo.out 3
  $ dlxctl ls 'cam/*' | cut -c 1-10
  TOPIC  ID 
  cam/front 
  cam/rear  
  $ dlxctl ls 'nobody/*'
  dlxctl ls: nobody/*: no publisher
  [1]
  $ dlxctl info 'cam/*' --newest | grep -e publisher -e newest
  cam/*: 2 publishers
  publisher N of cam/front: dlxctl (pid N, uid N)
    newest  message 1, N old
  publisher N of cam/rear: dlxctl (pid N, uid N)
    newest  message 1, N old
  $ dlxctl info '*' --newest --json | grep -e topic -e seq
    "topic": "*",
        "topic": "lidar",
          "topic": "lidar",
          "seq": 1,
  $ dlxctl holds 'cam/*' --all --json | grep -e topic -e latest | sort
      "latest": false,
      "latest": false,
      "topic": "cam/front",
      "topic": "cam/rear",
  $ command dlxctl holds 'cam/*' --all --json | grep -c "\"pid\": $echo,"
  2
  $ kill $echo $pids; wait $echo $pids
