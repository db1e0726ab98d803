# SPDX-License-Identifier: Apache-2.0
"""Daemons and actors as child processes, and what the system has of them: for tests/soak and
tests/fail/faults."""

import os
import pathlib
import select
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = SOURCE / os.environ.get("BUILD", "build")
ACTOR = BUILD / "tests/actor"


def n_fds(pid):
    """Open files of a process; None when it has gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


def shm_names():
    """Our names in /dev/shm, and whose they are: {name: pid}."""
    prefix = f"dlpackd.{os.geteuid()}."
    try:
        names = [x for x in os.listdir("/dev/shm") if x.startswith(prefix)]
    except OSError:
        return {}
    return {x: int(x.split(".")[2]) for x in names}


class ReadyPipe:
    """The pipe by which a daemon that is about to start says READY=1."""

    def __init__(self):
        self.ours, self.theirs = os.pipe()
        self.link = os.readlink(f"/proc/self/fd/{self.theirs}")

    def words(self):
        return ["--ready-fd", str(self.theirs)]

    def is_open_in(self, pid):
        try:
            return os.readlink(f"/proc/{pid}/fd/{self.theirs}") == self.link
        except OSError:
            return False

    def wait(self, pid, seconds, closed=False):
        """True: it is ready, and has closed the descriptor if `closed`. False: it has closed the
        descriptor, or ended, without a word. None: neither within that time. A tracer has the
        descriptor, too, so that its end of file tells nothing."""
        said, until = b"", time.monotonic() + seconds
        os.close(self.theirs)
        with open(self.ours, "rb", buffering=0) as ours:
            while time.monotonic() < until:
                has_closed = not self.is_open_in(pid)
                if select.select([ours], [], [], 0 if has_closed else 0.02)[0]:
                    said += ours.read(100)
                if said and (has_closed or not closed):
                    return said.startswith(b"READY=1")
                if has_closed:
                    return False
        return None
