# SPDX-License-Identifier: Apache-2.0
"""The programs that docs/guide shows do what the pages say."""
import os
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
from conftest import PATIENCE, until

TOP = os.path.join(os.path.dirname(__file__), "..", "..")
GUIDE = os.path.join(TOP, "docs", "guide")


def write_programs(page, folder):
    """The programs of a page, as files in a folder; returns their names."""
    done = subprocess.run([sys.executable, os.path.join(TOP, "tools", "doc-code"), os.path.join(GUIDE, page), folder],
                          capture_output=True, text=True, check=True)
    return done.stdout.split()


def start(folder, *command):
    return subprocess.Popen([sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(process):
    """Waits for its end, which has to be a success; returns the lines that it printed."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


def test_the_detector_of_the_tutorial_finds_what_the_camera_draws(daemon, c, tmp_path):
    assert {"camera.py", "detect.py"} <= set(write_programs("tutorial.md", tmp_path))
    with c.subscribe("cam/front/objects", timeout=PATIENCE) as objects:
        detect = start(tmp_path, "detect.py")
        until(lambda: c.publishers("cam/front/objects"), "the detector")
        camera = start(tmp_path, "camera.py", "45")
        first = objects.take()
        end(camera)
        lines = end(detect)
    found = [re.fullmatch(r"frame (\d+): object at \[(\d+), 200, (\d+), 240\]", line) for line in lines]
    assert found and all(found), lines
    for frame, left, right in ([int(x) for x in match.groups()] for match in found):
        assert (left, right) == (4 * (frame - 1), 4 * (frame - 1) + 40)
    assert first.meta == {"frame": int(found[0][1])}


def publish_and_measure(c, topic, size, held, behind, **settings):
    """Shared memory of a publisher after 100 messages, of which a subscriber holds the first ones."""
    with c.subscribe(topic, max_held=64, timeout=PATIENCE) as sub, c.publisher(topic, **settings) as pub:
        messages = []
        for i in range(100 + held):
            assert not pub.publish(pub.empty(size, "uint8"), strict=True).copied
            if i < held:
                messages.append(sub.take())
            elif not behind:
                sub.take().release()
        return pub.stats()["arena_bytes"]


SETTINGS = [{"depth": 16}, {"depth": 40}, {"depth": 4}, {"history": 24}, {"depth": 4, "history": 1}]


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("held", [0, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_topic_takes_the_memory_that_concepts_says(c, tmp_path, settings, held, behind):
    write_programs("concepts.md", tmp_path)
    payload_memory = runpy.run_path(tmp_path / "memory.py")["payload_memory"]
    for size in (1 << 20, (1 << 20) + 1, 3 << 20):
        told = payload_memory(size, held=held, behind=behind, **settings)
        assert publish_and_measure(c, f"large/{size}", size, held, behind, **settings) == told
    for size in (1000, 4096, 1 << 16, 300_000):
        told = payload_memory(size, held=held, behind=behind, **settings)
        assert publish_and_measure(c, f"small/{size}", size, held, behind, **settings) <= told


def test_the_table_of_concepts_follows_from_its_formula(tmp_path):
    write_programs("concepts.md", tmp_path)
    payload_memory = runpy.run_path(tmp_path / "memory.py")["payload_memory"]
    with open(os.path.join(GUIDE, "concepts.md"), encoding="utf-8") as f:
        table = dict(re.findall(r"^\| (camera|the same|batches|weights)[^|]*\| ([^|]*\|[^|]*) \|$", f.read(), re.M))
    picture, batch, gib = 1080 * 1920 * 3, 32 * 3 * 608 * 608 * 4, 1 << 30

    def both(size, unit=1 << 20, **settings):
        return [f"{payload_memory(size, behind=behind, **settings) / unit:.0f}" for behind in (False, True)]
    assert re.findall(r"(\d+) MiB", table["camera"]) == both(picture)
    assert re.findall(r"(\d+) MiB", table["the same"]) == both(picture, held=4)
    assert re.findall(r"(\d+) MiB", table["batches"]) == both(batch, depth=2)
    assert re.findall(r"(\d+) GiB", table["weights"]) == both(gib, gib) + both(gib, gib, depth=2)[1:]


@pytest.mark.parametrize("topic, of_subscription", [("small", 12 << 10), ("*", 36 << 10)])
def test_what_a_topic_takes_besides_payloads_is_as_concepts_says(c, topic, of_subscription):
    def shared():
        return c.daemon()["shared_bytes"]
    before = shared()
    with c.publisher("small", depth=128) as first:
        assert shared() - before == 20 << 10 == c.publishers("small")[0]["control_bytes"]
        with c.subscribe(topic):
            first.wait(1, PATIENCE)
            assert shared() - before == (20 << 10) + of_subscription
            with c.publisher("small", depth=128) as second:
                second.wait(1, PATIENCE)
                until(lambda: shared() - before == 2 * (20 << 10) + of_subscription + (4 << 10), "a page for the link")
    with c.publisher("deep", depth=129):
        assert c.publishers("deep")[0]["control_bytes"] > 20 << 10


@pytest.mark.parametrize("name, says", [
    ("share.py", "60 tasks done by 3 workers"),
    ("ask.py", r"0 -> \[0, 0, 0, 0\]\n1 -> \[2, 2, 2, 2\]\n2 -> \[4, 4, 4, 4\]"),
    ("weights.py", r"in any process: \{'version': 2\}"),
    ("fork.py", "20 batches from 2 workers"),
    ("notebook.py", r"after 16: .*16.*\n\[16, 17, 18, 19\]"),
])
def test_a_recipe(daemon, tmp_path, name, says):
    assert name in write_programs("recipes.md", tmp_path)
    lines = end(start(tmp_path, name))
    assert re.fullmatch(says, "\n".join(lines)), lines


def test_what_the_recorder_of_the_recipes_writes_can_be_replayed(c, tmp_path):
    write_programs("recipes.md", tmp_path)
    (tmp_path / "files").mkdir()
    recorder = start(tmp_path, "record.py", "record", "rec/**", "files", "6")
    assert recorder.stdout.readline() == b"ready\n"
    sent = [np.arange(6).reshape(2, 3), {"rgb": np.full((4, 5, 3), 7, np.uint8), "box": np.ones(4)}]
    with c.publisher("rec/plain") as plain, c.publisher("rec/deep/set") as sets:
        for i in range(3):
            plain.publish(sent[0] + i)
            sets.publish(sent[1], meta={"i": i})
        end(recorder)
    with c.subscribe("rec/**", timeout=PATIENCE) as sub:
        replay = start(tmp_path, "record.py", "replay", "files")
        taken = [sub.take() for _ in range(6)]
        end(replay)
    plain, sets = ([m for m in taken if m.topic == topic] for topic in ("rec/plain", "rec/deep/set"))
    for i in range(3):
        assert np.array_equal(np.asarray(plain[i]), sent[0] + i) and plain[i].meta is None
        assert sets[i].meta == {"i": i} and sets[i].keys() == ["rgb", "box"]
        assert all(np.array_equal(np.asarray(sets[i][name]), sent[1][name]) for name in sent[1])
