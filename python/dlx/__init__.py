# SPDX-License-Identifier: Apache-2.0
"""Exchange tensors between processes without copying them, with any library that knows DLPack.

    with dlx.connect() as c:
        pub = c.publisher("cam/front")
        x = pub.empty((1080, 1920, 3), "uint8")    # in shared memory from the start
        np.asarray(x)[:] = frame
        pub.publish(x)                             # copies nothing

    with dlx.connect() as c:                       # in another process
        for msg in c.subscribe("cam/front"):
            y = torch.from_dlpack(msg)             # the memory stays as long as y does

A received tensor is read-only, and the kernel enforces it: a library that writes to it ends the
process. `msg.private(name)` and subscribe(..., private=True) give writable tensors. `dlx.debug()`,
or DLX_DEBUG=1 in the environment, prints what was written to, and where.

A tensor on a GPU (cudaMalloc, hipMalloc) is published without a copy, and torch.from_dlpack(msg)
uses it there: publish(t, stream=...), take(stream=...).

One of the workers of a service answers a call: `c.caller("svc").call(x)`, and
`for request in c.serve("svc"): ... request.reply(y)`.

Errors are dlx.Error and its subclasses, which also derive from TimeoutError, PermissionError,
ValueError and so on. Times are in seconds; None waits without a limit. A forked child cannot use
the handles and tensors of its parent: connect again in the child.
"""

import os as _os

# These add methods to what the extension has.
from . import _call, _connection, _message, _observer, _publisher
from ._dlx import (
    Caller,
    Connection,
    Event,
    GpuRange,
    Message,
    NamedMessage,
    Observed,
    Observer,
    Publisher,
    Qos,
    Report,
    Request,
    Service,
    Subscription,
    Tensor,
    TreeMessage,
    __version__,
    connect,
    debug,
    dlpack_info,
    gpu_trim,
    tensor,
)
from ._dtype import DType
from ._errors import (
    AccessError,
    CallError,
    Closed,
    CopyWarning,
    DaemonError,
    DeviceError,
    Error,
    Forked,
    Full,
    InUse,
    InvalidError,
    Kicked,
    LimitError,
    NoMemory,
    NoPublisherWarning,
    NotFound,
    PeerError,
    PublisherGone,
    Timeout,
    TooManyHeld,
    WorkerGone,
    WouldCopy,
)
from ._subscription import select
from ._torch import torch_mem_pool

__all__ = [
    "connect",
    "debug",
    "dlpack_info",
    "gpu_trim",
    "select",
    "tensor",
    "Connection",
    "Publisher",
    "Subscription",
    "Caller",
    "Service",
    "Request",
    "Message",
    "NamedMessage",
    "TreeMessage",
    "Tensor",
    "GpuRange",
    "DType",
    "Report",
    "Event",
    "Observer",
    "Observed",
    "Qos",
    "Error",
    "Timeout",
    "AccessError",
    "DaemonError",
    "Kicked",
    "NoMemory",
    "NoPublisherWarning",
    "LimitError",
    "InvalidError",
    "NotFound",
    "PublisherGone",
    "Full",
    "TooManyHeld",
    "WorkerGone",
    "CallError",
    "WouldCopy",
    "DeviceError",
    "Forked",
    "InUse",
    "Closed",
    "PeerError",
    "CopyWarning",
    "torch_mem_pool",
    "__version__",
]

if _os.environ.get("DLX_DEBUG") == "1":
    debug()
