# SPDX-License-Identifier: Apache-2.0
"""Memory that libdlx allocates for another library's allocator, dlx_cuda_malloc(), on the stand-in
driver, as in test_gpu.py; and torch_mem_pool() with a stand-in for PyTorch."""

from test_gpu import SUBSCRIBER, alone, gpu_peer, machine, pytestmark, two  # noqa: F401


def test_tensors_in_it_are_published_without_a_copy(two):
    two(
        """
segment = Segment()
assert segment.at % (2 << 20) == 0 and read(segment.at, 16) == [0] * 16
a = Array(2, 8, value=7, memory=segment, offset=512)
b = Array(8, value=9, memory=segment, offset=3 << 20)
report = pub.publish({"a": a, "b": b}, strict=True)
assert (report.copied, report.n_copied) == (False, 0), report
pub.publish(a, strict=True)
assert calls("cuMemExportToShareableHandle") == 2  # when it was made, and for all that is in it
until(lambda: pub.stats()["n_subscribers"] == 0)
pub.close()
assert (a.deleted, b.deleted) == (2, 1) and used() == 4 << 20
c.close(); del a, b, segment
assert used() == 0
finish()
""",
        """
msg = s.take()
taken = Taken(msg["a"], stream=1), Taken(msg["b"], stream=1)
assert [t.values() for t in taken] == [[7] * 16, [9] * 8]
again = Taken(s.take(), stream=1)
assert again.values() == [7] * 16
assert calls("cuMemImportFromShareableHandle") == 1 and calls("cuIpcOpenMemHandle_v2") == 0
assert cuda.standin_contexts_made(1) == 0
del msg
[t.close() for t in (*taken, again)]
assert s.stats()["gpu_errors"] == 0
""",
        history=2,
    )


def test_memory_that_is_freed_while_others_have_it_stays_theirs(gpu_peer):
    taker = gpu_peer(
        SUBSCRIBER.format(device=0, asked="")
        + """
taken = Taken(s.take(), stream=1)
say("taken")
hear()
assert taken.values() == [5] * 16
taken.close(); s.close(); c.close(); finish()
"""
    )
    assert taker.hear() == "ready"
    giver = gpu_peer("""
start()
pub = c.publisher("gpu", history=1)
pub.wait(1, 60)
at = cuda_malloc(2 << 20)
class Borrowed: pass
memory = Borrowed()
memory.at = at
x = Array(16, value=5, memory=memory)
pub.publish(x)
say("published")
hear()
cuda_free(at)  # which a library does only when its tensors are gone
other = cuda_malloc(2 << 20)
assert read(other, 16) == [0] * 16 and used() == 4 << 20
say("freed")
hear()
until(lambda: pub.stats()["n_subscribers"] == 0)
pub.publish(b"next")
pub.wait(0, 0)
assert x.deleted == 1
until(lambda: used() == 2 << 20)
cuda_free(other)
pub.close(); c.close(); del x; finish()
""")
    assert giver.hear() == "published" and taker.hear() == "taken"
    giver.say("")
    assert giver.hear() == "freed"
    taker.say("")
    taker.end()
    giver.say("")
    giver.end()


def test_an_impossible_allocation_is_null_with_a_reason(alone):
    alone("""
def refused(words, *args):
    assert cuda_malloc(*args) is None
    said = lib.dlx_errmsg().decode()
    assert words in said, said
refused("cannot have 0 bytes", 0)
refused("cannot have 18446744073709551615 bytes", -1)
refused("CUDA device 7", 1, 7)
refused("CUDA_ERROR_OUT_OF_MEMORY", 1 << 40)
for call in ("cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
             "cuMemsetD32Async"):
    cuda.standin_fail(call.encode(), 1, 1, 2)
    refused("CUDA_ERROR_OUT_OF_MEMORY", 1)
assert used() == 0
at = cuda_malloc(1)
cuda_free(None), cuda_free(at + 256), cuda_free(1)
assert used() == 2 << 20
pid = os.fork()
if pid == 0:
    null = cuda_malloc(1) is None
    cuda_free(at)
    os._exit(not null)
assert os.waitpid(pid, 0)[1] == 0
assert used() == 2 << 20 and read(at, 4) == [0] * 4
cuda_free(at), cuda_free(at)
assert used() == 0
""")


def test_only_the_gpu_that_was_named_gets_a_context(gpu_peer):
    gpu_peer("""
ok(cuda.cuInit(0))
at = cuda_malloc(1, 1)
assert cuda.standin_contexts_made(0) == 0 and cuda.standin_contexts_made(1) == 1
cuda_free(at)
assert count("CONTEXTS") == 0
c.close(); finish()
""").end()


def test_freeing_waits_for_the_work_that_uses_the_memory(alone):
    alone("""
segment, stream = Segment(), Stream()
gate, n, said = Gate(stream.handle), calls("cuCtxSynchronize"), []
ok(cuda.cuMemsetD32Async(C.c_uint64(segment.at), C.c_uint32(1), C.c_size_t(4),
                         C.c_void_p(stream.handle)))
def free():
    cuda_free(segment.at)
    said.append(gate.passed)
thread = threading.Thread(target=free)
thread.start()
until(lambda: calls("cuCtxSynchronize") > n)
gate.open()
thread.join()
assert said == [True]
stream.close(); """)


def test_torch_mem_pool_gives_pytorch_these_functions(alone):
    alone("""
import types
class CUDAPluggableAllocator:  # it finds them as that of PyTorch does
    def __init__(self, path_to_so_file, alloc_fn_name, free_fn_name):
        library = C.CDLL(path_to_so_file)
        self.functions = [C.cast(getattr(library, name), C.c_void_p).value
                          for name in (alloc_fn_name, free_fn_name)]
    def allocator(self):
        return self.functions
class MemPool:
    def __init__(self, allocator=None):
        self.allocator = allocator
memory = types.SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator)
torch = sys.modules["torch"] = types.SimpleNamespace(
    __version__="2.8.0", version=types.SimpleNamespace(hip=None),
    cuda=types.SimpleNamespace(memory=memory, MemPool=MemPool))
one, other = dlx.torch_mem_pool(), dlx.torch_mem_pool()
assert one is not other and one.allocator is other.allocator  # which stays for good
made, freed = one.allocator
assert made == C.cast(lib.dlx_cuda_malloc, C.c_void_p).value
malloc = C.CFUNCTYPE(C.c_void_p, C.c_ssize_t, C.c_int, C.c_void_p)(made)
free = C.CFUNCTYPE(None, C.c_void_p, C.c_ssize_t, C.c_int, C.c_void_p)(freed)
at = malloc(20 << 20, 0, None)
assert used() == 20 << 20
free(at, 20 << 20, 0, None)
assert used() == 0
torch.version.hip = "6.0"
fails(RuntimeError, "2.8.0, for ROCm", dlx.torch_mem_pool)
torch.version.hip, torch.__version__ = None, "2.7.1"
torch.cuda.MemPoolContext = object  # of 2.5 to 2.7, which would free memory by cudaFree
fails(RuntimeError, "PyTorch after 2.7, built for CUDA: this is 2.7.1", dlx.torch_mem_pool)
del torch.cuda.MemPool, torch.cuda.MemPoolContext
fails(RuntimeError, "PyTorch after 2.7", dlx.torch_mem_pool)
""")
