# SPDX-License-Identifier: Apache-2.0
"""Streams of GPUs: which waits for which when tensors are published, taken, exported, released."""

import pytest
from test_gpu import alone, gpu_peer, machine, pytestmark, two


def test_the_stream_that_publish_waits_for_is_passed_to_the_producer(alone):
    alone("""
class Cuda:  # cuda.core
    def __cuda_stream__(self): return (0, stream.handle)
class Early:
    __cuda_stream__ = property(lambda self: (0, stream.handle))
class Torch:
    def __init__(self, number): self.cuda_stream = number
class Cupy:
    def __init__(self, number): self.ptr = number
class Index:
    def __index__(self): return stream.handle
stream = Stream()
h = stream.handle
for given, asked in [(None, 1), (1, 1), (2, 2), (h, h), (Index(), h), (Cuda(), h), (Early(), h),
                     (Torch(h), h), (Torch(0), 1), (Cupy(h), h),
                     (Cupy(2), 2), (Cupy(0), 1)]:
    x = Array(4)
    pub.publish(x, stream=given)
    pub.publish({"a": x, "cpu": b"1"}, stream=given)
    pub.publish_many([x], stream=given)
    assert [a["stream"] for a in x.asked] == [asked] * 3, (given, x.asked)
class Version:
    def __cuda_stream__(self): return (1, h)
class Pair:
    def __cuda_stream__(self): return h
x = Array(4)
for wrong, error, words in [(0, ValueError, "1 is the legacy"), (-1, ValueError, "-1 is none"),
                            (-2, ValueError, "-2"), (True, TypeError, "True"),
                            ("1", TypeError, "cuda_stream"), (1.0, TypeError, "PyTorch"),
                            (object(), TypeError, "CuPy"),
                            (Version(), ValueError, "version 1"), (Pair(), TypeError, "no pair"),
                            (Torch(-1), ValueError, "-1"),
                            (Torch("x"), TypeError, "")]:
    fails(error, words, lambda: pub.publish(x, stream=wrong))
    fails(error, words, lambda: pub.publish_many([x], stream=wrong))
assert not x.asked
class Rocm:
    def __dlpack_device__(self): return (10, 0)
    def __dlpack__(self, **kwargs): raise EOFError(str(kwargs["stream"]))
for given, asked in [(None, "0"), (0, "0"), (Torch(0), "0"), (h, str(h))]:
    fails(EOFError, asked, lambda: pub.publish(Rocm(), stream=given))
for wrong in (1, 2):
    fails(ValueError, "0 is the default stream of ROCm", lambda: pub.publish(Rocm(), stream=wrong))
pub.close(); stream.close(); s.close(); c.close(); del x; finish()
""")


def test_publish_does_not_wait_for_its_stream_and_a_taken_tensor_does(two):
    two(
        """
stream, x = Stream(), Array(4, value=1)
gate = Gate(stream.handle)
ok(cuda.cuMemsetD32Async(C.c_uint64(x.memory.at), C.c_uint32(5), C.c_size_t(4),
                         C.c_void_p(stream.handle)))
pub.publish(x, stream=stream.handle)
assert not gate.passed and pub.stats()["gpu_waits"] == 0
until(lambda: pub.stats()["published"] == 1)
threading.Timer(0.3, gate.open).start()
until(lambda: pub.stats()["n_subscribers"] == 0)
pub.close(); stream.close(); c.close(); del x; finish()
""",
        """
msg, counted = s.take(), []
def count_up():
    while len(counted) < 1000000 and not done: counted.append(1)
done = False
thread = threading.Thread(target=count_up)
thread.start()
taken = Taken(msg, stream=1)
done = True
thread.join()
assert taken.values() == [5] * 4, taken.values()
assert len(counted) > 1000, len(counted)  # Python ran meanwhile
taken.close(); del msg
""",
    )


def test_a_consumer_gets_what_dlpack_says(two):
    two(
        "pub.publish(Array(4, value=3))\nuntil(lambda: pub.stats()['n_subscribers'] == 0)\n"
        "pub.close(); c.close(); finish()",
        """
msg = s.take()
stream = Stream()
for thing in (msg, msg[0]):
    assert thing.__dlpack_device__() == (2, 0)
    for kwargs in ({}, {"stream": None}, {"stream": -1}, {"stream": 1}, {"stream": 2},
                   {"stream": stream.handle}, {"dl_device": (2, 0)},
                   {"dl_device": None, "copy": None}, {"copy": False}, {"max_version": (1, 9)}):
        taken = Taken(thing, **kwargs)
        assert taken.versioned and taken.device == (2, 0) and taken.values() == [3] * 4
        taken.close()
    for kwargs, error, words in (({"stream": 0}, ValueError, "1 is the legacy"),
                                 ({"stream": -2}, ValueError, "-2"),
                                 ({"stream": "x"}, TypeError, "'x'"),
                                 ({"dl_device": (1, 0)}, dlx.DeviceError, "(1, 0) was asked for"),
                                 ({"dl_device": (2, 1)}, BufferError, "(2, 1)"),
                                 ({"copy": True}, dlx.DeviceError, "clone()"),
                                 ({"max_version": None}, BufferError, "read-only"),
                                 ({"max_version": (0, 8)}, BufferError, "read-only"),
                                 ({"nope": 1}, TypeError, "nope")):
        fails(error, words, lambda: Taken(thing, **kwargs))
legacy = Taken(msg[0].as_legacy(), max_version=None)
assert not legacy.versioned and legacy.values() == [3] * 4
legacy.close()
unused = msg.__dlpack__(max_version=(1, 0), stream=1), msg[0].as_legacy().__dlpack__(stream=1)
del msg, thing, unused
until(lambda: s.stats()["n_held"] == 0)
stream.close()
""",
    )


# The stream of take(), that of the consumer; how often the device is waited for, and how many
# streams.
RELEASES = [
    ("None", {}, (0, 1)),
    ("None", {"stream": 1}, (0, 1)),
    ("None", {"stream": "a"}, (0, 1)),
    ("None", {"stream": -1}, (1, 0)),
    ("None", {"stream": 2}, (1, 0)),
    ("a", {}, (0, 2)),
    ("a", {"stream": None}, (0, 2)),
    ("a", {"stream": "a"}, (0, 1)),
    ("a", {"stream": "b"}, (0, 2)),
    ("a", {"stream": -1}, (0, 1)),
    ("a", {"stream": 2}, (1, 0)),
    ("-1", {}, (1, 0)),
    ("-1", {"stream": "b"}, (1, 0)),
    ("2", {"stream": "b"}, (1, 0)),
]


def test_a_release_waits_for_the_streams_that_were_named(two):
    two(
        "for i in range(%d): pub.publish(Array(4, value=i))\n"
        "until(lambda: pub.stats()['n_subscribers'] == 0)\n"
        "pub.close(); c.close(); finish()" % (len(RELEASES) + 5),
        """
a, b = Stream(), Stream()
for take, consumer, expected in %r:
    msg = s.take(stream={"a": a.handle, "None": None, "-1": -1, "2": 2}[take])
    named = {k: {"a": a.handle, "b": b.handle}.get(v, v) for k, v in consumer.items()}
    # the last one as a new consumer sees it
    for make in (lambda: msg, lambda: msg[0], lambda: msg[0].as_legacy()):
        taken = Taken(make(), **named)
        got = waits(taken.close)
        assert got == expected, (take, consumer, got)
    unused = msg[0].__dlpack__(max_version=(1, 0), **named)
    def drop():
        global unused
        del unused
    assert waits(drop) == expected
# Only its own: work on another stream goes on.
msg = s.take()
taken, gate = Taken(msg, stream=a.handle), Gate(b.handle)
taken.close()
assert not gate.passed
gate.open()
del msg
until(lambda: s.stats()["n_held"] == 0)
# To close memory, with the last of its message, waits for the GPU, and Python runs meanwhile.
msg = s.take()
Taken(msg, stream=a.handle).close()
gate, n, things = Gate(b.handle), calls("cuIpcCloseMemHandle"), [msg]
del msg
thread = threading.Thread(target=things.clear)
thread.start()
until(lambda: calls("cuIpcCloseMemHandle") > n)
gate.open()
thread.join()
# The release of a capsule does not wait; that of a tensor whose address was given away waits for
# the device, without the GIL.
for stream, release in ((a, "capsule"), (b, "capsule"), (b, "interface")):
    msg = s.take() if release == "capsule" else s.take(stream=-1)
    t = msg[0]
    if release == "capsule":
        capsule = t.__dlpack__(max_version=(1, 0), stream=stream.handle)
    else:
        capsule = t.__cuda_array_interface__
    del msg
    gate, said = Gate(stream.handle), []
    before = calls("cuCtxSynchronize")
    things = [capsule, t]
    del capsule, t
    def let_go():
        things.clear()
        said.append(gate.passed)
    thread = threading.Thread(target=let_go)
    thread.start()
    if release == "capsule":  # a thread of the subscription waits
        thread.join()
        assert said == [False] and s.stats()["n_held"] == 1
        gate.open()
    else:
        until(lambda: calls("cuCtxSynchronize") > before)
        gate.open()
        thread.join()
        assert said == [True]
    until(lambda: s.stats()["n_held"] == 0)
    assert s.stats()["gpu_errors"] == 0
a.close(), b.close()
"""
        % (RELEASES,),
        history=len(RELEASES) + 5,
    )


def test_every_way_to_take_names_a_stream(alone):
    alone("""
import asyncio
a = Stream()
for take in (lambda: s.take(60, stream=a.handle), lambda: s.take_many(1, 60, stream=a.handle)[0],
             lambda: c.get("gpu", 60, stream=a.handle),
             lambda: asyncio.run(s.take_async(60, stream=a.handle)),
             lambda: asyncio.run(s.take_many_async(1, stream=a.handle))[0],
             lambda: asyncio.run(s.take_async(stream=a.handle))):
    x = Array(4, value=3)
    pub.publish(x)
    msg = take()
    if s.stats()["taken"] < pub.stats()["published"]:
        s.take()
    taken = Taken(msg, stream=1)
    del msg
    assert waits(taken.close) == (0, 2)
for call in (lambda: s.take(stream="x"), lambda: s.take_many(1, stream="x"),
             lambda: c.get("gpu", stream="x"), lambda: s.take_async(stream="x"),
             lambda: s.take_many_async(1, stream="x")):
    fails(TypeError, "'x'", call)
pub.publish(Array(4))
fails(ValueError, "0 of CUDA", lambda: Taken(s.take(stream=0)))
pub.close(); a.close(); s.close(); c.close(); del x, taken; finish()
""")


def test_a_tensor_that_was_only_looked_at_waits_for_nothing(alone):
    alone("""
stream = Stream()
pub.publish(Array(4))
gate = Gate(stream.handle)
msg = s.take()
t = msg[0]
assert t.shape == (4,) and t.dtype == "uint32" and waits(lambda: msg.release()) == (0, 0)
del t
pub.publish(Array(4))
msg = s.take()
t = msg[0]
assert t.device == "cuda:0" and msg.__dlpack_device__() == (2, 0)
n = calls("cuCtxSynchronize")
del t, msg
until(lambda: s.stats()["n_held"] == 0)
assert calls("cuCtxSynchronize") == n and not gate.passed
gate.open()
pub.close(); s.close(); c.close(); stream.close(); finish()
""")


def test_take_waits_for_messages_that_a_gpu_still_uses(alone):
    alone("""
import asyncio
one = c.subscribe("gpu", max_held=1, timeout=60)
stream = Stream()
def gated():
    pub.publish(Array(4))
    pub.publish(Array(4))
    msg = one.take()
    taken, gate = Taken(msg, stream=stream.handle), Gate(stream.handle)
    taken.close()
    return gate
for take in (lambda: one.take(60), lambda: one.take_many(1, 60)[0]):
    gate = gated()
    fails(dlx.TooManyHeld, "", lambda: one.take(0))
    fails(dlx.TooManyHeld, "", lambda: asyncio.run(one.take_async(60)))
    threading.Timer(0.1, gate.open).start()
    msg = take()
    assert gate.passed
    del msg
    until(lambda: one.stats()["n_held"] == 0)
pub.close(); one.close(); s.close(); c.close(); stream.close(); finish()
""")
