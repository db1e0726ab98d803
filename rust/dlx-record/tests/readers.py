#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a recording by the mcap of PyPI, and by rerun-sdk where that is installed.

readers.py DLX-RECORD    with the package dlx and its daemon in the environment
"""

import importlib.util
import pathlib
import signal
import subprocess
import sys
import tempfile

import dlx
import numpy as np
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory

PATIENCE = 60.0
N = 3


def pictures():
    """Each with a white bar at another place."""
    for i in range(N):
        picture = np.zeros((32, 48, 3), np.uint8)
        picture[:, 10 * i : 10 * i + 8] = 255
        yield picture


def record(program, path):
    recorder = subprocess.Popen([program, "**", "-n", str(2 * N), "-o", path])
    client = dlx.connect()
    camera, boxes = client.publisher("cam/front"), client.publisher("boxes")
    camera.wait(1, PATIENCE)
    boxes.wait(1, PATIENCE)
    for i, picture in enumerate(pictures()):
        camera.publish(picture, meta={"i": i})
        boxes.publish({"xyxy": np.full((2, 4), i, np.float32), "n": np.array(i, np.int64)})
    try:
        assert recorder.wait(PATIENCE) == 0
    finally:
        recorder.send_signal(signal.SIGKILL)
        recorder.wait()


def read_by_mcap(path):
    with open(path, "rb") as file:
        reader = make_reader(file, decoder_factories=[DecoderFactory()])
        assert reader.get_summary().statistics.message_count == 2 * N
        names = {metadata.name for metadata in reader.iter_metadata()}
        assert names == {"dlx.clock", "dlx.counts"}, names
        messages = {"cam/front": [], "boxes": []}
        for schema, channel, message, decoded in reader.iter_decoded_messages():
            assert message.sequence == len(messages[channel.topic]) + 1
            messages[channel.topic].append((schema.name, decoded))
    for i, (picture, (schema, image)) in enumerate(
        zip(pictures(), messages["cam/front"], strict=True)
    ):
        assert (schema, image.encoding, image.step) == ("foxglove.RawImage", "rgb8", 144)
        got = np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, 3)
        assert (got == picture).all()
        assert image.dlx.origin.meta == b'{"i":%d}' % i, image.dlx.origin
    for i, (schema, message) in enumerate(messages["boxes"]):
        assert schema == "dlx.Message"
        xyxy, n = message.tensors
        assert (xyxy.name, xyxy.dtype, list(xyxy.shape)) == ("xyxy", "float32", [2, 4])
        assert (np.frombuffer(xyxy.data, np.float32) == i).all()
        assert (n.name, list(n.shape), np.frombuffer(n.data, np.int64)[0]) == ("n", [], i)
        assert message.origin.seq == i + 1 and message.origin.missed == 0


def read_by_rerun(path, folder):
    import rerun

    stream = rerun.RecordingStream("readers")
    stream.save(folder / "recording.rrd")
    stream.log_file_from_path(path)
    stream.flush()
    printed = subprocess.run(
        [sys.executable, "-m", "rerun", "rrd", "print", folder / "recording.rrd"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    lines = [line for line in printed.splitlines() if "Image:buffer" in line]
    assert len(lines) == 1 and f"{N} rows" in lines[0] and "/cam/front" in lines[0], printed


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        path = folder / "run.mcap"
        record(sys.argv[1], path)
        read_by_mcap(path)
        print("readers: the mcap of PyPI reads a recording")
        if importlib.util.find_spec("rerun"):
            read_by_rerun(path, folder)
            print("readers: rerun-sdk shows its pictures")
        else:
            print("readers: SKIP: there is no rerun-sdk (tools/setup.sh --interop installs it)")


main()
