# SPDX-License-Identifier: Apache-2.0
"""dlx.weights: weights in shared memory, as a state dict."""

import gc
import json
import os
import struct
import subprocess
import sys

import dlx
import pytest
from conftest import PATIENCE, until

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
from dlx import weights as w  # noqa: E402

TOPIC = "weights/m"
DLXCTL = os.path.join(os.path.dirname(dlx.__file__), "dlxctl")


def model(value=None):
    made = torch.nn.Sequential(
        torch.nn.Linear(300, 400), torch.nn.Linear(400, 3).bfloat16(), torch.nn.BatchNorm1d(3)
    )
    if value is not None:
        with torch.no_grad():
            for p in made.parameters():
                p.fill_(value)
    return made


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.save_file(model().state_dict(), path, metadata={"format": "pt"})
    return path


def run(*args, status=0):
    done = subprocess.run(
        [sys.executable, "-m", "dlx.weights", *args], capture_output=True, text=True
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def same(a, b):
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a
    )


def test_a_model_uses_the_shared_memory_of_a_file_that_was_published(c, file):
    said = run("publish", str(file), TOPIC)
    attached, whole = w.attach(TOPIC), safetensors.load_file(file)
    assert same(attached, whole)
    assert attached.fingerprint == {
        "content": w.content(whole),
        "source": str(file),
        "dtype": "bfloat16 float32 int64",
    }
    assert said.splitlines() == [f"{k}: {v}" for k, v in attached.fingerprint.items()]
    assert attached.meta["format"] == "pt" and attached.topic == TOPIC
    net = model()
    net.load_state_dict(attached, assign=True)
    assert same(net.state_dict(), whole)
    for name, t in net.state_dict().items():
        assert t.data_ptr() == attached[name].data_ptr()
    n_bytes = sum(t.nbytes for t in whole.values())
    shown = run("show", TOPIC)
    assert shown == said + f"tensors: {len(whole)}, {n_bytes} bytes\n"


@pytest.mark.parametrize("dtype", sorted(w._DTYPES))
def test_each_type_of_a_file_comes_back(c, tmp_path, dtype):
    path, kind = tmp_path / "x.safetensors", getattr(torch, w._DTYPES[dtype])
    x = torch.tensor([1, 0, 1, 1]).to(kind)
    safetensors.save_file({"x": x.view(2, 2), "scalar": x[0].clone()}, path)
    w.publish(path, TOPIC)
    attached = w.attach(TOPIC)
    assert attached["x"].dtype == kind and attached["scalar"].shape == ()
    assert attached["x"].view(torch.uint8).tolist() == x.view(2, 2).view(torch.uint8).tolist()
    assert w.content(attached) == attached.fingerprint["content"]


def test_the_fingerprint_is_of_content_alone(c, tmp_path):
    a, b = {"x": torch.ones(3), "y": torch.zeros(2)}, {"y": torch.zeros(2), "x": torch.ones(3)}
    assert w.content(a) == w.content(b) == w.publish(a, TOPIC)["fingerprint.content"]
    for other in (
        {"x": torch.ones(3), "z": torch.zeros(2)},
        {"x": torch.ones(3), "y": torch.zeros(2, dtype=torch.int32)},
        {"x": torch.ones(3), "y": torch.zeros(1, 2)},
        {"x": torch.ones(3), "y": torch.tensor([0.0, 1.0])},
        {"x": torch.ones(3)},
    ):
        assert w.content(other) != w.content(a)


def test_the_fingerprint_of_a_conjugate_view_is_that_of_its_values(c):
    view, values = torch.tensor([1j]).conj(), torch.tensor([complex(0, -1)])
    assert w.content({"x": view}) == w.content({"x": values})


def test_files_of_one_model_are_one_set(c, tmp_path):
    state = model().state_dict()
    names, parts = list(state), []
    for i in range(2):
        parts.append(tmp_path / f"{i}.safetensors")
        safetensors.save_file({name: state[name] for name in names[i::2]}, parts[-1])
    run("publish", *map(str, parts), TOPIC)
    assert same(w.attach(TOPIC), state)
    said = run("publish", *map(str, parts), str(parts[0]), TOPIC, status=1)
    assert "is in two files" in said and same(w.attach(TOPIC), state)


def test_dlxctl_and_dlx_weights_read_what_the_other_has_published(c, file, tmp_path):
    socket, copy = os.environ["DLX_SOCKET"], tmp_path / "copy.safetensors"

    def dlxctl(*args):
        subprocess.run([DLXCTL, "--socket", socket, *args], check=True, capture_output=True)

    whole = safetensors.load_file(file)
    dlxctl("pub", TOPIC, str(file), "--retain", "1")
    attached = w.attach(TOPIC, timeout=PATIENCE)
    assert same(attached, whole) and attached.fingerprint == {}
    assert attached.meta == {"format": "pt"}
    w.publish(file, TOPIC)
    dlxctl("get", TOPIC, str(copy))
    assert same(safetensors.load_file(copy), whole)
    with safetensors.safe_open(copy, "pt") as f:
        assert f.metadata()["fingerprint.content"] == w.content(whole)


def test_a_newer_version_is_beside_the_former_one_until_that_is_unused(c):
    def shared():
        return c.daemon()["shared_bytes"]

    def state(value):
        return {"w": torch.full((1 << 20,), float(value)), "b": torch.full((3,), float(value))}

    w.publish(state(1), TOPIC)
    first, before = w.attach(TOPIC), shared()
    w.publish(state(2), TOPIC)
    second = w.attach(TOPIC)
    assert shared() - before > 4 << 20 and first.version != second.version
    assert (first["w"] == 1).all() and (second["w"] == 2).all()
    del first
    gc.collect()
    until(lambda: shared() - before < 1 << 20, "the end of the first version")
    assert same(second, state(2))


def test_versions_come_whole_and_in_order(c, peer):
    w.publish({"a": torch.ones(1000), "b": torch.ones(300_000)}, TOPIC)
    trainer = peer(
        f"""
        import torch
        from dlx import weights
        for i in range(2, 20):
            t = torch.full((1000,), float(i)), torch.full((300_000,), float(i))
            weights.publish(dict(zip("ab", t)), "{TOPIC}")
        """
    )
    values = []
    for version in w.versions(TOPIC, timeout=PATIENCE):
        (value,) = {float(x) for t in version.values() for x in (t.min(), t.max())}
        values.append(value)
        if value == 19:
            break
    trainer.end()
    assert values == sorted(set(values)) and values[0] >= 1


def test_a_copy_may_be_written_to(c):
    w.publish({"large": torch.zeros(1 << 20), "small": torch.zeros(3)}, TOPIC)
    mine, theirs = w.attach(TOPIC, copy=True), w.attach(TOPIC)
    net = torch.nn.ParameterDict({k: torch.nn.Parameter(t) for k, t in mine.items()})
    sum(p.sum() for p in net.parameters()).backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    for name in ("large", "small"):
        assert (mine[name] == -1).all() and (theirs[name] == 0).all()


def test_a_write_without_copy_ends_the_process(c):
    w.publish({"w": torch.zeros(1 << 20)}, TOPIC)
    code = f"from dlx import weights\nweights.attach('{TOPIC}')['w'].add_(1)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -11


def test_weights_that_are_not_there_are_a_timeout(c):
    with pytest.raises(dlx.Timeout):
        w.attach(TOPIC)
    with c.publisher(TOPIC, retain=1) as pub:
        pub.publish([torch.ones(3)])
        with pytest.raises(ValueError, match="has no weights"):
            w.attach(TOPIC)


def save(path, header, data=b""):
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize(
    "header, data, words",
    [
        (b"{", b"", "is no .safetensors file"),
        (b"[]", b"", "no JSON object"),
        ({"__metadata__": ["pt"]}, b"", "__metadata__ is no JSON object"),
        ({"__metadata__": {"a": "x" * 65_536}}, b"", "at most 65536 bytes of metadata"),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(8), "takes 8 bytes"),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(4), "ends within"),
        ({"x": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, bytes(1), "type F4"),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}, bytes(8), "negative"),
        ({"x": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, bytes(8), "negative"),
        ({"x": {"dtype": "F32"}}, b"", "no shape"),
    ],
)
def test_a_broken_file_is_refused(c, tmp_path, header, data, words):
    path = tmp_path / "broken.safetensors"
    save(path, header, data)
    said = run("publish", str(path), TOPIC, status=1)
    assert said.startswith("dlx.weights: ") and words in said and said.count("\n") == 1
    path.write_bytes(b"abc")
    assert "is no .safetensors file" in run("publish", str(path), TOPIC, status=1)
    assert c.publishers(TOPIC) == []
