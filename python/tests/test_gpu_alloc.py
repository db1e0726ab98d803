# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs that a publisher allocates, pub.empty(device=) and pub.empty_like(device=), on the
stand-in driver, as in test_gpu.py."""

from test_gpu import alone, gpu_peer, machine, pytestmark, two  # noqa: F401


def test_an_allocated_tensor_is_published_without_a_copy(two):
    two(
        """
stream = Stream()
x = pub.empty((2, 8), "uint32", device="cuda:0")
assert (x.shape, x.dtype, x.nbytes, x.readonly, x.published) == ((2, 8), "uint32", 64, False, False)
assert x.device == "cuda:0" and x.__dlpack_device__() == (2, 0), x.device
assert repr(x) == "<dlx.Tensor uint32 (2, 8) on cuda:0, to be shared>", repr(x)
gate = Gate(stream.handle)
first = fill(x, 7, stream.handle)
assert first % 256 == 0
report = pub.publish(x, stream=stream.handle, strict=True)
assert (report.copied, report.n_copied, report.copied_bytes) == (False, 0, 0), report
assert not gate.passed and pub.stats()["gpu_waits"] == 0 and x.published
for use in (x.__dlpack_device__, lambda: x.__cuda_array_interface__, lambda: pub.publish(x)):
    fails(ValueError, "published", use)
gate.open()
until(lambda: pub.stats()["n_subscribers"] == 0)
for _ in range(100):  # of 64 KiB: the memory of what is not needed any more is used again
    pub.publish(pub.empty(1 << 14, device="cuda:0"))
assert calls("cuMemImportFromShareableHandle") <= 2 and count("MAPPINGS") == 1, live()
pub.close(); c.close(); stream.close(); finish()
""",
        """
msg = s.take()
taken = Taken(msg, stream=1)
assert taken.device == (2, 0) and taken.values() == [7] * 16, taken.values()
assert calls("cuMemImportFromShareableHandle") == 1
del msg
taken.close()
until(lambda: s.stats()["n_held"] == 0)
assert s.stats()["gpu_errors"] == 0
""",
    )


def test_received_memory_that_no_tensor_is_in_is_closed_on_demand(two):
    two(
        """
pub.publish(pub.empty(16, "uint32", device="cuda:0"))
until(lambda: pub.stats()["n_subscribers"] == 0)
pub.close(); c.close(); finish()
""",
        """
msg = s.take()
taken = Taken(msg)
assert dlx.gpu_trim() == 0
del msg
taken.close()
until(lambda: s.stats()["n_held"] == 0)
assert dlx.gpu_trim() == 2 << 20 and count("MAPPINGS") == 0
""",
    )


def test_a_dict_is_allocated_on_a_gpu_in_one_piece(two):
    two(
        """
import numpy as np
model = {"w": np.zeros((3, 5), "f4"), "b": Array(5), "n": b"12", "none": np.zeros((0, 4), "f2")}
d = pub.empty_like(model, device="cuda:0")
assert list(d) == list(model) and {t.device for t in d.values()} == {"cuda:0"}
assert [t.shape for t in d.values()] == [(3, 5), (5,), (2,), (0, 4)]
assert [t.dtype for t in d.values()] == ["float32", "uint32", "uint8", "float16"]
assert model["b"].asked[0]["stream"] == -1 and model["b"].deleted == 1  # no stream waited for it
fill(d["w"], 1), fill(d["b"], 2)
assert calls("cuMemImportFromShareableHandle") == 1  # of one arena
report = pub.publish(d, meta={"version": 1})
assert not report.copied and all(t.published for t in d.values())
assert pub.empty_like(Array(2, 3), device="cuda:0").shape == (2, 3)
assert pub.empty_like(pub.empty(4, device="cuda:0")).device == "cpu"
until(lambda: pub.stats()["n_subscribers"] == 0)
pub.close(); c.close(); del model; finish()
""",
        """
msg = s.take()
assert list(msg) == ["w", "b", "n", "none"] and msg.meta == {"version": 1}
taken = {k: Taken(msg[k], stream=1) for k in ("w", "b")}
assert taken["w"].values() == [1] * 15 and taken["b"].values() == [2] * 5
assert calls("cuMemImportFromShareableHandle") == 1
host = c.publisher("other").empty_like(msg["w"])
assert (host.device, host.shape) == ("cpu", (3, 5))
[t.close() for t in taken.values()]
del msg, host
""",
    )


def test_a_retained_set_on_a_gpu_outlives_its_killed_publisher(gpu_peer):
    giver = gpu_peer("""
start()
pub = c.publisher("weights", retain=1)
d = pub.empty_like({"a": Array(16)}, device="cuda:0")
fill(d["a"], 9)
pub.publish(d)
with dlx.connect() as other:
    Taken(other.get("weights", timeout=60)["a"], stream=1).close()  # it is ready
say("published")
hear()
""")
    assert giver.hear() == "published"
    giver.kill()
    gpu_peer("""
start()
msg = c.get("weights", timeout=60)
taken = Taken(msg["a"], stream=1)
assert taken.values() == [9] * 16
taken.close(); del msg
c.close(); finish()
""").end()


def test_a_tensor_on_a_gpu_that_something_was_made_of_is_not_published_unless_shared(alone):
    alone("""
x = pub.empty(4, "uint32", device="cuda:0")
view = Taken(x)
for publish in (lambda: pub.publish(x), lambda: pub.publish({"x": x}),
                lambda: pub.publish(x, strict=True), lambda: pub.publish_many([x])):
    e = fails(dlx.WouldCopy, "1 array(s) made of the tensor on cuda:0 are still there", publish)
    assert "share=True" in str(e)
assert not x.published and pub.stats()["published"] == 0
pub.publish(x, share=True)
assert not x.published and x.readonly
fill(x, 3)
report = pub.publish([x, x], share=True)
assert not report.copied
view.close()
pub.publish(x)
assert x.published
for n in (1, 2, 1):
    msg = s.take()
    for t in msg:
        taken = Taken(t, stream=1)
        assert taken.device == (2, 0)
        taken.close()
    assert len(msg.tensors) == n
# A reader of an address does not say when it stops using it.
y = pub.empty((2, 2), "uint32", device="cuda:0")
interface = y.__cuda_array_interface__
address, read_only = interface["data"]
assert not read_only and interface["typestr"] == "<u4" and interface["shape"] == (2, 2)
assert interface["strides"] == (8, 4) and interface["stream"] is None and interface["version"] == 3
view = Taken(y)
assert view.t.data == address
view.close()
fails(dlx.WouldCopy, "was given away", lambda: pub.publish(y))
pub.publish(y, share=True)
assert y.__cuda_array_interface__["data"] == (address, True)
empty = pub.empty((0, 3), "float32", device="cuda:0")
assert empty.__cuda_array_interface__["data"] == (0, False) and empty.__dlpack_device__() == (2, 0)
fails(AttributeError, "on a GPU", lambda: y.__array_interface__)
del x, y, t, msg, empty, e
""")


DEVICES_THAT_ARE_NONE = [
    "",
    "cpus",
    "cuda:",
    "cuda:-1",
    "cuda: 1",
    "cuda:0x1",
    "cudas",
    "cuda:99999999999",
    "gpu",
    0,
    "CUDA:0",
]


def test_a_device_that_cannot_be_had_is_refused_by_its_name(alone):
    alone(
        f"""
for make in (lambda d: pub.empty(3, "uint8", device=d), lambda d: pub.zeros(3, device=d),
             lambda d: pub.empty_like(b"x", device=d),
             lambda d: pub.empty_like({{"a": b"x"}}, device=d)):
    for wrong in {DEVICES_THAT_ARE_NONE!r}:
        e = fails(ValueError, "device is ", lambda: make(wrong))
        assert "cuda:0" in str(e) and repr(wrong) in str(e), e
    fails(dlx.DeviceError, "no CPU device 1", lambda: make("cpu:1"))
    for cpu in ("cpu", "cpu:0", None):
        made = make(cpu)
        assert (made["a"] if isinstance(made, dict) else made).device == "cpu"
"""
        + """
fails(dlx.DeviceError, "no CUDA device 7", lambda: pub.empty_like({"a": b"x"}, device="cuda:7"))
fails(dlx.DeviceError, "HIP", lambda: pub.empty(3, device="rocm:0"))
e = fails(dlx.DeviceError, "device cuda:0: zeros()", lambda: pub.zeros(3, device="cuda:0"))
assert "zero_()" in str(e)
class Device:  # torch.device
    def __str__(self): return "cuda:0"
assert pub.empty(3, device=Device()).device == pub.empty(3, device="cuda").device == "cuda:0"
fails(TypeError, "devise", lambda: pub.empty_like(b"x", devise="cpu"))
fails(dlx.Error, "-1", lambda: pub.empty((2, -1), device="cuda:0"))
fails(dlx.NoMemory, "no memory for 16.0 GiB on CUDA device 0",
      lambda: pub.empty(1 << 34, "uint8", device="cuda:0"))
fails(dlx.NoMemory, "no memory for 16.0 GiB on CUDA device 0",
      lambda: pub.empty_like({"a": b"1", "b": BIG}, device="cuda:0"))
cuda.standin_fail(b"cuMemMap", 1, 1, 2)
fails(dlx.NoMemory, "cuMemMap", lambda: pub.empty(64 << 20, "uint8", device="cuda:0"))
cuda.standin_fail(b"cuMemImportFromShareableHandle", 1, 1, 801)
fails(dlx.Error, "cuMemImportFromShareableHandle",
      lambda: pub.empty(64 << 20, "uint8", device="cuda:0"))
cuda.standin_fail_clear()
assert pub.empty(64 << 20, "uint8", device="cuda:0").device == "cuda:0"
pub.close(); s.close(); c.close(); del e, made; finish()
""".replace("BIG", "memoryview(__import__('mmap').mmap(-1, 1 << 34, prot=1))")
    )


def test_an_operation_of_the_cpu_alone_on_an_allocated_tensor_is_refused(alone):
    alone("""
import numpy as np
x = pub.empty((2, 4), "uint32", device="cuda:0")
for call in (x.numpy, x.tobytes, x.copy, lambda: memoryview(x), lambda: bytes(x),
             lambda: np.asarray(x), lambda: pickle.dumps(x), lambda: np.add(x, 1),
             lambda: dlx.tensor(x), x._as_bits, x.__array__):
    fails(dlx.DeviceError, "torch.from_dlpack(t).cpu()", call)
fails((BufferError, RuntimeError), "", lambda: np.from_dlpack(x))
for kwargs, error, words in (({"stream": 0}, ValueError, "1 is the legacy"),
                             ({"dl_device": (1, 0)}, dlx.DeviceError, "(1, 0) was asked for"),
                             ({"dl_device": (2, 1)}, dlx.DeviceError, "(2, 1) was asked for"),
                             ({"copy": True}, dlx.DeviceError, "clone()")):
    fails(error, words, lambda: Taken(x, **kwargs))
legacy = Taken(x, max_version=None)  # it may be written to
assert not legacy.versioned and legacy.device == (2, 0)
legacy.close()
# Only its own publisher passes it on, and only the object that was returned.
with c.publisher("other") as other:
    e = fails(dlx.DeviceError, "not one that empty() or empty_like() of this publisher returned",
              lambda: other.publish(x))
    assert "cuda:0" in str(e) and "clone()" in str(e)
    fails(dlx.DeviceError, "of this publisher", lambda: other.publish(x, share=True))
fails(dlx.DeviceError, "of this publisher", lambda: pub.publish(x.as_legacy()))
pub.publish(x)
t = s.take()[0]
fails(dlx.DeviceError, "was received", lambda: pub.publish(t))
del x, t, e
""")


def test_no_other_gpu_gets_a_context(gpu_peer):
    gpu_peer("""
ok(cuda.cuInit(0))
pub = c.publisher("gpu")
x = pub.empty(4, "uint32", device="cuda:1")
view = Taken(x)
assert view.device == (2, 1)
view.close()
d = pub.empty_like({"a": x}, device="cuda:1")
pub.publish(x), pub.publish(d)
assert cuda.standin_contexts_made(0) == 0 and cuda.standin_contexts_made(1) == 1
del d, x
pub.close(); c.close(); finish()
""").end()


def test_memory_of_the_cpu_touches_no_driver(c):
    with c.publisher("a") as pub:
        pub.publish(pub.empty_like({"x": b"1"}, device="cpu"))
        pub.empty(3, device="cpu"), pub.zeros(3, device=None)
    with open("/proc/self/maps", encoding="ascii", errors="replace") as f:
        assert "libcuda" not in f.read()


def test_without_a_gpu_it_says_why(peer):
    peer("""
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # here there may be one
with c.publisher("a") as pub:
    for make in (lambda: pub.empty(3, device="cuda:0"),
                 lambda: pub.empty_like({"a": b"x"}, device="cuda:0")):
        try:
            make()
        except dlx.DeviceError as e:
            assert "CUDA" in str(e), e
        else:
            raise AssertionError("no error")
    assert pub.empty(3).device == "cpu"
""").end()


def test_a_tensor_outlives_its_publisher_and_its_end_lets_python_run(alone):
    alone("""
x = pub.empty(4, "uint32", device="cuda:0")
capsule = pub.empty(4, "uint32", device="cuda:0").__dlpack__(max_version=(1, 0), stream=1)
pub.close(); s.close(); c.close()
view = Taken(x)
assert view.device == (2, 0)
view.close()
del capsule
stream = Stream()
gate, n, said = Gate(stream.handle), calls("cuCtxSynchronize"), []
things = [x]
del x
def let_go():  # frees the arena, and so waits for work that may use it
    things.clear()
    said.append(gate.passed)
thread = threading.Thread(target=let_go)
thread.start()
until(lambda: calls("cuCtxSynchronize") > n)
gate.open()
thread.join()
assert said == [True]
stream.close(); finish()
""")


def test_python_runs_while_publish_waits_for_the_stream(alone):
    alone("""
dlx.debug()  # nothing can be written to a manifest that is out, so publish() waits
pub.close()
pub = c.publisher("guarded")
x = pub.empty(4, "uint32", device="cuda:0")
gate, n = Gate(1), calls("cuEventSynchronize")
def open_it():
    until(lambda: calls("cuEventSynchronize") > n)
    gate.open()
thread = threading.Thread(target=open_it)
thread.start()
pub.publish(x)
assert gate.passed and pub.stats()["gpu_waits"] == 1
thread.join()
""")


def test_allocating_keeps_nothing(alone):
    alone("""
def round():
    x = pub.empty(8, "uint32", device="cuda:0")
    d = pub.empty_like({"x": x, "y": b"abc"}, device="cuda:0")
    x.__dlpack__(max_version=(1, 0), stream=1), x.device, repr(x)
    fails(dlx.DeviceError, "", x.numpy)
    fails(ValueError, "", lambda: pub.empty(3, device="x"))
    fails(dlx.DeviceError, "", lambda: pub.empty(3, device="cuda:7"))
    view = Taken(x)
    fails(dlx.WouldCopy, "", lambda: pub.publish(x))
    view.close()
    pub.publish(x), pub.publish(d)
    s.take(), s.take()
def counts():
    gc.collect()
    until(lambda: count("EVENTS") == 0)  # a thread of the publisher waits for the messages' work
    return (live(), len(os.listdir("/proc/self/fd")), sys.getrefcount(dlx.Tensor),
            sys.getrefcount(dlx.Message), sys.getrefcount(pub))
for _ in range(6):
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
""")
