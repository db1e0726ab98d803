# SPDX-License-Identifier: Apache-2.0
"""The processes of one point, in a private folder: a daemon, a publisher, the subscribers a and
b."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

import ledger
import scene
from scene import ACTOR, BUILD

PROGRAMS = BUILD / "tests/faults"
PROFILE = BUILD / "profile"  # of make coverage
ROLES = ("daemon", "publisher", "a", "b")
WORK_ROLES = ("daemon@work", "asker", "c")  # of the other story; d is as c

DEADLINE_S = 60  # of a point; without faults it takes a fraction of a second
SETTLE_S = 5  # until the daemon has closed what the last client left

IDLE_FDS = {}  # by kind of memory


def role_of(victim):
    """Without the story that it is of."""
    return victim.partition("@")[0] if victim else None


class Failed(Exception):
    """A promise that was not kept."""


class Process:
    """A running program, with its output in a file. `prefix`: strace or another launcher before
    it.
    """

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
        self.ledger = ledger.Ledger(fail_from=fail[0], fail_count=fail[1], wanted=2)
        self.head = self.ledger.head
        self.status = None
        env = {**os.environ, "DLX_AUTOSPAWN": "no", **self.ledger.env(), **(env or {})}
        if fail[1] and PROFILE.is_dir():
            # A runtime that has no memory keeps the lock on everybody's file.
            env["LLVM_PROFILE_FILE"] = str(PROFILE / "%p-%m%c.profraw")
        preload = str(PROGRAMS / "libfaultalloc.so")
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
                pass_fds=(self.ledger.fd, *pass_fds),
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

    def end(self):
        if self.poll() is None:
            self.popen.kill()
            self.popen.wait()
            self.status = self.popen.returncode
        if self.popen.stdin:
            self.popen.stdin.close()
        os.close(self.pidfd)
        self.head = None
        self.ledger.close()


def idle_fds(memory):
    """Open files of a daemon that has nothing to do."""
    if memory not in IDLE_FDS:
        with Stage(memory=memory) as stage:
            IDLE_FDS[memory] = scene.n_fds(stage.daemon(closed=True).pid)
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
        stdin = subprocess.PIPE if role in ("publisher", "c", "d") else subprocess.DEVNULL
        name = "helper" if role in ("c", "d") else role
        return self.start(role, [ACTOR / "actor", name, self.socket], stdin=stdin)

    def end_input(self, process):
        if process.popen.stdin and not process.popen.stdin.closed:
            process.popen.stdin.close()

    def daemon(self, closed=False):
        """Returns it listening, or ended: then it has to say why. closed: and it has closed the
        ready fd."""
        ready = scene.ReadyPipe()
        words = ["--foreground", "--socket", self.socket, "--memory", self.memory, *ready.words()]
        daemon = self.start("daemon", [BUILD / "dlpackd", *words], pass_fds=(ready.theirs,))
        daemon.ready = ready.wait(daemon.pid, self.until - time.monotonic(), closed)
        if daemon.ready is None:
            raise Failed("the daemon is not ready in time")
        if not daemon.ready and daemon.wait(0.5) is None:
            # The daemon was kept from saying so, and listens nevertheless.
            if self.victim != "daemon" or daemon is not self.first["daemon"]:
                raise Failed("the daemon runs, and has closed its ready fd without READY=1")
            daemon.ready = True
        return daemon

    def ctl(self, *args):
        return subprocess.run(
            [BUILD / "dlxctl", *args],
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
            began, done = process.ledger.progress()
            text += (
                f"  -- {os.path.basename(process.log)[:-4]} (status {process.poll()}, "
                f"scene {process.head.scene}, {began} began, {done} done)\n"
            )
            text += "".join(f"     {line}\n" for line in said if line)
        return text
