# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch, CuPy, JAX and Numba on a real GPU, between two processes, in both directions.
Without a GPU, or a build of the library that has one, each test says so and is skipped."""

import importlib
import os

import dlx
import pytest
from conftest import Peer
from test_engines import run_engines

LIBRARIES = {
    "torch": "make = lambda: torch.arange(12, dtype=torch.float32, device='cuda').reshape(3, 4)\n"
    "take, host, sync = torch.from_dlpack, lambda y: y.cpu().numpy(), torch.cuda.synchronize",
    "cupy": "make = lambda: cupy.arange(12, dtype=cupy.float32).reshape(3, 4)\n"
    "take, host, sync = cupy.from_dlpack, cupy.asnumpy, lambda: cupy.cuda.Device().synchronize()",
    "jax": "import jax.numpy as jnp\nmake = lambda: jnp.arange(12, dtype=jnp.float32).reshape(3, "
    "4)\n"
    "take, host, sync = lambda m: jax.dlpack.from_dlpack(m[0].as_legacy()), np.asarray, lambda: "
    "None",
    # takes __cuda_array_interface__, and gives it to PyTorch, which says the device
    "numba": "from numba import cuda\n"
    "import torch\nmake = lambda: torch.as_tensor(cuda.to_device(np.arange(12, "
    "dtype=np.float32).reshape(3, 4)), device='cuda')\n"
    "take, host, sync = lambda m: cuda.as_cuda_array(m[0]), lambda y: y.copy_to_host(), "
    "cuda.synchronize",
}
PRELUDE = (
    Peer.PRELUDE
    + "import gc, numpy as np\nexpected = np.arange(12, dtype=np.float32).reshape(3, 4)\n"
)


@pytest.fixture
def gpu_peer(peer):
    """Another process, with NumPy and the content of the tensors of these tests."""
    return lambda code: peer(code, prelude=PRELUDE)


GIVE = """
{library}
pub = c.publisher("gpu", timeout=60)
pub.wait(1, 60)
report = pub.publish({{"x": make(), "cpu": b"abc"}} if {is_set} else make(), strict={strict})
assert report.n_copied == {is_set} and pub.stats()["gpu_waits"] == 0, (report, pub.stats())
say("published")
hear()
pub.close()
"""
TAKE = """
{library}
s = c.subscribe("gpu", timeout=60)
say("ready")
msg = s.take()
assert msg["x" if {is_set} else 0].device.startswith(("cuda:", "rocm:"))
class One:  # the tensor that take() is to use, as a message of one tensor has it
    __getitem__ = lambda self, i: msg["x"]
    __dlpack__ = lambda self, **kwargs: msg["x"].__dlpack__(**kwargs)
    __dlpack_device__ = lambda self: msg["x"].__dlpack_device__()
y = take(One() if {is_set} else msg)
assert np.array_equal(host(y), expected), host(y)
sync()
del y, msg
gc.collect()
assert s.stats()["n_held"] == 0 and s.stats()["gpu_errors"] == 0, s.stats()
s.close()
"""

# The publisher dies between "taken" and the next line.
TAKE_FROM_THE_DEAD = """
import torch
s = c.subscribe("gpu", timeout=60)
say("ready")
y = torch.from_dlpack(s.take())
say("taken")
hear()
assert torch.equal(y.cpu(), torch.arange(y.numel()))
del y
s.close()
"""


def why_not(name):
    """Why a library cannot be tested here; None: it can."""
    try:
        library = importlib.import_module(name)
    except ImportError:
        return f"{name} is not installed"
    try:
        if name == "torch" and not library.cuda.is_available():
            return "PyTorch has no GPU here, or is built without one"
        if name == "cupy" and library.cuda.runtime.getDeviceCount() == 0:
            return "CuPy has no GPU here"
        if name == "jax" and not any(
            d.platform in ("gpu", "cuda", "rocm") for d in library.devices()
        ):
            return "JAX has no GPU here, or is built without one"
        if name == "numba":
            if not importlib.import_module("numba.cuda").is_available():
                return "Numba has no GPU here"
            return (
                why_not("torch")
                and "Numba's arrays do not say their device: PyTorch with a GPU is needed, too"
            )
    except Exception as e:  # what a library says that finds no driver is its own
        return f"{name} has no GPU here: {e}"
    return None


def need(*names):
    for name in names:
        reason = why_not(name)
        if reason:
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def no_pools(monkeypatch):
    """JAX takes most of the GPU otherwise, of which others need some; its pool is of cudaMalloc
    with this allocator.
    """
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")


def code(name):
    return f"import {name}\n{LIBRARIES[name]}"


@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("takes", sorted(LIBRARIES))
@pytest.mark.parametrize("gives", sorted(LIBRARIES))
def test_a_library_publishes_and_another_takes(gpu_peer, gives, takes, is_set):
    need(gives, takes)
    taker = gpu_peer(TAKE.format(library=code(takes), is_set=is_set))
    assert taker.hear() == "ready"
    giver = gpu_peer(GIVE.format(library=code(gives), is_set=is_set, strict=not is_set))
    assert giver.hear() == "published"
    taker.end()
    giver.say("")
    giver.end()


@pytest.mark.parametrize(
    "name, stream, current",
    [
        ("torch", "torch.cuda.Stream()", "torch.cuda.stream(stream)"),
        ("cupy", "cupy.cuda.Stream(non_blocking=True)", "stream"),
    ],
)
def test_streams_of_both_sides_are_waited_for(gpu_peer, name, stream, current):
    """Data that a stream writes are there when take() returns; data that a stream reads stay until
    it has read them.
    """
    need(name)
    taker = gpu_peer(f"""
{code(name)}
stream = {stream}
s = c.subscribe("gpu", timeout=60, reliable=True)
say("ready")
for i in range(20):
    msg = s.take(stream=stream)
    with {current}:
        y = take(msg)
        low, high = y.min(), y.max()
        del y, msg
        assert (float(low), float(high)) == (i, i)
say("done")
""")
    assert taker.hear() == "ready"
    giver = gpu_peer(f"""
{code(name)}
stream = {stream}
pub = c.publisher("gpu", history=1, on_full="block", timeout=60)
pub.wait(1, 60)
for i in range(20):
    with {current}:
        where = {{"device": "cuda"}} if {name!r} == "torch" else {{}}
        x = {name}.zeros(1 << 24, dtype={name}.float32, **where)
        for _ in range(i):
            x += 1
    pub.publish(x, stream=stream)
    del x
hear()
pub.close()
""")
    assert taker.hear() == "done"
    taker.end()
    giver.say("")
    giver.end()


def test_memory_comes_back_to_pytorch(gpu_peer):
    """Published memory is PyTorch's again when no subscriber holds it."""
    need("torch")
    gpu_peer("""
import torch
pub, s = c.publisher("gpu"), c.subscribe("gpu", timeout=60)
for _ in range(50):
    pub.publish(torch.ones(1 << 20, device="cuda"))
    y = torch.from_dlpack(s.take())
    assert float(y.sum()) == 1 << 20
    del y
pub.publish(b"x")
s.take()
pub.wait(0, 0)
gc.collect()
assert torch.cuda.memory_allocated() < 3 * (4 << 20), torch.cuda.memory_allocated()
pub.close()
""").end()


@pytest.mark.skipif(
    os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") != "", reason="PYTORCH_CUDA_ALLOC_CONF is set"
)
def test_expandable_segments_outlive_their_process_or_are_refused_in_words(gpu_peer, monkeypatch):
    """Whether their chunks allow descriptors depends on PyTorch's version."""
    need("torch")
    taker = gpu_peer(TAKE_FROM_THE_DEAD)
    assert taker.hear() == "ready"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    giver = gpu_peer("""
import torch
pub = c.publisher("gpu", timeout=60)
pub.wait(1, 60)
try:
    pub.publish(torch.arange(1 << 24, device="cuda"), strict=True)
except dlx.DeviceError as e:
    say(e)
else:
    say("published")
hear()
""")
    said = giver.hear()
    if said != "published":
        assert "descriptor" in said or "DESCRIPTOR" in said, said
        taker.kill()
        return
    assert taker.hear() == "taken"
    giver.kill()
    taker.say("")
    taker.end()


def test_memory_of_a_pool_of_pytorch_outlives_its_process(gpu_peer):
    """Descriptors do, of memory that libdlx allocated; legacy handles of cudaMalloc do not."""
    need("torch")
    try:
        dlx.torch_mem_pool()
    except RuntimeError as e:
        pytest.skip(str(e))
    taker = gpu_peer(TAKE_FROM_THE_DEAD)
    assert taker.hear() == "ready"
    giver = gpu_peer("""
import torch
pub = c.publisher("gpu", timeout=60)
pub.wait(1, 60)
pool = dlx.torch_mem_pool()
with torch.cuda.use_mem_pool(pool):
    x = torch.arange(1 << 20, device="cuda")
    z = torch.ones(1 << 20, device="cuda")
assert not pub.publish(x, strict=True).copied and not pub.publish(z, strict=True).copied
say("published")
hear()
""")
    assert giver.hear() == "published" and taker.hear() == "taken"
    giver.kill()
    taker.say("")
    taker.end()


def test_engines_serve_whole_versions_from_one_copy(c):
    need("torch")
    lines = run_engines(3, 6, 64.0, n_requests=5, device="cuda:0")
    assert all(shared <= 2 * 64.0 for *_, shared in lines), lines
