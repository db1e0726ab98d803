Commands that are programs of their own: dlxctl-NAME or dlx-NAME, beside dlxctl, in the package's
libexec folder, or on PATH.

  $ . "$TESTDIR/../scene.sh"
  $ mkdir -p bin libexec/dlpackd path current
  $ cp "$BUILD/dlxctl" bin/dlxctl && export LD_LIBRARY_PATH=$BUILD
  $ program() { # program FILE
  >   printf '#!/bin/sh\necho "$0 runs, socket $DLX_SOCKET:" "$@"\nexit 7\n' >"$1" && chmod +x "$1"
  > }

What is not installed is named, with its package.

  $ for name in record play bridge; do refused $name --info run.mcap; echo $?; done
  dlxctl: 'record' is a program of its own, and is not installed: install the package dlx-record, run `make install-rust` in the source, or put dlxctl-record or dlx-record into a folder of $PATH
  1
  dlxctl: 'play' is a program of its own, and is not installed: install the package dlx-record, run `make install-rust` in the source, or put dlxctl-play or dlx-play into a folder of $PATH
  1
  dlxctl: 'bridge' is a program of its own, and is not installed: install the package dlx-bridge, run `make install-rust` in the source, or put dlxctl-bridge or dlx-bridge into a folder of $PATH
  1

One on PATH gets its arguments, and its status is that of dlxctl. The other places go before it, and
so does dlxctl-NAME.

  $ PATH=$PWD/path:$PWD/bin:$PATH
  $ program path/dlx-record && dlxctl record 'cam/*' -o run.mcap
  path/dlx-record runs, socket SOCKET: cam/* -o run.mcap
  [7]
  $ program path/dlxctl-record && dlxctl record
  path/dlxctl-record runs, socket SOCKET:
  [7]
  $ program libexec/dlpackd/dlx-record && dlxctl record
  bin/../libexec/dlpackd/dlx-record runs, socket SOCKET:
  [7]
  $ program bin/dlx-record && dlxctl record
  bin/dlx-record runs, socket SOCKET:
  [7]

Options before the name are for the program, too.

  $ dlxctl --socket=other --json --wait-daemon=2 record --info a
  bin/dlx-record runs, socket other: --json --wait-daemon=2000000000ns --info a
  [7]
  $ dlxctl --wait-daemon record
  bin/dlx-record runs, socket SOCKET: --wait-daemon
  [7]

Any name will do, and a command of dlxctl's own goes first. A file that is no program is passed over,
a name is no path, and a folder of PATH may be the current one.

  $ program path/dlxctl-my-own && dlxctl my-own 1
  path/dlxctl-my-own runs, socket SOCKET: 1
  [7]
  $ program path/dlxctl-rm && dlxctl rm a
  dlxctl rm: nothing is retained on a
  [1]
  $ touch path/dlxctl-data && mkdir path/dlx-data && refused data 2>&1 | grep -v ^Commands
  dlxctl: unknown command 'data'
  $ program path/dlxctl-x && refused ../path/dlxctl-x 2>&1 | grep -v ^Commands
  dlxctl: unknown command '../path/dlxctl-x'
  $ (cd current && program dlx-here && PATH=:$PATH dlxctl here)
  ./dlx-here runs, socket SOCKET:
  [7]

A program that cannot be run says why.

  $ printf '#!/none\n' >path/dlxctl-broken && chmod +x path/dlxctl-broken && dlxctl broken
  dlxctl broken: path/dlxctl-broken: cannot be run: No such file or directory
  [1]
