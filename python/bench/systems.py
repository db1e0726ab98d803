# SPDX-License-Identifier: Apache-2.0
"""The systems that bench_python.py compares: each has a sender in this process, and a receiver in
another one.
"""

import json
import os
import socket
import tempfile
import time

import dlx
import numpy as np

FRAME = (1080, 1920, 3)
now = time.monotonic_ns


class Dlx:
    """Filled in shared memory before the clock starts, as a camera or a decoder would."""

    def __init__(self, size, context):
        self.connection = dlx.connect()
        self.size, self.args = size, (size,)
        self.pub = self.connection.publisher(f"bench/{size}")

    def begin(self):
        self.pub.wait(1, 60)

    def prepare(self, payload):
        self.x = self.pub.empty(self.size, "uint8")
        memoryview(self.x)[:] = payload

    def send(self, payload):
        self.pub.publish(self.x, monotonic_ns=now())

    @staticmethod
    def receive(size, n, acknowledge):
        with dlx.connect() as c, c.subscribe(f"bench/{size}", timeout=60, spin="never") as sub:
            for _ in range(n):
                msg = sub.take()
                array = np.asarray(msg)
                acknowledge(now() - msg.monotonic_ns, array)
                del msg, array
            assert sub.stats()["sleeps"] > 0.9 * n, "a blocking take sleeps"


class DlxSmall(Dlx):
    """Allocated and filled while the clock runs."""

    def prepare(self, payload):
        pass

    def send(self, payload):
        start = now()
        x = self.pub.empty(self.size, "uint8")
        memoryview(x)[:] = payload
        self.pub.publish(x, monotonic_ns=start)


class TorchQueue:
    """An ordinary tensor each time, as from a model: the queue moves it to shared memory."""

    def __init__(self, size, context):
        import torch
        import torch.multiprocessing

        self.torch = torch
        self.queue = torch.multiprocessing.get_context("spawn").Queue()
        self.args = (self.queue,)

    def begin(self):
        pass

    def prepare(self, payload):
        self.x = self.torch.frombuffer(bytearray(payload), dtype=self.torch.uint8)

    def send(self, payload):
        self.queue.put((now(), self.x))

    @staticmethod
    def receive(queue, n, acknowledge):
        for _ in range(n):
            start, x = queue.get()
            acknowledge(now() - start, x)


class TorchShared(TorchQueue):
    """A pool that was shared once."""

    def __init__(self, size, context):
        super().__init__(size, context)
        self.pool = [
            self.torch.zeros(size, dtype=self.torch.uint8).share_memory_() for _ in range(4)
        ]
        self.turn = 0

    def prepare(self, payload):
        self.turn += 1
        self.x = self.pool[self.turn % 4]
        self.x.numpy()[:] = np.frombuffer(payload, np.uint8)


class ShmPipe:
    """multiprocessing.shared_memory and a Pipe: the sender copies in."""

    def __init__(self, size, context):
        from multiprocessing import shared_memory

        self.shm = [shared_memory.SharedMemory(create=True, size=size) for _ in range(4)]
        self.theirs, self.pipe = context.Pipe(duplex=False)
        self.args = (size, [x.name for x in self.shm], self.theirs)
        self.turn = 0

    def begin(self):
        pass

    def prepare(self, payload):
        self.turn += 1

    def send(self, payload):
        start = now()
        self.shm[self.turn % 4].buf[: len(payload)] = payload
        self.pipe.send((start, self.turn % 4))

    def end(self):
        for x in self.shm:
            x.close()
            x.unlink()

    @staticmethod
    def receive(size, names, pipe, n, acknowledge):
        from multiprocessing import shared_memory

        shm = [shared_memory.SharedMemory(name=x) for x in names]
        for _ in range(n):
            start, turn = pipe.recv()
            array = np.frombuffer(shm[turn].buf, np.uint8, size)
            acknowledge(now() - start, array)
            del array
        for x in shm:
            x.close()


class Zmq:
    def __init__(self, size, context):
        import zmq

        self.folder = tempfile.TemporaryDirectory(prefix="dlx-bench.")
        self.socket = zmq.Context.instance().socket(zmq.PUSH)
        path = f"ipc://{self.folder.name}/s"
        self.socket.bind(path)
        self.args = (path,)

    def begin(self):
        pass

    def prepare(self, payload):
        pass

    def send(self, payload):
        self.socket.send_multipart([now().to_bytes(8, "little"), payload])

    def end(self):
        self.socket.close(0)
        self.folder.cleanup()

    @staticmethod
    def receive(path, n, acknowledge):
        import zmq

        socket = zmq.Context.instance().socket(zmq.PULL)
        socket.connect(path)
        for _ in range(n):
            start, payload = socket.recv_multipart()
            array = np.frombuffer(payload, np.uint8)
            acknowledge(now() - int.from_bytes(start, "little"), array)
        socket.close(0)


class Zenoh:
    """Shared memory, filled before the clock starts. A received array can only be copied out: the
    clock stops before that.
    """

    def __init__(self, size, context):
        import zenoh
        import zenoh.shm

        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.args = (size, f"tcp/127.0.0.1:{s.getsockname()[1]}")
        self.size, self.shm = size, zenoh.shm
        self.session = self.open("listen/endpoints", self.args[1])
        # The default drops what the network does not take at once.
        self.pub = self.session.declare_publisher(
            "bench", congestion_control=zenoh.CongestionControl.BLOCK
        )
        self.provider = zenoh.shm.ShmProvider.default_backend(8 * size)

    @staticmethod
    def open(key, endpoint):
        import zenoh

        config = zenoh.Config()
        for k, v in (
            ("transport/shared_memory/enabled", True),
            ("scouting/multicast/enabled", False),
            ("listen/endpoints", []),
            (key, [endpoint]),
        ):
            config.insert_json5(k, json.dumps(v))
        return zenoh.open(config)

    def begin(self):
        deadline = time.monotonic() + 60
        while not self.pub.matching_status.matching and time.monotonic() < deadline:
            time.sleep(0.01)

    def prepare(self, payload):
        self.x = self.provider.alloc(self.size, policy=self.shm.BlockOn(self.shm.GarbageCollect()))
        self.x[:] = bytes(payload)

    def send(self, payload):
        self.pub.put(self.x, attachment=now().to_bytes(8, "little"))

    def end(self):
        self.session.close()

    @classmethod
    def receive(cls, size, endpoint, n, acknowledge):
        session = cls.open("connect/endpoints", endpoint)
        sub = session.declare_subscriber("bench")
        for _ in range(n):
            sample = sub.recv()
            shm = sample.payload.as_shm()
            ns = now() - int.from_bytes(sample.attachment.to_bytes(), "little")
            assert shm is not None
            acknowledge(ns, np.frombuffer(bytes(shm), np.uint8))
        session.close()


class Iceoryx2:
    """Loaned and filled before the clock starts; a notification wakes the receiver."""

    def __init__(self, size, context):
        self.args = (size, f"bench/{os.getpid()}/{time.monotonic_ns()}")
        self.size, (self.node, self.service, event) = size, self.open(*self.args)
        self.pub = self.service.publisher_builder().initial_max_slice_len(size).create()
        self.notifier = event.notifier_builder().create()

    @staticmethod
    def open(size, name):
        import ctypes

        import iceoryx2 as iox2

        iox2.set_log_level(iox2.LogLevel.Error)
        node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
        frames = (
            node.service_builder(iox2.ServiceName.new(name))
            .publish_subscribe(iox2.Slice[ctypes.c_uint8])
            .open_or_create()
        )
        return (
            node,
            frames,
            node.service_builder(iox2.ServiceName.new(name)).event().open_or_create(),
        )

    @staticmethod
    def array(payload, size):
        import ctypes

        return np.ctypeslib.as_array(
            ctypes.cast(payload.as_ptr(), ctypes.POINTER(ctypes.c_uint8)), (size,)
        )

    def begin(self):
        deadline = time.monotonic() + 60
        while self.service.dynamic_config.number_of_subscribers < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.pub.update_connections()

    def prepare(self, payload):
        sample = self.pub.loan_slice_uninit(self.size)
        self.view = self.array(sample.payload(), self.size)
        self.view[:] = np.frombuffer(payload, np.uint8)
        self.x = sample.assume_init()

    def send(self, payload):
        self.view[:8] = np.frombuffer(now().to_bytes(8, "little"), np.uint8)
        self.x.send()
        self.notifier.notify()

    @classmethod
    def receive(cls, size, name, n, acknowledge):
        node, frames, event = cls.open(size, name)
        listener, sub = event.listener_builder().create(), frames.subscriber_builder().create()
        for _ in range(n):
            while (sample := sub.receive()) is None:
                listener.blocking_wait()
            array = cls.array(sample.payload(), size)
            acknowledge(now() - int.from_bytes(array[:8].tobytes(), "little"), array)
            del array
            sample.delete()
        del node
