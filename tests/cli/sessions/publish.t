What one dlxctl publishes, others print and save.

  $ . "$TESTDIR/../scene.sh"

Files of NumPy come back byte for byte, Fortran's order as C's. pub says nothing.

  $ for file in f4 f4_fortran bool scalar empty f2; do
  >   dlxctl save a/b out.npy 2>/dev/null &
  >   dlxctl pub a/b $npy/$file.npy --wait 1 && wait $! && cmp out.npy $npy/${file%_fortran}.npy
  > done

Late subscribers get the history; a signal is how --hold ends.

  $ command dlxctl pub late $npy/bool.npy $npy/f2.npy --history 2 --hold --json >pub.out 2>&1 & pub=$!
  $ for i in 1 2; do
  >   dlxctl echo late --history 2 --count 2 2>/dev/null | sed -E 's/  [0-9.]+ [a-z]+ old//'
  > done
  #1  N  bool (3,)  3 B  [false true true]
  #2  N  float16 (5,)  10 B  [0 1 2 3 4]
  #1  N  bool (3,)  3 B  [false true true]
  #2  N  float16 (5,)  10 B  [0 1 2 3 4]
  $ kill $pub && wait $pub
  $ masked pub.out
  {
    "topic": "late",
    "published": 2,
    "published_bytes": 13,
    "elapsed_ns": N,
    "copied_bytes": 0,
    "n_subscribers": 0,
    "retained": 0
  }

Several messages are numbered files, and no temporary file is left.

  $ dlxctl save many x-%03d-{seq}.npy --count 3 --json 2>/dev/null >save.out &
  $ dlxctl pub many $npy/f4.npy --loop 3 --wait 1 --history 8 && wait $!
  $ for file in x-*; do cmp $file $npy/f4.npy && echo $file; done
  x-001-000001.npy
  x-002-000002.npy
  x-003-000003.npy
  $ cat save.out
  {"topic":"many","publisher":N,"seq":1,"monotonic_ns":N,"age_ns":N,"gap":0,"meta_bytes":0,"tensors":[{"dtype":"float32","shape":[2,3,4],"nbytes":96}],"file":"x-001-000001.npy","descr":"<f4"}
  {"topic":"many","publisher":N,"seq":2,"monotonic_ns":N,"age_ns":N,"gap":0,"meta_bytes":0,"tensors":[{"dtype":"float32","shape":[2,3,4],"nbytes":96}],"file":"x-002-000002.npy","descr":"<f4"}
  {"topic":"many","publisher":N,"seq":3,"monotonic_ns":N,"age_ns":N,"gap":0,"meta_bytes":0,"tensors":[{"dtype":"float32","shape":[2,3,4],"nbytes":96}],"file":"x-003-000003.npy","descr":"<f4"}

A type that .npy cannot name survives by a word.

  $ printf '\x80\x3f\x00\xc0\x00\x00\x80\x7f' >bf16
  $ dlxctl save half b.npy 2>save.err &
  $ dlxctl pub half - --dtype bfloat16 --shape 2,2 --wait 1 <bf16 && wait $! &&
  >   grep -v 'no publisher yet' save.err
  dlxctl save: half: .npy cannot name bfloat16: stored as '<u2' with shape (2, 2); `dlxctl pub --dtype bfloat16` takes single items back
  $ dlxctl pub half b.npy --dtype bfloat16 --retain 1
  half: 1 message is retained
  $ dlxctl get half | tail -n 1
  #1  N  bfloat16 (2, 2)  8 B  [1 -2 0 inf]

Types that nobody knows are carried.

  $ printf '\x01\x02\x03\x04\x05\x06' | dlxctl pub odd --dtype 200:24:1 --shape 2 --retain 1
  odd: 1 message is retained
  $ dlxctl get odd | tail -n 1
  #1  N  200:24:1 (2,)  6 B  [0x010203 0x040506]

One dlxctl feeds another.

  $ command dlxctl save feed - --count 2 2>/dev/null >two &
  $ dlxctl pub feed $npy/two.npy --wait 1 && wait $!
  $ dlxctl pub b - --retain 2 <two
  b: 2 messages are retained
  $ dlxctl echo b --count 2
  #1  N  uint16 (2,)  4 B  [0 1]
  #2  N  int64 (3,)  24 B  [0 1 2]
  $ cmp two $npy/two.npy

A reliable subscriber gets everything.

  $ dlxctl echo all --reliable --count 200 --json 2>/dev/null >echo.out &
  $ dlxctl pub all $npy/f4.npy --block --loop 200 --wait 1 && wait $!
  $ sed -E 's/.*"seq":([0-9]+),.*/\1/' echo.out | cmp - <(seq 200)

pub says that no program was subscribed, and does not count what was published if that is nothing.

  $ dlxctl pub q $npy/f4.npy
  dlxctl pub: q: no program was subscribed, and no message is retained
  $ dlxctl pub q $npy/f4.npy --retain 1
  q: 1 message is retained
  $ dlxctl rm q

A signal while pub waits for subscribers is no error of its own.

  $ command dlxctl pub c $npy/f4.npy --wait 1 & pub=$!
  $ wait_publisher c
  $ kill $pub; wait $pub
  [143]

A signal is success only for what has no end.

  $ interrupted() { # interrupted SIGNAL COMMAND...
  >   env --default-signal=INT dlxctl "${@:2}" 2>/dev/null >out & local pid=$!
  >   dlxctl pub s $npy/f4.npy --wait 1
  >   wait_lines out 1
  >   kill -$1 $pid; wait $pid
  > }
  $ interrupted INT echo s
  $ interrupted TERM echo s
  $ interrupted INT echo s --count 5
  [130]
  $ interrupted TERM save s s-%d.npy --count 5 --json
  [143]
  $ ls s-*
  s-1.npy

hz and bw measure; rates and times differ from run to run.

  $ dlxctl bw r --count 6 --reliable --window 2 2>/dev/null >bw.out &
  $ dlxctl pub r $npy/f4.npy $npy/two.npy --loop 2 --wait 1 --block --rate 200 && wait $!
  $ cat bw.out
  r: 6 messages, 248 B in N, 0 lost, 0 skipped
    data  N/s, N/s
    size  mean 14 B  min 4 B  max 24 B
    (data and size: the last 2 messages)
  $ dlxctl bw r --count 6 --reliable --json 2>/dev/null >bw.out &
  $ dlxctl pub r $npy/f4.npy $npy/two.npy --loop 2 --wait 1 --block --rate 200 && wait $!
  $ cat bw.out
  {
    "topic": "r",
    "elapsed_ns": N,
    "messages": 6,
    "bytes": 248,
    "skipped": 0,
    "lost": 0,
    "window": 6,
    "rate": {
      "mean_hz": N,
      "bytes_per_s": N
    },
    "size": {
      "mean_bytes": 41.333333333333329,
      "min_bytes": 4,
      "max_bytes": 96
    }
  }
  $ dlxctl hz r --count 20 --reliable --json 2>/dev/null >hz.out &
  $ dlxctl pub r $npy/f4.npy --loop 20 --wait 1 --block --rate 200 && wait $!
  $ cat hz.out
  {
    "topic": "r",
    "elapsed_ns": N,
    "messages": 20,
    "bytes": 1920,
    "skipped": 0,
    "lost": 0,
    "window": 20,
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
  }
