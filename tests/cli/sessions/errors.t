What goes wrong: exit statuses, and words that name what, who and the limit. `refused` also checks
that nothing is printed on standard output.

  $ . "$TESTDIR/../scene.sh"

An unknown command is told the nearest one, if there is one, and all.

  $ for word in lss sl inf publish ecoh sav hold qouta hz1 gte eco ifno; do refused $word; done 2>&1 |
  > grep -v ^Commands
  dlxctl: unknown command 'lss'; did you mean 'ls'?
  dlxctl: unknown command 'sl'; did you mean 'ls'?
  dlxctl: unknown command 'inf'; did you mean 'info'?
  dlxctl: unknown command 'publish'; did you mean 'pub'?
  dlxctl: unknown command 'ecoh'; did you mean 'echo'?
  dlxctl: unknown command 'sav'; did you mean 'save'?
  dlxctl: unknown command 'hold'; did you mean 'holds'?
  dlxctl: unknown command 'qouta'; did you mean 'quota'?
  dlxctl: unknown command 'hz1'; did you mean 'hz'?
  dlxctl: unknown command 'gte'; did you mean 'get'?
  dlxctl: unknown command 'eco'; did you mean 'echo'?
  dlxctl: unknown command 'ifno'; did you mean 'info'?
  $ for word in frobnicate x '' zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz; do refused "$word"; done 2>&1 | uniq
  dlxctl: unknown command 'frobnicate'
  Commands: ls, top, info, pub, echo, view, get, rm, save, hz, bw, holds, queue, quota, clients, kick, why, doctor, serve, trace
  dlxctl: unknown command 'x'
  Commands: ls, top, info, pub, echo, view, get, rm, save, hz, bw, holds, queue, quota, clients, kick, why, doctor, serve, trace
  dlxctl: unknown command ''
  Commands: ls, top, info, pub, echo, view, get, rm, save, hz, bw, holds, queue, quota, clients, kick, why, doctor, serve, trace
  dlxctl: unknown command 'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz'
  Commands: ls, top, info, pub, echo, view, get, rm, save, hz, bw, holds, queue, quota, clients, kick, why, doctor, serve, trace
  $ refused frobnicate
  dlxctl: unknown command 'frobnicate'
  Commands: ls, top, info, pub, echo, view, get, rm, save, hz, bw, holds, queue, quota, clients, kick, why, doctor, serve, trace
  [2]

A file of a kind that is not written is refused: it would be .npy under another name.

  $ for command in get save; do
  >   for file in f.png f.pt {topic}-%06d.bin a.npy.tmp x/f.; do refused $command a $file; done
  >   refused $command a x.d/without --timeout 0.02
  > done
  dlxctl get: file name 'f.png': it must end in .npy, .npz or .safetensors, or have no suffix, which is .npy
  dlxctl get: file name 'f.pt': it must end in .npy, .npz or .safetensors, or have no suffix, which is .npy
  dlxctl get: file name '{topic}-%06d.bin': it must end in .npy, .npz or .safetensors, or have no suffix, which is .npy
  dlxctl get: file name 'a.npy.tmp': it must end in .npy, .npz or .safetensors, or have no suffix, which is .npy
  dlxctl get: file name 'x/f.': it must end in .npy, .npz or .safetensors, or have no suffix, which is .npy
  dlxctl get: waited 20.0 ms: topic a has no message, and none came: nobody publishes it at SOCKET
  dlxctl save: file name 'f.png': it must end in .npy, .npz or .safetensors, or have no suffix, which is .npy
  dlxctl save: file name 'f.pt': it must end in .npy, .npz or .safetensors, or have no suffix, which is .npy
  dlxctl save: file name '{topic}-%06d.bin': it must end in .npy, .npz or .safetensors, or have no suffix, which is .npy
  dlxctl save: file name 'a.npy.tmp': it must end in .npy, .npz or .safetensors, or have no suffix, which is .npy
  dlxctl save: file name 'x/f.': it must end in .npy, .npz or .safetensors, or have no suffix, which is .npy
  dlxctl save: a: no publisher yet, waiting for one
  dlxctl save: a: no message within 20.0 ms: no publisher
  [1]

Wrong usage.

  $ refused --json
  dlxctl: a command is missing
  [2]
  $ refused echo
  dlxctl echo: a topic is missing
  [2]
  $ refused echo a b
  dlxctl echo: extra argument 'b'
  [2]
  $ refused echo a --count -3
  dlxctl echo: --count: '-3' is not a number from 1 to 18446744073709551615
  [2]
  $ refused echo a --timeout soon
  dlxctl echo: --timeout: 'soon' is not a time from 0 to 1000000000 seconds, like 2, 0.5, 100ms or 5min
  [2]
  $ refused echo a --latest --reliable
  dlxctl echo: --latest and --reliable exclude each other
  [2]
  $ refused save a
  dlxctl save: a topic and a file are needed
  [2]
  $ refused save a %s.npy
  dlxctl save: file name '%s.npy': only %d, %0Nd (N up to 20) and %% may follow %
  [2]
  $ refused pub a $npy/f4.npy --shape 3
  dlxctl pub: --shape needs --dtype
  [2]
  $ refused pub a $npy/f4.npy --dtype u1 --shape 3,-1
  dlxctl pub: --shape: '3,-1' is not a shape like 3,608,608 or 3x608x608 of at most 64 sizes, each up to 2^63 - 1
  [2]
  $ refused pub a $npy/f4.npy --dtype float33
  dlxctl pub: --dtype: 'float33' is not known; names are like uint8, float32, bfloat16, float8_e4m3fn, complex64, float32x4, or code:bits:lanes
  [2]
  $ refused pub a - --loop 0
  dlxctl pub: --loop cannot read the standard input again; give a file
  [2]
  $ refused pub a --loop a.npy
  dlxctl pub: --loop: 'a.npy' is not a number from 0 to 18446744073709551615
  [2]
  $ refused pub a $npy/f4.npy --history 1025
  dlxctl pub: --history: '1025' is not a number from 1 to 1024
  [2]
  $ refused pub a $npy/f4.npy --rate 0
  dlxctl pub: --rate: '0' is not a rate over 0 and up to 10^9 Hz, like 30, 29.97 or 2kHz
  [2]
  $ refused pub a $npy/f4.npy --rate file
  dlxctl pub: --rate: 'file' is not a rate over 0 and up to 10^9 Hz, like 30, 29.97 or 2kHz
  [2]
  $ refused info --newest
  dlxctl info: --newest needs a topic
  [2]
  $ refused ls --count 1
  dlxctl ls: --interval and --count need --watch
  [2]
  $ refused ls --frobnicate
  dlxctl ls: unrecognized option '--frobnicate'
  [2]
  $ refused quota a
  dlxctl quota: extra argument 'a'
  [2]
  $ refused get
  dlxctl get: a topic is missing
  [2]
  $ refused get a b c
  dlxctl get: extra argument 'c'
  [2]
  $ refused get a - --json
  dlxctl get: --json and the file '-' exclude each other
  [2]
  $ refused get a --tensor 1
  dlxctl get: --tensor needs a file
  [2]
  $ refused get a b.npy --values 1
  dlxctl get: --values is for showing a message; a file has all of them
  [2]
  $ refused get a b.safetensors --tensor 1
  dlxctl get: --tensor is for .npy; .safetensors and .npz files have all tensors
  [2]
  $ refused get a ''
  dlxctl get: the file name is empty
  [2]
  $ refused rm
  dlxctl rm: a topic is missing
  [2]
  $ refused rm a b
  dlxctl rm: extra argument 'b'
  [2]
  $ refused pub a $npy/f4.npy --retain 0
  dlxctl pub: --retain: '0' is not a number from 1 to 1024
  [2]
  $ refused pub a $npy/f4.npy --retain 5 --history 4
  dlxctl pub: --retain: 5 messages cannot stay, --history keeps only 4
  [2]
  $ refused pub a $npy/f4.npy --retain-for 0
  dlxctl pub: --retain-for: must be more than 0
  [2]
  $ refused pub a $npy/f4.npy --latch --retain-for 1
  dlxctl pub: --latch and --retain-for exclude each other
  [2]
  $ refused save w x.safetensors --tensor 0
  dlxctl save: --tensor is for .npy; .safetensors and .npz files have all tensors
  [2]
  $ refused holds a b
  dlxctl holds: extra argument 'b'
  [2]
  $ refused bw
  dlxctl bw: a topic is missing
  [2]
  $ refused hz
  dlxctl hz: a topic is missing
  [2]

Topics and patterns that break the rules are named.

  $ for command in ls info get echo hz bw holds; do refused $command a//\*; done
  dlxctl ls: pattern "a//*" has an empty segment
  dlxctl info: pattern "a//*" has an empty segment
  dlxctl get: pattern "a//*" has an empty segment
  dlxctl echo: pattern "a//*" has an empty segment
  dlxctl hz: pattern "a//*" has an empty segment
  dlxctl bw: pattern "a//*" has an empty segment
  dlxctl holds: pattern "a//*" has an empty segment
  [1]
  $ refused echo a//b
  dlxctl echo: topic name "a//b" has an empty segment
  [1]
  $ refused get a//b
  dlxctl get: topic name "a//b" has an empty segment
  [1]
  $ refused pub 'a b' $npy/f4.npy
  dlxctl pub: topic name "a b" has ' ' at 1; allowed are A-Z a-z 0-9 _ . - and / between segments
  [1]
  $ refused pub 'cam/*' $npy/f4.npy
  dlxctl pub: topic name "cam/*" has '*' at 4; allowed are A-Z a-z 0-9 _ . - and / between segments
  [1]
  $ refused hz ../x
  dlxctl hz: topic name "../x" has a segment "." or ".."
  [1]
  $ refused rm 'w/*'
  dlxctl rm: topic name "w/*" has '*' at 2; allowed are A-Z a-z 0-9 _ . - and / between segments
  [1]
  $ refused echo a --history 1025
  dlxctl echo: subscription to a: history 1025 must be at most 1024
  [1]

An error names its topic once: a word of the error that is part of another one is not the topic.

  $ refused rm w/policy
  dlxctl rm: nothing is retained on w/policy
  [1]
  $ refused rm a//b
  dlxctl rm: topic name "a//b" has an empty segment
  [1]
  $ refused rm i
  dlxctl rm: nothing is retained on i
  [1]
  $ refused pub i no/such
  dlxctl pub: i: no/such: No such file or directory
  [1]

A topic without a publisher.

  $ for command in ls info holds; do refused $command nope; done
  dlxctl ls: nope: no publisher
  dlxctl info: nope: no publisher
  dlxctl holds: nope: no publisher
  [1]
  $ for command in ls info holds; do dlxctl $command nope --json 2>&1; done
  []
  dlxctl ls: nope: no publisher
  {
    "topic": "nope",
    "publishers": [],
    "unserved": []
  }
  dlxctl info: nope: no publisher
  []
  dlxctl holds: nope: no publisher
  [1]
  $ dlxctl ls
  dlxctl ls: no publishers
  $ dlxctl ls --json
  []
  dlxctl ls: no publishers
  $ dlxctl holds
  dlxctl holds: no publishers
  $ dlxctl holds --json
  []
  dlxctl holds: no publishers

Silence is a failure when it was asked about.

  $ refused echo quiet --timeout 0.02
  dlxctl echo: quiet: no publisher yet, waiting for one
  dlxctl echo: quiet: no message within 20.0 ms: no publisher
  [1]
  $ refused save quiet never.npy --timeout 0.02
  dlxctl save: quiet: no publisher yet, waiting for one
  dlxctl save: quiet: no message within 20.0 ms: no publisher
  [1]
  $ refused pub a $npy/f4.npy --wait 2 --timeout 0.02
  dlxctl pub: topic a has 0 of 2 subscribers; nobody subscribes to it at SOCKET
  [1]
  $ for command in bw hz; do
  >   refused $command a --timeout 0.05
  >   refused $command a --duration 0.05
  > done
  dlxctl bw: a: no publisher yet, waiting for one
  dlxctl bw: a: no message within 50.0 ms: no publisher
  dlxctl bw: a: no publisher yet, waiting for one
  dlxctl bw: a: no message came: no publisher
  standard output: a: 0 messages, 0 B in N, 0 lost, 0 skipped
  dlxctl hz: a: no publisher yet, waiting for one
  dlxctl hz: a: no message within 50.0 ms: no publisher
  dlxctl hz: a: no publisher yet, waiting for one
  dlxctl hz: a: no message came: no publisher
  standard output: a: 0 messages, 0 B in N, 0 lost, 0 skipped
  [1]
  $ refused get nope
  dlxctl get: topic nope has no message: nobody publishes it at SOCKET (--timeout waits for one)
  [1]
  $ refused get nope --timeout 0.02
  dlxctl get: waited 20.0 ms: topic nope has no message, and none came: nobody publishes it at SOCKET
  [1]

A signal ends the wait for a publisher, which is told once.

  $ for command in 'hz typo' 'bw typo' 'echo typo --json' 'save typo x.npy'; do
  >   signalled INT waits dlxctl $command; echo "status $?"; grep -e publisher waits
  > done
  status 1
  dlxctl hz: typo: no publisher yet, waiting for one
  dlxctl hz: typo: no message came: no publisher
  status 1
  dlxctl bw: typo: no publisher yet, waiting for one
  dlxctl bw: typo: no message came: no publisher
  status 0
  dlxctl echo: typo: no publisher yet, waiting for one
  status 130
  dlxctl save: typo: no publisher yet, waiting for one

Files that lie leave nothing behind.

  $ printf '\x93NUMPY\x01\x00\x47\x00%s \nshort' \
  > "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }" >lie
  $ refused pub a <lie
  dlxctl pub: a: standard input: '<f8' (1099511627776,) should have 8796093022208 bytes, the file has 5
  [1]
  $ printf 12345 >five
  $ refused pub a --dtype float32 --shape 2 <five
  dlxctl pub: a: standard input: has 5 bytes, which is not a whole number of tensors of 8 bytes (float32 (2,))
  [1]
  $ refused pub a --dtype uint8 --shape 2,0 <five
  dlxctl pub: a: standard input: has bytes, but uint8 (2, 0) has none
  [1]
  $ refused pub a $npy/objects.npy
  dlxctl pub: a: npy/objects.npy: data type '|O': Python objects (pickles) cannot be carried, and are never loaded
  [1]
  $ refused pub a no/such
  dlxctl pub: a: no/such: No such file or directory
  [1]
  $ refused pub a no/such --json
  dlxctl pub: a: no/such: No such file or directory
  [1]
  $ refused pub a no/such --retain 1
  dlxctl pub: a: no/such: No such file or directory
  [1]
  $ dlxctl pub a $npy/f4.npy no/such --json 2>&1 | grep -e such -e published
    "published": 1,
    "published_bytes": 96,
  dlxctl pub: a: no/such: No such file or directory
  $ dlxctl ls
  dlxctl ls: no publishers

More memory than there is. Only a regular file tells its size.

  $ : >empty
  $ refused pub a --dtype u1 --shape 4611686018427387904 <empty
  dlxctl pub: a: standard input: uint8 (4611686018427387904,) should have 4611686018427387904 bytes, the file has none
  [1]
  $ refused pub a --dtype f8 --shape 9223372036854775807 <five
  dlxctl pub: a: float64 (9223372036854775807,) is over the limit of 2^63 - 1 bytes
  [1]
  $ printf 12345 | refused pub a --dtype u1 --shape 4611686018427387904
  dlxctl pub: a: standard input: topic a: no memory for 4.0 EiB: a tensor or a set may have at most 64.0 TiB
  [1]

A reliable subscriber needs a publisher that blocks.

  $ command dlxctl pub a $npy/f4.npy --hold >pub.out 2>&1 &
  $ wait_publisher a
  $ refused echo a --reliable --count 1 --timeout 30
  dlxctl echo: subscription to a: subscriber dlxctl (pid N) asks for a reliable link to a, publisher dlxctl (pid N) drops its oldest messages: make it a publisher that blocks (on_full), or subscribe without `reliable`, or with `accepts_unreliable`
  [1]

A file that cannot be written, and descriptors that are closed: nothing else may get their numbers.

  $ dlxctl pub a $npy/f4.npy --retain 1
  a: 1 message is retained
  $ refused save a /dev/full
  dlxctl save: a: /dev/full: write: No space left on device
  [1]
  $ command dlxctl ls --json >&-
  dlxctl ls: writing to standard output: Bad file descriptor
  [1]
  $ command dlxctl pub a <&-
  dlxctl pub: a: standard input: Bad file descriptor
  [1]
  $ dlxctl rm a
  $ ls
  daemon.log
  empty
  five
  lie
  pub.out
  waits
