A daemon that is not there, is awaited, or is somewhere else.

  $ . "$TESTDIR/../scene.sh"

It is said with the path. --socket is stronger than the environment, before and after the command.

  $ for command in ls info 'echo a' 'save a x.npy' 'hz a' 'get a' 'rm a' 'bw a' holds queue quota; do
  >   DLX_SOCKET=/no/such/socket command dlxctl $command
  > done
  dlxctl ls: no dlpackd at /no/such/socket: No such file or directory; DLX_SOCKET is set, so none is started: run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, or wait for it with --wait-daemon
  dlxctl info: no dlpackd at /no/such/socket: No such file or directory; DLX_SOCKET is set, so none is started: run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, or wait for it with --wait-daemon
  dlxctl echo: no dlpackd at /no/such/socket: No such file or directory; DLX_SOCKET is set, so none is started: run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, or wait for it with --wait-daemon
  dlxctl save: no dlpackd at /no/such/socket: No such file or directory; DLX_SOCKET is set, so none is started: run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, or wait for it with --wait-daemon
  dlxctl hz: no dlpackd at /no/such/socket: No such file or directory; DLX_SOCKET is set, so none is started: run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, or wait for it with --wait-daemon
  dlxctl get: no dlpackd at /no/such/socket: No such file or directory; DLX_SOCKET is set, so none is started: run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, or wait for it with --wait-daemon
  dlxctl rm: no dlpackd at /no/such/socket: No such file or directory; DLX_SOCKET is set, so none is started: run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, or wait for it with --wait-daemon
  dlxctl bw: no dlpackd at /no/such/socket: No such file or directory; DLX_SOCKET is set, so none is started: run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, or wait for it with --wait-daemon
  dlxctl holds: no dlpackd at /no/such/socket: No such file or directory; DLX_SOCKET is set, so none is started: run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, or wait for it with --wait-daemon
  dlxctl queue: no dlpackd at /no/such/socket: No such file or directory; DLX_SOCKET is set, so none is started: run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, or wait for it with --wait-daemon
  dlxctl quota: no dlpackd at /no/such/socket: No such file or directory; DLX_SOCKET is set, so none is started: run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, or wait for it with --wait-daemon
  [1]
  $ dlxctl --socket /another ls
  dlxctl ls: no dlpackd at /another: No such file or directory; start it with `dlpackd --socket=/another`, or wait for it with --wait-daemon
  [1]
  $ dlxctl ls --socket=/another
  dlxctl ls: no dlpackd at /another: No such file or directory; start it with `dlpackd --socket=/another`, or wait for it with --wait-daemon
  [1]
  $ dlxctl -jS /another ls
  dlxctl ls: no dlpackd at /another: No such file or directory; start it with `dlpackd --socket=/another`, or wait for it with --wait-daemon
  [1]

A daemon that is not up yet is waited for, once told; the option stands before or after the command.

  $ kill $daemon && wait $daemon
  $ command dlxctl --wait-daemon ls >ls.out 2>&1 & waiters=$!
  $ command dlxctl info --wait-daemon=10min >info.out 2>&1 & waiters="$waiters $!"
  $ command dlxctl pub a $npy/f4.npy --wait-daemon --wait 1 >pub.out 2>&1 & waiters="$waiters $!"
  $ command dlxctl echo a --count 1 --wait-daemon >echo.out 2>&1 & waiters="$waiters $!"
  $ for out in ls info pub echo; do wait_lines $out.out 1; done
  $ start_daemon
  $ wait $waiters
  $ masked ls.out | head -n 1; masked pub.out; masked echo.out | grep -v 'no publisher yet'
  dlxctl ls: waiting for dlpackd at SOCKET
  dlxctl pub: waiting for dlpackd at SOCKET
  dlxctl echo: waiting for dlpackd at SOCKET
  #1  N  float32 (2, 3, 4)  96 B  [0 1 2 3 4 5 ...]
  $ masked info.out | head -n 1
  dlxctl info: waiting for dlpackd at SOCKET, at most 10 min 0 s

A wait ends in time, and by a signal.

  $ dlxctl -S /no/such/socket echo a --wait-daemon=500ms
  dlxctl echo: waiting for dlpackd at /no/such/socket, at most 500 ms
  dlxctl echo: waited 0.5 s: no dlpackd at /no/such/socket: No such file or directory
  [1]
  $ dlxctl ls --wait-daemon=0
  dlxctl ls: --wait-daemon: must be more than 0
  [2]
  $ signalled INT echo.out dlxctl -S /no/such/socket echo a --wait-daemon
  [130]
  $ cat echo.out
  dlxctl echo: waiting for dlpackd at /no/such/socket

Where no socket is named, echo would start a private daemon, here by a program that does not exist.
It starts none if it waits for one.

  $ export DLX_SOCKET= XDG_RUNTIME_DIR=$PRYSK_TEMP DLX_AUTOSPAWN=yes DLX_DAEMON=/no/such/dlpackd
  $ dlxctl echo a
  dlxctl echo: no dlpackd at dlpackd.sock, /run/dlpackd/dlpackd.sock or /tmp/dlpackd-UID/dlpackd.sock: DLX_DAEMON=/no/such/dlpackd cannot be started: No such file or directory; start it with `dlpackd`, or wait for it with --wait-daemon
  [1]
  $ signalled INT echo.out dlxctl echo a --wait-daemon
  [130]
  $ cat echo.out
  dlxctl echo: waiting for dlpackd
