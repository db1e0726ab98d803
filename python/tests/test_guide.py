# SPDX-License-Identifier: Apache-2.0
"""The programs that docs/guide shows do what the pages say."""
import os
import re
import subprocess
import sys

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
