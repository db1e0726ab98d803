#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Searches for the longest turn of the daemon's loop that each kind of request can cause.

For each scene: a daemon of its own, a client that has as much as a user may have of what makes the
request dear (links, publishers of one topic, arenas, patterns, retained messages, rules, packets
that are not read), and the request. The daemon measures its longest turn itself, in CPU time of the
thread of its loop, so that other programs on the machine do not count; the whole scene counts, with
what prepares it and with the end of all connections. A second process asks the daemon for its
figures all the time and tells the longest time to an answer (wall time, not judged).

A turn above the bar (--turn-ms) is tried again, twice: what the machine adds (interrupts, cold
caches, a processor shared with another virtual machine) does not come three times. Exits with 1 if
all tries of a scene were above. SCENES has at least one scene for each request and notification
that daemon/protocol/dispatch.c handles, which is checked.

$BUILD is the build folder; QUICK=1 makes an eighth of the objects.
"""

import argparse
import contextlib
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import wire  # noqa: E402

QUICK = os.environ.get("QUICK", "") not in ("", "0")
BUILD = pathlib.Path(os.environ.get("BUILD", "build")).resolve()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MINOR = 10
SCENES = {}  # name: (kind, function)


FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def some(n):
    """As many objects, as far as the descriptors allow that the daemon may have."""
    return max(8, n * min(FILES, 20000) // 20000 // (8 if QUICK else 1))


def scene(kind):
    """`kind`: the request, or what else the loop does."""

    def enlist(function):
        SCENES[function.__name__] = kind, function
        return function

    return enlist


# ---- a client that has much
# ----------------------------------------------------------------------------------


class Client(wire.Connection):
    def __init__(self, path, minor=MINOR):
        super().__init__(path, minor=minor)
        self.n_waiting = 0
        self.link_socks = []  # of its publishers that are ready

    def post(self, body, fields=None, depth=32):
        """Send a request, and read no more replies than needed for `depth` of them on their way."""
        while self.n_waiting >= depth:
            self.read_one()
        self.send(body, fields)
        self.n_waiting += 1

    def read_one(self):
        self.n_waiting -= 1
        return wire.receive(self.sock).close()

    def settle(self):
        """Read all replies. Returns the last one."""
        reply = None
        while self.n_waiting:
            reply = self.read_one()
        return reply

    def publishers(self, topics, ready=True, **how):
        """Returns their ids."""
        ids = []
        for topic in topics:
            reply = self.publisher(topic, **how) if ready else self.new(topic)
            if reply.name != "publisher_new_reply":
                raise OSError(f"no publisher {len(ids)}: {reply.fields}")
            if ready and "retain" not in how:  # which has links
                self.link_socks.append(socket.socket(fileno=reply.fds.pop()))
            reply.close()
            ids.append(reply.get(1))
        return ids

    def retain(self, topics):
        """Publishers that leave a message each, which no other one of them replaces."""
        for publisher in self.publishers(topics, retain=2, history=2, published=1):
            self.post("publisher_close", {1: publisher})
        self.settle()

    def know_links(self):
        """Read what the publishers are told of their links."""
        for s in self.link_socks:
            s.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    wire.receive(s).close()

    def leave(self):
        leave(self.sock, self.link_socks)

    def new(self, topic):
        return self.call("publisher_new", {1: topic, 2: 1, 3: 256, 10: 16})

    def subscriptions(self, topics, max_held=1):
        """Their sockets, which stay unread."""
        sockets = [self.subscribe(topic, max_held) for topic in topics]
        if None in sockets:
            raise OSError(f"no subscription {sockets.index(None)}")
        return sockets

    def links(self, writer, n, max_held=1, holds=False, reads=True, topic="links"):
        """Joined links of n subscriptions with the only publisher of the topic, which the client
        `writer` has. Returns the sockets."""
        sockets = []
        for i in range(n):
            s = self.subscribe(topic, max_held)
            if not s or not wire.join(s, i + 1, holds):
                raise OSError(f"no link {i}")
            sockets.append(s)
            if reads:
                writer.know_links()
        return sockets

    def arenas(self, publisher, n, ready=False):
        for _ in range(n):
            arena = self.call("arena_new", {1: publisher, 2: 4096})
            if not arena.fds:
                raise OSError(f"no arena: {arena.fields}")
            if ready:
                wire.make_ready(arena.fds[0], 4096)
                self.call("arena_ready", {1: publisher, 2: arena.get(1)})
            arena.close()


def leave(*what):
    """End connections and subscriptions by their sockets."""
    for x in what:
        for one in x if isinstance(x, list) else [x]:
            one.leave() if isinstance(one, Client) else one.close()


# ---- connections
# ---------------------------------------------------------------------------------------------


@scene("hello")
def hello(d):
    """200 connections that say nothing, and thousands that say Hello and leave together."""
    silent = [wire.connect(d.greedy_path) for _ in range(200)]
    for _ in range(3):
        leave([Client(d.greedy_path) for _ in range(some(3000))])
    leave(silent)


@scene("hello")
def no_hello(d):
    """1,000 connections that say nothing come at once, so that most have to make way."""
    leave([wire.connect(d.greedy_path) for _ in range(some(1000))])


@scene("daemon_info")
def daemon_info(d):
    """Links that hold messages after their end, and unread packets with descriptors."""
    c = d.client()
    c.publishers(["links"])
    leave(c.links(c, some(2000), 64, holds=True))
    c.publishers(["flights"] * 8)
    kept = c.subscriptions(["flights"] * some(500))
    for _ in range(200):
        c.call("daemon_info")
    return kept


@scene("daemon_info")
def drains_of_many_users(d):
    """Wide links of six users that hold messages after their end."""
    for path in d.greedy_paths:
        c = d.client(path)
        c.publishers([path[1:]])
        leave(c.links(c, some(200), 4096, holds=True, topic=path[1:]))
    c = d.client()
    for _ in range(200):
        c.call("daemon_info")


@scene("list_quotas")
def list_quotas(d):
    """The same, asked for quotas."""
    c = d.client()
    c.publishers(["links"])
    leave(c.links(c, some(2000), 64, holds=True))
    for _ in range(200):
        c.call("list_quotas")


def post_of_each(d, body, fields, n=1):
    """So many requests of each of many publishers, of many connections at once."""
    connections = [d.client() for _ in range(some(500))]
    ids = [c.publishers(["gpu"])[0] for c in connections]
    for _ in range(n):
        for c, publisher in zip(connections, ids):
            c.post(body, {1: publisher, **fields})
    for c in connections:
        c.settle()


@scene("gpu_keep")
def gpu_keep(d):
    """Of libraries that hand GPU memory over."""
    post_of_each(d, "gpu_keep", {})


@scene("gpu_allocate")
def gpu_allocate(d):
    """Calls to a keeper that sees no GPU."""
    post_of_each(d, "gpu_allocate", {2: 1, 3: 4096, 4: 2, 5: "0123456789abcdef"})


@scene("gpu_free")
def gpu_free(d):
    post_of_each(d, "gpu_free", {2: 1}, 4)


@scene("gpu_serve")
def gpu_serve(d):
    """A socket for each, which takes the place of the one before."""
    post_of_each(d, "gpu_serve", {}, 4)


@scene("gpu_get")
def gpu_get(d):
    connections = [d.client() for _ in range(some(500))]
    for _ in range(4):
        for c in connections:
            c.post("gpu_get", {2: 1, 3: 1})
    for c in connections:
        c.settle()


@scene("former_new")
def former_pages(d):
    """The largest pages for memory of a former daemon, each of which replaces the one before."""
    c = d.client()
    for _ in range(some(2000)):
        c.post("former_new", {1: 4096, 2: 1024})
    c.settle()


@scene("former_ready")
def former_memory(d):
    """Clients that keep as many regions of former publishers as a page has, of which the daemon
    knows none."""
    bytes_of = struct.pack("<4096Q", *[4096] * 4096)
    sources = b"".join(struct.pack("<QII256s", i + 1, 0, 0, b"t/%d" % i) for i in range(1024))
    for k in range(8):
        c = d.client()
        regions = [(k * 4096 + i + 1, i % 1024, 0) for i in range(4096)]
        for _ in range(3):
            page = c.call("former_new", {1: 4096, 2: 1024})
            data = bytes_of + b"".join(struct.pack("<QII", *x) for x in regions) + sources
            wire.make_ready(page.fds[0], page.get(1), data=data)
            page.close()
            reply = c.call("former_ready", {1: 4096, 2: 1024})
            if reply.name != "ok":
                raise OSError(f"former memory: {reply.fields}")
    for _ in range(200):
        c.call("daemon_info")


# ---- publishers
# ----------------------------------------------------------------------------------------------


@scene("publisher_new")
def publishers_of_one_topic(d):
    """As many as the descriptors allow, none of them ready; and their end with the connection."""
    c = d.client()
    c.publishers(["one"] * some(6000), ready=False)
    leave(c)


@scene("publisher_new")
def publishers_of_many_topics(d):
    c = d.client()
    c.publishers([f"{'t' * 200}/{i % 7}/{i}" for i in range(some(5000))], ready=False)
    leave(c)


@scene("publisher_ready")
def ready_for_many_subscriptions(d):
    c = d.client()
    kept = c.subscriptions(["fan"] * some(6000))
    for publisher in c.publishers(["fan"] * 3):
        c.call("publisher_close", {1: publisher})
    return kept


@scene("publisher_ready")
def ready_for_slow_patterns(d):
    """As many patterns as a user may have, which match slowly and not, and some that match."""
    c = d.client()
    kept = c.subscriptions([f"*{'a' * 120}*b{i}" for i in range(some(1000))])
    kept += c.subscriptions([f"{'a' * 3}*"] * 16)
    for publisher in c.publishers(["a" * 250] * 20):
        c.call("publisher_close", {1: publisher})
    return kept


@scene("publisher_ready")
def ready_after_many_retained(d):
    """A publisher that resumes another one looks at what its topic retains."""
    c = d.client()
    c.retain(["kept"] * some(6000))
    for _ in range(5):
        c.publishers(["kept"])
    leave(c)


@scene("publisher_close")
def close_many_links(d):
    """A publisher with thousands of links that hold messages."""
    c = d.client()
    publisher = c.publishers(["links"])[0]
    kept = c.links(c, some(6000), holds=True)
    c.call("publisher_close", {1: publisher})
    leave(kept, c)


@scene("publisher_close")
def close_many_drains(d):
    """A publisher whose links have ended, and hold messages."""
    c = d.client()
    publisher = c.publishers(["links"])[0]
    leave(c.links(c, some(6000), holds=True))
    c.call("publisher_close", {1: publisher})
    leave(c)


@scene("publisher_close")
def close_pending_joins(d):
    """A publisher that reads none of its link socket, which is full."""
    c = d.client()
    publisher = c.publishers(["links"])[0]
    kept = c.links(c, some(600), reads=False)
    leave(kept[: len(kept) // 2])
    c.call("publisher_close", {1: publisher})
    return kept


@scene("publisher_close")
def close_pending_joins_that_hold(d):
    """Likewise, of links that have ended, and hold messages."""
    c = d.client()
    publisher = c.publishers(["links"])[0]
    leave(c.links(c, some(600), holds=True, reads=False))
    c.call("publisher_close", {1: publisher})


@scene("publisher_close")
def close_many_arenas(d):
    """Publishers with as many arenas as they may have, by request and with the connection."""
    c = d.client()
    ids = c.publishers(["arenas"] * 4)
    for publisher in ids:
        c.arenas(publisher, some(4000))
    c.call("publisher_close", {1: ids[0]})
    leave(c)


@scene("publisher_close")
def close_many_ready_arenas(d):
    """Likewise, ready, and known to a link that holds a message, so that their charges move."""
    c, other = d.client(), d.client()
    publisher = c.publishers(["links"])[0]
    c.arenas(publisher, some(4000), ready=True)
    kept = other.links(c, 3, holds=True)
    c.call("publisher_close", {1: publisher})
    leave(kept)


@scene("publisher_retains")
def retains_instead_of_many(d):
    """One publisher replaces what thousands left on its topic."""
    c = d.client()
    c.retain(["kept"] * some(5000))
    publisher = c.publishers(["kept"], retain=1, published=1)[0]
    c.call("publisher_retains", {1: publisher})
    leave(c)


@scene("retained_drop")
def drop_many(d):
    """Thousands left messages on a topic, where thousands more are."""
    c, other = d.client(), d.client()
    other.publishers(["kept"] * some(2000), ready=False)
    c.retain(["kept"] * some(6000))
    for _ in range(3):
        other.call("retained_drop", {1: "kept"})


@scene("expiry")
def expire_together(d):
    """Retained messages of thousands of publishers whose time is over at once."""
    c = d.client()
    until = time.monotonic_ns() + 5 * 10**9
    for i in range(some(5000)):
        left = max(1, until - time.monotonic_ns())
        how = {"retain": 2, "history": 2, "published": 1, "retain_for_ns": left}
        c.call("publisher_close", {1: c.publishers([f"kept/{i % 7}"], **how)[0]})
    d.await_info(lambda info: info.get(7) == 0)


# ---- arenas
# ------------------------------------------------------------------------------------------------


@scene("arena_new")
def arenas_of_one(d):
    """As many as a publisher may have, asked for without reading, and refused beyond that."""
    c = d.client()
    publisher = c.publishers(["one"])[0]
    for _ in range(some(4500)):
        c.post("arena_new", {1: publisher, 2: 4096})
    c.settle()
    leave(c)


@scene("arena_ready")
def arenas_for_many_links(d):
    c = d.client()
    publisher = c.publishers(["links"])[0]
    kept = c.links(c, some(6000))
    c.arenas(publisher, 12, ready=True)
    leave(kept)


@scene("arena_drop")
def drop_arenas_of_many_links(d):
    """Ready arenas that thousands of links know, and that none has acknowledged."""
    c = d.client()
    publisher = c.publishers(["links"])[0]
    c.arenas(publisher, 1, ready=True)
    kept = c.links(c, some(4000))
    c.call("arena_drop", {1: publisher, 2: 1})
    leave(kept)


@scene("arena_drop")
def drop_unready_arenas(d):
    c = d.client()
    publisher = c.publishers(["one"])[0]
    c.arenas(publisher, some(4000))
    for arena in range(some(4000), 0, -1):
        c.post("arena_drop", {1: publisher, 2: arena})
    c.settle()


@scene("reclaim")
def return_reservations(d):
    """Regions without pages, most of them of publishers that are not ready, returned together."""
    c = d.client()
    c.publishers([f"p/{i % 7}" for i in range(some(4500))], ready=False)
    publisher = c.publishers(["arenas"])[0]
    c.arenas(publisher, some(4000))
    d.await_info(lambda info: info.get(7) <= 1, seconds=30)
    time.sleep(1)  # lint-allow: sleep: the arenas are returned likewise, and nothing tells of them


# ---- subscriptions
# ---------------------------------------------------------------------------------------


@scene("subscribe")
def subscribe_to_many_publishers(d):
    c = d.client()
    c.publishers(["one"] * some(4000))
    leave(c.subscriptions(["one"] * 2))
    leave(c)


@scene("subscribe")
def subscribe_to_many_silent_publishers(d):
    """The daemon looks at publishers that are not ready, and does not offer them."""
    c = d.client()
    c.publishers(["one"] * some(6000), ready=False)
    for _ in range(50):
        leave(c.subscriptions(["one"]))


@scene("subscribe")
def subscribe_to_slow_pattern(d):
    c = d.client()
    c.publishers(["a" * 240 + f"{i:05}" for i in range(some(3000))])
    for _ in range(3):
        leave(c.subscriptions(["*" + "a" * 120 + "*b", "a*"]))
    leave(c)


@scene("subscribe")
def subscribe_reliably_with_many_rules(d):
    """Each publisher is one that blocks, for which the subscriber needs a right."""
    c = d.client()
    d.reload(rules=400)
    c.publishers(["one"] * some(4000), on_full=1)
    for _ in range(3):
        c.call("subscribe", {1: "one", 4: 1, 5: 1}).close()


@scene("subscribe")
def subscribe_to_pattern_with_many_rules(d):
    c = d.client()
    d.reload(rules=4000)
    c.publishers([f"p/{i}" for i in range(some(1000))])
    leave(c.subscriptions(["p/*"]))


@scene("retry")
def wait_for_descriptors_in_flight(d):
    """Thousands of subscriptions to which nothing can be sent, since others do not read."""
    d.reload(quota="descriptors-in-flight = 64")
    c = d.client()
    c.publishers(["one"])
    kept = c.subscriptions(["one"] * some(8000))
    time.sleep(1)  # lint-allow: sleep: they are tried again, 50 times a second
    leave(kept)


@scene("subscribe")
def subscribe_with_many_spares(d):
    c = d.client()
    for _ in range(4):
        reply = c.call("subscribe", {1: "spares", 5: 4096, 6: 4096})
        reply.close()


@scene("subscription_close")
def close_subscription_with_many_links(d):
    c = d.client()
    c.publishers(["one"] * some(4000))
    reply = c.call("subscribe", {1: "one", 5: 1})
    c.call("subscription_close", {1: reply.get(1)})
    reply.close()
    leave(c)


def accept_all(sock, n, writer):
    """Answer the offers of n links with publishers of `writer`. Returns the ids of the links."""
    ids, n_acked = [], 0
    while len(ids) < n:
        packet = wire.receive(sock)
        if packet.fds:
            n_acked += 1
            if packet.name == "link_offer":
                wire.make_ready(packet.fds[0], packet.get(4))
                sock.send(wire.packet(0, "link_ready", {1: packet.get(1), 2: len(ids) + 1}))
            sock.send(wire.packet(0, "ack", {1: n_acked}))
        if packet.name == "link_failed":
            raise OSError(f"link {len(ids)} failed: {packet.fields}")
        if packet.name == "link_open":
            ids.append(packet.get(1))
        packet.close()
    return ids


@scene("link_ready")
def open_many_links_of_one(d):
    """One subscription with thousands of links, each of which is proved."""
    c = d.client()
    c.publishers([f"many/{i}" for i in range(some(2000))])
    sock = c.subscribe("many/*")
    sock.settimeout(20)
    accept_all(sock, some(2000), c)
    leave(sock)


@scene("ack")
def acknowledge_without_end(d):
    """Acknowledgements of nothing new, of many subscriptions, as fast as they can be sent."""
    c = d.client()
    sockets = c.subscriptions(["acks"] * some(500))
    for s in sockets:
        s.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(200):
                s.send(wire.packet(0, "ack", {1: 0}))
    c.call("daemon_info")
    leave(sockets)


@scene("link_close")
def close_many_links_one_by_one(d):
    c = d.client()
    c.publishers([f"many/{i}" for i in range(some(2000))])
    sock = c.subscribe("many/*")
    sock.settimeout(20)
    for link in accept_all(sock, some(2000), c):
        sock.send(wire.packet(0, "link_close", {1: link}))
    c.call("daemon_info")
    leave(sock, c)


@scene("end of a connection")
def end_many_subscriptions(d):
    c, other = d.client(), d.client()
    c.publishers([f"many/{i}" for i in range(16)])
    kept = other.subscriptions(["many/*"] * min(250, some(1000)))
    leave(other, kept)
    leave(c)


@scene("end of a connection")
def end_many_links(d):
    """All of a process ends: thousands of subscriptions with a link each, all of which hold."""
    c, other = d.client(), d.client()
    c.publishers(["links"])
    kept = other.links(c, some(6000), holds=True)
    leave(other, kept)
    leave(c)


@scene("end of a connection")
def end_links_before_older_ones(d):
    """Links that hold messages end after newer ones of the same publisher."""
    c, older, newer = d.client(), d.client(), d.client()
    c.publishers(["links"])
    kept = older.links(c, some(3500), holds=True)
    leave(newer.links(c, some(3500), holds=True), newer)
    d.await_info(lambda info: info.get(6) <= 4)
    leave(kept, older)


# ---- lists
# -------------------------------------------------------------------------------------------------


# ---- groups of workers
# ---------------------------------------------------------------------------------------


WIDE = 8192  # entries of the widest ring, and of its claims pages


def write_cells(reply, state, owner):
    """Fill the claims page of a LinkOpen with cells of the first lap."""
    cells = [state << 62 | 1 << 56 | owner << 40 | 1] * WIDE
    os.pwrite(reply.fds[2], struct.pack(f"={WIDE}Q", *cells), 64)


def workers(c, writer, n, topic="work", fill=None):
    """Joined workers of one group of the only publisher of the topic. Returns the sockets."""
    sockets = []
    for i in range(n):
        s = c.subscribe(topic, group="g")
        reply = wire.join_reply(s, i + 1) if s else None
        if not reply:
            raise OSError(f"no worker {i}")
        if fill and i == 0:
            write_cells(reply, *fill)
        reply.close()
        sockets.append(s)
        writer.know_links()
    return sockets


@scene("publisher_new")
def publishers_with_many_groups(d):
    """Each declares as many groups as possible, and none has a worker."""
    c = d.client()
    groups = [f"group-{i}" for i in range(16)]
    c.publishers([f"work/{i}" for i in range(some(1500))], groups=groups)
    leave(c)


@scene("subscribe")
def many_workers_of_a_wide_ring(d):
    """The claims page is read for each, and is full of claims. They leave together."""
    c, other = d.client(), d.client()
    c.publishers(["work"], n_entries=WIDE, groups=["g"])
    leave(workers(other, c, some(2000), fill=(1, 4000)))
    leave(other)


@scene("list_groups")
def list_wide_groups(d):
    """Claims pages of the widest rings, full of claims."""
    c, other = d.client(), d.client()
    kept = []
    for i in range(some(80)):
        c.publishers([f"work/{i}"], n_entries=WIDE, groups=["g"], published=WIDE - 1)
        kept += workers(other, c, 1, f"work/{i}", fill=(1, 1))
    for _ in range(20):
        other.call("list_groups", {1: "**"})
    return kept


@scene("list_groups")
def list_many_groups(d):
    """As many as possible, without workers, and of topics that a pattern matches slowly."""
    c = d.client()
    groups = [f"group-{i}" for i in range(16)]
    c.publishers(["a" * 200] * some(1000), groups=groups)
    after = {2: "a" * 200, 3: 1 << 62}
    for _ in range(20):
        c.call("list_groups", {1: "*a*a*a*b"})
        c.call("list_groups", {1: "**"})
        c.call("list_groups", {1: "**", **after})


@scene("list_claims")
def list_claims_of_many_workers(d):
    """A full page, and thousands of links among which its workers are looked for."""
    c, other = d.client(), d.client()
    publisher = c.publishers(["work"], n_entries=WIDE, groups=["g"], published=WIDE - 1)[0]
    kept = workers(other, c, some(1000), fill=(1, 1))
    kept += other.links(c, some(1000), topic="work")
    for after in range(0, WIDE, WIDE // 64):
        other.call("list_claims", {1: publisher, 2: 1, 3: after})
    return kept


def read_observed(sock):
    """Until all has been told."""
    while True:
        reply = wire.receive(sock)
        is_complete = reply.get(2)
        reply.close()
        if is_complete:
            return


@scene("observe")
def observe_many_publishers_and_subscriptions(d):
    """All of them are told to some observers, and what changes while these sleep."""
    c, other = d.client(), d.client()
    c.publishers([f"{'a' * 200}{i:05}" for i in range(some(3000))])
    kept = c.subscriptions([f"{'a' * 200}/{i:05}" for i in range(some(3000))])
    observers = []
    for pattern in ("**", "*", "*a*a*a*b", "**"):
        reply = other.call("observe", {1: pattern, 2: 3})
        if reply.name != "observe_reply":
            raise OSError(f"no observer: {reply.fields}")
        observers.append(socket.socket(fileno=reply.fds.pop()))
        reply.close()
    for sock in observers:
        sock.settimeout(20)
        read_observed(sock)
    c.publishers(["late"] * some(2000))
    return kept, observers


@scene("publisher_close")
def close_with_wide_groups(d):
    """All claims pages are looked at for what is not done."""
    c, other = d.client(), d.client()
    groups = [f"group-{i}" for i in range(16)]
    how = {"n_entries": WIDE, "groups": groups, "published": WIDE - 1}
    publisher = c.publishers(["work"], **how)[0]
    kept = []
    for group in groups:
        s = other.subscribe("work", group=group)
        reply = wire.join_reply(s, 1)
        write_cells(reply, 3, 1)
        reply.close()
        c.know_links()
        kept.append(s)
    c.call("publisher_close", {1: publisher})
    return kept


@scene("groups_drop")
def drop_many_queues(d):
    """Thousands left undone messages on a topic, where thousands more are."""
    c, other = d.client(), d.client()
    other.publishers(["work"] * some(2000), ready=False)
    for publisher in c.publishers(["work"] * some(3000), groups=["g"], published=1):
        c.post("publisher_close", {1: publisher})
    c.settle()
    for _ in range(3):
        other.call("groups_drop", {1: "work"})


@scene("subscribe")
def worker_of_many_queues(d):
    """Thousands left undone messages: the worker joins all of them, and goes."""
    c, other = d.client(), d.client()
    for publisher in c.publishers(["work"] * some(3000), groups=["g"], published=1):
        c.post("publisher_close", {1: publisher})
    c.settle()
    s = other.subscribe("work", group="g")
    leave(s)
    other.call("groups_drop", {1: "work"})


@scene("list_publishers")
def list_silent_publishers(d):
    """A topic with thousands of publishers, none of them ready, so that no page fills."""
    c = d.client()
    c.publishers(["one"] * some(6000), ready=False)
    for _ in range(50):
        c.post("list_publishers", {1: "**"})
    c.settle()


@scene("list_publishers")
def list_last_publishers(d):
    """Pages behind the last of thousands of publishers of a topic."""
    c = d.client()
    last = c.publishers(["one"] * some(6000))[-1]
    for after in (0, last - 1, last):
        for _ in range(20):
            c.post("list_publishers", {1: "one", 2: "one", 3: after})
    c.settle()


@scene("list_publishers")
def list_by_slow_pattern(d):
    c = d.client()
    kept = c.subscriptions([f"{'a' * 240}{i:05}" for i in range(some(4000))])
    for _ in range(5):
        c.post("list_publishers", {1: "*" + "a" * 127 + "b"})
    c.settle()
    return kept


@scene("list_publishers")
def list_with_many_rules(d):
    c = d.client()
    d.reload(rules=4000)
    kept = c.subscriptions([f"p/{i}" for i in range(some(1000))])
    for _ in range(3):
        c.post("list_publishers", {1: "**"})
    c.settle()
    return kept


@scene("list_publishers")
def list_gone(d):
    """Thousands of publishers that have gone, since a link holds a message of each."""
    c, other = d.client(), d.client()
    c.publishers([f"gone/{i}" for i in range(some(2500))])
    sock = other.subscribe("gone/*")
    sock.settimeout(20)
    accept_all(sock, some(2500), c)
    leave(c)
    d.await_info(lambda info: info.get(7) == 0)
    for publisher, number in ((0, 0), (1, 1), (1, some(2500) - 2), (1, 2**62)):
        for _ in range(20):
            other.post("list_publishers", {1: "*b", 3: publisher, 4: 1, 5: number})
    other.settle()
    leave(sock)


@scene("list_subscriptions")
def list_many_subscriptions(d):
    """None of them is served, and a pattern matches their topics slowly."""
    c = d.client()
    kept = c.subscriptions(["a" * 200] * some(2000))
    for _ in range(20):
        c.post("list_subscriptions", {1: "*a*a*a*b"})
        c.post("list_subscriptions", {1: "**", 4: 1})
        c.post("list_subscriptions", {1: "**", 2: "a" * 200, 3: 1 << 62})
    c.settle()
    return kept


@scene("list_refusals")
def list_many_refusals(d):
    """As many as are kept, of topics that a pattern matches slowly."""
    c = d.client()
    topics = ["a" * 180 + str(i) for i in range(200)]
    c.publishers(topics)
    for topic in topics:
        c.post("subscribe", {1: topic, 3: 1, 4: 1, 5: 1})
    c.settle()
    if not c.call("list_refusals").get(2):
        raise OSError("nothing was refused, or little")
    for _ in range(200):
        c.post("list_refusals", {1: "*a*a*a*b"})
        c.post("list_refusals", {2: 1 << 62})
    c.settle()


@scene("list_clients")
def list_many_clients(d):
    """Asked by one of thousands of connections."""
    c = d.client()
    others = [Client(d.greedy_path) for _ in range(some(3000))]
    for _ in range(20):
        c.post("list_clients")
        c.post("list_clients", {1: 1 << 62})
    c.settle()
    leave(others)


@scene("kick")
def kick_many(d):
    """All connections of a process at once, each with publishers and subscriptions."""
    c = d.client()
    others = [Client(d.greedy_path) for _ in range(some(500))]
    kept = []
    for i, x in enumerate(others):
        x.publishers([f"kicked/{i}"] * 2)
        kept += x.subscriptions([f"kicked/{i}"])
    reply = c.call("kick", {2: os.getpid()})
    if reply.get(1) != len(others):
        raise OSError(f"{len(others)} connections, and {reply.fields} were kicked")
    leave(others)
    return kept


@scene("list_links")
def list_wide_links(d):
    """40 links of 4,096 hold words, listed by many connections at once."""
    c = d.client()
    publisher = c.publishers(["links"])[0]
    kept = c.links(c, 40, 4096)
    connections = [d.client() for _ in range(16)]
    for _ in range(20):
        for x in connections:
            x.post("list_links", {1: publisher})
    for x in connections:
        x.settle()
    return kept


@scene("list_links")
def list_wide_drains(d):
    """Links of 4,096 hold words that have ended, of which the last one holds a message."""
    c = d.client()
    publisher = c.publishers(["links"])[0]
    kept = c.links(c, some(800), 4096, holds=True)
    leave(kept)
    connections = [d.client() for _ in range(16)]
    for _ in range(10):
        for x in connections:
            x.post("list_links", {1: publisher})
    for x in connections:
        x.settle()


@scene("list_links")
def list_after_ended_link(d):
    """Thousands of links and of links that drain, listed after one that is not there."""
    c = d.client()
    publisher = c.publishers(["links"])[0]
    leave(c.links(c, some(2000), holds=True))
    kept = c.links(c, some(6000))
    for after in (0, 2**62):
        for _ in range(50):
            c.post("list_links", {1: publisher, 2: after})
    c.settle()
    return kept


# ---- the rules
# ---------------------------------------------------------------------------------------------


@scene("review")
def review_many_objects(d):
    """New rules, of which the last one decides, and a client with thousands of objects."""
    c = d.client()
    c.publishers([f"p/{i}" for i in range(some(3000))], ready=False)
    kept = c.subscriptions([f"s/{i}" for i in range(some(4000))])
    d.reload(rules=some(400))
    return kept


# ---- running
# -----------------------------------------------------------------------------------------------


def covered_kinds():
    """The names of requests and notifications that the daemon handles."""
    text = (ROOT / "daemon/protocol/dispatch.c").read_text("utf8")
    return {name.lower() for name in re.findall(r"\{BODY\((\w+)\)", text)}


class Prober:
    """Asks the daemon for its figures all the time; knows the longest time to an answer."""

    def __init__(self, path):
        self.read_end, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                self.probe(path, write_end)
            os._exit(0)
        os.close(write_end)

    @staticmethod
    def probe(path, write_end):
        over = []
        signal.signal(signal.SIGTERM, lambda *_: over.append(1))
        c, longest = Client(path), 0
        while not over:
            start = time.monotonic()
            c.call("daemon_info")
            longest = max(longest, time.monotonic() - start)
            time.sleep(0.0005)  # lint-allow: sleep: one look follows the other
        os.write(write_end, struct.pack("d", longest))

    def stop(self):
        """Returns the longest time in ms."""
        os.kill(self.pid, signal.SIGTERM)
        data = os.read(self.read_end, 8)
        os.close(self.read_end)
        os.waitpid(self.pid, 0)
        return struct.unpack("d", data)[0] * 1e3 if len(data) == 8 else float("nan")


class Daemon:
    """With further sockets, by each of which the user of this process comes as another user, one
    without rights."""

    def __init__(self, program, folder):
        self.folder = pathlib.Path(folder)
        self.path = f"{folder}/s"
        self.greedy_paths = [f"{folder}/g{i}" for i in range(6)]
        self.greedy_path = self.greedy_paths[0]
        self.clients, self.log = [], self.folder / "log"
        self.configure()
        read_end, ready = os.pipe()
        words = [program, "--socket", self.path, "--ready-fd", str(ready)]
        words += ["--config", str(self.folder / "dlpackd.conf")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stderr=log, pass_fds=[ready])
        os.close(ready)
        with open(read_end, "rb", buffering=0) as f:
            if not f.read(1):
                raise SystemExit(f"turns: the daemon does not start: {self.log.read_text('utf8')}")

    def configure(self, n_rules=0, quota=""):
        text = f"[quota greedy]\n{quota}\n"
        for i, path in enumerate(self.greedy_paths):
            text += f"[socket greedy{i}]\npath = {path}\nquota = greedy\n"
        for i in range(n_rules):
            text += f"[rule r{i}]\nusers = *\nsockets = *\ntopics = *{i}/never\n"
            text += "deny = all\n"
        text += f"[rule last]\nusers = {os.getuid()}\nsockets = *\ntopics = **\nallow = all\n"
        (self.folder / "dlpackd.conf").write_text(text, "utf8")

    def reload(self, rules=0, quota=""):
        """Read new rules, and wait until that is done: the log says so."""
        self.configure(rules, quota)
        self.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 20
        while "read the configuration again" not in self.log.read_text("utf8"):
            if time.monotonic() > end:
                raise OSError(f"no new rules: {self.log.read_text('utf8')[-500:]}")
            time.sleep(0.01)  # lint-allow: sleep: one look follows the other

    def client(self, path=None):
        self.clients.append(Client(path or self.greedy_path))
        return self.clients[-1]

    def info(self):
        c = Client(self.path)
        with c.sock:
            return c.call("daemon_info")

    def await_info(self, is_reached, seconds=20):
        end = time.monotonic() + seconds
        while not is_reached(self.info()):
            if time.monotonic() > end:
                raise OSError("what is waited for does not come")
            time.sleep(0.01)  # lint-allow: sleep: one look follows the other

    def longest_turn_ms(self):
        """After the end of all that the clients had."""
        leave(self.clients)
        self.await_info(lambda info: info.get(6) <= 2)  # this connection, and the prober's
        return self.info().get(12) / 1e6

    def stop(self):
        self.process.terminate()
        self.process.wait()


def measure(program, function):
    """Returns the longest turn in ms of CPU time, and the longest time to an answer in ms."""
    with contextlib.ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="dlx-turns.")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        daemon = Daemon(program, folder)
        stack.callback(daemon.stop)
        prober = Prober(daemon.path)
        try:
            kept = function(daemon)
            turn = daemon.longest_turn_ms()
            del kept
        finally:
            answer = prober.stop()
        return turn, answer


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--turn-ms", type=float, default=5, help="bar, in CPU time")
    p.add_argument("--daemon", default=str(BUILD / "dlpackd"), help="the program to measure")
    p.add_argument("--tries", type=int, default=3, help="of a scene above the bar")
    p.add_argument("--only", nargs="*", choices=list(SCENES))
    o = p.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    missing = covered_kinds() - {kind for kind, _ in SCENES.values()}
    over = [f"no scene for {kind}" for kind in sorted(missing)]
    print(f"{'request':<20}{'scene':<38}{'turn, ms':>9}  answer, ms   (load {os.getloadavg()[0]})")
    tries = {name: [] for name in o.only or SCENES}
    # A scene above its bar is tried again after all others: a machine may be slow for a while.
    for name in list(tries) * o.tries:
        kind, function = SCENES[name]
        if tries[name] is None or (tries[name] and min(tries[name])[0] <= o.turn_ms):
            continue
        try:
            tries[name].append(measure(o.daemon, function))
        except OSError as e:
            over.append(f"{name} ({kind}): {e}")
            print(over[-1], flush=True)
            tries[name] = None
            continue
        turn, answer = min(tries[name])
        all_turns = ", ".join(f"{t:.1f}" for t, _ in tries[name])
        more = f"   (of {all_turns})" if len(tries[name]) > 1 else ""
        print(f"{kind:<20}{name:<38}{turn:9.2f}{answer:12.1f}{more}", flush=True)
    for name, measured in tries.items():
        if measured and (turn := min(measured)[0]) > o.turn_ms:
            kind = SCENES[name][0]
            over.append(f"{name} ({kind}): a turn of {turn:.1f} ms (bar {o.turn_ms} ms)")
    verdict = "bars exceeded:\n  " + "\n  ".join(over) if over else "all within the bar"
    print(f"\nturns: {verdict}")
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
