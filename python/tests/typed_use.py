# SPDX-License-Identifier: Apache-2.0
"""How a program uses dlx, for mypy: tools/lint/run checks it with --strict, and nothing runs it.

assert_type() holds what the stub says; each `type: ignore` is a mistake that mypy has to see, since
an unused one is an error.
"""

import array
import mmap
from collections.abc import ItemsView, Sequence
from typing import assert_type

import dlx
import numpy as np


def publishes(c: dlx.Connection, frame: np.ndarray, capsule: object) -> None:
    with c.publisher("cam/front", history=8, on_full="block", timeout=1.5) as pub:
        for thing in (
            frame,
            np.float32(3),
            b"bytes",
            bytearray(3),
            memoryview(b"x"),
            array.array("d", [1.0]),
        ):
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
        (
            pub.empty(3, dtype=frame.dtype),
            pub.empty(3, dtype=float),
            pub.empty((), dtype=np.dtype("int8")),
        )
        assert_type(pub.empty_like(frame), dlx.Tensor)
        assert_type(pub.empty_like({"a": frame}), dict[str, dlx.Tensor])
        assert_type(pub.stats()["published"], int)
        with mmap.mmap(-1, 10) as mapped:
            dlx.tensor(mapped)
        pub.publish(3)  # type: ignore[arg-type]
        pub.publish(capsule)  # type: ignore[arg-type]
        pub.publish([object()])  # type: ignore[list-item]
        pub.publish({1.5: frame})  # type: ignore[arg-type]
        pub.publish(frame, meta=[("a", 1)])  # type: ignore[arg-type]
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
            assert_type(msg.meta_bytes, bytes)
            if isinstance(msg.meta, bytes):
                assert_type(msg.meta, bytes)
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
    await pub.drain_async(2)
    async for msg in sub:
        assert_type(msg, dlx.Message)


def publishes_what_variables_hold(pub: dlx.Publisher, w: np.ndarray, m: np.ndarray) -> None:
    """mypy takes these for dict[str, object]."""
    state = {"params": {"w": w}, "opt": [m, w], "step": 3}
    meta = {"t": 1.5, "task": "a", "names": ["a", "b"], "none": None}
    pub.publish(state, meta=meta)
    frames = [w, m]
    pub.publish(frames)
    weights = {"w": w}
    pub.publish_many([weights, state])


def reads_what_the_publisher_decides(msg: dlx.Message) -> dict[int, float]:
    """As the programs of docs/ do, which know what comes."""
    results: dict[int, float] = {msg.meta["task"]: float(msg.meta["t"])}
    assert_type(msg["model"]["fc"].shape, tuple[int, ...])
    assert_type(msg.items(), ItemsView[str, dlx.Tensor])
    for tensor in msg:
        assert_type(tensor, dlx.Tensor)
    return results


def reads_names(msg: dlx.Message) -> None:
    if isinstance(msg, dlx.TreeMessage):
        model = msg["model"]
        model["fc"]  # type: ignore[index, call-overload]
        if isinstance(model, dict) and isinstance(fc := model["fc"], dlx.Tensor):
            assert_type(fc.numpy(), np.ndarray)
        for _, value in msg.items():
            if isinstance(value, dlx.Tensor):
                assert_type(value.shape, tuple[int, ...])
        assert_type(msg.get("step", 0) == 3, bool)
    elif isinstance(msg, dlx.NamedMessage):
        weights = {name: np.asarray(tensor) for name, tensor in msg.items()}
        assert_type(sum(tensor.nbytes for tensor in msg.values()), int)
        assert_type([weights[name] for name in msg], list[np.ndarray])
        if (boxes := msg.get("boxes")) is not None:
            assert_type(boxes.shape, tuple[int, ...])
        assert_type(msg.get("boxes", 0), dlx.Tensor | int)


def selects(sub: dlx.Subscription, other: dlx.Subscription) -> None:
    assert_type(dlx.select([sub, other], 1.5), list[dlx.Subscription])
    dlx.select((sub, other), None)
    dlx.select(sub)  # type: ignore[arg-type]
    assert_type(dlx.DType(float).name, str)
    dlx.torch_mem_pool()
    assert_type(dlx.gpu_trim(), int)
    place = dlx.GpuRange()
    sub.take().open_into(place)
    sub.take().open_into(place, timeout=None)
    sub.take().open_into("cuda:0")  # type: ignore[arg-type]
    dlx.GpuRange(64)  # type: ignore[call-arg]


def works(c: dlx.Connection) -> None:
    pub = c.publisher("work", groups=["gpu"], depth=None, on_full=None)
    pub.drain(timeout=1)
    c.publisher("work", groups=["gpu", 7])  # type: ignore[list-item]
    sub = c.subscribe("work", group="gpu", lease=30, max_attempts=3, dead_letters="dead")
    for task in sub:
        with task:
            assert_type(task.attempt, int)
            task.renew()
            task.done()
            task.give_back()
    for group in c.groups("work"):
        assert_type(group["declared"], bool)
        for claim in c.claims(group["publisher"], group["group"]):
            assert_type(claim["client_name"], str)
    c.drop_queue("work")


async def calls(c: dlx.Connection) -> None:
    with c.caller("svc", max_in_flight=4) as k:
        reply = k.call({"x": k.empty(3)}, meta={"k": 1}, timeout=1.5, idempotent=True)
        assert_type(reply, dlx.Message)
        assert_type(await k.call_async(np.zeros(3)), dlx.Message)
        assert_type(k.stats()["late"], int)
        k.call(np.zeros(3), 5)  # type: ignore[arg-type, call-arg]
    for request in c.serve("svc", max_held=2, timeout=1):
        with request:
            assert_type(request, dlx.Request)
            assert_type(request.message.names, list[str | None])
            assert_type(request.deadline, float | None)
            assert_type(np.asarray(request), np.ndarray)
            request.reply([request.empty(3), request["x"]], meta=b"seen")
            request.error("no", code="5")  # type: ignore[arg-type]
    async for later in c.serve("svc"):
        assert_type(later, dlx.Request)


async def observes(c: dlx.Connection) -> None:
    with c.observe("cam/*", kinds="publishers") as o:
        for change in o:
            assert_type(change, dlx.Observed)
            assert_type(change.depth, int | None)
            assert_type(change.groups, tuple[str, ...] | None)
        async for change in o:
            assert_type(change.topic, str)
        assert_type(await o.next_async(1.5), dlx.Observed)
    for msg in c.subscribe("cam/*", reliable=True, accepts_unreliable=True):
        assert_type(msg.qos, dlx.Qos)
        assert_type(msg.qos.reliable, bool)
    c.observe("cam/*", kinds="all")  # type: ignore[arg-type]


def catches() -> None:
    try:
        dlx.connect(name="x", timeout=1)
    except (dlx.Timeout, dlx.DaemonError) as e:
        print(e)
    except dlx.CallError as e:
        assert_type(e.worker_code, int)
    dlx.connect(3)  # type: ignore[arg-type]
