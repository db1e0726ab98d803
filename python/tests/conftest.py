# SPDX-License-Identifier: Apache-2.0
"""A daemon of its own for each test, with a socket and folders of its own; other processes; and a
look at what stays behind.
"""

import atexit
import contextlib
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

import dlx
import pytest

PATIENCE = 60.0  # seconds until a test says that something does not come
# GStreamer keeps its registry there. Processes that are started here have the same folder.
if "XDG_CACHE_HOME" not in os.environ:
    _cache = tempfile.TemporaryDirectory()
    atexit.register(_cache.cleanup)
    os.environ["XDG_CACHE_HOME"] = _cache.name

DAEMON = os.path.join(os.path.dirname(dlx.__file__), "dlpackd")


def until(true, what="it"):
    """Waits for a condition that nothing announces."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen"
        os.sched_yield()


def is_in_use(handle):
    """Is another thread in a call on it?"""
    try:
        handle.stats()
    except dlx.InUse:
        return True
    return False


@contextlib.contextmanager
def alarm(handler=lambda *_: 1 / 0, after=0.05, every=0):
    """The handler runs, also while a call waits; with `every`, again and again."""
    old = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after, every)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@contextlib.contextmanager
def stopped(process):
    """The process stands still meanwhile."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def run_threads(works):
    """Runs all at once; raises the exception of one of them here."""
    errors = []

    def run(work):
        try:
            work()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def read_line(pipe, process):
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        line = b""
        while not line.endswith(b"\n"):
            assert selector.select(PATIENCE), f"no line from {process.args[-1]}"
            byte = os.read(pipe.fileno(), 1)
            assert byte, f"it ended: {process.communicate(timeout=PATIENCE)[1].decode()}"
            line += byte
    return line.decode().rstrip("\n")


class Peer:
    """Another process: Python code with `dlx`, `c` (a connection) and `say` (a line to us); `hear`
    reads one of ours.
    """

    PRELUDE = """
import os, sys, dlx
def say(*what): print(*what, flush=True)
def hear(): return sys.stdin.readline().rstrip("\\n")
c = dlx.connect()
"""

    def __init__(self, code, prelude=PRELUDE):
        self.process = subprocess.Popen(
            [sys.executable, "-c", prelude + textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def hear(self):
        return read_line(self.process.stdout, self.process)

    def say(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def end(self, status=0):
        """Waits for its end; returns what it said on stderr."""
        _, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == status, err.decode()
        return err.decode()

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def tmp_path():
    """As pytest's, but nothing stays."""
    with tempfile.TemporaryDirectory(prefix="dlxp.") as folder:
        yield pathlib.Path(folder)


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """No test uses the user's folders, or starts a daemon unasked."""
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("DLX_AUTOSPAWN", "no")
    # a keeper of GPU memory ends soon after its daemon
    monkeypatch.setenv("DLX_KEEPER_GRACE", "0.2")
    monkeypatch.delenv("DLX_SOCKET", raising=False)
    monkeypatch.delenv("DLX_DEBUG", raising=False)
    return run


@pytest.fixture
def nobody_else(folders):
    """A daemon that answers at the machine's path would be found instead of the test's own."""
    for path in ("/run/dlpackd/dlpackd.sock", f"/tmp/dlpackd-{os.geteuid()}/dlpackd.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as there:
            if there.connect_ex(path) == 0:
                pytest.fail(
                    f"a dlpackd answers at {path}: stop it, this test needs a machine without one",
                    pytrace=False,
                )


def processes_of(path):
    """The processes that have `path` in their command line."""

    def command(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read()
        return b""

    return [
        pid for pid in os.listdir("/proc") if pid.isdigit() and os.fsencode(path) in command(pid)
    ]


@contextlib.contextmanager
def run_daemon(tmp_path, *arguments):
    """A daemon at tmp_path/s, until the end of the block."""
    ready, theirs = os.pipe()
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [DAEMON, "--socket", tmp_path / "s", "--ready-fd", str(theirs), *arguments],
            stderr=log,
            pass_fds=[theirs],
        )
    os.close(theirs)
    assert os.read(ready, 100).startswith(b"READY=1"), (tmp_path / "log").read_text()
    os.close(ready)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
        until(
            lambda: not processes_of(tmp_path / "s.keeper"), "the end of the keeper of GPU memory"
        )


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("DLX_SOCKET", str(tmp_path / "s"))
    with run_daemon(tmp_path) as process:
        yield process


@pytest.fixture
def c(daemon):
    with dlx.connect() as connection:
        yield connection


@pytest.fixture
def peer(daemon):
    made = []

    def make(code, **kwargs):
        made.append(Peer(code, **kwargs))
        return made[-1]

    yield make
    for each in made:
        if each.process.poll() is None:
            each.kill()
        each.process.stdin.close()
        each.process.stdout.close()
        each.process.stderr.close()


@pytest.fixture
def pair(c):
    """A publisher and a subscription of the same topic."""
    with (
        c.publisher("cam/front", history=8) as pub,
        c.subscribe("cam/front", timeout=PATIENCE) as sub,
    ):
        yield pub, sub


@contextlib.contextmanager
def blocking(c, depth=2, timeout=PATIENCE, **kwargs):
    """A publisher that waits for room, and its subscription, which has these arguments."""
    with (
        c.publisher("a", on_full="block", depth=depth, timeout=timeout) as pub,
        c.subscribe("a", reliable=True, **{"timeout": PATIENCE, **kwargs}) as sub,
    ):
        yield pub, sub


@pytest.fixture
def send(pair):
    """Publishes what it is given, and returns the message that arrives."""
    pub, sub = pair

    def send(tensors, **kwargs):
        pub.publish(tensors, **kwargs)
        return sub.take()

    return send


def in_child(work):
    """The text that work() returns in a forked child."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = work()
        except BaseException as e:
            text = f"{type(e).__name__}: {e}"
        os.write(w, str(text).encode())
        os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        said = f.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
    return said


def count_fds():
    return len(os.listdir("/proc/self/fd"))


def mapping(address):
    """The line of /proc/self/maps with this address."""
    with open("/proc/self/maps", encoding="utf-8") as f:
        for line in f:
            first, last = (int(x, 16) for x in line.split()[0].split("-"))
            if first <= address < last:
                return line
    raise AssertionError("not mapped")


def count_maps():
    with open("/proc/self/maps", encoding="ascii", errors="replace") as f:
        return sum(1 for _ in f)
