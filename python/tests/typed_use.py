# SPDX-License-Identifier: Apache-2.0
"""How a program uses dlx, for mypy: tools/lint/run checks it with --strict, and nothing runs it.

assert_type() holds what the stub says; each `type: ignore` is a mistake that mypy has to see, since an unused one is an error.
"""
import array
import mmap
from collections.abc import Sequence
from typing import assert_type

import numpy as np

import dlx
from dlx._dlx import Json


def publishes(c: dlx.Connection, frame: np.ndarray, capsule: object) -> None:
    with c.publisher("cam/front", history=8, on_full="block", timeout=1.5) as pub:
        for thing in (frame, np.float32(3), b"bytes", bytearray(3), memoryview(b"x"), array.array("d", [1.0])):
            report = pub.publish(thing, meta={"t": 1.5, "names": ["a", "b"], "none": None})
        assert_type(report, dlx.Report)
        assert_type(report.copied, bool)
        assert_type(report[0], int)
        seq, copied, n_copied, copied_bytes, subscribers = report
        assert_type(copied, bool)
        pub.publish({"rgb": frame, "boxes": frame}, meta=b"bytes")
        pub.publish({"boxes": pub.zeros((4, 4), np.float32)})
        pub.publish([frame, pub.empty(3, "uint8", device="cuda:0")])
        pub.publish_many([frame, {"a": frame}], timeout=None)
        pub.publish(frame.__dlpack__())
        pub.empty(3, dtype=frame.dtype), pub.empty(3, dtype=float), pub.empty((), dtype=np.dtype("int8"))
        assert_type(pub.empty_like(frame), dlx.Tensor)
        assert_type(pub.empty_like({"a": frame}), dict[str, dlx.Tensor])
        assert_type(pub.stats()["published"], int)
        with mmap.mmap(-1, 10) as mapped:
            dlx.tensor(mapped)
        pub.publish(3)  # type: ignore[arg-type]
        pub.publish(capsule)  # type: ignore[arg-type]
        pub.publish({"a": object()})  # type: ignore[arg-type]
        pub.publish(frame, meta={"a": object()})  # type: ignore[dict-item]
        pub.empty(3, dtype=5)  # type: ignore[arg-type]
        pub.empty(3, device=0)  # type: ignore[arg-type]
        pub.publish(frame, timout=1)  # type: ignore[call-arg]
    c.publisher("cam/front", on_full="wait")  # type: ignore[arg-type]


def takes(c: dlx.Connection) -> float:
    with c.subscribe("cam/*", latest=True, timeout=1.0) as sub:
        for msg in sub:
            assert_type(msg, dlx.Message)
            assert_type(msg["rgb"], dlx.Tensor)
            assert_type(msg[0].shape, tuple[int, ...])
            assert_type(msg.meta, dict[str, Json] | bytes | None)
            array_of: np.ndarray = msg[0].numpy()
            np.asarray(msg[0]), np.from_dlpack(msg[0]), memoryview(msg[0])
            msg[0].nothing  # type: ignore[attr-defined]
            msg.topic = "x"  # type: ignore[misc]
        assert_type(sub.take_many(3), list[dlx.Message])
        for event in sub.events():
            assert_type(event.kind == "joined", bool)
        return float(array_of.sum())


async def waits(sub: dlx.Subscription, pub: dlx.Publisher, tensors: Sequence[dlx.Tensor]) -> None:
    assert_type(await sub.take_async(), dlx.Message)
    assert_type(await sub.take_many_async(2), list[dlx.Message])
    assert_type(await pub.publish_async(tensors, timeout=2), dlx.Report)
    async for msg in sub:
        assert_type(msg, dlx.Message)


def catches() -> None:
    try:
        dlx.connect(name="x", timeout=1)
    except (dlx.Timeout, dlx.DaemonError) as e:
        print(e)
    dlx.connect(3)  # type: ignore[arg-type]
