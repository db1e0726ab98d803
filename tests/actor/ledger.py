# SPDX-License-Identifier: Apache-2.0
"""The ledgers of actors (ledger.h), and errors that several ledgers together show."""

import contextlib
import ctypes
import mmap
import os
import struct

U32, U64 = ctypes.c_uint32, ctypes.c_uint64
HEAD_SIZE, OBJECTS, KEYS, ERRORS, STEPS = 4096, 64, 256, 64, 1 << 20
KEYS_OF_PROCESS = 1000
MAGIC = 0x3130304B414F5321
PUBLISHER, SUBSCRIPTION, GETTER, WORKER, CALLER, SERVER = 1, 2, 3, 4, 5, 6
UNUSED, BEGUN, ALIVE, CLOSED, DRAINED = range(5)
STARTING, STREAMING, FINISHED, WAITING = range(4)
RELIABLE, LATEST, DECLARES = 1, 2, 4
TOOK, SAYS_DONE, DID, WAS_LATE = 1, 2, 3, 4
ASKS, WAS_ASKED, NOT_ASKED, GOT, CANCELLED, SERVES, ANSWERS = range(5, 12)


def fields(kind, names):
    return [(name, kind) for name in names.split()]


class Head(ctypes.Structure):
    _fields_ = [
        *fields(U64, "fail_from fail_count wanted allocations"),
        ("live", ctypes.c_int64),
        *fields(U64, "failed magic seed"),
        *fields(U32, "pid n_objects scene n_errors"),
        *fields(ctypes.c_int32, "fds maps"),
        *fields(U32, "n_steps reserved"),
    ]


class Key(ctypes.Structure):
    _fields_ = fields(U64, "key start last taken gaps prev_ns first_ns first_gap lost_told")


class Object(ctypes.Structure):
    _fields_ = [
        *fields(U32, "kind state"),
        ("topic_bytes", ctypes.c_char * 64),
        *fields(U64, "key begun_ns ready_ns ended_ns begun done bytes taken skipped lost held_max"),
        *fields(U32, "flags n_keys depth"),
        ("n_arenas", U32 * 2),
        ("errors", U32 * ERRORS),
        ("all_keys", Key * KEYS),
    ]

    @property
    def topic(self):
        return self.topic_bytes.decode()

    @property
    def keys(self):
        """The messages that the subscription got, by publisher."""
        return [k for k in self.all_keys[: self.n_keys] if k.taken]

    def __str__(self):
        kind = {
            PUBLISHER: "publisher of",
            SUBSCRIPTION: "subscription to",
            WORKER: "worker of",
            CALLER: "caller of",
            SERVER: "server of",
        }.get(self.kind, "get of")
        return f"{kind} {self.topic} (pid {self.key // KEYS_OF_PROCESS}, flags {self.flags})"


OBJECT_SIZE = ctypes.sizeof(Object)
STEP = struct.Struct("=QQIBBBx")


class Ledger:
    """The ledger of a process that is about to start, with this descriptor."""

    def __init__(self, **values):
        self.fd = os.memfd_create("actor-ledger")
        os.ftruncate(self.fd, HEAD_SIZE + OBJECTS * OBJECT_SIZE + STEPS * STEP.size)
        self.map = mmap.mmap(self.fd, 0)
        self.head = Head.from_buffer(self.map)
        for name, value in values.items():
            setattr(self.head, name, value)

    def env(self):
        return {"ACTOR_LEDGER_FD": str(self.fd)}

    def objects(self, *kinds):
        """The objects that were begun, as they are now."""
        n = min(self.head.n_objects, OBJECTS) if self.head.magic == MAGIC else 0
        all_of_it = [
            Object.from_buffer_copy(self.map, HEAD_SIZE + i * OBJECT_SIZE) for i in range(n)
        ]
        return [o for o in all_of_it if o.state != UNUSED and (not kinds or o.kind in kinds)]

    def steps(self):
        """What its workers did: (pid, ns, key, seq, group, attempt, what)."""
        begin = HEAD_SIZE + OBJECTS * OBJECT_SIZE
        n = min(self.head.n_steps, STEPS) if self.head.magic == MAGIC else 0
        for step in STEP.iter_unpack(self.map[begin : begin + n * STEP.size]):
            yield self.head.pid, *step

    def progress(self):
        """(messages that began to be published, and that are done)"""
        n = min(self.head.n_objects, OBJECTS)
        all_of_it = [Object.from_buffer(self.map, HEAD_SIZE + i * OBJECT_SIZE) for i in range(n)]
        return sum(o.begun for o in all_of_it), sum(o.done for o in all_of_it)

    def close(self):
        self.head = None
        with contextlib.suppress(BufferError):  # a reader has it: it is closed after that
            self.map.close()
        os.close(self.fd)


def contradictions(subscription, publishers):
    """Messages that a subscription took, and no publisher published. publishers: all, by key."""
    for k in subscription.keys:
        p = publishers.get(k.key)
        if not p:
            yield f"took from key {k.key}, which no ledger has"
        elif k.last > p.begun:
            yield f"took message {k.last} of key {k.key}, which published {p.begun}"


def lost_after_first(subscription):
    """Messages that it was not given, though it had been given earlier ones of that publisher."""
    return subscription.lost - sum(k.first_gap for k in subscription.keys)
