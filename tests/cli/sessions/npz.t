.npz files: those of NumPy are published, NumPy reads what is saved, and what lies is refused.

  $ . "$TESTDIR/../scene.sh"
  $ npz=$SRCDIR/tests/data/npz

A file of NumPy is one set.

  $ dlxctl pub w $npz/reference.npz --loop 2 --retain 2
  w: 2 messages are retained
  $ dlxctl get w
  #2  N  5 tensors, 152 B
      rgb  float32 (2, 3, 4)  96 B  [0 1 2 3 4 5 ...]
      fortran  int64 (2, 3)  48 B  [0 1 2 3 4 5]
      swapped  int16 (3,)  6 B  [1 2 3]
      layer/0  float16 ()  2 B  [1.5]
      empty  uint8 (0, 3)  0 B  []

NumPy reads what was saved.

  $ dlxctl get w saved.npz && /usr/bin/python3 $npz/make.py saved.npz

A saved file comes back byte for byte: the date of a member is 1980-01-01, as NumPy has it.

  $ dlxctl pub v saved.npz --retain 1 && dlxctl save v second.npz && cmp saved.npz second.npz
  v: 1 message is retained
  $ od -A n -t x1 -j 10 -N 4 saved.npz
   00 00 21 00

Archives that lie publish nothing.

  $ dlxctl rm w; dlxctl rm v
  $ lie() { # lie WORDS OF PYTHON: the bytes are b, the first array begins at at
  >   /usr/bin/python3 -c 'import sys
  > b = bytearray(open("saved.npz", "rb").read()); at = b.index(b"\x93NUMPY")
  > exec(sys.argv[1]); open("bad.npz", "wb").write(b)' "$1"
  >   dlxctl pub w bad.npz
  > }
  $ lie 'b[at + 133] ^= 1'
  dlxctl pub: w: bad.npz: rgb: CRC error
  [1]
  $ lie 'b[b.index(b"(2, 3, 4)") + 1] = ord("9")'
  dlxctl pub: w: bad.npz: rgb: should have 432 bytes of data, the member has 96
  [1]
  $ lie 'del b[-10:]'
  dlxctl pub: w: bad.npz: Not a zip archive
  [1]
  $ lie 'b = b.replace(b"empty.npy", b"empty.txt")'
  dlxctl pub: w: bad.npz: is a zip archive and no .npz: member 'empty.txt' is no .npy file (PyTorch's .pt is not read: save it as .safetensors)
  [1]
  $ dlxctl pub w - <<<"$(head -c 100 saved.npz | tr -d '\0')"
  dlxctl pub: w: standard input: a .npz file has its index at its end: it cannot come from a pipe
  [1]
  $ cat saved.npz | dlxctl pub w -
  dlxctl pub: w: standard input: a .npz file has its index at its end: it cannot come from a pipe
  [1]
  $ dlxctl pub w $npz/reference.npz --dtype u1
  dlxctl pub: w: npz/reference.npz: --dtype alone is for .npy; .npz says the types itself
  [1]
  $ dlxctl get w saved.npz -T 1
  dlxctl get: --tensor is for .npy; .safetensors and .npz files have all tensors
  [2]
  $ dlxctl ls
  dlxctl ls: no publishers
