#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is a terminal for `dlxctl view TOPIC`, and answers what it asks.

usage: view_terminal.py DLXCTL TOPIC

tests/cli/check_view.sh runs it. Each case is a terminal that has some kind of graphics, or none, or
that does not answer: which picture comes, and how the terminal is afterwards.
"""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

PATIENCE_S = 30
KITTY = b"\033_Ga=T,f=32"
SIXEL = b"\033P0;1;0q"
BLOCK = "\u2584".encode()
LEAVE = b"\033[?25h\033[?1049l"
QUESTION = b"\033[c"
# What a shell without job control ignores in a program in the background, and nohup.
IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


class Terminal:
    """A pseudo-terminal of 60 x 20 characters with a program on it."""

    def __init__(self, *argv):
        self.output, self.argv = b"", argv
        main, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 20, 60, 0, 0))
        self.fd, self.keeper = main, terminal  # the second one keeps the modes
        self.modes = termios.tcgetattr(terminal)
        self.pid = os.fork()
        if self.pid == 0:
            for number in IGNORED:  # dlxctl would leave them ignored, and keys would not end it
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
            for fd in range(3):
                os.dup2(terminal, fd)
            os.closerange(3, terminal + 1)
            os.execv(argv[0], argv)

    def read(self, until):
        """Reads until the output has these bytes."""
        end = time.monotonic() + PATIENCE_S
        while until not in self.output:
            ready, _, _ = select.select([self.fd], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise SystemExit(f"not within {PATIENCE_S} s: {until!r} in {self.output[-500:]!r}")
            self.output += os.read(self.fd, 65536)

    def write(self, data):
        os.write(self.fd, data)

    def end(self, expected):
        """Waits for the end; the modes must be what they were."""
        end = time.monotonic() + PATIENCE_S
        while (done := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            if select.select([self.fd], [], [], 0.02)[0]:
                self.output += os.read(self.fd, 65536)
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                raise SystemExit(
                    f"{self.argv} does not end within {PATIENCE_S} s: {self.output[-300:]!r}"
                )
        while select.select([self.fd], [], [], 0)[0]:
            self.output += os.read(self.fd, 65536)
        status = os.waitstatus_to_exitcode(done[1])
        assert status == expected, f"status {status}: {self.output[-300:]!r}"
        assert termios.tcgetattr(self.keeper) == self.modes, "the modes are not what they were"
        os.close(self.fd)
        os.close(self.keeper)


def case(argv, answer, has, has_not, leave=b"q", status=0):
    t = Terminal(*argv)
    if answer is not None:
        t.read(QUESTION)
        for byte in answer:  # a slow line
            t.write(bytes([byte]))
    t.read(has)
    if answer is None:
        t.write(b"\033[?62;4c")  # much too late, and no key
    if isinstance(leave, bytes):
        t.write(leave)
    else:
        os.kill(t.pid, leave)
    t.end(status)
    for sequence in has_not:
        assert sequence not in t.output, f"{sequence!r} in the output"
    assert LEAVE in t.output or "--once" in argv, "the screen is not given back"
    return t.output


def main():
    dlxctl, topic = sys.argv[1:]
    for number in IGNORED:  # as if this test ran in the background
        signal.signal(number, signal.SIG_IGN)
    live = (dlxctl, "view", topic)
    kitty = b"\033_Gi=31;OK\033\\\033[6;20;10t\033[?62;4c"
    output = case(live, kitty, KITTY, [SIXEL, BLOCK])
    assert output.rindex(b"\033_Ga=d,d=A\033\\") > output.rindex(KITTY), "the picture is left"
    assert b"c=53,r=20" in output or b",r=17" in output, "the place of the picture"
    case(live, b"\033[6;20;10t\033[?62;4;9c", SIXEL, [KITTY, BLOCK], b"\003")
    case(live, b"\033[?1;2c", BLOCK, [KITTY, SIXEL], signal.SIGTERM)
    case(live, None, BLOCK, [KITTY, SIXEL])
    forced = (*live, "--graphics=sixel")
    case(forced, b"\033[?1;2c", SIXEL, [KITTY, BLOCK], b"\034", -signal.SIGQUIT)
    case((*live, "--graphics=blocks"), None, BLOCK, [QUESTION, KITTY, SIXEL])
    # The picture stays on the screen.
    case((*live, "--once"), kitty, KITTY, [SIXEL, BLOCK, b"\033[?1049h"], b"")
    # A terminal that is closed.
    t = Terminal(*live)
    t.read(QUESTION)
    t.write(b"\033[?1;2c")
    t.read(BLOCK)
    os.close(t.keeper)
    os.close(t.fd)
    done = os.waitstatus_to_exitcode(os.waitpid(t.pid, 0)[1])
    assert done in (0, 1, -signal.SIGHUP), f"status {done} after the terminal was closed"


if __name__ == "__main__":
    main()
