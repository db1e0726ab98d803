# SPDX-License-Identifier: Apache-2.0
"""Resources of processes: memory, descriptors, shared memory."""

import dataclasses
import os
import re
import threading
import time

import scene

REGION = re.compile(r"/memfd:dlx|/memfd:dlpackd|/dev/shm/dlpackd\.")
REGIONS_IN_MAPS = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ (\S+) (\d+) +(/memfd:\S+|/dev/shm/dlpackd\.\S+)", re.M
)


def status(pid, *names):
    """KiB of these lines of /proc/PID/status, or None when it has gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            lines = dict(line.split(":", 1) for line in f if ":" in line)
        return [int(lines[n].split()[0]) for n in names]
    except (OSError, KeyError, ValueError):
        return None


def fd_names(pid):
    """The descriptors in words."""
    names = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                names.append(re.sub(r"\d+", "N", os.readlink(f"/proc/{pid}/fd/{fd}")))
            except OSError:
                pass
    except OSError:
        pass
    return sorted(names)


def children(pid):
    """Of all threads, and their children."""
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for task in tasks:
            try:
                with open(f"/proc/{parent}/task/{task}/children", encoding="ascii") as f:
                    new = [int(x) for x in f.read().split()]
            except OSError:
                continue
            found += new
            todo += new
    return found


def region_bytes(pids):
    """Shared memory that these processes have mapped or open, each region once."""
    regions = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as f:
                text = f.read()
        except OSError:
            continue
        for begin, end, device, inode, _ in REGIONS_IN_MAPS.findall(text):
            regions[(device, inode)] = max(
                regions.get((device, inode), 0), int(end, 16) - int(begin, 16)
            )
    return sum(regions.values())


@dataclasses.dataclass
class Sample:
    time_s: float
    daemon_rss_mib: float
    daemon_private_mib: float
    daemon_fds: int
    processes: int
    fds: int
    region_mib: float


class Watcher(threading.Thread):
    """Samples every `period_s`; `daemon_pid` may change and be None."""

    def __init__(self, period_s):
        super().__init__(daemon=True)
        self.period_s = period_s
        self.samples, self.events = [], []
        self.daemon_pid = None
        self.start_s = time.monotonic()
        self.ended = threading.Event()

    def note(self, kind):
        self.events.append((time.monotonic() - self.start_s, kind))

    def run(self):
        while not self.ended.wait(self.period_s):
            pid, pids = self.daemon_pid, children(os.getpid())
            memory = status(pid, "VmRSS", "RssAnon") if pid else None
            self.samples.append(
                Sample(
                    time.monotonic() - self.start_s,
                    memory[0] / 1024 if memory else None,
                    memory[1] / 1024 if memory else None,
                    scene.n_fds(pid) if pid else None,
                    len(pids),
                    sum(scene.n_fds(p) or 0 for p in pids),
                    region_bytes(pids) / (1 << 20),
                )
            )

    def stop(self):
        self.ended.set()
        self.join()
