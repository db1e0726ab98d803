# SPDX-License-Identifier: Apache-2.0
"""PyTorch's view of messages and tensors, and its caching allocator on memory that can be shared.
Nothing here imports PyTorch before the program does.
"""

import sys
from typing import TYPE_CHECKING

from . import _dlx
from ._dlx import Message, NamedMessage, Tensor

if TYPE_CHECKING:
    import torch as _torch

READ_ONLY = (
    "this tensor is read-only: one that was received may be written to as msg.private(key), one "
    "that was published not any more"
)


def _view(x):
    """Returns what PyTorch makes of it; of a list or tuple, of what is in it."""
    if isinstance(x, (Message, Tensor)):
        from torch import from_dlpack

        return from_dlpack(x)
    if isinstance(x, (list, tuple)):
        return (list if isinstance(x, list) else tuple)(map(_view, x))
    return x


def _is_read_only(x):
    if isinstance(x, (list, tuple, Message)):
        return any(map(_is_read_only, x.tensors if isinstance(x, Message) else x))
    return isinstance(x, Tensor) and x.readonly


class Methods:
    """Methods of Message and Tensor."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """PyTorch's functions take a tensor, or a message of one tensor, as torch.from_dlpack() of
        it. PyTorch would write to read-only memory, so what is told to do so is refused.
        """
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        is_in_place = kwargs.get("inplace") or (name.endswith("_") and not name.endswith("__"))
        if _is_read_only(kwargs.get("out")) or (is_in_place and _is_read_only(args[:1])):
            raise ValueError(READ_ONLY)
        return func(*_view(args), **{key: _view(x) for key, x in kwargs.items()})


def _collate(batch, *, collate_fn_map=None):
    """Collates messages, or tensors, as default_collate() does what they behave like."""
    from torch.utils.data._utils.collate import collate

    def plain(x):
        if isinstance(x, NamedMessage):
            return dict(x)
        return x.tensors if isinstance(x, Message) and len(x.names) != 1 else _view(x)

    return collate(list(map(plain, batch)), collate_fn_map=collate_fn_map)


def register():
    """Tells torch.utils.data, if the program has imported it, how messages are collated."""
    module = sys.modules.get("torch.utils.data._utils.collate")
    known = getattr(module, "default_collate_fn_map", None)  # not while it is being imported
    if known is not None:
        known.update({Message: _collate, Tensor: _collate})


def _module(name, attribute):
    return getattr(sys.modules.get(name), attribute, None)


def no_memory(x):
    """Says why a tensor of PyTorch has no memory of its own, and what to publish instead; None if
    it has, or is none of PyTorch's.
    """
    tensor = _module("torch", "Tensor")
    if tensor is None or not isinstance(x, tensor):
        return None
    fake = _module("torch._subclasses.fake_tensor", "FakeTensor")
    is_wrapped = _module("torch._C._functorch", "is_functorch_wrapped_tensor")
    if fake is not None and isinstance(x, fake):
        return (
            "a FakeTensor has a shape and no values: publish outside of FakeTensorMode and of what "
            "torch.compile() and torch.export() trace"
        )
    if is_wrapped is not None and is_wrapped(x):
        return (
            "within torch.func (vmap, grad, functionalize) it stands for other tensors: publish "
            "what the transformed function was given or has returned"
        )
    if x.is_meta:
        return (
            "one on the device meta has a shape and no values: publish it when it was loaded, as "
            "after module.to_empty(device='cpu') and load_state_dict()"
        )
    if x._is_zerotensor():
        return "a ZeroTensor stands for zeros: publish x.clone()"
    if x.layout is not sys.modules["torch"].strided:
        return None
    if hasattr(x, "__tensor_flatten__"):
        names = ", ".join(f"x.{name}" for name in x.__tensor_flatten__()[0])
        return f"it is made of other tensors: publish those ({names})"
    if x.numel() and not x.data_ptr():
        return (
            "its class keeps the values elsewhere, or its storage was freed: publish the tensors "
            "that have them"
        )
    return None


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

    Every tensor that is made in the pool can be published without a copy. Such a tensor still
    belongs to PyTorch, so its message is not retained beyond the publisher. Raises RuntimeError for
    PyTorch 2.7 and older, and for PyTorch built for ROCm.
    """
    import torch

    # Versions with MemPoolContext free segments of an unused pool by cudaFree:
    # github.com/pytorch/pytorch/issues/146431.
    is_sound = hasattr(torch.cuda, "MemPool") and not hasattr(torch.cuda, "MemPoolContext")
    if torch.version.hip or not is_sound:
        raise RuntimeError(
            "torch_mem_pool() needs PyTorch after 2.7, built for CUDA: this is "
            f"{torch.__version__}{', for ROCm' if torch.version.hip else ''}"
        )
    return torch.cuda.MemPool(_allocator(torch))
