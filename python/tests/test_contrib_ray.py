# SPDX-License-Identifier: Apache-2.0
"""dlx.contrib.ray: actors of Ray hand tensors to each other."""

import importlib.util
import pathlib
import tempfile

import dlx
import numpy as np
import pytest
from conftest import run_daemon, until
from test_guide import end, start, write_programs

ray = pytest.importorskip("ray", reason="Ray is not installed (tools/setup.sh --connectors)")
import dlx.contrib.ray  # noqa: E402

torch = importlib.util.find_spec("torch") and pytest.importorskip("torch")
needs_torch = pytest.mark.skipif(not torch, reason="PyTorch is not installed")
# Of Ray's own files and processes.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster():
    """Ray, with two actors, on a daemon whose socket this gives."""
    with (
        tempfile.TemporaryDirectory(prefix="dlxp.") as folder,
        pytest.MonkeyPatch.context() as patch,
        run_daemon(pathlib.Path(folder)),
    ):
        patch.setenv("DLX_SOCKET", f"{folder}/s")
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=f"{folder}/ray",
        )
        try:
            dlx.contrib.ray.register(np.ndarray)
            if torch:
                dlx.contrib.ray.register(torch.Tensor, "dlx_torch")
            yield f"{folder}/s"
        finally:
            ray.shutdown()


@pytest.fixture
def c(cluster, monkeypatch):
    monkeypatch.setenv("DLX_SOCKET", cluster)
    with dlx.connect() as connection:
        yield connection


def make_actor():
    @ray.remote(num_cpus=0.1)
    class Actor:
        @ray.method(tensor_transport="dlx")
        def call(self, function, *args):
            return function(self, *args)

        @ray.method(tensor_transport="dlx_torch" if torch else "dlx")
        def call_torch(self, function, *args):
            return function(self, *args)

        def tell(self, function, *args):
            return function(self, *args)

    return Actor.remote()


@pytest.fixture(scope="module")
def two(cluster):
    return make_actor(), make_actor()


def in_place(self, shape, value, dtype="float32"):
    x = dlx.contrib.ray.empty(shape, dtype)
    x[...] = value
    return x


def write_later(self, index, value):
    self.kept[index] = value


def test_an_array_made_in_place_is_handed_over_without_a_copy(c, two):
    def make(self):
        self.kept = in_place(self, (4, MIB), 3)
        return self.kept

    def write(self, x):
        x += 1
        return x.sum().item(), x.flags.writeable

    ref = two[0].call.remote(make)
    for _ in range(2):  # no other process sees what a receiver writes
        assert ray.get(two[1].tell.remote(write, ref)) == (4 * 4 * MIB, True)
    assert ray.get(two[0].tell.remote(lambda self, x: x.max().item(), ref)) == 3
    ray.get(two[0].tell.remote(write_later, (1, 5), 9))  # which shows that the memory is the same
    assert ray.get(two[1].tell.remote(lambda self, x: x[1, 5].item(), ref)) == 9


ARRAYS = [
    np.arange(24, dtype="i2").reshape(2, 3, 4)[:, ::-1, 1::2],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(7, "u1"),
    np.empty((0, 3), "f8"),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
    np.array([1, 2], ">i4"),
    np.array(["2026-01-01"], "M8[D]"),
]


@pytest.mark.parametrize(
    "place",
    [lambda self, x: x, lambda self, x: in_place(self, x.shape, x, x.dtype)],
    ids=["ordinary", "in place"],
)
def test_arrays_arrive_as_they_were_within_any_structure(c, two, place):
    def echo(self, arrays):
        return {"all": [place(self, x) for x in arrays], "n": len(arrays)}

    def describe(self, got):
        strides = [x.strides for x in got["all"] if x.size]
        return [(x.tolist(), x.dtype.str, x.shape) for x in got["all"]], strides, got["n"]

    got = ray.get(two[1].tell.remote(describe, two[0].call.remote(echo, ARRAYS)))
    dense = [np.array(place(None, x), order="K") for x in ARRAYS]
    assert got == describe(None, {"all": dense, "n": len(ARRAYS)})
    own = ray.get(two[0].call.remote(echo, ARRAYS))  # in this process
    assert describe(None, own) == got


def test_a_view_of_an_array_made_in_place_is_not_copied(c, two):
    def view(self):
        self.kept = in_place(self, (100, 100), 0, "int64")
        self.kept[:] = np.arange(10000).reshape(100, 100)
        return self.kept[::-2, 5:50:3].T, self.kept[1], np.arange(3)

    ref, x = two[0].call.remote(view), np.arange(10000).reshape(100, 100)
    for _ in range(2):
        a, b, other = ray.get(ref)
        assert np.array_equal(a, x[::-2, 5:50:3].T) and np.array_equal(b, x[1])
        assert a.strides == x[::-2, 5:50:3].T.strides
        assert other.tolist() == [0, 1, 2]
        x[1, 8] = -1
        ray.get(two[0].tell.remote(write_later, (1, 8), -1))


@needs_torch
def test_an_ordinary_tensor_of_torch_keeps_the_order_of_its_dimensions(c, two):
    nhwc = torch.arange(48.0).view(2, 2, 3, 4).to(memory_format=torch.channels_last)
    tensors = [nhwc, nhwc[:, :, ::2], nhwc.permute(3, 1, 0, 2), torch.ones(3, 1).expand(3, 4)]
    want = [(torch.empty_like(x).stride(), x.tolist()) for x in tensors]
    assert want[0][0] == nhwc.stride() and want[2][0] == tensors[2].stride()
    got = ray.get(two[0].call_torch.remote(lambda self: tensors))
    assert [(x.stride(), x.tolist()) for x in got] == want


@needs_torch
def test_tensors_of_torch_arrive_as_they_were(c, two):
    def make(self):
        x = dlx.contrib.ray.empty((64, 32), torch.bfloat16).fill_(2)
        z = torch.tensor([1 + 2j])
        return [x.T[3:], {"w": torch.nn.Parameter(torch.ones(3)), "conj": z.conj()}, torch.ones(())]

    def read(self, got):
        x, rest, one = got
        x += 1
        return (
            x.shape,
            x.stride(),
            x.dtype,
            x.float().sum().item(),
            rest["w"].sum().item(),
            rest["conj"].item(),
            one.item(),
        )

    ref = two[0].call_torch.remote(make)
    for _ in range(2):
        got = ray.get(two[1].tell.remote(read, ref))
        assert got == ((29, 64), (1, 32), torch.bfloat16, 3 * 29 * 64, 3, 1 - 2j, 1)
    buffers = [
        torch.zeros(29, 64, dtype=torch.bfloat16),
        torch.zeros(3),
        torch.zeros(1, dtype=torch.complex64),
        torch.zeros(()),
    ]
    ray.experimental.set_target_for_ref(ref, buffers)
    got = ray.get(ref)
    assert got[0] is buffers[0] and (buffers[0] == 2).all() and buffers[2].item() == 1 - 2j


def test_an_array_of_objects_is_refused(c, two):
    with pytest.raises(Exception, match="no array of object"):
        ray.get(two[0].call.remote(lambda self: np.array([object()])))


@needs_torch
def test_a_tensor_that_would_lose_something_is_refused(c, two):
    with pytest.raises(Exception, match="sparse"):
        ray.get(two[0].call_torch.remote(lambda self: torch.ones(3).to_sparse()))


def test_a_payload_that_gets_memory_is_not_handed_to_another_thread(c, monkeypatch):
    """Also if it is released once more just then, which a thread may do that was late."""
    pool, payload_class, made = dlx.contrib.ray._pool(), dlx.contrib.ray._Payload, []
    allocate = payload_class.allocate

    def disturbed(self, size):
        monkeypatch.setattr(payload_class, "allocate", allocate)
        pool.release(self)
        made.append(pool.allocate(size))
        return allocate(self, size)

    pool.allocate(5 * MIB)  # which is spare at once
    monkeypatch.setattr(payload_class, "allocate", disturbed)
    made.append(pool.allocate(5 * MIB))
    (a, _), (b, _) = made
    assert a is not b and a.address != b.address


def test_a_payload_that_gets_no_memory_is_spare(c, monkeypatch):
    pool = dlx.contrib.ray._pool()
    payload, memory = pool.allocate(5 * MIB)
    del memory
    assert payload in pool._spare
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(payload.publisher.__class__, "empty", raise_memory_error)
        pool.allocate(5 * MIB)
    assert payload in pool._spare and payload not in pool._used


def raise_memory_error(*_):
    raise MemoryError


def test_the_memory_of_an_object_that_is_gone_is_free(c, two):
    def keep(self, n_bytes):
        dlx.contrib.ray.keep_spare(n_bytes)

    def shared():
        return c.daemon()["shared_bytes"]

    ray.get(two[0].tell.remote(keep, 0))
    before = shared()
    refs = [
        two[0].call.remote(make, (16 * MIB,), 1, "uint8")
        for make in (in_place, lambda self, *a: np.ones(*a[:1], a[2]))
    ]
    assert [ray.get(two[1].tell.remote(lambda self, x: int(x.sum()), ref)) for ref in refs] == [
        16 * MIB
    ] * 2
    assert shared() >= before + 32 * MIB
    del refs
    until(lambda: shared() <= before, "less memory")
    ray.get(two[0].tell.remote(keep, 64 * MIB))


def test_memory_is_used_again_when_neither_an_object_nor_a_tensor_is_in_it(c, two):
    def make_and_keep(self, value):
        self.kept = in_place(self, 3 * MIB, value, "uint8")
        return self.kept

    def drop(self):
        value = int(self.kept.max())
        del self.kept
        return value

    def publishers():
        return {p["topic"] for p in c.publishers("ray/*/*") if p["arena_bytes"] >= 3 * MIB}

    def is_spare(topic):
        return c.get(topic).size == 0

    before = publishers()
    ref = two[0].call.remote(make_and_keep, 1)
    assert ray.get(two[1].tell.remote(lambda self, x: int(x.max()), ref)) == 1
    (topic,) = publishers() - before
    del ref
    until(lambda: is_spare(topic), "the end of the object")
    # The actor still has the array: other objects lie elsewhere.
    other = two[0].call.remote(in_place, 3 * MIB, 2, "uint8")
    assert ray.get(two[1].tell.remote(lambda self, x: int(x.max()), other)) == 2
    assert is_spare(topic)
    assert ray.get(two[0].tell.remote(drop)) == 1
    del other
    after = publishers()
    for value in range(5):
        ref = two[0].call.remote(in_place, 3 * MIB, value, "uint8")
        assert ray.get(two[1].tell.remote(lambda self, x: int(x.max()), ref)) == value
        del ref
    assert len(publishers()) <= len(after) + 1


def test_received_arrays_outlive_their_actor(c, two):
    def keep(self, x):
        self.kept = x

    def topics():
        return {p["topic"] for p in c.publishers("ray/*/*")}

    before = topics()
    maker = make_actor()
    ref, late = (maker.call.remote(in_place, MIB, value, "uint8") for value in (5, 6))
    ray.get(two[1].tell.remote(keep, ref))
    held, _ = ray.get([ref, late])
    ray.kill(maker)
    until(lambda: topics() <= before, "the end of the actor")
    del ref
    assert (held == 5).all()
    assert ray.get(two[1].tell.remote(lambda self: (self.kept == 5).all().item()))
    with pytest.raises(Exception, match="dlx finds no tensors of object .* has ended or freed it"):
        ray.get(two[1].tell.remote(lambda self, x: x.sum(), late))
    assert ray.get(two[1].tell.remote(lambda self: 1)) == 1  # it goes on


def test_the_process_that_makes_the_actors_puts_objects(c, two):
    x = in_place(None, 1000, 4)
    ref = ray.put([x, np.arange(3)], _tensor_transport="dlx")
    assert ray.get(two[0].tell.remote(lambda self, got: [a.sum().item() for a in got], ref)) == [
        4000,
        3,
    ]


def test_an_object_of_another_machine_is_named(c, cluster):
    transport = dlx.contrib.ray.DlxTransport()
    metadata = dlx.contrib.ray.DlxMetadata(
        tensor_meta=[((1,), np.dtype("u1"))],
        library="numpy",
        node="elsewhere",
        places=[("ray/x/1", 1, 0, (1,))],
    )
    with pytest.raises(RuntimeError, match="was made on node elsewhere, and this is node"):
        transport.recv_multiple_tensors("aa", metadata, None)


def test_a_transport_has_all_that_ray_asks_for(c):
    transport = dlx.contrib.ray.DlxTransport()
    assert transport.tensor_transport_backend() == "DLX" and transport.is_one_sided()
    assert transport.can_abort_transport() and transport.abort_transport("aa", None) is None
    empty = transport.extract_tensor_transport_metadata("aa", [])
    assert transport.recv_multiple_tensors("aa", empty, None) == []
    transport.garbage_collect("aa", empty, [])  # of an object that it never had
    with pytest.raises(NotImplementedError):
        transport.send_multiple_tensors([], None, None)


@pytest.mark.parametrize(
    "name, says",
    [
        pytest.param("actors.py", ["(0, 0.0)", "(1, 1.0)", "(2, 2.0)"], marks=needs_torch),
        ("plain.py", ["[0, 1, 2, 3, 4]"]),
    ],
)
def test_a_program_of_the_guide(daemon, tmp_path, monkeypatch, name, says):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert name in write_programs("ray.md", tmp_path)
    assert end(start(tmp_path, name)) == says
