# SPDX-License-Identifier: Apache-2.0
"""Attacks of greedy clients on the daemon. Several processes of each greedy user run an attack
again and again until they are killed. Its result, if any, is kept until then.
"""

import array
import ctypes
import dataclasses
import fcntl
import mmap
import os
import socket
import struct
import threading
import time

import wire

ATTACKS = {}
PREPARE = {}  # what is done before the process becomes its user


@dataclasses.dataclass
class Me:
    path: str
    number: int  # of this process, among all greedy ones
    quick: bool
    prepared: object = None

    def topic(self, name):
        return f"greedy/{os.getuid()}/{self.number}/{name}"

    def shared(self, name):
        """Of all processes of this user."""
        return f"greedy/{os.getuid()}/{name}"

    def some(self, n):
        return max(1, n // 4) if self.quick else n


def attack(function):
    ATTACKS[function.__name__] = function
    return function


def run(name, me):
    """For ever: a connection that ends, or a request that fails, begins again."""
    kept = []
    while True:
        try:
            kept.append(ATTACKS[name](me))
        except (
            OSError,
            ValueError,
            LookupError,
        ):  # also: a reply that is an error has no descriptor
            pass


# ---- connections and packets
# ---------------------------------------------------------------------------


@attack
def burn(_me):
    """No attack: it only uses the processors, so that other rows can be compared with it."""
    while True:
        pass


@attack
def storm(me):
    """Connect, and leave."""
    while True:
        wire.connect(me.path).close()


@attack
def silent(me):
    """Connect, and say nothing: 300 connections, and a new one for each that ends."""
    kept = []
    while True:
        kept.append(wire.connect(me.path))
        if len(kept) > 300:
            kept.pop(0).close()


@attack
def garbage(me):
    """Random bytes; half a Hello, half a request, an empty packet."""
    hello, info = wire.packet(1, "hello", {1: wire.MAJOR, 3: "me"}), wire.packet(1, "daemon_info")
    for data in (os.urandom(200), hello[:-2], info[:3], b""):
        with wire.connect(me.path) as s:
            s.send(data)


@attack
def descriptors(me):
    """As many as fit into a packet, over and over."""
    rights = array.array("i", [0] * 253)
    with wire.connect(me.path) as s:
        for _ in range(20):
            s.sendmsg(
                [wire.packet(1, "daemon_info")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )


@attack
def flood(me):
    """Requests without end, whose answers stay unread."""
    c = wire.Connection(me.path)
    for _ in range(2000):
        c.send("daemon_info")


# ---- lists and patterns
# --------------------------------------------------------------------------------


def pump(connections, request, depth):
    """Keep so many requests of each connection on their way."""
    for c in connections:
        c.sock.setblocking(False)
        c.waiting = 0
    while True:
        for c in connections:
            try:
                while c.waiting < depth:
                    c.sock.send(request)
                    c.waiting += 1
            except BlockingIOError:
                pass
            try:
                while c.waiting:
                    c.sock.recv(65536)
                    c.waiting -= 1
            except BlockingIOError:
                pass


@attack
def list_patterns(me):
    """1,000 topics, and pipelined lists by a pattern that matches slowly and nothing."""
    c = wire.Connection(me.path)
    kept = [c.subscribe(f"{'a' * 240}{me.number:02}{i:05}") for i in range(me.some(1000))]
    pump([c], wire.packet(7, "list_publishers", {1: "*" + "a" * 127 + "b"}), 16)
    return kept


@attack
def subscribe_patterns(me):
    """256 subscriptions to slow patterns, against which each new publisher is matched."""
    c = wire.Connection(me.path)
    kept = [c.subscribe("*" + "a" * 120 + f"*b{i}") for i in range(256)]
    while True:
        publisher = c.publisher("a" * 250 + str(me.number)).close()
        c.call("publisher_close", {1: publisher.get(1)})
    return kept


@attack
def list_links(me):
    """A publisher with 40 links of 4,096 hold words, and 12 connections that list them, 60 times
    each in advance."""
    c = wire.Connection(me.path)
    publisher = c.publisher(me.topic("links"))
    kept = [publisher]
    for i in range(40):
        s = c.subscribe(me.topic("links"), 4096)
        kept.append(s)
        wire.join(s, i + 1)
    connections = [wire.Connection(me.path) for _ in range(12)]
    pump(connections, wire.packet(7, "list_links", {1: publisher.get(1)}), 60)
    return kept


# ---- links
# ---------------------------------------------------------------------------------------------


@attack
def failed_links(me):
    """Subscriptions that stay unread and that may have no link, and publishers that come and
    go."""
    c = wire.Connection(me.path, max_links=0)
    kept = [c.subscribe(me.shared("failed")) for _ in range(me.some(300))]
    while True:
        publisher = c.publisher(me.shared("failed")).close()
        c.call("publisher_close", {1: publisher.get(1)})
    return kept


@attack
def ready_fan_out(me):
    """2,500 subscriptions of each process, and a publisher that becomes ready for all of them, over
    and over."""
    c = wire.Connection(me.path)
    kept = [c.subscribe(me.shared("fan")) for _ in range(me.some(2500))]
    while True:
        publisher = c.publisher(me.shared("fan")).close()
        c.call("publisher_close", {1: publisher.get(1)})
    return kept


@attack
def unread_descriptors(me):
    """Links whose subscribers read nothing: four descriptors of arenas are on their way to each.
    The link sockets of the publishers are not read either."""
    c = wire.Connection(me.path)
    kept = [c.publisher(me.topic(i)) for i in range(4)]
    for publisher in kept:
        for _ in range(8):
            arena = c.call("arena_new", {1: publisher.get(1), 2: 4096})
            wire.make_ready(arena.fds[0], 4096)
            arena.close()
            c.call("arena_ready", {1: publisher.get(1), 2: arena.get(1)})
    while True:
        for i in range(4):
            s = c.subscribe(me.topic(i))
            if not s or not wire.join(s, len(kept)):
                time.sleep(0.01)  # lint-allow: sleep: a limit was met: try again
            kept.append(s)


def join_honest(me, holds):
    c = wire.Connection(me.path)
    kept = []
    for i in range(10**9):
        s = c.subscribe(f"honest/{i % 10}", 64)
        if not s or not wire.join(s, i + 1, holds):
            time.sleep(0.01)  # lint-allow: sleep: a limit was met: try again
        elif holds:
            s.close()
        else:
            kept.append(s)


@attack
def crowd_honest(me):
    """Join honest publishers until there is no link left, and take nothing."""
    join_honest(me, False)


@attack
def linger_honest(me):
    """Join honest publishers, say that a message is held, and leave, so that the link lingers."""
    join_honest(me, True)


@attack
def half_joins(me):
    """Subscribe to honest topics, and leave the offers unanswered."""
    c = wire.Connection(me.path)
    kept = [c.subscribe(f"honest/{i % 10}", 4096) for i in range(me.some(1000))]
    while True:
        s = c.subscribe(f"honest/{me.number % 10}", 4096)
        if s:
            s.close()
    return kept


# ---- memory
# --------------------------------------------------------------------------------------------


@attack
def small_arenas(me):
    """Arenas of 4 KiB, a descriptor of the daemon each, until there is none left."""
    c = wire.Connection(me.path)
    for i in range(10**9):
        publisher = c.publisher(me.topic(i)).close()
        for _ in range(4095):
            if c.call("arena_new", {1: publisher.get(1), 2: 4096}).close().name == "error":
                time.sleep(0.001)  # lint-allow: sleep: a limit was met: try again
                break


@attack
def reserve_memory(me):
    """Arenas without pages, as large as the daemon grants them, until there is nothing left."""
    c = wire.Connection(me.path)
    publisher = c.publisher(me.topic("reserved")).close()
    size = 1 << 40
    while True:
        if c.call("arena_new", {1: publisher.get(1), 2: size}).close().name == "error":
            size = max(4096, size // 2)
            time.sleep(0.001)  # lint-allow: sleep: a limit was met: try again


@attack
def close_arenas(me):
    """64 arenas of 4 MiB, with pages, dropped at once."""
    c = wire.Connection(me.path)
    while True:
        publisher = c.publisher(me.topic("large")).close()
        for _ in range(me.some(64)):
            arena = c.call("arena_new", {1: publisher.get(1), 2: 4 << 20})
            if arena.fds:
                os.posix_fallocate(arena.fds[0], 0, 4 << 20)
            arena.close()
        c.call("publisher_close", {1: publisher.get(1)})


@attack
def fallocate(me):
    """One process of each user allocates an arena of an eighth of the RAM (6 GiB at most), says
    that it is ready before it is, and drops it; the others keep asking for one."""
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(6 << 30, ram // (32 if me.quick else 8)) >> 12 << 12
    c = wire.Connection(me.path)
    publisher = c.publisher(me.topic("huge")).close()
    while True:
        arena = c.call("arena_new", {1: publisher.get(1), 2: size})
        if arena.fds and me.number % 4 == 0:
            thread = threading.Thread(target=os.posix_fallocate, args=(arena.fds[0], 0, size))
            thread.start()
            c.call("arena_ready", {1: publisher.get(1), 2: arena.get(1)})
            thread.join()
        c.call("arena_drop", {1: publisher.get(1), 2: arena.get(1)})
        arena.close()


def blocking_page():
    """A page that is never there: a process that reads it stands still. As a file of a FUSE file
    system that does not answer, but by userfaultfd(2), which only root may have for reads by the
    kernel.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(323, os.O_CLOEXEC) if os.uname().machine == "x86_64" else -1
    if fd < 0:
        raise OSError("no userfaultfd")
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    fcntl.ioctl(fd, 0xC018AA3F, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))  # UFFDIO_API
    fcntl.ioctl(
        fd, 0xC020AA00, bytearray(struct.pack("QQQQ", address, mmap.PAGESIZE, 1, 0))
    )  # UFFDIO_REGISTER
    return libc, address, fd, page


PREPARE["stuck_writes"] = blocking_page


@attack
def stuck_writes(me):
    """Arenas, and control blocks, whose lock is held for ever by a write that stands still."""
    libc, address, *_ = me.prepared
    kept = []
    for i in range(me.some(64)):
        c = wire.Connection(me.path)
        publisher = c.publisher(me.topic(i))
        kept.append((c, publisher))
        if not publisher.fds:
            continue
        arena = c.call("arena_new", {1: publisher.get(1), 2: 1 << 20})
        if not arena.fds:
            continue
        kept.append(arena)
        os.posix_fallocate(arena.fds[0], 0, 1 << 20)
        write = (arena.fds[0], ctypes.c_void_p(address), 4096)
        threading.Thread(target=libc.write, args=write, daemon=True).start()
        c.send("arena_ready", {1: publisher.get(1), 2: arena.get(1)})
        c.send("arena_drop", {1: publisher.get(1), 2: arena.get(1)})
    while True:
        time.sleep(1)  # lint-allow: sleep: all of it stays as it is


# ---- what is retained
# ----------------------------------------------------------------------------------


@attack
def retain_flood(me):
    """Publishers that retain a message for a second, and close at once: the service manager is to
    keep each."""
    c = wire.Connection(me.path)
    for i in range(10**9):
        publisher = c.publisher(me.topic(i), retain=1, retain_for_ns=10**9, published=1).close()
        c.call("publisher_close", {1: publisher.get(1)})
