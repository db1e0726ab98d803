# SPDX-License-Identifier: Apache-2.0
"""dlx.contrib.gstreamer: buffers of one pipeline come out of another one."""

import re

import dlx
import numpy as np
import pytest
from conftest import PATIENCE, mapping, until
from test_guide import end, start, write_programs

MISSING = "GStreamer is not installed for this Python (tools/setup.sh --connectors)"
gi = pytest.importorskip("gi", reason=MISSING)
try:
    gi.require_version("Gst", "1.0")
    gi.require_version("GstApp", "1.0")
    gi.require_version("GstVideo", "1.0")
    from gi.repository import Gst, GstApp, GstVideo
except (ImportError, ValueError):
    pytest.skip(MISSING, allow_module_level=True)
if not hasattr(Gst.MapInfo, "__enter__"):
    pytest.skip(MISSING, allow_module_level=True)
from dlx.contrib.gstreamer import DlxSink, DlxSrc  # noqa: E402

Gst.init(None)
RGB = "video/x-raw,format=RGB,width=4,height=2,framerate=5/1"


class Pipeline:
    """A pipeline that ends with the test."""

    def __init__(self, text):
        self.pipeline = Gst.parse_launch(text)

    def __getitem__(self, name):
        return self.pipeline.get_by_name(name)

    def play(self):
        self.pipeline.set_state(Gst.State.PLAYING)

    def ended(self):
        """Waits for the end; returns the text of an error, or None."""
        wanted = Gst.MessageType.EOS | Gst.MessageType.ERROR
        message = self.pipeline.get_bus().timed_pop_filtered(int(PATIENCE * Gst.SECOND), wanted)
        assert message, "the pipeline does not end"
        return message.parse_error()[0].message if message.type == Gst.MessageType.ERROR else None

    def pull(self, timeout=PATIENCE):
        """The next sample of the element `in`; None at the end, or when none comes in time."""
        return self["in"].emit("try-pull-sample", int(timeout * Gst.SECOND))

    def stop(self):
        self.pipeline.set_state(Gst.State.NULL)


@pytest.fixture
def launch():
    made = []

    def launch(text):
        made.append(Pipeline(text))
        return made[-1]

    yield launch
    for each in made:
        each.stop()


def content(sample):
    buffer = sample.get_buffer()
    with buffer.map(Gst.MapFlags.READ) as mapped:
        return sample.get_caps().to_string(), buffer.pts, buffer.duration, bytes(mapped.data)


def contents(pipeline):
    return [content(sample) for sample in iter(pipeline.pull, None)]


SINK = "appsink name=in sync=false"
VIDEO = "videotestsrc num-buffers=5 pattern=ball ! video/x-raw,format="
# What GStreamer puts between rows is not to be compared.
WITHOUT_PADDING = "videoconvert ! video/x-raw,format=BGRx !"
STREAMS = [
    (VIDEO + "RGB,width=320,height=240", ""),
    (VIDEO + "BGR,width=321,height=23", WITHOUT_PADDING),
    (VIDEO + "GRAY8,width=33,height=17", WITHOUT_PADDING),
    (VIDEO + "ARGB,width=33,height=17", ""),
    (VIDEO + "I420,width=328,height=240", ""),
    (VIDEO + "I420,width=321,height=241", WITHOUT_PADDING),
    (VIDEO + "NV12,width=320,height=240", ""),
    (VIDEO + "RGB16,width=31,height=3", WITHOUT_PADDING),
    ("audiotestsrc num-buffers=5 ! audio/x-raw,format=S16LE,channels=2", ""),
    (VIDEO + "RGB,width=320,height=240 ! jpegenc", ""),
]


@pytest.mark.parametrize("source, convert", STREAMS)
def test_buffers_arrive_as_they_were(daemon, launch, source, convert):
    direct = launch(f"{source} ! {convert} {SINK}")
    direct.play()
    wanted = contents(direct)
    assert len(wanted) == 5
    there = launch(f"{source} ! appsink name=out sync=false")
    here = launch(f"appsrc name=src ! {convert} {SINK}")
    with (
        DlxSink(there["out"], "cam", on_full="block", require=1) as sink,
        DlxSrc(here["src"], "cam", reliable=True),
    ):
        there.play()
        here.play()
        assert contents(here) == wanted
        assert there.ended() is None and here.ended() is None
        assert sink._publisher.stats()["copied"] == 0


def test_a_subscriber_gets_an_image_and_its_times(c, launch):
    there = launch(
        "videotestsrc num-buffers=2 pattern=red ! video/x-raw,format=RGB,width=5,height=3,"
        "framerate=5/1 ! appsink name=out sync=false"
    )
    with c.subscribe("cam", timeout=PATIENCE) as sub, DlxSink(there["out"], "cam", require=1):
        there.play()
        first, second, last = sub.take(), sub.take(), sub.take()
        assert first.shape == (3, 5, 3) and first.strides == (15, 3, 1) and first.dtype == "uint8"
        assert np.asarray(first)[1, 4].tolist() == [255, 0, 0]
        assert first.meta.pop("caps").startswith("video/x-raw, ")
        assert first.meta["format"] == "RGB" and first.meta["framerate"] == [5, 1]
        assert (first.meta["width"], first.meta["height"]) == (5, 3)
        assert [m.meta["pts"] for m in (first, second)] == [0, 200_000_000]
        assert first.meta["duration"] == 200_000_000
        assert last.meta == {"eos": True} and last.size == 0


def address(sample):
    buffer = sample.get_buffer()
    with buffer.map(Gst.MapFlags.READ) as mapped:
        return np.frombuffer(mapped.data, np.uint8).ctypes.data


def publish(pub, value=0, caps=RGB, shape=(2, 4, 3), **meta):
    pub.publish(np.full(shape, value, "uint8"), meta={"caps": caps, **meta})


def test_a_buffer_is_the_memory_of_the_message(c, launch):
    here = launch(f"appsrc name=src ! {SINK}")
    with c.publisher("cam") as pub, DlxSrc(here["src"], "cam"):
        here.play()
        publish(pub, 7)
        line = mapping(address(here.pull()))
        assert line.split()[1].startswith("r--s") and "memfd" in line, line


def test_an_element_that_writes_gets_a_copy(c, launch):
    here = launch(f"appsrc name=src ! videobalance brightness=0.5 ! {SINK}")
    caps = "video/x-raw,format=BGRx,width=4,height=2,framerate=5/1"
    with c.publisher("cam") as pub, c.subscribe("cam") as other, DlxSrc(here["src"], "cam"):
        here.play()
        publish(pub, 100, caps, (2, 4, 4))
        assert set(content(here.pull())[3]) > {100}
        assert (np.asarray(other.take()) == 100).all()


def test_caps_change_within_a_stream(c, launch):
    there = launch("appsrc name=feed format=time ! appsink name=out sync=false")
    here = launch(f"appsrc name=src ! {SINK}")
    sizes = [(4, 2), (8, 2), (8, 2), (4, 2)]
    with DlxSink(there["out"], "cam", require=1), DlxSrc(here["src"], "cam"):
        there.play()
        here.play()
        for i, (width, height) in enumerate(sizes):
            caps = Gst.Caps.from_string(RGB.replace("width=4", f"width={width}"))
            buffer = Gst.Buffer.new_wrapped(bytes([i]) * (width * height * 3))
            buffer.pts = i * Gst.SECOND
            there["feed"].push_sample(Gst.Sample.new(buffer, caps, None, None))
        there["feed"].end_of_stream()
        got = contents(here)
    assert [
        f"width=(int){width}," in caps for (caps, *_), (width, _) in zip(got, sizes, strict=True)
    ]
    assert [(pts // Gst.SECOND, len(data), data[0]) for _, pts, _, data in got] == [
        (i, width * height * 3, i) for i, (width, height) in enumerate(sizes)
    ]


def test_a_pipeline_has_at_most_max_held_messages(c, launch):
    here = launch(f"appsrc name=src ! queue max-size-buffers=100 ! {SINK} max-buffers=100")
    with c.publisher("cam") as pub, DlxSrc(here["src"], "cam", max_held=3) as source:
        here.play()
        for i in range(6):
            publish(pub, i)
        samples = [here.pull() for _ in range(3)]
        until(lambda: not source._given_back.is_set(), "a full pipeline")
        assert here.pull(0.2) is None
        assert source._subscription.stats()["n_held"] == 3
        for i in range(3):
            assert content(samples.pop(0))[3][0] == i
            samples.append(here.pull())
        assert [content(x)[3][0] for x in samples] == [3, 4, 5]


def test_the_end_of_a_publisher_that_was_killed_is_an_error(daemon, peer, launch):
    here = launch(f"appsrc name=src ! {SINK}")
    camera = peer(
        """
        import gi
        gi.require_version("Gst", "1.0")
        from gi.repository import Gst
        from dlx.contrib.gstreamer import DlxSink
        Gst.init(None)
        pipeline = Gst.parse_launch("videotestsrc is-live=true ! appsink name=out")
        sink = DlxSink(pipeline.get_by_name("out"), "cam")
        pipeline.set_state(Gst.State.PLAYING)
        say("plays")
        hear()
        """
    )
    assert camera.hear() == "plays"
    with DlxSrc(here["src"], "cam"):
        here.play()
        sample = here.pull()
        camera.kill()
        assert here.ended() == "the publisher of cam left before the stream ended"
        assert len(content(sample)[3]) > 0  # memory stays


@pytest.mark.parametrize(
    "shape, meta, says",
    [
        ((2, 4, 3), {"a": 1}, "message 1 of cam has no caps"),
        ((2, 5, 3), {"caps": RGB}, r"has shape \(2, 4, 3\) and dtype uint8, not \(2, 5, 3\)"),
        ((2, 4, 3), {"caps": ""}, "no caps that GStreamer can read"),
        ((2, 4, 3), {"caps": "no, caps"}, "no caps that GStreamer can read"),
        ((2, 4, 3), {"caps": "video/x-raw,format=RGB"}, "lacks a format, a width or a height"),
        ((2, 4, 3), {"caps": RGB, "pts": -1}, "-1"),
    ],
)
def test_a_message_that_is_no_buffer_is_an_error(c, launch, shape, meta, says):
    here = launch(f"appsrc name=src ! {SINK}")
    with c.publisher("cam") as pub, DlxSrc(here["src"], "cam"):
        here.play()
        pub.publish(np.zeros(shape, "uint8"), meta=meta)
        assert re.search(says, here.ended())


def test_an_error_of_the_sink_is_on_the_bus(c, launch):
    there = launch(f"videotestsrc ! {RGB} ! appsink name=out sync=false")
    with DlxSink(there["out"], "cam", require=1, timeout=0.01):
        there.play()
        assert "cam" in there.ended()


def test_a_buffer_that_is_shorter_than_its_caps_say_is_an_error(daemon, launch):
    there = launch("appsrc name=feed format=time ! appsink name=out sync=false")
    with DlxSink(there["out"], "cam"):
        there.play()
        buffer = Gst.Buffer.new_wrapped(bytes(23))
        there["feed"].push_sample(Gst.Sample.new(buffer, Gst.Caps.from_string(RGB), None, None))
        assert "has 23 bytes, and needs 24" in there.ended()


@pytest.mark.parametrize("name", ["NV12", "I420"])
@pytest.mark.parametrize("moved", [None, "offset", "stride"])
def test_planes_that_lie_elsewhere_than_their_caps_say_are_an_error(daemon, launch, name, moved):
    caps = Gst.Caps.from_string(f"video/x-raw,format={name},width=320,height=240,framerate=5/1")
    info = GstVideo.VideoInfo.new_from_caps(caps)
    lies = {"offset": list(info.offset), "stride": list(info.stride)}
    if moved:
        lies[moved][1] += 320 * 16  # as of a decoder that codes 256 rows
    there = launch("appsrc name=feed format=time ! appsink name=out sync=false")
    with DlxSink(there["out"], "cam"):
        there.play()
        buffer = Gst.Buffer.new_wrapped(bytes(320 * 256 * 2))
        GstVideo.buffer_add_video_meta_full(
            buffer,
            GstVideo.VideoFrameFlags.NONE,
            info.finfo.format,
            *(320, 240, info.finfo.n_planes, *lies.values()),
        )
        there["feed"].push_sample(Gst.Sample.new(buffer, caps, None, None))
        there["feed"].end_of_stream()
        error = there.ended()
        assert "planes in places of their own" in error if moved else error is None


def test_closing_ends_what_waits(daemon, launch):
    there, here = (
        launch(f"videotestsrc ! {RGB} ! appsink name=out sync=false"),
        launch(f"appsrc name=src ! {SINK}"),
    )
    sink, source = DlxSink(there["out"], "a", require=1), DlxSrc(here["src"], "b", stay=True)
    there.play()
    here.play()
    source.close()
    assert here.ended() is None
    sink.close()
    there.stop()


def test_the_programs_of_the_guide(daemon, tmp_path):
    assert {"camera.py", "viewer.py"} <= set(write_programs("gstreamer.md", tmp_path))
    viewer = start(tmp_path, "viewer.py")
    camera = start(tmp_path, "camera.py", "30")
    assert end(camera) == ["30 frames"] and end(viewer) == ["30 frames"]
