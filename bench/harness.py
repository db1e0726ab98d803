# SPDX-License-Identifier: Apache-2.0
"""Runs benchmark programs: a private daemon, programs that print JSON, alternation, medians."""

import contextlib
import glob
import grp
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent


class Failure(Exception):
    """A program failed; the row that needed it says why."""


class Hung(Failure):
    """It did not end in time."""


def pick_cpus():
    """Two CPUs of this process's set that are not siblings of one core where that can be had."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise SystemExit("bench: needs two CPUs; this process may run on one only")
    for cpu in cpus[1:]:
        if cpu not in siblings(cpus[0]):
            return cpus[0], cpu
    return cpus[0], cpus[1]


SAME_CORE_NS = 40  # a floor below that is one of two threads of a core


def siblings(cpu):
    path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    found = set()
    with contextlib.suppress(OSError):
        for part in pathlib.Path(path).read_text().strip().split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found


def median(values):
    return statistics.median(values)


def spread(values):
    """Largest minus smallest, over the median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def proc_kib(file, name):
    """A line like "MemAvailable:  123 kB" of a file of /proc."""
    text = pathlib.Path("/proc", file).read_text()
    return int(text.split(f"{name}:")[1].split()[0])


class Daemon:
    """A dlpackd of our own, on a socket in a private folder, perhaps under strace."""

    def __init__(self, build, folder, strace_output=None):
        self.socket = str(pathlib.Path(folder) / "dlpackd.sock")
        command = [str(build / "dlpackd"), "--foreground", "--socket", self.socket]
        if strace_output:
            command = ["strace", "-f", "-ttt", "-o", str(strace_output)] + command
        self.log = open(pathlib.Path(folder) / "dlpackd.log", "w+", encoding="utf-8")
        # A session of its own: under strace the daemon is the child of what we started.
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )
        for _ in range(200):
            if self.is_listening():
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.log.seek(0)
        words = self.log.read()
        self.stop()
        raise Failure(f"dlpackd did not start: {words.strip()}")

    def is_listening(self):
        """The file of the socket is there before a process listens on it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ours:
            return ours.connect_ex(self.socket) == 0

    def rss_mib(self):
        return proc_kib(f"{self.process.pid}/status", "VmRSS") / 1024

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()


def waiting(pid):
    """Where each thread of a process and of its children waits, as far as the kernel tells."""
    words = []
    for task in pathlib.Path("/proc", str(pid), "task").glob("*"):
        with contextlib.suppress(OSError):
            words.append(
                f"{pid} {(task / 'comm').read_text().strip()}: "
                f"{(task / 'wchan').read_text() or 'runs'}"
            )
            words += [waiting(child) for child in (task / "children").read_text().split()]
    return ", ".join(words)


class Roudi:
    """The daemon of iceoryx: one a machine."""

    def __init__(self, source, folder):
        self.log = open(pathlib.Path(folder) / "roudi.log", "w+", encoding="utf-8")
        # It would take a process that was not scheduled for a while for a dead one.
        command = ["iox-roudi", "-m", "off", "-c", str(source / "bench" / "peers" / "roudi.toml")]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        for _ in range(600):
            self.log.seek(0)
            if "ready for clients" in self.log.read():
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.stop()
        raise Failure("iox-roudi did not start; is there another one?")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if (
            self.process.returncode
        ):  # it aborts when a process that it served was killed, and leaves a GiB behind
            for path in ("/dev/shm/iceoryx_mgmt", f"/dev/shm/{grp.getgrgid(os.getgid()).gr_name}"):
                with contextlib.suppress(OSError):
                    os.unlink(path)
        self.log.close()


class Bench:
    """One run: where the programs are, which CPUs they use, the daemon that they talk to."""

    def __init__(self, build, quick, former=None):
        self.build = pathlib.Path(build)
        self.former = former and pathlib.Path(
            former
        )  # build folder of the commit that rows are held against
        self.quick = quick
        self.cpus = pick_cpus()
        self.share_core = self.cpus[1] in siblings(self.cpus[0])
        self.folder = tempfile.mkdtemp(prefix="dlx-bench.")
        self.daemon = None
        self.roudi = None

    def __enter__(self):
        self.daemon = Daemon(self.build, self.folder)
        return self

    def __exit__(self, *_):
        if self.daemon:
            self.daemon.stop()
        if self.roudi:
            self.roudi.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def has_peer(self, name):
        """Whether bench/peers/<name> was built, and what it needs to run is there."""
        return not self.why_no_peer(name)

    def why_no_peer(self, name):
        program = self.build / "bench" / "peers" / name
        if not program.exists():
            reason = program.with_name(f"{name}.reason")
            return (
                reason.read_text(encoding="utf-8").strip() if reason.exists() else "not installed"
            )
        if name == "iceoryx" and not shutil.which("iox-roudi"):
            return "its daemon iox-roudi is not installed"
        return None

    def peer(self, name, **options):
        """Run bench/peers/<name> once."""
        reason = self.why_no_peer(name)
        if reason:
            raise Failure(f"{name}: {reason}")
        if name == "iceoryx" and not self.roudi:
            self.roudi = Roudi(SOURCE, self.folder)
        process = self.start(f"peers/{name}", folder=self.folder, **options)
        try:
            return self.finish(process)
        except Failure:
            if name == "iceoryx":  # it may hold what is now nobody's
                self.roudi.stop()
                self.roudi = None
            raise
        finally:
            # What iceoryx2 keeps for the next process of its kind, and iceoryx of one that was
            # killed.
            for path in glob.glob(f"/dev/shm/bench-{process.pid}_*") + glob.glob(
                f"/tmp/bench-{process.pid}-*"
            ):
                os.unlink(path)

    def start(self, program, prefix=(), socket=None, stdin=None, build=None, **options):
        """Start bench/bench_<program>, or bench/peers/<peer>, perhaps of another build; options
        become --name value."""
        name = program if "/" in program else f"bench_{program}"
        command = [*prefix, str((build or self.build) / "bench" / name)]
        command += ["--cpus", f"{self.cpus[0]},{self.cpus[1]}"]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        environment = dict(os.environ, DLX_SOCKET=socket or self.daemon.socket)
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @contextlib.contextmanager
    def holding(self, program, **options):
        """A program that prints its object and then keeps what it has until its input ends."""
        process = self.start(program, stdin=subprocess.PIPE, **options)
        try:
            line = process.stdout.readline()
            if not line:
                self.finish(process)
                raise Failure(f"{program} printed nothing")
            yield process, json.loads(line)
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)  # closes its input
            if process.poll() is None:
                process.kill()
                process.communicate()

    @staticmethod
    def finish(process, timeout=120):
        """The JSON object that the program printed."""
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            where = waiting(process.pid)
            process.kill()
            out, err = process.communicate()
            raise Hung(f"did not end within {timeout} s ({where}): {err.strip()}") from None
        if process.returncode:
            words = "; ".join(err.split("\n")[-4:]).strip("; ")
            raise Failure(words or f"status {process.returncode}")
        return json.loads(out.strip().splitlines()[-1])

    def run(self, program, **options):
        return self.finish(self.start(program, **options))

    @staticmethod
    def alternate(contestants, rounds):
        """Run each of {name: function} in turn, `rounds` times over: {name: [result, ...]}.

        What is compared is so measured within a second or so of each other: machines drift. A peer
        is one more contestant.
        """
        results = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, function in contestants.items():
                results[name].append(function())
        return results


class Row:
    """One line of the table and its values in the JSON file."""

    def __init__(self, name, values, unit, meaning, bar=None, reason=None, skipped=False):
        self.name = name
        self.unit = unit
        self.meaning = meaning
        self.bar = bar  # ("<=", 2.0)
        self.reason = reason  # why there is no value
        self.skipped = skipped  # that is the machine's fault, and no failure
        values = list(values) if values is not None else []
        self.values = values
        self.value = median(values) if values else None
        self.spread = spread(values) if len(values) > 1 else None

    def verdict(self):
        if self.bar is None or self.value is None:
            return ""
        sign, limit = self.bar
        return "met" if (self.value <= limit if sign == "<=" else self.value >= limit) else "MISSED"

    def bar_text(self):
        return f"{self.bar[0]} {self.bar[1]:g}" if self.bar else ""

    def value_text(self):
        if self.value is None:
            return "-"
        if abs(self.value) >= 1000:
            return f"{self.value:,.0f}"
        return f"{self.value:.3g}"

    def spread_text(self):
        return f"{self.spread * 100:.0f} %" if self.spread is not None else ""


def command_output(*command, cwd=None):
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=cwd
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine(source):
    """What a reader needs to judge the numbers."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = platform.machine()
    for line in info.splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = pathlib.Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    commit = command_output("git", "rev-parse", "--short=12", "HEAD", cwd=source) or "unknown"
    changed = command_output("git", "status", "--porcelain", "-uno", cwd=source)
    return {
        "machine_cpu": model,
        "machine_cpus": os.cpu_count(),
        "machine_virtual": "hypervisor" in info,
        "machine_kernel": platform.release(),
        "machine_memory_gib": round(int(memory) / 2**20, 1),
        "machine_load_at_start": round(os.getloadavg()[0], 2),
        "commit": commit + (" with changes" if changed else ""),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
