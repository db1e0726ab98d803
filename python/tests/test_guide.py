# SPDX-License-Identifier: Apache-2.0
"""The programs that docs/guide shows do what the pages say."""

import contextlib
import errno
import os
import pathlib
import re
import runpy
import subprocess
import sys

import dlx
import numpy as np
import pytest
from conftest import PATIENCE, run_threads, until

TOP = os.path.join(os.path.dirname(__file__), "..", "..")
GUIDE = os.path.join(TOP, "docs", "guide")


def write_programs(page, folder):
    """The programs of a page, as files in a folder; returns their names."""
    done = subprocess.run(
        [sys.executable, os.path.join(TOP, "tools", "doc-code"), os.path.join(GUIDE, page), folder],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def start(folder, *command):
    return subprocess.Popen(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def end(process):
    """Waits for the program's end, which has to be a success; returns its lines."""
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
    found = [
        re.fullmatch(r"frame (\d+): object at \[(\d+), 200, (\d+), 240\]", line) for line in lines
    ]
    assert found and all(found), lines
    for frame, left, right in ([int(x) for x in match.groups()] for match in found):
        assert (left, right) == (4 * (frame - 1), 4 * (frame - 1) + 40)
    assert first.meta == {"frame": int(found[0][1])}


def publish_and_measure(c, topic, size, held, behind, **settings):
    """Shared memory of a publisher after 100 messages, of which a subscriber holds the first."""
    with (
        c.subscribe(topic, max_held=64, timeout=PATIENCE) as sub,
        c.publisher(topic, **settings) as pub,
    ):
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
        table = dict(
            re.findall(
                r"^\| (camera|the same|batches|weights)[^|]*\| ([^|]*\|[^|]*) \|$", f.read(), re.M
            )
        )
    picture, batch, gib = 1080 * 1920 * 3, 32 * 3 * 608 * 608 * 4, 1 << 30

    def both(size, unit=1 << 20, **settings):
        return [
            f"{payload_memory(size, behind=behind, **settings) / unit:.0f}"
            for behind in (False, True)
        ]

    assert re.findall(r"(\d+) MiB", table["camera"]) == both(picture)
    assert re.findall(r"(\d+) MiB", table["the same"]) == both(picture, held=4)
    assert re.findall(r"(\d+) MiB", table["batches"]) == both(batch, depth=2)
    assert (
        re.findall(r"(\d+) GiB", table["weights"]) == both(gib, gib) + both(gib, gib, depth=2)[1:]
    )


@pytest.mark.parametrize("topic, of_subscription", [("small", 12 << 10), ("*", 36 << 10)])
def test_memory_of_a_topic_besides_payloads_is_as_concepts_says(c, topic, of_subscription):
    def shared():
        return c.daemon()["shared_bytes"]

    of_user, of_publisher, of_link = 4 << 10, 20 << 10, 4 << 10
    before = shared()
    with c.publisher("small", depth=128) as first:
        assert c.publishers("small")[0]["control_bytes"] == of_publisher
        assert shared() - before == of_user + of_publisher
        with c.subscribe(topic):
            first.wait(1, PATIENCE)
            assert shared() - before == of_user + of_publisher + of_subscription
            with c.publisher("small", depth=128) as second:
                second.wait(1, PATIENCE)
                until(
                    lambda: (
                        shared() - before == of_user + 2 * of_publisher + of_subscription + of_link
                    ),
                    "a page for the link",
                )
    with c.publisher("deep", depth=129):
        assert c.publishers("deep")[0]["control_bytes"] > of_publisher


def test_each_64_publishers_of_a_user_take_what_concepts_says(c):
    def shared():
        return c.daemon()["shared_bytes"]

    before = shared()
    with contextlib.ExitStack() as publishers:
        for n in range(1, 130):
            publishers.enter_context(c.publisher(f"many/{n}", depth=128))
            pages = (n + 63) // 64
            assert shared() - before == n * (20 << 10) + pages * (4 << 10)


@pytest.mark.parametrize(
    "name, says",
    [
        ("share.py", "60 tasks done by 3 workers, one of which was killed"),
        ("ask.py", r"0 -> \[0, 0, 0, 0\]\n1 -> .*\n2 -> .*\n.*ValueError: a scale of 0"),
        ("weights.py", r"in any process: \{'version': 2\}"),
        ("fork.py", "20 batches from 2 workers"),
        ("notebook.py", r"after 16: .*16.*\n\[16, 17, 18, 19\]"),
    ],
)
def test_a_recipe(daemon, tmp_path, name, says):
    assert name in write_programs("recipes.md", tmp_path)
    lines = end(start(tmp_path, name))
    assert re.fullmatch(says, "\n".join(lines)), lines


@pytest.mark.parametrize(
    "page, name, says",
    [
        ("pytorch.md", "feed.py", "epoch 0: 40 batches\nepoch 1: 40 batches"),
        ("pytorch.md", "queues.py", "20 images through a queue"),
        ("weights.md", "serve.py", r"(\w+: .*\n)*2 servers, 2 versions, one copy of each"),
    ],
)
def test_a_program_for_pytorch(daemon, tmp_path, page, name, says):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    assert name in write_programs(page, tmp_path)
    lines = end(start(tmp_path, name))
    assert re.fullmatch(says, "\n".join(lines)), lines


def test_the_program_for_nodes_passes_images(daemon, tmp_path):
    assert write_programs("ros2.md", tmp_path) == ["images.py"]
    lines = end(start(tmp_path, "images.py"))
    assert lines == [f"camera_optical (480, 640, 3) {i}" for i in range(3)]


def test_a_file_of_the_recorder_of_the_recipes_can_be_replayed(c, tmp_path):
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
    plain, sets = (
        [m for m in taken if m.topic == topic] for topic in ("rec/plain", "rec/deep/set")
    )
    for i in range(3):
        assert np.array_equal(np.asarray(plain[i]), sent[0] + i) and plain[i].meta is None
        assert sets[i].meta == {"i": i} and list(sets[i]) == ["rgb", "box"]
        assert all(np.array_equal(np.asarray(sets[i][name]), sent[1][name]) for name in sent[1])


def words_of_the_sources():
    """All string literals of C and Python, adjacent ones joined, `...` for what is filled in."""
    words = []
    for folder in ("client", "common", "daemon", "include/dlx", "python/src", "python/dlx"):
        for path in sorted(pathlib.Path(TOP, folder).rglob("*.[chp]*")):
            if path.suffix in (".c", ".h", ".py"):
                text = re.sub(r'"\s*PRI\w+\s*"', "u", path.read_text(encoding="utf-8"))
                text = re.sub(r'(?<!\\)"\s*"', "", text)
                words += re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)
    return words + [os.strerror(errno.EMFILE)]


def parts(text):
    """The fixed parts of a text, without the places where names and numbers go."""
    return [
        part.strip()
        for part in re.split(r"\.{3}|%[-.*0-9]*(?:l|z|h)*[a-zA-Z]", text)
        if len(part.strip()) > 2
    ]


def test_the_errors_of_troubleshooting_are_those_of_the_sources():
    with open(os.path.join(GUIDE, "troubleshooting.md"), encoding="utf-8") as f:
        errors = re.findall(r"^### `(.*)`$", f.read(), re.M)
    assert len(errors) > 15
    sources = [" ".join(parts(text)) for text in words_of_the_sources()]
    for error in errors:
        want = " ".join(parts(error))
        assert any(want in source for source in sources), f"no text of the sources has: {error}"


def test_the_figures_of_the_comparison_are_those_of_the_benchmarks():
    with open(os.path.join(TOP, "docs", "BENCHMARKS.md"), encoding="utf-8") as f:
        run = {
            name: float(value.replace(",", ""))
            for name, value in re.findall(r"^\| (\w+) \| ([\d,.]+) ", f.read(), re.M)
        }
    peers = ["dlx", "iceoryx", "iceoryx2", "zmq", "socket"]
    rows = {
        "one way, both sides spin, 64 B": "busy_64B_p50_ns",
        "one way, both sides spin, 1 MiB": "busy_1MiB_p50_ns",
        "one way, cold caches": "cold_p50_ns",
        "one way, the receiver sleeps, 1 KiB": "block_1KiB_p50_ns",
        "one way, the receiver sleeps, 1 MiB": "block_1MiB_p50_ns",
        "one way, 10 kHz, the receiver sleeps, p99.9": "tail_p999_ns",
        "messages of 64 B a second": "rate_64B_per_s",
    }
    units = {"ns": 1, "us": 1e3, "ms": 1e6, "M": 1e6}
    with open(os.path.join(GUIDE, "comparison.md"), encoding="utf-8") as f:
        table = {
            what: cells.split("|")
            for what, cells in re.findall(
                r"^\| ((?:one way|messages)[^|]*) \|(.*)\|$", f.read(), re.M
            )
        }
    assert set(table) == set(rows)
    for what, cells in table.items():
        for peer, cell in zip(peers, cells, strict=True):
            if cell.strip():
                value, unit = cell.split()
                digits = len(value.partition(".")[2])
                assert float(value.replace(",", "")) == round(
                    run[f"{peer}_{rows[what]}"] / units[unit], digits
                ), (what, peer)


def test_the_program_of_operations_tells_what_the_daemon_knows(c, tmp_path):
    assert "watch.py" in write_programs("operations.md", tmp_path)
    with c.publisher("cam/front") as pub, c.subscribe("cam/front") as sub:
        pub.wait(1, PATIENCE)
        for _ in range(40):
            pub.publish(np.ones(3))
        held = sub.take()
        # A second publisher of the topic, and a second subscription of the process.
        with c.publisher("cam/front") as second, c.subscribe("cam/front"):
            pub.wait(2, PATIENCE)
            second.wait(2, PATIENCE)
            said = [line.rsplit(" ", 1) for line in end(start(tmp_path, "watch.py"))]
            publisher = f'topic="cam/front",publisher="{c.publishers()[0]["publisher"]}"'
            link = c.links(c.publishers()[0]["publisher"])[0]
        labels = (
            f'{publisher},link="{link["link"]}",program="{link["client_name"]}",pid="{os.getpid()}"'
        )
    lines = dict(said)
    assert len(lines) == len(said) == 2 + 2 * 2 + 2 * 2 * 2
    assert lines[f"dlpackd_published{{{publisher}}}"] == "40"
    assert (lines[f"dlpackd_held{{{labels}}}"], lines[f"dlpackd_lost{{{labels}}}"]) == (
        "1",
        str(held.gap),
    )
    assert held.gap > 0 and int(lines["dlpackd_shared_bytes"]) > 0


def test_every_link_of_the_documentation_leads_to_a_file(tmp_path):
    site = runpy.run_path(os.path.join(TOP, "tools", "docs"))
    top = site["TOP"]
    for file in [top / "README.md", top / "CHANGELOG.md", *(top / "docs").rglob("*.md")]:
        site["rewrite"](file.read_text(encoding="utf-8"), file)
    assert site["errors"] == []
    assert (
        site["rewrite"]("[a](PYTHON.md#x), [b](../Makefile), `[c](d)`", top / "docs/SHM.md")
        == "[a](PYTHON.md#x), b, `[c](d)`"
    )
    site["rewrite"]("[a](nowhere.md)", top / "docs/SHM.md")
    assert site["errors"] == ["docs/SHM.md: no such file: nowhere.md"]


def build_c(page, folder, name, *libraries):
    """A C program of a page, which is to compile without a warning; returns its path."""
    assert f"{name}.c" in write_programs(page, folder)
    # A program that is built without sanitizers uses a library that is.
    plain = "build" if os.environ.get("SAN") else os.environ.get("BUILD", "build")
    build = os.path.join(TOP, plain)
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{TOP}/include"]
    link = [f"-L{build}", "-ldlx", *libraries, f"-Wl,-rpath,{os.path.realpath(build)}"]
    subprocess.run(["cc", *flags, "-o", folder / name, folder / f"{name}.c", *link], check=True)
    return folder / name


def run_c(program):
    done = subprocess.run([program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_c_page_publishes_and_receives(daemon, tmp_path):
    assert (
        run_c(build_c("c.md", tmp_path, "frames"))
        == "published 1 to 1\n(2, 3) strides (3, 1), first 1.5\n"
    )


def test_the_c_page_forks(daemon, tmp_path):
    assert run_c(build_c("c.md", tmp_path, "forks")) == "the child connected again\n"


def test_the_c_page_waits_in_a_loop_of_libuv(daemon, c, tmp_path):
    program = build_c("c.md", tmp_path, "uv_loop", "-luv")
    with c.publisher("frames") as pub:
        loop = subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        pub.wait(1, PATIENCE)
        for _ in range(3):
            pub.publish(b"x")
    assert end(loop) == ["message 1", "message 2", "message 3"]


def test_a_manual_page_begins_with_what_readers_look_for(tmp_path):
    subprocess.run([sys.executable, os.path.join(TOP, "tools", "man"), tmp_path, "0"], check=True)
    names = re.findall(r"^\.Nm (\w+)", (tmp_path / "man3" / "dlx_message.3").read_text(), re.M)
    on_gpus = [
        i
        for i, name in enumerate(names)
        if name in ("dlx_message_tensor_on", "dlx_message_tensor_describe", "dlx_message_status")
    ]
    assert names[:2] == ["dlx_message_n_tensors", "dlx_message_tensor"]
    assert len(on_gpus) == 3 and min(on_gpus) > names.index("dlx_message_tensor_legacy")
