Sets: .safetensors files, several files as one set, and metadata.

  $ . "$TESTDIR/../scene.sh"

A file is passed on byte for byte, also through a pipe, and leaves no temporary file.

  $ mkdir sets
  $ dlxctl pub w $reference --retain 1 && dlxctl get w sets/out.safetensors
  w: 1 message is retained
  $ cmp sets/out.safetensors $reference
  $ cat $reference | dlxctl pub w - --retain 1
  w: 1 message is retained
  $ dlxctl save w sets/again.safetensors && cmp sets/again.safetensors $reference
  $ ls sets
  again.safetensors
  out.safetensors
  $ dlxctl get w | grep -v layer
  #1  N  22 tensors, 367 B, 36 B of metadata
      empty  int64 (3, 0, 2)  0 B  []
      scalar  float32 ()  4 B  [1.5]
      ... and 6 more
      metadata  {"note":"\"café\"\n","format":"pt"}

Several sets are numbered files.

  $ dlxctl save w n.safetensors --count 3 --reliable 2>/dev/null &
  $ dlxctl rm w; dlxctl pub w $reference --loop 3 --wait 1 --block && wait $!
  $ for file in n-*; do cmp $file $reference && echo $file; done
  n-000001.safetensors
  n-000002.safetensors
  n-000003.safetensors

Tensors that a later message loses are told: the first one has nothing to say yet.

  $ dlxctl pub w $npy/f4.npy $reference $reference --retain 3
  w: 3 messages are retained
  $ dlxctl save w later.npy --count 3 --tensor 0
  dlxctl save: w: 36 bytes of metadata are left out: .npy has no room for them, .safetensors has for a JSON object
  dlxctl save: w: message 2 has 22 tensors: tensor 0 is saved (--tensor), the others are left out; .safetensors or .npz has room for all
  $ dlxctl rm w

A file that lies publishes nothing.

  $ head -c -1 $reference >bad.safetensors
  $ dlxctl pub w bad.safetensors --json
  dlxctl pub: w: bad.safetensors: tensor 'layer.bool' ends at 367, the file has only 366 bytes of data
  [1]

Several files are one set, and go on together: the first of each, then the second of each.

  $ dlxctl pub w --set rgb=$npy/f4_fortran.npy $npy/f2.npy =$npy/bool.npy -m '{"frame": 7}' \
  >   --loop 2 --retain 2
  w: 2 messages are retained
  $ dlxctl get w
  #2  N  3 tensors, 109 B, 12 B of metadata
      rgb  float32 (2, 3, 4)  96 B  [0 1 2 3 4 5 ...]
      f2  float16 (5,)  10 B  [0 1 2 3 4]
      bool  bool (3,)  3 B  [false true true]
      metadata  {"frame": 7}
  $ dlxctl pub w --set $npy/two.npy again=$npy/two.npy --retain 2
  w: 2 messages are retained
  $ command dlxctl save w - -n 2 --tensor 1 2>/dev/null | cmp - $npy/two.npy
  $ dlxctl pub v -e $npy/two.npy $npy/f4.npy
  dlxctl pub: v: npy/f4.npy: has no more tensors, but npy/two.npy has
  dlxctl pub: v: no program was subscribed, and no message is retained
  [1]

A set is shown with its names, which may hold an escape sequence, and not without end.

  $ many=($'esc\e[2J='$npy/scalar.npy)
  $ for i in $(seq 19); do many+=(t$i=$npy/scalar.npy); done
  $ dlxctl pub many --set "${many[@]}" --retain 1
  many: 1 message is retained
  $ dlxctl get many | sed -n '1,2p; 16,$p'
  #1  N  20 tensors, 160 B
      esc?[2J  int64 ()  8 B  [42]
      t14  int64 ()  8 B  [42]
      t15  int64 ()  8 B  [42]
      ... and 4 more
  $ dlxctl info many --newest | tail -n 4
                 t14  int64 ()  8 B
                 t15  int64 ()  8 B
                 ... and 4 more
    subscribers  none
  $ dlxctl get many --json | grep -o -e '"name":"t19"' -e 'u001b'
  "name":"t19"

Sets that cannot be are named.

  $ dlxctl pub w --set $npy/f4.npy -
  dlxctl pub: --set: the standard input needs a name in a set: NAME=-
  [2]
  $ dlxctl pub w --set
  dlxctl pub: --set: a file is missing
  [2]
  $ dlxctl pub w --set a=
  dlxctl pub: --set: 'a=' is not [NAME=]FILE with a name of 1 to 1023 bytes
  [2]
  $ dlxctl pub w --set a=- b=-
  dlxctl pub: the standard input ('-') can only be given once
  [2]
  $ dlxctl pub w --set $reference
  dlxctl pub: w: safetensors/reference.safetensors: is a set itself; a set takes single tensors
  [1]
  $ dlxctl pub w --set $npy/f4.npy $npy/f4.npy
  dlxctl pub: topic w: tensors 0 and 1 are both named "f4"
  [1]
  $ dlxctl pub w --set $npy/f4.npy x=no/such
  dlxctl pub: w: no/such: No such file or directory
  [1]

Metadata may be given, up to its limit; they replace those of a file.

  $ for size in 65535 65536 65537; do
  >   head -c $size /dev/zero | tr '\0' m >meta
  >   dlxctl pub m $npy/f4.npy --meta @meta --retain 1 &&
  >     dlxctl get m --json | grep -o '"meta_bytes":[0-9]*'
  > done
  m: 1 message is retained
  "meta_bytes":65535
  m: 1 message is retained
  "meta_bytes":65536
  dlxctl pub: --meta: more than the limit of 65536 bytes
  [2]
  $ dlxctl pub m $npy/f4.npy --meta @none
  dlxctl pub: --meta: none: No such file or directory
  [2]
  $ dlxctl pub m $npy/f4.npy --meta '{bad'
  dlxctl pub: --meta: no valid JSON at byte 4: string or '}' expected near 'bad' (--meta @FILE takes any bytes)
  [2]
  $ dlxctl pub m $npy/f4.npy --meta '[1, 2'
  dlxctl pub: --meta: no valid JSON at byte 5: ']' expected near end of file (--meta @FILE takes any bytes)
  [2]
  $ dlxctl pub m $reference --meta mine --retain 1
  m: 1 message is retained
  $ dlxctl get m | grep metadata
  #1  N  22 tensors, 367 B, 4 B of metadata
      metadata  mine
