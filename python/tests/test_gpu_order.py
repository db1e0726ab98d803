# SPDX-License-Identifier: Apache-2.0
"""Streams that wait until a taken tensor is ready, while no CPU does, on the stand-in driver, as in
test_gpu.py. Each story holds the publisher's stream. A wait on the CPU would fail after the time of
calls to dlpackd, with dlx.Timeout.
"""

import pytest
from test_gpu import PUBLISHER, SUBSCRIBER, alone, gpu_peer, machine, pytestmark, two

HELD = """
import time
def fail(*exception):  # a stream that is held would keep the process
    sys.__excepthook__(*exception)
    os._exit(1)
sys.excepthook = fail
a, b, source, arrays = Stream(), Stream(), Stream(), []
def publish(value):
    '''A tensor that the source writes when the gate opens. To free it would wait for that.'''
    global gate
    arrays.append(x := Array(4))
    gate = Gate(source.handle)
    ok(cuda.cuMemsetD32Async(C.c_uint64(x.memory.at), C.c_uint32(value), C.c_size_t(4),
                             C.c_void_p(source.handle)))
    pub.publish(x, stream=source.handle)
def copy(taken, stream):
    '''What the stream reads when it gets there.'''
    to = Memory(4096)
    ok(cuda.cuMemcpyDtoDAsync_v2(C.c_uint64(to.at), C.c_uint64(taken.t.data), C.c_size_t(16),
                                 C.c_void_p(stream.handle)))
    return to
def busy(stream):
    return cuda.cuStreamQuery(C.c_void_p(stream.handle)) == 600
def stay_busy(*streams):
    '''What does not wait would have gone on by then.'''
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        assert all(map(busy, streams)) and not gate.passed
def wait_for(stream):
    until(lambda: not busy(stream))
def end(*ends):
    for stream in (a, b, source):
        stream.close()
    for each in (*ends, c):
        each.close()
    arrays.clear()
    finish()
"""


@pytest.fixture
def held(alone):
    """As alone(), with the code of HELD before."""
    return lambda code: alone(HELD + code + "\nend(pub, s)")


def test_no_cpu_waits_for_what_take_names_a_stream_for(held):
    held("""
publish(7)
msg = s.take(stream=a.handle)
t = msg[0]
# no stream waits
assert t.__dlpack_device__() == msg.__dlpack_device__() == (2, 0) and t.device == "cuda:0"
assert t.status == "ready"
taken = Taken(t, stream=a.handle)
copied = copy(taken, a)
stay_busy(a)
assert t.status == "waiting"
taken.close()
del t, msg, taken
assert not gate.passed and busy(a) and s.stats()["n_held"] == 1
gate.open()
wait_for(a)
assert read(copied.at, 4) == [7] * 4
until(lambda: s.stats()["n_held"] == 0)
stats = s.stats()
assert (stats["gpu_waits"], stats["gpu_late"], stats["gpu_errors"]) == (0, 0, 0), stats
del copied
""")


# The stream of take(), that of the consumer, and which streams wait.
WAYS = [("a", "a", "a"), ("a", "b", "ab"), (None, "b", "b"), ("a", -1, "a")]


@pytest.mark.parametrize("take, consumer, waiting", WAYS)
def test_the_streams_of_take_and_of_the_consumer_wait(held, take, consumer, waiting):
    held(f"""
take, consumer, waiting = {take!r}, {consumer!r}, {waiting!r}
streams = {{"a": a, "b": b}}
publish(5)
msg = s.take(stream=streams[take].handle if take else None)
taken = Taken(msg, stream=streams[consumer].handle if consumer in streams else consumer)
copies = {{name: copy(taken, stream) for name, stream in streams.items() if name in waiting}}
stay_busy(*(streams[name] for name in waiting))
assert [name for name in streams if busy(streams[name])] == list(waiting)
assert msg[0].status == "waiting"
taken.close()
gate.open()
for name, to in copies.items():
    wait_for(streams[name])
    assert read(to.at, 4) == [5] * 4, name
until(lambda: msg[0].status == "ready")
del msg, taken
until(lambda: s.stats()["n_held"] == 0)
assert s.stats()["gpu_waits"] == 0
copies.clear()
""")


def test_where_no_stream_can_wait_the_cpu_does(held):
    held("""
# None is the default stream, for which others would wait; 2 is another one in each thread.
for n, (take, consumer) in enumerate([(None, {}), (None, {"stream": 1}), (a.handle, {}),
                                      (a.handle, {"stream": 1}), (None, {"stream": -1}),
                                      (None, {"stream": 2}), (a.handle, {"stream": 2}),
                                      (-1, {"stream": b.handle}), (2, {"stream": b.handle})]):
    publish(n + 1)
    msg = s.take(stream=take)
    timer = threading.Timer(0.1, gate.open)
    timer.start()
    taken = Taken(msg, **consumer)
    assert gate.passed and not busy(source), (take, consumer)
    assert taken.values() == [n + 1] * 4
    timer.join()
    taken.close()
    del taken
msg.release()
until(lambda: s.stats()["n_held"] == 0)
""")


@pytest.mark.parametrize("loaded", [False, True])
def test_where_cuda_loads_kernels_lazily_a_stream_waits_if_asked(held, monkeypatch, loaded):
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    held(f"""
s.close()
s = c.subscribe("gpu", timeout=60, kernels_loaded={loaded})
publish(7)
msg, seen = s.take(stream=a.handle), []
def open_gate():
    until(lambda: seen or s.stats()["gpu_waits"] == 1)
    gate.open()
thread = threading.Thread(target=open_gate)
thread.start()
taken = Taken(msg, stream=a.handle)
seen.append(msg[0].status)
thread.join()
assert seen == ["waiting" if {loaded} else "ready"], seen
wait_for(a)
told = [e.reason for e in s.events() if e.kind == "cpu_waited"]
assert len(told) == s.stats()["gpu_waits"] == (0 if {loaded} else 1), told
assert all("CUDA_MODULE_LOADING=EAGER" in reason for reason in told), told
taken.close()
del msg, taken
until(lambda: s.stats()["n_held"] == 0)
""")


def test_the_array_interface_names_the_stream_after_which_it_is_ready(held):
    held("""
publish(3)
msg = s.take(stream=a.handle)
t = msg[0]
interface = t.__cuda_array_interface__
assert interface["stream"] == a.handle and t.status == "waiting"
stay_busy(a)
assert t.__cuda_array_interface__ == interface
gate.open()
wait_for(a)
assert read(interface["data"][0], 4) == [3] * 4
del t, msg
publish(4)
msg = s.take()
threading.Timer(0.1, gate.open).start()
interface = msg[0].__cuda_array_interface__
assert interface["stream"] is None and gate.passed
msg.release()
until(lambda: s.stats()["n_held"] == 0)
assert s.stats()["gpu_late"] == 0
""")


# The C exchange API has no place for a stream: what it gives is ready.
def test_the_exchange_api_gives_what_is_ready(held):
    held("""
publish(6)
t = s.take(stream=a.handle)[0]
out = VersionedPointer()
threading.Timer(0.1, gate.open).start()
assert exchange.from_object(t, C.byref(out)) == 0
managed = out.contents
assert gate.passed and read(managed.t.data, 4) == [6] * 4
del t
assert waits(lambda: managed.deleter(C.addressof(managed))) == (0, 1)  # of take()
until(lambda: s.stats()["n_held"] == 0)
""")


TOO_EARLY = """
msg = s.take(stream=a.handle)
taken = Taken(msg, stream=a.handle)
assert msg[0].status == "waiting"
say("waiting")
wait_for(a)
assert msg[0].status == "{status}", msg[0].status
assert s.stats()["gpu_late"] == 1
late = [e for e in s.events() if e.kind == "late"]
assert len(late) == 1 and late[0].topic == "gpu" and late[0].reason, late
taken.close()
"""


def test_a_stream_whose_publisher_was_killed_goes_on_and_that_is_told(gpu_peer):
    begin = SUBSCRIBER.format(device=0, asked="") + HELD
    taker = gpu_peer(begin + TOO_EARLY.format(status="PUBLISHER_GONE"))
    assert taker.hear() == "ready"
    giver = gpu_peer(PUBLISHER.format(history=1) + HELD + "publish(7)\nhear()\n")
    assert taker.hear() == "waiting"
    giver.kill()
    taker.end()


def test_a_stream_that_waits_too_long_goes_on_and_that_is_told(two):
    two(
        HELD
        + """
publish(7)
until(lambda: pub.stats()["n_subscribers"] == 0)
gate.open()
end(pub)
""",
        HELD
        + TOO_EARLY.format(status="TIMEOUT")
        + "\nassert late[0].reason.startswith('not ready within 0.2 s'), late"
        + "\nfor stream in (a, b, source): stream.close()\ndel msg, taken",
        asked="stream_timeout=0.2",
    )


def test_a_stream_that_is_captured_is_refused(held):
    held("""
publish(7)
msg, graph = s.take(stream=a.handle), C.c_void_p()
ok(cuda.cuStreamBeginCapture_v2(C.c_void_p(a.handle), 0))
fails(dlx.InvalidError, "captured", lambda: Taken(msg, stream=a.handle))
fails(dlx.InvalidError, "captured", lambda: Taken(msg, stream=b.handle))
ok(cuda.cuStreamEndCapture(C.c_void_p(a.handle), C.byref(graph)))
ok(cuda.cuGraphDestroy(graph))
gate.open()
taken = Taken(msg, stream=b.handle)
wait_for(b)
assert taken.values() == [7] * 4
taken.close()
msg.release()
until(lambda: s.stats()["n_held"] == 0)
""")


PINNED = """
import numpy as np
READ_ONLY_HOST_REGISTER_SUPPORTED = 113
cuda.standin_set_attribute(READ_ONLY_HOST_REGISTER_SUPPORTED, 1)
p, pinned = c.publisher("pinned"), c.subscribe("pinned", pin="cuda:0", timeout=60)
def copy(array, to, stream):  # as torch.Tensor.to(non_blocking=True)
    ok(cuda.cuMemcpyHtoDAsync_v2(C.c_uint64(to.at), C.c_void_p(array.ctypes.data),
                                 C.c_size_t(array.nbytes), C.c_void_p(stream)))
def write_again():
    for _ in range(20):
        p.publish(np.zeros(4096, "u4"))
        msg = pinned.take()
        for t in msg.tensors: t.used_on(-1)
        t = None
        msg.release()
"""


WAYS = {
    "a tensor": "array = pinned.take()[0].numpy()",
    "a message": "array = np.from_dlpack(pinned.take().as_legacy())",
    "a buffer": "array = np.frombuffer(pinned.take()[0], 'u4')",
    "a part": "array = np.asarray(pinned.take()[0][1:])",
    "one of several": "array = np.asarray(pinned.take_many(1)[0].tensors[0])",
    "one of a loop": "array = np.asarray(next(iter(pinned))[0])",
    "a capsule": "array = pinned.take(); capsule = array.__dlpack__(max_version=(1, 0)); "
    "array = np.asarray(array[0]); del capsule",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_that_nobody_told_of_reads_pinned_memory_before_it_is_written_again(held, way):
    held(
        PINNED
        + """
p.publish(np.full(4096, 9, "u4"))
"""
        + WAYS[way]
        + """
to, gate = Memory(16384), Gate(a.handle)
n = array.nbytes // 4
copy(array, to, a.handle)
del array
write_again()
assert pinned.stats()["n_held"] == 1 and not gate.passed
gate.open()
until(lambda: pinned.stats()["n_held"] == 0)
wait_for(a)
assert read(to.at, n) == [9] * n and n >= 4095
assert pinned.stats()["gpu_waits"] == pinned.stats()["gpu_errors"] == 0
p.close(), pinned.close()
del to
"""
    )


def test_pinned_memory_that_no_stream_reads_is_given_back_at_once(held):
    held(
        PINNED
        + """
gate = Gate(a.handle)
p.publish(np.full(4096, 9, "u4"))
t = pinned.take()[0]
t.used_on(-1)
del t
assert pinned.stats()["n_held"] == 0 and not gate.passed
p.publish(np.full(4096, 9, "u4"))
t = pinned.take()[0]
t.used_on(b.handle)
del t
assert pinned.stats()["n_held"] == 0 and not gate.passed
gate.open()
wait_for(a)
p.close(), pinned.close()
"""
    )


def test_pinned_memory_of_a_tensor_that_a_stream_uses_is_given_back_when_that_is_done(held):
    held(
        PINNED
        + """
plain = c.subscribe("pinned", timeout=60)
p.publish(np.full(4096, 9, "u4"))
t = pinned.take()[0]
for wrong, error, words in ((2, ValueError, "any thread"), ("x", TypeError, "'x'")):
    fails(error, words, lambda: t.used_on(wrong))
fails(dlx.DeviceError, "has no `pin`", lambda: plain.take()[0].used_on(a.handle))
array, to = t.numpy(), Memory(16384)
gate = Gate(a.handle)
t.used_on(a.handle)
copy(array, to, a.handle)
del t, array
write_again()
assert pinned.stats()["n_held"] == 1 and not gate.passed
gate.open()
until(lambda: pinned.stats()["n_held"] == 0)
wait_for(a)
assert read(to.at, 4096) == [9] * 4096 and pinned.stats()["gpu_waits"] == 0
publish(1)
gate.open()
fails(dlx.DeviceError, "take(stream=...)", lambda: s.take()[0].used_on(a.handle))
p.close(), pinned.close(), plain.close()
del to
"""
    )
