# SPDX-License-Identifier: Apache-2.0
"""The processes of one point, in a private folder: a daemon, a publisher, the subscribers a and
b."""

import json
import mmap
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time

SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
BUILD = os.path.join(SOURCE, os.environ.get("BUILD", "build"))
PROGRAMS = os.path.join(BUILD, "tests", "faults")
PROFILE = os.path.join(BUILD, "profile")  # of make coverage
ROLES = ("daemon", "publisher", "a", "b")

DEADLINE_S = 60  # of a point; without faults it takes a fraction of a second
SETTLE_S = 5  # until the daemon has closed what the last client left

IDLE_FDS = {}  # by kind of memory
STARTING, STREAMING, FINISHED = 0, 1, 2


class Failed(Exception):
    """A promise that was not kept."""


class Page:
    """page.h"""

    FIELDS = (
        "fail_from",
        "fail_count",
        "wanted",
        "allocations",
        "live",
        "failed",
        "began",
        "done",
        "state",
    )

    def __init__(self, **values):
        self.fd = os.memfd_create("fault-page")
        os.ftruncate(self.fd, 4096)
        self.map = mmap.mmap(self.fd, 4096)
        for name, value in values.items():
            struct.pack_into("q", self.map, 8 * self.FIELDS.index(name), value)

    def __getattr__(self, name):
        return struct.unpack_from("q", self.map, 8 * self.FIELDS.index(name))[0]

    def set(self, name, value):
        struct.pack_into("q", self.map, 8 * self.FIELDS.index(name), value)

    def close(self):
        self.map.close()
        os.close(self.fd)


class Process:
    """One that runs, with what it said in a file. `prefix`: strace or another launcher before
    it."""

    def __init__(
        self,
        stage,
        role,
        argv,
        prefix=(),
        stdin=subprocess.DEVNULL,
        pass_fds=(),
        fail=(0, 0),
        env=None,
    ):
        stage.n_started += 1
        self.role = role
        self.log = os.path.join(stage.folder, f"{stage.n_started}-{role}.log")
        self.page = Page(fail_from=fail[0], fail_count=fail[1], wanted=2)
        self.status = None
        env = {
            **os.environ,
            "DLX_AUTOSPAWN": "no",
            "FAULT_PAGE_FD": str(self.page.fd),
            **(env or {}),
        }
        if fail[1] and os.path.isdir(
            PROFILE
        ):  # a runtime that has no memory keeps the lock on everybody's file
            env["LLVM_PROFILE_FILE"] = os.path.join(PROFILE, "%p-%m%c.profraw")
        preload = os.path.join(PROGRAMS, "libfaultalloc.so")
        if prefix and os.path.basename(prefix[0]) == "strace":
            prefix = [*prefix, "-E", f"LD_PRELOAD={preload}"]
        else:
            env["LD_PRELOAD"] = preload
        with open(self.log, "wb") as log:
            self.popen = subprocess.Popen(
                [*prefix, *argv],
                stdin=stdin,
                stdout=log,
                stderr=log,
                env=env,
                pass_fds=(self.page.fd, *pass_fds),
                cwd=stage.folder,
            )
        self.pid = self.popen.pid
        self.pidfd = os.pidfd_open(self.pid)
        stage.processes.append(self)

    def poll(self):
        """The exit status, negative for a signal, or None while it runs."""
        if self.status is None:
            self.status = self.popen.poll()
        return self.status

    def wait(self, seconds):
        waiting = select.poll()
        waiting.register(self.pidfd, select.POLLIN)
        if waiting.poll(max(0, seconds) * 1000) and self.poll() is None:
            try:  # its tracer has yet to hear of it
                self.status = self.popen.wait(5)
            except subprocess.TimeoutExpired:
                pass
        return self.poll()

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def n_fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def end(self):
        if self.poll() is None:
            self.popen.kill()
            self.popen.wait()
            self.status = self.popen.returncode
        if self.popen.stdin:
            self.popen.stdin.close()
        os.close(self.pidfd)
        self.page.close()


def idle_fds(memory):
    """Open files of a daemon that has nothing to do."""
    if memory not in IDLE_FDS:
        with Stage(memory=memory) as stage:
            IDLE_FDS[memory] = stage.daemon(closed=True).n_fds()
    return IDLE_FDS[memory]


class Stage:
    """`prefix` and `fail` are for the first process of the role `victim` only."""

    def __init__(self, victim=None, prefix=(), fail=(0, 0), memory="memfd", everywhere=()):
        self.folder = tempfile.mkdtemp(prefix="dlxf.")
        self.socket = os.path.join(self.folder, "dlpackd.sock")
        self.victim, self.prefix, self.fail, self.memory = victim, list(prefix), fail, memory
        self.everywhere = list(everywhere)  # launcher of every process
        self.processes = []
        self.n_started = 0
        self.first = {}
        self.until = time.monotonic() + DEADLINE_S

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, role, argv, **more):
        first = role not in self.first
        if first and role == self.victim:
            more.update(prefix=[*self.everywhere, *self.prefix], fail=self.fail)
        else:
            more.update(prefix=self.everywhere)
        process = Process(self, role, argv, **more)
        self.first.setdefault(role, process)
        return process

    def actor(self, role):
        stdin = subprocess.PIPE if role == "publisher" else subprocess.DEVNULL
        return self.start(role, [os.path.join(PROGRAMS, "actor"), role, self.socket], stdin=stdin)

    def daemon(self, closed=False):
        """Returns it listening, or ended: then it has to say why. closed: and it has closed the
        ready fd (which under strace others have, too)."""
        ready, theirs = os.pipe()
        daemon = self.start(
            "daemon",
            [
                os.path.join(BUILD, "dlpackd"),
                "--foreground",
                "--socket",
                self.socket,
                "--memory",
                self.memory,
                "--ready-fd",
                str(theirs),
            ],
            pass_fds=(theirs,),
        )
        os.close(theirs)
        waiting = select.poll()
        waiting.register(ready, select.POLLIN)
        waiting.register(daemon.pidfd, select.POLLIN)
        daemon.ready = False
        if not waiting.poll((self.until - time.monotonic()) * 1000):
            os.close(ready)
            raise Failed("the daemon is not ready in time")
        waiting.unregister(daemon.pidfd)
        if waiting.poll(0):
            daemon.ready = os.read(ready, 100).startswith(b"READY=1")
            if closed:
                os.read(ready, 100)
        os.close(ready)
        if not daemon.ready:
            daemon.wait(5)
        return daemon

    def ctl(self, *args):
        return subprocess.run(
            [os.path.join(BUILD, "dlxctl"), *args],
            capture_output=True,
            text=True,
            timeout=20,
            env={**os.environ, "DLX_SOCKET": self.socket, "DLX_AUTOSPAWN": "no"},
            check=False,
        )

    def info(self):
        """The fault may hit this one: it asks again."""
        for _ in range(8):
            done = self.ctl("info", "--json")
            if done.returncode == 0:
                break
        if done.returncode != 0:
            raise Failed(f"dlxctl info: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def story(self):
        """Everything that was said, for the report of a failure."""
        text = ""
        for process in self.processes:
            said = process.said().strip().split("\n")
            if len(said) > 30:
                said = said[:10] + [f"... {len(said) - 25} lines ..."] + said[-15:]
            text += (
                f"  -- {os.path.basename(process.log)[:-4]} (status {process.poll()}, "
                f"state {process.page.state}, {process.page.began} began, {process.page.done} "
                "done)\n"
            )
            text += "".join(f"     {line}\n" for line in said if line)
        return text
