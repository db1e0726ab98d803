# SPDX-License-Identifier: Apache-2.0
"""PyTorch's caching allocator on memory that can be shared."""

from typing import TYPE_CHECKING

from . import _dlx

if TYPE_CHECKING:
    import torch as _torch

# Pools of PyTorch have a bare pointer to it, and may use it until the process ends.
_kept: dict = {}


def _allocator(torch):
    if "allocator" not in _kept:
        # The extension contains libdlx and exports these two of its functions.
        _kept.setdefault(
            "allocator",
            torch.cuda.memory.CUDAPluggableAllocator(
                _dlx.__file__, "dlx_cuda_malloc", "dlx_cuda_free"
            ),
        )
    return _kept["allocator"].allocator()


def torch_mem_pool() -> "_torch.cuda.MemPool":
    """Makes a torch.cuda.MemPool whose memory other processes can open by descriptors.

        pool = dlx.torch_mem_pool()
        with torch.cuda.use_mem_pool(pool):
            model = load().cuda()
        pub.publish(model.state_dict())    # copies nothing

    Every tensor that is made in the pool can be published without a copy. It still belongs to
    PyTorch, so its message is not retained beyond the publisher. Raises RuntimeError for PyTorch
    2.7 and older, and for PyTorch built for ROCm.
    """
    import torch

    # Those that have MemPoolContext free segments of a pool that is not in use by cudaFree:
    # github.com/pytorch/pytorch/issues/146431.
    is_sound = hasattr(torch.cuda, "MemPool") and not hasattr(torch.cuda, "MemPoolContext")
    if torch.version.hip or not is_sound:
        raise RuntimeError(
            "torch_mem_pool() needs PyTorch after 2.7, built for CUDA: this is "
            f"{torch.__version__}{', for ROCm' if torch.version.hip else ''}"
        )
    return torch.cuda.MemPool(_allocator(torch))
