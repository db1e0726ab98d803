# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs between processes, on the stand-in driver of tests/gpu/standin: gpu_standin.py is
the library that has them.
"""

import os
import pathlib
import subprocess

import dlx
import pytest
from conftest import PATIENCE, Peer

STANDIN = pathlib.Path(os.environ.get("BUILD", "build")).resolve() / "tests/standin/libcuda.so.1"
pytestmark = pytest.mark.skipif(
    not STANDIN.exists(), reason="no cuda.h: the stand-in for NVIDIA's driver was not built"
)

PRELUDE = (
    Peer.PRELUDE
    + f"""
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
)
PUBLISHER = """
start()
pub = c.publisher("gpu", history={history})
pub.wait(1, 60)
"""
SUBSCRIBER = """
start({device})
s = c.subscribe("gpu", timeout=60, {asked})
say("ready")
"""


def use_standin(tmp_path, monkeypatch):
    """For the processes of a test, and the GPU keeper of a daemon that is started after this."""
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / STANDIN.name).symlink_to(STANDIN)
    folders = [str(driver), os.environ.get("LD_LIBRARY_PATH", "")]
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(filter(None, folders)))
    monkeypatch.setenv("STANDIN", str(STANDIN))
    monkeypatch.setenv("STANDIN_MACHINE", str(tmp_path / "machine"))


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Two GPUs, which the processes of a test share."""
    use_standin(tmp_path, monkeypatch)
    monkeypatch.setenv("STANDIN_DEVICES", "2")
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")  # or no stream waits


@pytest.fixture
def gpu_peer(peer):
    """Another process that has the GPUs."""
    return lambda code: peer(code, prelude=PRELUDE)


@pytest.fixture
def alone(gpu_peer):
    """Runs code in a process that publishes and subscribes, and sees that nothing is left."""

    def run(code):
        begin = 'start()\npub, s = c.publisher("gpu", history=4), c.subscribe("gpu", timeout=60)\n'
        gpu_peer(begin + code + "\npub.close(); s.close(); c.close(); finish()").end()

    return run


@pytest.fixture
def two(gpu_peer):
    """Runs a subscriber and, when that is there, a publisher, which ends when the subscriber has.
    Both see that nothing is left.
    """

    def run(publish, take, device=0, environment="", history=1, asked=""):
        taker = gpu_peer(
            environment
            + SUBSCRIBER.format(device=device, asked=asked)
            + take
            + "\ns.close(); c.close(); finish()"
        )
        assert taker.hear() == "ready"
        giver = gpu_peer(PUBLISHER.format(history=history) + publish)
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
    two(
        PUBLISH_ONE.format(versioned=versioned, thing=thing),
        """
msg = s.take()
t = msg[0]
assert (t.shape, t.strides, t.dtype, t.ndim) == ((2, 8), (8, 1), "uint32", 2)
assert (t.nbytes, len(t), t.readonly) == (64, 2, True)
assert repr(t) == "<dlx.Tensor uint32 (2, 8) on cuda, read-only, received>"
assert calls("cuIpcOpenMemHandle_v2") == calls("cuIpcOpenMemHandle") == 0
assert t.device == "cuda:0" and t.__dlpack_device__() == msg.__dlpack_device__() == (2, 0)
assert "on cuda:0" in repr(t)
one, other = Taken(msg, stream=1), Taken(t.as_legacy(), stream=1, max_version=None)
del msg, t
assert one.device == other.device == (2, 0) and one.managed.flags == 1
assert one.values() == other.values() == [7] * 16
one.close(), other.close()
until(lambda: s.stats()["n_held"] == 0)
assert s.stats()["gpu_errors"] == 0 and count("IPC_MAPPINGS") == 0
""",
    )


def test_a_set_mixes_tensors_of_the_cpu_and_of_a_gpu(two):
    two(
        """
memory = Memory(8192)
own = pub.empty(4, "uint8")
memoryview(own)[:] = b"1234"
report = pub.publish({"a": Array(2, 8, value=1), "own": own, "bytes": b"xyz",
                      "b": Array(8, value=2, memory=memory, offset=256),
                      "c": Array(8, value=3, memory=memory, offset=1024), "none": Array(0, 3),
                      "scalar": Array(value=4)}, meta={"k": 1})
assert (report.n_copied, report.copied_bytes) == (1, 3) and own.published, report
until(lambda: pub.stats()["n_subscribers"] == 0)
del memory
pub.close(); c.close(); finish()
""",
        """
msg = s.take()
assert list(msg) == ["a", "own", "bytes", "b", "c", "none", "scalar"] and msg.meta == {"k": 1}
tensors = dict(msg)
assert [t.device for t in tensors.values()] == ["cuda:0", "cpu", "cpu", "cuda:0", "cuda:0",
                                                "cuda:0", "cuda:0"]
assert bytes(tensors["own"]) == b"1234" and bytes(tensors["bytes"]) == b"xyz"
assert tensors["own"].__dlpack_device__() == (1, 0)
taken = {k: Taken(tensors[k], stream=1) for k in ("a", "b", "c", "scalar")}
assert {k: v.values() for k, v in taken.items()} == {"a": [1] * 16, "b": [2] * 8, "c": [3] * 8,
                                                     "scalar": [4]}
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
""",
    )


def test_an_operation_of_the_cpu_alone_is_refused_with_advice(alone):
    alone("""
import numpy as np
pub.publish(Array(2, 4, value=9))
msg = s.take()
t = msg[0]
for call in (t.numpy, t.tobytes, t.copy, lambda: memoryview(t), lambda: memoryview(msg),
             lambda: bytes(t), lambda: np.asarray(t), lambda: np.asarray(msg),
             lambda: pickle.dumps(t), lambda: np.add(t, 1), lambda: dlx.tensor(t),
             lambda: t._as_bits(), lambda: t.__array__()):
    e = fails(dlx.DeviceError, "torch.from_dlpack(t).cpu()", call)
    assert isinstance(e, BufferError) and e.name == "DEVICE"
fails(dlx.DeviceError, "on CUDA device 0", lambda: msg.private(0))
fails((BufferError, RuntimeError), "", lambda: np.from_dlpack(t))
for call in (lambda: pub.publish(t), lambda: pub.publish(msg),
             lambda: pub.publish({"a": t}, share=True), lambda: pub.publish_many([msg])):
    fails(dlx.DeviceError, "torch.from_dlpack(t).clone()", call)
assert not hasattr(t, "__array_interface__")
interface = t.__cuda_array_interface__
address = Taken(t, stream=1)
assert interface == {"typestr": "<u4", "shape": (2, 4), "strides": (16, 4), "version": 3,
                     "stream": None, "data": (address.t.data, True)}, interface
assert read(interface["data"][0], 8) == [9] * 8 and t.__cuda_array_interface__ == interface
address.close()
assert not hasattr(dlx.tensor(b"x"), "__cuda_array_interface__")
n = calls("cuCtxSynchronize")
del t, e  # its traceback has t
assert calls("cuCtxSynchronize") == n + 1  # no stream was named as its user
del msg
pub.publish(Array(1))
""")


def test_a_tensor_that_cannot_be_published_is_refused_and_given_back(alone):
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
bad = Array(4, device=(2, 99))
e = fails(dlx.DeviceError, "99", lambda: pub.publish_many([x, {"y": y}, bad, x]))
assert e.n_published == 2 and len(exports) == 2
assert (x.deleted, y.deleted) == (2, 0), (x.deleted, y.deleted)
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


def test_memory_that_cannot_be_shared_is_copied_when_stage_asks_for_it(alone):
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
assert (report.copied, report.n_copied, report.copied_bytes) == (True, 1, 64), report
assert not exports
report = pub.publish({"x": x, "cpu": b"1234"}, stage=True)
assert report.n_copied == 2 and not exports, report
got = Taken(s.take(), stream=1)
assert got.values() == [7] * 16
got.close(); pub.close(); s.close(); c.close()
ok(cuda.cuMemFree_v2(C.c_uint64(memory.at)))
del x, got; finish()
""")


@pytest.mark.parametrize(
    "program, topic, options",
    [
        ("viewer", "cam/front", ["--at", "1"]),
        ("preprocess", "cam/front", []),
        ("consume", "batch/front", []),
        ("hello_subscribe", "hello", []),
    ],
)
def test_the_examples_that_read_memory_of_the_cpu_say_so(
    gpu_peer, tmp_path, program, topic, options
):
    path = STANDIN.parents[2] / "examples" / program
    giver = gpu_peer(f"""
start()
pub = c.publisher({topic!r})
say("ready")
pub.wait(1, 60)
x, ended = Array(2, 8), threading.Event()
threading.Thread(target=lambda: hear() or ended.set()).start()
while not ended.wait(0.01):  # viewer looks at one that comes 1 ms after the first
    pub.publish(x)
pub.close(); c.close(); del x; finish()
""")
    assert giver.hear() == "ready"
    done = subprocess.run(
        [path, *options], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1 and "on a GPU" in done.stderr, (
        done.returncode,
        done.stdout,
        done.stderr,
    )
    giver.say("")
    giver.end()


def test_a_device_has_the_number_of_its_own_process(two):
    two(
        "pub.publish(Array(4, value=8))\nuntil(lambda: pub.stats()['n_subscribers'] == 0)\n"
        "pub.close(); c.close(); finish()",
        """
msg = s.take()
assert msg.__dlpack_device__() == (2, 1) and msg[0].device == "cuda:1"
taken = Taken(msg, stream=-1, dl_device=(2, 1))
del msg
assert taken.device == (2, 1) and taken.values() == [8] * 4
taken.close()
assert cuda.standin_contexts_made(1) == 0  # the machine's second one stays unused
""",
        device=1,
        environment='os.environ["CUDA_VISIBLE_DEVICES"] = "1,0"\n',
    )


def test_a_process_that_does_not_see_the_gpu_has_the_rest(two):
    two(
        "pub.publish({'g': Array(4, value=8), 'c': b'abc'})\n"
        "until(lambda: pub.stats()['n_subscribers'] == 0)\npub.close(); c.close(); finish()",
        """
msg = s.take()
items = dict(msg.items())
assert bytes(items["c"]) == b"abc" and items["g"].shape == (4,) and "on cuda" in repr(items["g"])
g = items["g"]
for call in (lambda: g.__dlpack__(max_version=(1, 0)), g.__dlpack_device__, lambda: g.device,
             lambda: g.as_legacy().__dlpack__(), lambda: g.__cuda_array_interface__):
    assert fails(dlx.DeviceError, "GPU-", call).name == "DEVICE"
del g, msg, items
""",
        environment='os.environ["CUDA_VISIBLE_DEVICES"] = "1"\n',
    )


def test_the_memory_of_a_publisher_that_died_is_gone_and_the_rest_is_not(gpu_peer):
    taker = gpu_peer(
        SUBSCRIBER.format(device=0, asked="")
        + """
msg = s.take()
say("taken")
hear()
t = msg["g"]
assert t.shape == (4,) and bytes(msg["c"]) == b"abc"
fails(dlx.PublisherGone, "GPU memory", lambda: t.__dlpack__(max_version=(1, 0)))
fails(dlx.PublisherGone, "GPU memory", lambda: t.device)
del t, msg
s.close(); c.close(); finish()
"""
    )
    assert taker.hear() == "ready"
    giver = gpu_peer(
        PUBLISHER.format(history=1) + "pub.publish({'g': Array(4), 'c': b'abc'})\nhear()"
    )
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
        for call in (t.__dlpack_device__, lambda: t.__dlpack__(max_version=(1, 0)),
                     msg.__dlpack_device__, lambda: Taken(msg), lambda: t.device):
            fails(dlx.Forked, "", call)
        del t, msg
        status = count("CALLS_AFTER_FORK")
    finally:
        os._exit(status)
assert os.waitpid(child, 0)[1] == 0
del t, msg
pub.publish(b"x")
""")


def test_the_exchange_api_is_for_the_gpu_too(alone):
    """An export by it names no stream: its release waits for the device. An import by it is not
    ready: publish() calls __dlpack__.
    """
    alone("""
def give(array, ret):
    ret[0] = C.cast(array.managed(), VersionedPointer)
    return 0
class Fast(Array):
    __dlpack_c_exchange_api__, table = exchange_api(Api.FROM(give))
x = Fast(4, value=6)
pub.publish(x)
assert x.deleted == 1 and [a["stream"] for a in x.asked] == [1]
for stream, expected in ((None, (1, 0)), (1, (0, 1))):
    pub.publish(x)
    s.take()
    msg = c.get("gpu", 60, stream=stream)
    at, seen = VersionedPointer(), Tensor()
    for thing in (msg, msg[0]):
        assert exchange.from_object(thing, C.byref(at)) == 0
        managed = at.contents
        assert tuple(managed.t.device) == (2, 0) and read(managed.t.data, 4) == [6] * 4
        assert waits(lambda: managed.deleter(C.addressof(managed))) == expected
    t = msg[0]
    assert exchange.look(t, C.byref(seen)) == 0 and read(seen.data, 4) == [6] * 4
    fails(BufferError, "msg[0]", lambda: exchange.look(msg, C.byref(seen)))
    del thing, msg
    def drop():
        global t
        del t
    assert waits(drop) == expected
s.take()
pub.close(); s.close(); c.close(); del x; finish()
""")


def test_tensors_of_another_gpu_are_for_the_one_that_the_subscription_names(two):
    two(
        PUBLISH_ONE.format(versioned=True, thing="x"),
        """
s.take().release()
with c.subscribe("gpu", history=1, device="cuda:1", timeout=60) as other:
    msg = other.take()
    t = msg[0]
    assert t.device == "cuda:1" and t.__dlpack_device__() == (2, 1)
    taken = Taken(t, stream=1)
    assert taken.values() == [7] * 16
    taken.close()
    del msg, t, taken
    assert other.stats()["gpu_errors"] == 0
cuda.standin_part_peers(True)
with c.subscribe("gpu", history=1, device="cuda:1", timeout=60) as other:
    fails(dlx.DeviceError, "no peer access", lambda: other.take()[0].device)
for device in ("cpu", "cuda:", 0):
    fails(ValueError, "device is a GPU", lambda: c.subscribe("gpu", device=device))
fails(dlx.DeviceError, "no CUDA device 7", lambda: c.subscribe("gpu", device="cuda:7"))
""",
        device=1,
    )


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
        stats, events = sub.stats(), [(e.kind, e.topic, e.reason) for e in sub.events()]
        return stats["pinned_bytes"], stats["pin_failures"], events
pub.close(); s.close()
pub = c.publisher("pinned")
pub.publish(b"1")
assert stats_of(None) == (0, 0, [("joined", "pinned", "")])
assert stats_of("cuda:0") == (0, 1, [("joined", "pinned", ""),
                                     ("unpinned", "pinned",
                                     "CUDA device 0 cannot pin memory that is mapped read-only")])
cuda.standin_set_attribute(READ_ONLY_HOST_REGISTER_SUPPORTED, 1)
for pin in ("cuda", "cuda:0", "cuda:1", Device()):
    n = cuda.standin_contexts_made(1)
    pinned_bytes, failures, events = stats_of(pin)
    assert pinned_bytes == pub.stats()["arena_bytes"]
    assert failures == 0 and len(events) == 1, (failures, events)
    assert (cuda.standin_contexts_made(1) > n) == (str(pin) == "cuda:1"), pin
assert count("REGISTERED") == 0
for pin in ("", "cpu", "cuda:", "cuda:-1", "cuda: 1", "cuda:0x1", "cuda:1.0", "cudas",
            "cuda:99999999999", 0, "xrocm:0"):
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
    t.device, repr(t), t.__cuda_array_interface__, t.__dlpack__(max_version=(1, 0), stream=1),
    t.__dlpack__(max_version=(1, 0))
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
        pub.wait(1, 0)  # what went before the GPU had written it goes with this call
        return not exports and not count("EVENTS")
    until(rest)
    gc.collect()
    kept = [sys.getrefcount(x) for x in (dlx.Tensor, dlx.Message, pub)]
    return live(), len(os.listdir("/proc/self/fd")), kept
for _ in range(5):
    round()
for _ in range(20):  # caches of others fill in the first ones
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
