# SPDX-License-Identifier: Apache-2.0
"""dlx for GStreamer: DlxSink publishes the buffers that come to an `appsink`, with their caps, and
DlxSrc gives them to an `appsrc`, in another process.

    camera = Gst.parse_launch("v4l2src ! videoconvert ! video/x-raw,format=RGB ! appsink name=out")
    sink = DlxSink(camera.get_by_name("out"), "cam/front")

    viewer = Gst.parse_launch("appsrc name=in ! videoconvert ! autovideosink")
    source = DlxSrc(viewer.get_by_name("in"), "cam/front")

A message is one tensor of bytes: (height, width, channels), without padding, for raw video of one
plane with 8 bits a channel, and otherwise the bytes of the buffer. Its metadata are `caps`, `pts`
and `duration` in ns (None: the buffer has none), and of raw video `format`, `width`, `height` and
`framerate`, as [numerator, denominator]. The end of the stream is an empty tensor with
`{"eos": true}`.
"""

import contextlib
import ctypes
import itertools
import threading
from typing import Any, Self

import gi
import numpy as np

gi.require_version("Gst", "1.0")
gi.require_version("GstApp", "1.0")
gi.require_version("GstVideo", "1.0")
from gi.repository import GLib, Gst, GstApp, GstVideo  # noqa: E402, F401

import dlx  # noqa: E402

if not hasattr(Gst.MapInfo, "__enter__"):
    raise ImportError("dlx.contrib.gstreamer needs GStreamer's own Python code (python3-gst-1.0)")

__all__ = ["DlxSink", "DlxSrc"]

_CHANNELS = {
    "GRAY8": 1,
    **dict.fromkeys(["RGB", "BGR"], 3),
    **dict.fromkeys(["RGBA", "BGRA", "ARGB", "ABGR", "RGBx", "BGRx", "xRGB", "xBGR"], 4),
}


class _Layout:
    """How buffers with these caps lie in memory, and what messages say of them."""

    def __init__(self, caps: Any) -> None:
        if caps is None or caps.get_size() == 0:
            raise ValueError("a buffer has no caps that GStreamer can read")
        self.caps, self.meta = caps, {"caps": caps.to_string()}
        self.shape: tuple[int, int, int] | None = None  # None: bytes
        self.pitch = 0  # bytes of a row
        structure = caps.get_structure(0)
        if structure.get_name() == "video/x-raw":
            try:
                self.info = GstVideo.VideoInfo.new_from_caps(caps)
            except TypeError:  # as PyGObject tells that there is none
                raise ValueError(
                    f"{self.meta['caps']} lacks a format, a width or a height"
                ) from None
            name, width, height = structure.get_string("format"), self.info.width, self.info.height
            self.meta |= {"format": name, "width": width, "height": height}
            self.meta |= {"framerate": [self.info.fps_n, self.info.fps_d]}
            if name in _CHANNELS:
                self.shape, self.pitch = (height, width, _CHANNELS[name]), self.info.stride[0]

    def tensor(self, buffer: Any, data: memoryview) -> np.ndarray:
        """The content of a buffer, in its memory."""
        video = GstVideo.buffer_get_video_meta(buffer) if self.meta.get("format") else None
        if self.shape is not None:
            offset, pitch = (video.offset[0], video.stride[0]) if video else (0, self.pitch)
            width, n_channels = self.shape[1:]
            n = offset + pitch * (self.shape[0] - 1) + width * n_channels
            if len(data) < n:
                raise ValueError(
                    f"a buffer of {self.meta['caps']} has {len(data)} bytes, and needs {n}"
                )
            return np.ndarray(self.shape, np.uint8, data, offset, (pitch, self.shape[2], 1))
        if video and any(
            list(theirs)[: video.n_planes] != list(usual)[: video.n_planes]
            for theirs, usual in [
                (video.stride, self.info.stride),
                (video.offset, self.info.offset),
            ]
        ):
            raise ValueError(
                f"a buffer of {self.meta['caps']} has rows of its own length, or planes in places "
                "of their own: put `videoconvert`, or a format of one plane, before the appsink"
            )
        return np.frombuffer(data, np.uint8)

    def memory(self, x: np.ndarray) -> np.ndarray:
        """The bytes of a buffer: those of the array, unless GStreamer pads its rows."""
        if self.shape is not None:
            if x.shape != self.shape or x.dtype != np.uint8:
                raise ValueError(
                    f"a tensor of {self.meta['caps']} has shape {self.shape} and dtype uint8, "
                    f"not {x.shape} and {x.dtype}"
                )
            x = x.reshape(self.shape[0], -1)
            if x.shape[1] != self.pitch:
                return np.pad(x, ((0, 0), (0, self.pitch - x.shape[1])))
        return np.ascontiguousarray(x)


# -- memory of a message as memory of GStreamer, which PyGObject could only copy ------------------

_Notify = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_lent: dict[int, tuple[np.ndarray, threading.Event]] = {}
_numbers = itertools.count(1)


def _take_back(number: int) -> None:
    _lent.pop(number)[1].set()


_give_back = _Notify(_take_back)


def _wrap(x: np.ndarray, given_back: threading.Event) -> Any:
    """Makes a buffer of the array's memory, which it holds; elements copy it before they write."""
    library, number = ctypes.CDLL("libgstreamer-1.0.so.0"), next(_numbers)
    new, append = library.gst_memory_new_wrapped, library.gst_buffer_append_memory
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    new.restype, append.argtypes = pointer, [pointer, pointer]
    new.argtypes = [ctypes.c_int, pointer, size, size, size, pointer, _Notify]
    _lent[number] = x, given_back
    buffer = Gst.Buffer.new()
    n = x.nbytes
    memory = new(int(Gst.MemoryFlags.READONLY), x.ctypes.data, n, 0, n, number, _give_back)
    append(hash(buffer), memory)  # of a boxed object, hash() is the address
    return buffer


# -- the two ends ----------------------------------------------------------------------------------


class _End:
    """An element of a pipeline, and a connection."""

    def __init__(self, element: Any, topic: str, socket: str | None) -> None:
        self._element, self.topic = element, topic
        self._connection = dlx.connect(socket, name=f"gst {element.get_name()}"[:63])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, also while it waits."""
        self._connection.close()

    def _fail(self, error: Exception) -> None:
        """Posts the error on the bus of the pipeline."""
        domain, code = Gst.resource_error_quark(), int(Gst.ResourceError.FAILED)
        what = GLib.Error.new_literal(domain, str(error), code)
        self._element.post_message(Gst.Message.new_error(self._element, what, ""))


class DlxSink(_End):
    """Publishes the buffers of an appsink, each of which is copied once, into shared memory.

    appsink    an element that no state has been set of yet
    topic      the topic to publish on
    socket     as for dlx.connect()
    publisher  arguments of publisher(): on_full, depth, require, ...

    An error goes to the bus of the pipeline. close() ends the stream for subscribers, too.
    """

    def __init__(
        self, appsink: Any, topic: str, *, socket: str | None = None, **publisher: Any
    ) -> None:
        super().__init__(appsink, topic, socket)
        self._publisher = self._connection.publisher(topic, **publisher)
        self._layout: _Layout | None = None
        appsink.set_property("emit-signals", True)
        appsink.set_property("max-buffers", 1)
        appsink.set_property("enable-last-sample", False)
        appsink.connect("new-sample", self._take)
        appsink.connect("eos", self._end)

    def close(self) -> None:
        self._publisher.close()
        super().close()

    def _take(self, appsink: Any) -> Any:
        sample = appsink.emit("pull-sample")
        if sample is None:
            return Gst.FlowReturn.EOS
        try:
            self._publish(sample.get_buffer(), sample.get_caps())
        except dlx.Closed:
            return Gst.FlowReturn.FLUSHING
        except Exception as e:  # which a signal handler would only print
            self._fail(e)
            return Gst.FlowReturn.ERROR
        return Gst.FlowReturn.OK

    def _publish(self, buffer: Any, caps: Any) -> None:
        if self._layout is None or caps is None or not caps.is_equal(self._layout.caps):
            self._layout = _Layout(caps)
        with buffer.map(Gst.MapFlags.READ) as mapped:
            content = self._layout.tensor(buffer, mapped.data)
            x = self._publisher.empty(content.shape, "uint8")
            np.copyto(np.asarray(x), content)
            del content
        times = {"pts": buffer.pts, "duration": buffer.duration}
        known = {k: None if v == Gst.CLOCK_TIME_NONE else v for k, v in times.items()}
        self._publisher.publish(x, meta=self._layout.meta | known, strict=True)

    def _end(self, _: Any) -> None:
        try:
            self._publisher.publish(self._publisher.empty(0, "uint8"), meta={"eos": True})
        except dlx.Closed:
            pass
        except dlx.Error as e:
            self._fail(e)


class DlxSrc(_End):
    """Gives messages to an appsrc. Their memory is not copied, unless GStreamer pads its rows. A
    buffer holds its message; when `max_held` are in the pipeline, the next one waits.

    appsrc        an element that no state has been set of yet; set is-live and do-timestamp on it
    topic         the topic to subscribe to
    socket        as for dlx.connect()
    subscription  arguments of subscribe(): latest, reliable, max_held, ...

    An error goes to the bus of the pipeline, as does the end of a publisher that did not end its
    stream. Set the pipeline to NULL before the program ends: buffers hold what it made.
    """

    def __init__(
        self, appsrc: Any, topic: str, *, socket: str | None = None, **subscription: Any
    ) -> None:
        super().__init__(appsrc, topic, socket)
        self._subscription = self._connection.subscribe(topic, **subscription)
        self._given_back = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = False
        appsrc.set_property("format", Gst.Format.TIME)
        appsrc.set_property("block", True)
        appsrc.set_property("max-buffers", 1)
        appsrc.set_property("max-bytes", 0)
        appsrc.connect("need-data", self._begin)

    def close(self) -> None:
        self._subscription.close()
        self._given_back.set()
        super().close()

    def _begin(self, *_: object) -> None:
        if not self._ended and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._run, name=self.topic, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """Takes messages until the pipeline or the stream ends."""
        layout: _Layout | None = None
        try:
            while True:
                message = self._take()
                meta = message.meta if isinstance(message.meta, dict) else {}
                if meta.get("eos"):
                    self._end()
                    return
                if "caps" not in meta:
                    raise ValueError(
                        f"message {message.seq} of {message.topic} has no caps in its metadata"
                    )
                if layout is None or meta["caps"] != layout.meta["caps"]:
                    layout = _Layout(Gst.Caps.from_string(meta["caps"]))
                buffer = _wrap(layout.memory(np.asarray(message[0])), self._given_back)
                for name in ("pts", "duration"):
                    if meta.get(name) is not None:
                        setattr(buffer, name, meta[name])
                sample = Gst.Sample.new(buffer, layout.caps, None, None)
                del buffer, message  # the pipeline alone holds them
                if self._element.push_sample(sample) != Gst.FlowReturn.OK:
                    return
                del sample
        except dlx.Closed:
            self._end()
        except dlx.PublisherGone:
            self._fail(RuntimeError(f"the publisher of {self.topic} left before the stream ended"))
        except Exception as e:  # such as for a time that is no number: the thread would only end
            self._fail(e)

    def _end(self) -> None:
        self._ended = True
        self._element.end_of_stream()

    def _take(self) -> dlx.Message:
        while True:
            self._given_back.clear()
            with contextlib.suppress(dlx.TooManyHeld):
                return self._subscription.take()
            self._given_back.wait()
