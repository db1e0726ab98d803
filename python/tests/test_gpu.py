# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs between processes, on the stand-in driver of tests/gpu/standin: gpu_standin.py is the library that has them."""
import os
import pathlib
import subprocess

import pytest
from conftest import PATIENCE, Peer

import dlx

STANDIN = pathlib.Path(os.environ.get("BUILD", "build")).resolve() / "tests/standin/libcuda.so.1"
pytestmark = pytest.mark.skipif(not STANDIN.exists(), reason="no cuda.h: the stand-in for NVIDIA's driver was not built")

PRELUDE = Peer.PRELUDE + f"""
import faulthandler, gc, pickle, threading, time
faulthandler.dump_traceback_later(50, exit=True)
sys.path.insert(0, {os.path.dirname(__file__)!r})
from gpu_standin import *
def until(true):
    while not true(): os.sched_yield()
def fails(error, words, call):
    try:
        call()
    except error as e:
        assert words in str(e), (words, str(e))
        return e
    raise AssertionError(f"no {{error.__name__}}")
"""
PUBLISHER = """
start()
pub = c.publisher("gpu", history={history})
pub.wait(1, 60)
"""
SUBSCRIBER = """
start({device})
s = c.subscribe("gpu", timeout=60)
say("ready")
"""


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Two GPUs, which the processes of a test share."""
    monkeypatch.setenv("STANDIN", str(STANDIN))
    monkeypatch.setenv("STANDIN_MACHINE", str(tmp_path / "machine"))
    monkeypatch.setenv("STANDIN_DEVICES", "2")


@pytest.fixture
def alone(peer):
    """Runs code in a process that publishes and subscribes."""
    def run(code):
        peer('start()\npub, s = c.publisher("gpu", history=4), c.subscribe("gpu", timeout=60)\n' + code, prelude=PRELUDE).end()
    return run


@pytest.fixture
def two(peer):
    """Runs a subscriber and, when that is there, a publisher, which ends when the subscriber has. Both see that nothing is left."""
    def run(publish, take, device=0, environment="", history=1):
        taker = peer(environment + SUBSCRIBER.format(device=device) + take + "\ns.close(); c.close(); finish()", prelude=PRELUDE)
        assert taker.hear() == "ready"
        giver = peer(PUBLISHER.format(history=history) + publish, prelude=PRELUDE)
        taker.end()
        giver.end()
    return run


PUBLISH_ONE = """
x = Array(2, 8, value=7, versioned={versioned})
report = pub.publish({thing}, strict=True)
assert (report.copied, report.n_copied, report.copied_bytes, report.seq) == (False, 0, 0, 1), report
assert x.asked[-1].pop("stream") == 1 and x.deleted == 0, x.asked
until(lambda: pub.stats()["n_subscribers"] == 0)
pub.publish(b"next")
pub.wait(0, 0)
assert x.deleted == 1 and pub.stats()["gpu_waits"] == 0 and not exports
pub.close(); c.close(); del x; finish()
"""


@pytest.mark.parametrize("thing", ["x", "x.__dlpack__(stream=1)"], ids=["array", "capsule"])
@pytest.mark.parametrize("versioned", [True, False])
def test_a_tensor_goes_to_another_process_without_a_copy(two, versioned, thing):
    two(PUBLISH_ONE.format(versioned=versioned, thing=thing), """
msg = s.take()
t = msg[0]
assert (t.shape, t.strides, t.dtype, t.ndim, t.nbytes, len(t), t.readonly) == ((2, 8), (8, 1), "uint32", 2, 64, 2, True)
assert repr(t) == "<dlx.Tensor uint32 (2, 8) on cuda, read-only, received>" and calls("cuIpcOpenMemHandle_v2") == calls("cuIpcOpenMemHandle") == 0
assert t.device == "cuda:0" and t.__dlpack_device__() == msg.__dlpack_device__() == (2, 0) and "on cuda:0" in repr(t)
one, other = Taken(msg, stream=1), Taken(t.as_legacy(), stream=1, max_version=None)
del msg, t
assert one.device == other.device == (2, 0) and one.managed.flags == 1 and one.values() == other.values() == [7] * 16
one.close(), other.close()
until(lambda: s.stats()["n_held"] == 0)
assert s.stats()["gpu_errors"] == 0 and count("IPC_MAPPINGS") == 0
""")


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
for given, asked in [(None, 1), (1, 1), (2, 2), (h, h), (Index(), h), (Cuda(), h), (Early(), h), (Torch(h), h), (Torch(0), 1), (Cupy(h), h),
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
for wrong, error, words in [(0, ValueError, "1 is the legacy"), (-1, ValueError, "-1 is none"), (-2, ValueError, "-2"), (True, TypeError, "True"),
                            ("1", TypeError, "cuda_stream"), (1.0, TypeError, "PyTorch"), (object(), TypeError, "CuPy"),
                            (Version(), ValueError, "version 1"), (Pair(), TypeError, "no pair"), (Torch(-1), ValueError, "-1"),
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
    two("""
stream, x = Stream(), Array(4, value=1)
gate = Gate(stream.handle)
ok(cuda.cuMemsetD32Async(C.c_uint64(x.memory.at), C.c_uint32(5), C.c_size_t(4), C.c_void_p(stream.handle)))
pub.publish(x, stream=stream.handle)
assert not gate.passed and pub.stats()["gpu_waits"] == 0
until(lambda: pub.stats()["published"] == 1)
threading.Timer(0.3, gate.open).start()
until(lambda: pub.stats()["n_subscribers"] == 0)
pub.close(); stream.close(); c.close(); del x; finish()
""", """
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
""")


def test_a_consumer_gets_what_dlpack_says(two):
    two("pub.publish(Array(4, value=3))\nuntil(lambda: pub.stats()['n_subscribers'] == 0)\npub.close(); c.close(); finish()", """
msg = s.take()
stream = Stream()
for thing in (msg, msg[0]):
    assert thing.__dlpack_device__() == (2, 0)
    for kwargs in ({}, {"stream": None}, {"stream": -1}, {"stream": 1}, {"stream": 2}, {"stream": stream.handle}, {"dl_device": (2, 0)},
                   {"dl_device": None, "copy": None}, {"copy": False}, {"max_version": (1, 9)}):
        taken = Taken(thing, **kwargs)
        assert taken.versioned and taken.device == (2, 0) and taken.values() == [3] * 4
        taken.close()
    for kwargs, error, words in (({"stream": 0}, ValueError, "1 is the legacy"), ({"stream": -2}, ValueError, "-2"), ({"stream": "x"}, TypeError, "'x'"),
                                 ({"dl_device": (1, 0)}, dlx.DeviceError, "(1, 0) was asked for"), ({"dl_device": (2, 1)}, BufferError, "(2, 1)"),
                                 ({"copy": True}, dlx.DeviceError, "clone()"), ({"max_version": None}, BufferError, "read-only"),
                                 ({"max_version": (0, 8)}, BufferError, "read-only"), ({"nope": 1}, TypeError, "nope")):
        fails(error, words, lambda: Taken(thing, **kwargs))
legacy = Taken(msg[0].as_legacy(), max_version=None)
assert not legacy.versioned and legacy.values() == [3] * 4
legacy.close()
unused = msg.__dlpack__(max_version=(1, 0), stream=1), msg[0].as_legacy().__dlpack__(stream=1)
del msg, thing, unused
until(lambda: s.stats()["n_held"] == 0)
stream.close()
""")


# What take() was told, what the consumer passes; how often the device is waited for, and for how many streams.
RELEASES = [
    ("None", {}, (0, 1)), ("None", {"stream": 1}, (0, 1)), ("None", {"stream": "a"}, (0, 1)), ("None", {"stream": -1}, (1, 0)),
    ("None", {"stream": 2}, (1, 0)), ("a", {}, (0, 2)), ("a", {"stream": None}, (0, 2)), ("a", {"stream": "a"}, (0, 1)),
    ("a", {"stream": "b"}, (0, 2)), ("a", {"stream": -1}, (0, 1)), ("a", {"stream": 2}, (1, 0)), ("-1", {}, (1, 0)), ("-1", {"stream": "b"}, (1, 0)), ("2", {"stream": "b"}, (1, 0)),
]


def test_a_release_waits_for_the_streams_that_were_named(two):
    two("for i in range(%d): pub.publish(Array(4, value=i))\nuntil(lambda: pub.stats()['n_subscribers'] == 0)\n"
        "pub.close(); c.close(); finish()" % (len(RELEASES) + 5), """
a, b = Stream(), Stream()
for take, consumer, expected in %r:
    msg = s.take(stream={"a": a.handle, "None": None, "-1": -1, "2": 2}[take])
    named = {k: {"a": a.handle, "b": b.handle}.get(v, v) for k, v in consumer.items()}
    for make in (lambda: msg, lambda: msg[0], lambda: msg[0].as_legacy()):  # the last one as a new consumer sees it
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
# Of a capsule nobody waits; for the device, of a tensor whose address was given away, without the GIL.
for stream, release in ((a, "capsule"), (b, "capsule"), (b, "interface")):
    msg = s.take() if release == "capsule" else s.take(stream=-1)
    t = msg[0]
    capsule = t.__dlpack__(max_version=(1, 0), stream=stream.handle) if release == "capsule" else t.__cuda_array_interface__
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
""" % (RELEASES,), history=len(RELEASES) + 5)


def test_every_way_to_take_names_a_stream(alone):
    alone("""
import asyncio
a = Stream()
for take in (lambda: s.take(60, stream=a.handle), lambda: s.take_many(1, 60, stream=a.handle)[0], lambda: c.get("gpu", 60, stream=a.handle),
             lambda: asyncio.run(s.take_async(60, stream=a.handle)), lambda: asyncio.run(s.take_many_async(1, stream=a.handle))[0],
             lambda: asyncio.run(s.take_async(stream=a.handle))):
    x = Array(4, value=3)
    pub.publish(x)
    msg = take()
    if s.stats()["taken"] < pub.stats()["published"]:
        s.take()
    taken = Taken(msg, stream=1)
    del msg
    assert waits(taken.close) == (0, 2)
for call in (lambda: s.take(stream="x"), lambda: s.take_many(1, stream="x"), lambda: c.get("gpu", stream="x"), lambda: s.take_async(stream="x"),
             lambda: s.take_many_async(1, stream="x")):
    fails(TypeError, "'x'", call)
pub.publish(Array(4))
fails(ValueError, "0 of CUDA", lambda: Taken(s.take(stream=0)))
pub.close(); a.close(); s.close(); c.close(); del x, taken; finish()
""")


def test_what_was_only_looked_at_waits_for_nothing(alone):
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


def test_a_set_mixes_tensors_of_the_cpu_and_of_a_gpu(two):
    two("""
memory = Memory(8192)
own = pub.empty(4, "uint8")
memoryview(own)[:] = b"1234"
report = pub.publish({"a": Array(2, 8, value=1), "own": own, "bytes": b"xyz", "b": Array(8, value=2, memory=memory, offset=256),
                      "c": Array(8, value=3, memory=memory, offset=1024), "none": Array(0, 3), "scalar": Array(value=4)}, meta={"k": 1})
assert (report.n_copied, report.copied_bytes) == (1, 3) and own.published, report
until(lambda: pub.stats()["n_subscribers"] == 0)
del memory
pub.close(); c.close(); finish()
""", """
msg = s.take()
assert list(msg) == ["a", "own", "bytes", "b", "c", "none", "scalar"] and msg.meta == {"k": 1}
tensors = dict(msg)
assert [t.device for t in tensors.values()] == ["cuda:0", "cpu", "cpu", "cuda:0", "cuda:0", "cuda:0", "cuda:0"]
assert bytes(tensors["own"]) == b"1234" and bytes(tensors["bytes"]) == b"xyz" and tensors["own"].__dlpack_device__() == (1, 0)
taken = {k: Taken(tensors[k], stream=1) for k in ("a", "b", "c", "scalar")}
assert {k: v.values() for k, v in taken.items()} == {"a": [1] * 16, "b": [2] * 8, "c": [3] * 8, "scalar": [4]}
assert calls("cuIpcOpenMemHandle") + calls("cuIpcOpenMemHandle_v2") == 3
none = Taken(msg["none"], stream=-1)
assert none.t.data is None and none.device[0] == 2 and msg["none"].shape == (0, 3)
none.close()
for each in taken.values():
    each.close()
fails(BufferError, "7 tensors", lambda: Taken(msg))
assert msg.__dlpack_device__() == (1, 0)
del tensors, msg
until(lambda: s.stats()["n_held"] == 0)
""")


def test_what_only_the_cpu_can_do_is_refused_with_advice(alone):
    alone("""
import numpy as np
pub.publish(Array(2, 4, value=9))
msg = s.take()
t = msg[0]
for call in (t.numpy, t.tobytes, t.copy, lambda: memoryview(t), lambda: memoryview(msg), lambda: bytes(t), lambda: np.asarray(t), lambda: np.asarray(msg),
             lambda: pickle.dumps(t), lambda: np.add(t, 1), lambda: dlx.tensor(t), lambda: t._as_bits(), lambda: t.__array__()):
    e = fails(dlx.DeviceError, "torch.from_dlpack(t).cpu()", call)
    assert isinstance(e, BufferError) and e.name == "DEVICE"
fails(dlx.DeviceError, "on CUDA device 0", lambda: msg.private(0))
fails((BufferError, RuntimeError), "", lambda: np.from_dlpack(t))
for call in (lambda: pub.publish(t), lambda: pub.publish(msg), lambda: pub.publish({"a": t}, share=True), lambda: pub.publish_many([msg])):
    fails(dlx.DeviceError, "torch.from_dlpack(t).clone()", call)
assert not hasattr(t, "__array_interface__")
interface = t.__cuda_array_interface__
address = Taken(t, stream=1)
assert interface == {"typestr": "<u4", "shape": (2, 4), "strides": (16, 4), "version": 3, "stream": None, "data": (address.t.data, True)}, interface
assert read(interface["data"][0], 8) == [9] * 8 and t.__cuda_array_interface__ == interface
address.close()
assert not hasattr(dlx.tensor(b"x"), "__cuda_array_interface__")
n = calls("cuCtxSynchronize")
del t, e  # its traceback has t
assert calls("cuCtxSynchronize") == n + 1  # nobody said which stream used it
del msg
pub.publish(Array(1))
pub.close(); s.close(); c.close(); finish()
""")


def test_what_cannot_be_published_is_refused_and_given_back(alone):
    alone("""
x, y = Array(4), Array(4)
fails(dlx.DeviceError, "share=True is for tensors of empty()", lambda: pub.publish(x, share=True))
fails(dlx.DeviceError, "t.cpu()", lambda: dlx.tensor(x))
fails(dlx.DeviceError, "managed", lambda: pub.publish(Array(4, device=(13, 0))))
fails(dlx.InvalidError, "device", lambda: pub.publish(Array(4, device=(2, 1))))
fails(dlx.DeviceError, "99", lambda: pub.publish(Array(4, device=(2, 99))))
assert not x.asked and not exports
fails(TypeError, "no tensor", lambda: pub.publish([x, 3]))
assert x.deleted == 1 and not exports
e = fails(dlx.DeviceError, "99", lambda: pub.publish_many([x, {"y": y}, Array(4, device=(2, 99)), x]))
assert e.n_published == 2 and len(exports) == 2 and (x.deleted, y.deleted) == (2, 0), (x.deleted, y.deleted)
fails(TypeError, "", lambda: pub.publish_many([x, 3]))
assert (x.deleted, y.deleted) == (3, 0)
stream, graph = Stream(), C.c_void_p()
ok(cuda.cuStreamBeginCapture_v2(C.c_void_p(stream.handle), 0))
fails(dlx.InvalidError, "captured", lambda: pub.publish(x, stream=stream.handle))
ok(cuda.cuStreamEndCapture(C.c_void_p(stream.handle), C.byref(graph)))
ok(cuda.cuGraphDestroy(graph))
class Fails:
    def __dlpack_device__(self): return (2, 0)
    def __dlpack__(self, **kwargs): raise EOFError("requires grad")
fails(EOFError, "requires grad", lambda: pub.publish({"x": x, "y": Fails()}))
assert len(exports) == 2
pub.close(); s.close(); c.close()
assert not exports and (x.deleted, y.deleted) == (6, 1), (x.deleted, y.deleted)
stream.close(); del x, y, e; finish()
""")


def test_what_cannot_be_shared_is_copied_when_stage_asks_for_it(alone):
    alone("""
class Managed:
    def __init__(self):
        at = C.c_uint64()
        ok(cuda.cuMemAllocManaged(C.byref(at), C.c_size_t(4096), 1))
        self.at = at.value
memory = Managed()
x = Array(16, memory=memory, value=7)
fails(dlx.DeviceError, "managed", lambda: pub.publish(x))
fails(dlx.WouldCopy, "managed", lambda: pub.publish(x, stage=True, strict=True))
report = pub.publish(x, stage=True)
assert (report.copied, report.n_copied, report.copied_bytes) == (True, 1, 64) and not exports, report
report = pub.publish({"x": x, "cpu": b"1234"}, stage=True)
assert report.n_copied == 2 and not exports, report
got = Taken(s.take(), stream=1)
assert got.values() == [7] * 16
got.close(); pub.close(); s.close(); c.close()
ok(cuda.cuMemFree_v2(C.c_uint64(memory.at)))
del x, got; finish()
""")


@pytest.mark.parametrize("program, topic, options", [
    ("viewer", "cam/front", ["--at", "1"]), ("preprocess", "cam/front", []), ("consume", "batch/front", []), ("hello_subscribe", "hello", [])])
def test_the_examples_that_read_memory_of_the_cpu_say_so(peer, tmp_path, program, topic, options):
    path = STANDIN.parents[2] / "examples" / program
    giver = peer(f"""
start()
pub = c.publisher({topic!r})
say("ready")
pub.wait(1, 60)
x, ended = Array(2, 8), threading.Event()
threading.Thread(target=lambda: hear() or ended.set()).start()
while not ended.wait(0.01):  # viewer looks at one that comes 1 ms after the first
    pub.publish(x)
pub.close(); c.close(); del x; finish()
""", prelude=PRELUDE)
    assert giver.hear() == "ready"
    done = subprocess.run([path, *options], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1 and "on a GPU" in done.stderr, (done.returncode, done.stdout, done.stderr)
    giver.say("")
    giver.end()


def test_a_device_has_the_number_of_its_own_process(two):
    two("pub.publish(Array(4, value=8))\nuntil(lambda: pub.stats()['n_subscribers'] == 0)\npub.close(); c.close(); finish()", """
msg = s.take()
assert msg.__dlpack_device__() == (2, 1) and msg[0].device == "cuda:1"
taken = Taken(msg, stream=-1, dl_device=(2, 1))
del msg
assert taken.device == (2, 1) and taken.values() == [8] * 4
taken.close()
assert cuda.standin_contexts_made(1) == 0  # the machine's second one is nobody's business
""", device=1, environment='os.environ["CUDA_VISIBLE_DEVICES"] = "1,0"\n')


def test_a_process_that_does_not_see_the_gpu_has_the_rest(two):
    two("pub.publish({'g': Array(4, value=8), 'c': b'abc'})\nuntil(lambda: pub.stats()['n_subscribers'] == 0)\npub.close(); c.close(); finish()", """
msg = s.take()
items = dict(msg.items())
assert bytes(items["c"]) == b"abc" and items["g"].shape == (4,) and "on cuda" in repr(items["g"])
g = items["g"]
for call in (lambda: g.__dlpack__(max_version=(1, 0)), g.__dlpack_device__, lambda: g.device, lambda: g.as_legacy().__dlpack__(), lambda: g.__cuda_array_interface__):
    assert fails(dlx.DeviceError, "GPU-", call).name == "DEVICE"
del g, msg, items
""", environment='os.environ["CUDA_VISIBLE_DEVICES"] = "1"\n')


def test_the_memory_of_a_publisher_that_died_is_gone_and_the_rest_is_not(peer):
    taker = peer(SUBSCRIBER.format(device=0) + """
msg = s.take()
say("taken")
hear()
t = msg["g"]
assert t.shape == (4,) and bytes(msg["c"]) == b"abc"
fails(dlx.PublisherGone, "GPU memory", lambda: t.__dlpack__(max_version=(1, 0)))
fails(dlx.PublisherGone, "GPU memory", lambda: t.device)
del t, msg
s.close(); c.close(); finish()
""", prelude=PRELUDE)
    assert taker.hear() == "ready"
    giver = peer(PUBLISHER.format(history=1) + "pub.publish({'g': Array(4), 'c': b'abc'})\nhear()", prelude=PRELUDE)
    assert taker.hear() == "taken"
    giver.kill()
    taker.say("")
    taker.end()


def test_a_forked_child_has_no_part_in_it(alone):
    alone("""
pub.publish(Array(4))
msg = s.take()
t = msg[0]
assert t.device == "cuda:0"
child = os.fork()
if child == 0:
    status = 1
    try:
        for call in (t.__dlpack_device__, lambda: t.__dlpack__(max_version=(1, 0)), msg.__dlpack_device__, lambda: Taken(msg), lambda: t.device):
            fails(dlx.Forked, "", call)
        del t, msg
        status = count("CALLS_AFTER_FORK")
    finally:
        os._exit(status)
assert os.waitpid(child, 0)[1] == 0
del t, msg
pub.publish(b"x")
pub.close(); s.close(); c.close(); finish()
""")


def test_the_exchange_api_is_for_the_gpu_too(alone):
    """What comes out by it says no stream: the device is waited for. What goes in by it is not ready: __dlpack__ is asked."""
    alone("""
class Api(C.Structure):
    FROM = C.PYFUNCTYPE(C.c_int, C.py_object, C.POINTER(C.c_void_p))
    LOOK = C.PYFUNCTYPE(C.c_int, C.py_object, C.POINTER(Tensor))
    _fields_ = [("version", C.c_uint32 * 2), ("prev", C.c_void_p), ("alloc", C.c_void_p), ("from_object", FROM),
                ("to_object", C.c_void_p), ("look", LOOK), ("stream", C.c_void_p)]
def give(array, ret):
    ret[0] = array.managed()
    return 0
table = Api((C.c_uint32 * 2)(1, 3), None, None, Api.FROM(give))
NAME = b"dlpack_exchange_api"
class Fast(Array):
    __dlpack_c_exchange_api__ = api.PyCapsule_New(C.addressof(table), NAME, None)
x = Fast(4, value=6)
pub.publish(x)
assert x.deleted == 1 and [a["stream"] for a in x.asked] == [1]
out = Api.from_address(api.PyCapsule_GetPointer(id(dlx.Tensor.__dlpack_c_exchange_api__), NAME))
for stream, expected in ((None, (1, 0)), (1, (0, 1))):
    pub.publish(x)
    s.take()
    msg = c.get("gpu", 60, stream=stream)
    at, seen = C.c_void_p(), Tensor()
    for thing in (msg, msg[0]):
        assert out.from_object(thing, C.byref(at)) == 0
        managed = Versioned.from_address(at.value)
        assert tuple(managed.t.device) == (2, 0) and read(managed.t.data, 4) == [6] * 4
        assert waits(lambda: managed.deleter(at.value)) == expected
    t = msg[0]
    assert out.look(t, C.byref(seen)) == 0 and read(seen.data, 4) == [6] * 4
    fails(BufferError, "msg[0]", lambda: out.look(msg, C.byref(seen)))
    del thing, msg
    def drop():
        global t
        del t
    assert waits(drop) == expected
s.take()
pub.close(); s.close(); c.close(); del x; finish()
""")


def test_a_subscription_pins_what_publishers_have_in_memory_of_the_cpu(alone):
    alone("""
READ_ONLY_HOST_REGISTER_SUPPORTED = 113
class Device:  # torch.device
    def __str__(self): return "cuda:1"
def stats_of(pin):
    with c.subscribe("pinned", pin=pin) as sub:
        assert pub.publish(b"x" * 100).copied
        with sub.take() as msg:
            assert msg[0].device == "cpu" and bytes(msg[0]) == b"x" * 100
        return sub.stats()["pinned_bytes"], sub.stats()["pin_failures"], [(e.kind, e.topic, e.reason) for e in sub.events()]
pub.close(); s.close()
pub = c.publisher("pinned")
pub.publish(b"1")
assert stats_of(None) == (0, 0, [("joined", "pinned", "")])
assert stats_of("cuda:0") == (0, 1, [("joined", "pinned", ""), ("unpinned", "pinned", "CUDA device 0 cannot pin memory that is mapped read-only")])
cuda.standin_set_attribute(READ_ONLY_HOST_REGISTER_SUPPORTED, 1)
for pin in ("cuda", "cuda:0", "cuda:1", Device()):
    n = cuda.standin_contexts_made(1)
    pinned_bytes, failures, events = stats_of(pin)
    assert pinned_bytes == pub.stats()["arena_bytes"] and failures == 0 and len(events) == 1, (pinned_bytes, failures, events)
    assert (cuda.standin_contexts_made(1) > n) == (str(pin) == "cuda:1"), pin
assert count("REGISTERED") == 0
for pin in ("", "cpu", "cuda:", "cuda:-1", "cuda: 1", "cuda:0x1", "cuda:1.0", "cudas", "cuda:99999999999", 0, "xrocm:0"):
    fails(ValueError, "pin is a GPU", lambda: c.subscribe("pinned", pin=pin))
fails(dlx.DeviceError, "no CUDA device 7", lambda: c.subscribe("pinned", pin="cuda:7"))
fails(dlx.DeviceError, "HIP", lambda: c.subscribe("pinned", pin="rocm:0"))
pub.close(); c.close(); finish()
""")


def test_nothing_is_kept(alone):
    alone("""
def round():
    for versioned in (True, False):
        x = Array(8, value=1, versioned=versioned)
        pub.publish(x)
        pub.publish({"x": x, "y": b"abc"})
        fails(dlx.DeviceError, "", lambda: pub.publish(x, share=True))
    msg = s.take()
    t = msg[0]
    t.device, repr(t), t.__cuda_array_interface__, t.__dlpack__(max_version=(1, 0), stream=1), t.__dlpack__(max_version=(1, 0))
    fails(dlx.DeviceError, "", t.numpy)
    fails(ValueError, "", lambda: t.__dlpack__(stream=0))
    fails(BufferError, "", t.__dlpack__)
    Taken(msg, stream=-1).close(), Taken(t.as_legacy(), max_version=None).close()
    msg = s.take()
    [t.device for t in msg.tensors], repr(msg)
    s.take(), s.take()
def counts():
    def rest():  # what was exported goes with its slot, after a thread has given it back
        pub.publish(b"abc"), s.take()
        return not exports and not count("EVENTS")
    until(rest)
    gc.collect()
    return live(), len(os.listdir("/proc/self/fd")), sys.getrefcount(dlx.Tensor), sys.getrefcount(dlx.Message), sys.getrefcount(pub)
for _ in range(5):
    round()
for _ in range(6):  # caches of others fill in the first
    before, blocks = counts(), sys.getallocatedblocks()
    for _ in range(100):
        round()
    assert counts() == before, (before, counts())
    more = sys.getallocatedblocks() - blocks
    if more < 50:
        break
assert more < 50, more
pub.close(); s.close(); c.close()
assert not exports, len(exports)
finish()
""")
