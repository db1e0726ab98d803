The reference implementation of .safetensors reads what was saved, and would see a difference.

  $ python=$SRCDIR/build/venv/bin/python
  $ $python -c 'import safetensors' 2>/dev/null || exit 80
  $ . "$TESTDIR/../scene.sh"
  $ dlxctl pub w $reference --retain 1 && dlxctl get w read.safetensors
  w: 1 message is retained
  $ $python $SRCDIR/tests/data/safetensors/make.py read.safetensors
  $ printf x | dd of=read.safetensors bs=1 seek=$(($(stat -c %s read.safetensors) - 1)) conv=notrunc status=none
  $ $python $SRCDIR/tests/data/safetensors/make.py read.safetensors >out 2>&1 || echo differs
  differs
