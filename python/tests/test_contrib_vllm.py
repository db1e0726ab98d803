# SPDX-License-Identifier: Apache-2.0
"""dlx.contrib.vllm: the load format, and topics with versions. Tests that need vLLM skip where it
is missing; docs/guide/vllm.md says which version was used. Those of the first part need PyTorch
alone.
"""

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tomllib

import dlx
import dlx.weights
import pytest
import vllm_model
from conftest import PATIENCE, run_daemon, until

torch = pytest.importorskip("torch")

from dlx.contrib.vllm import _checkpoint, _topic  # noqa: E402
from test_guide import write_programs  # noqa: E402

TESTS = pathlib.Path(__file__).parent
TOPIC = "weights/tiny"
START = 300.0  # seconds that a process of vLLM has to start


# -- with PyTorch alone ----------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """A model that loads as those of vLLM do: two tensors of the checkpoint are one parameter."""

    packed_modules_mapping = {"gate_up": ["gate", "up"]}

    def __init__(self):
        super().__init__()
        self.gate_up = torch.nn.Parameter(torch.full((4, 3), torch.nan), requires_grad=False)
        self.down = torch.nn.Parameter(torch.full((3, 2), torch.nan), requires_grad=False)

    def load_weights(self, weights):
        loaded = set()
        for name, tensor in weights:
            target = {"gate": self.gate_up[:2], "up": self.gate_up[2:], "down": self.down}[name]
            assert target.shape == tensor.shape
            tensor += 0  # in place: what a loader is given is its own
            target.copy_(tensor)
            loaded.add("down" if name == "down" else "gate_up")
        return loaded

    def check(self, loaded):
        if loaded != {"gate_up", "down"}:
            raise ValueError(f"not loaded: { ({'gate_up', 'down'} - loaded) }")


def checkpoint(**changes):
    made = {"gate": torch.ones(2, 3), "up": torch.ones(2, 3) * 2, "down": torch.ones(3, 2) * 3}
    return {name: t for name, t in {**made, **changes}.items() if t is not None}


def retain(c, tensors, topic=TOPIC, **meta):
    with c.publisher(topic, retain=1) as pub:
        pub.publish(tensors, meta=meta or None)


def load_into(model, c, **changes):
    retain(c, checkpoint(**changes))
    _checkpoint.check_parts(model, c.get(TOPIC))
    _checkpoint.load(model, c.get(TOPIC), model.check)


def test_a_set_is_loaded_and_stays_as_it_was(c):
    model = Layer()
    load_into(model, c)
    assert torch.equal(model.gate_up, torch.tensor([[1.0] * 3] * 2 + [[2.0] * 3] * 2))
    assert torch.equal(model.down, torch.full((3, 2), 3.0))
    large = torch.zeros(1 << 18)  # a view of shared memory, not a copy
    retain(c, {"x": large})
    model.load_weights = lambda weights: [t.add_(1) for _, t in weights] and None
    _checkpoint.load(model, c.get(TOPIC), model.check)
    assert torch.equal(torch.from_dlpack(c.get(TOPIC)["x"]), large)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"down": torch.ones(2, 2)}, r"'down' \[2, 2\] float32 does not fit into Layer \(Assert"),
        ({"down": torch.ones(3, 2).int()}, "torch.float32, the tensor torch.int32"),
        ({"side": torch.ones(1)}, r"'side' \[1\] float32 does not fit into Layer \(KeyError"),
        ({"down": None}, r"not loaded: {'down'}: publish the whole checkpoint"),
        ({"up": None}, "lacks 1 tensors that Layer needs, the first is 'up'"),
    ],
)
def test_a_set_that_does_not_fit_is_refused(c, changes, told):
    with pytest.raises(ValueError, match=f"{TOPIC}.*{told}"):
        load_into(Layer(), c, **changes)


ATTENTION = {f"layers.0.attn.{x}_proj.weight": torch.ones(1) for x in "qkv"}


def check_attention(c, **changes):
    model = torch.nn.Module()
    model.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    more = {f"layers.0.attn.{name.replace('__', '.')}": t for name, t in changes.items()}
    retain(c, {name: t for name, t in {**ATTENTION, **more}.items() if t is not None})
    _checkpoint.check_parts(model, c.get(TOPIC))


@pytest.mark.parametrize("names", [["q_proj__bias", "v_proj__bias"], ["k_proj__k_scale"]])
def test_a_bias_or_scale_needs_no_siblings(c, names):
    """Qwen2.5-Omni has the biases, and a checkpoint with FP8 KV cache the scales of these alone."""
    check_attention(c, **dict.fromkeys(names, torch.ones(1)))


def test_a_weight_needs_its_siblings(c):
    told = r"weights/tiny lacks 1 .* first is 'layers.0.attn.k_proj.weight': .*set allow_missing"
    with pytest.raises(ValueError, match=told):
        check_attention(c, k_proj__weight=None)


def test_numbers_of_another_width_are_converted(c):
    model = Layer()
    load_into(model, c, down=torch.ones(3, 2, dtype=torch.bfloat16))
    assert torch.equal(model.down, torch.ones(3, 2))


def test_a_part_of_a_checkpoint_is_accepted_if_asked(c):
    model = Layer()
    retain(c, checkpoint(up=None))
    _checkpoint.load(model, c.get(TOPIC), None)
    assert torch.equal(model.gate_up[:2], torch.ones(2, 3)) and model.gate_up[2:].isnan().all()


@pytest.mark.parametrize(
    "message, what", [({"a": {"b": torch.ones(1)}}, "a nested dict"), (b"12", "without names")]
)
def test_a_message_that_is_no_checkpoint_is_refused(c, message, what):
    retain(c, message)
    with pytest.raises(ValueError, match=f"{TOPIC} holds .*{what}"):
        _checkpoint.load(Layer(), c.get(TOPIC), None)


def read():
    return checkpoint(), {"by": os.getpid()}


def test_the_first_of_many_processes_publishes(c, peer):
    """Each reads only if it is the first."""
    many = [
        peer("""
            from dlx.contrib.vllm import _topic
            import torch
            def read():
                say("read")
                hear()
                return {"x": torch.ones(4)}, {"by": os.getpid()}
            hear()
            msg = _topic.get_or_publish(c, "weights/tiny", read, 60)
            say(msg.meta["by"])
        """)
        for _ in range(3)
    ]
    for one in many:
        one.say("go")
    until(lambda: len(c.publishers(TOPIC)) == 3, "three publishers")
    lowest = min(c.publishers(TOPIC), key=lambda p: p["publisher"])["pid"]
    first = next(one for one in many if one.process.pid == lowest)
    assert first.hear() == "read"
    first.say("go")
    assert [one.hear() for one in many] == [str(lowest)] * 3
    for one in many:
        one.end()
    assert [p["retained"] for p in c.publishers(TOPIC)] == [True]


def test_if_the_publishing_process_is_killed_another_publishes(c, peer):
    first = peer("""
        from dlx.contrib.vllm import _topic
        _topic.get_or_publish(c, "weights/tiny", lambda: say("read") or hear(), 60)
    """)
    assert first.hear() == "read"
    second = peer("""
        from dlx.contrib.vllm import _topic
        import torch
        msg = _topic.get_or_publish(c, "weights/tiny", lambda: ({"x": torch.ones(4)}, {}), 60)
        say(torch.from_dlpack(msg["x"]).sum().item())
    """)
    until(lambda: len(c.publishers(TOPIC)) == 2, "two publishers")
    first.process.send_signal(signal.SIGKILL)
    assert second.hear() == "4.0"
    first.end(status=-9)
    second.end()


def test_a_process_that_does_not_publish_is_named(c):
    with pytest.raises(TimeoutError, match=f"{TOPIC} has no message and no publisher after 0 s"):
        _topic.get_or_publish(c, TOPIC, None, 0)
    with c.publisher(TOPIC), pytest.raises(TimeoutError, match=f"process {os.getpid()}.* 0.1 s"):
        _topic.get_or_publish(c, TOPIC, read, 0.1)
    assert not c.publishers(TOPIC)


def test_a_set_beyond_the_quota_is_refused_and_another_may_publish(tmp_path, monkeypatch):
    monkeypatch.setenv("DLX_SOCKET", str(tmp_path / "s"))
    with run_daemon(tmp_path, "--memory-limit=2MiB"), dlx.connect() as c:
        with pytest.raises(dlx.LimitError) as refused:
            _topic.get_or_publish(c, TOPIC, lambda: ({"x": torch.ones(1 << 20)}, {}), 1)
        assert "1 tensors of 4194304 bytes were not published" in refused.value.__notes__[0]
        assert not c.publishers(TOPIC)
        assert _topic.get_or_publish(c, TOPIC, read, 1).meta == {"by": os.getpid()}


def test_versions_are_side_by_side_and_old_ones_are_gone(c):
    assert _topic.last_version(c, TOPIC) == 0
    with c.publisher(TOPIC, retain=2, history=2) as pub:
        for i in (1, 2, 3):
            pub.publish({"x": torch.full((2,), float(i))}, meta={"version": i})
        found = [_topic.version_of(c, TOPIC, i, 0) for i in (2, 3, None)]
        assert [torch.from_dlpack(m["x"])[0].item() for m in found] == [2, 3, 3]
        with pytest.raises(ValueError, match="retains version 2, 3, and 1 is gone"):
            _topic.version_of(c, TOPIC, 1, 0)
        with pytest.raises(TimeoutError, match="versions up to 3, and not 4 after 0 s"):
            _topic.version_of(c, TOPIC, 4, 0)
    assert _topic.last_version(c, TOPIC) == 3
    with c.publisher(TOPIC, retain=2, history=2) as pub:  # a trainer that was started again
        pub.publish({"x": torch.ones(2)}, meta={"version": 4})
        assert [_topic.version_of(c, TOPIC, i, 0).meta["version"] for i in (4, 3)] == [4, 3]
    with pytest.raises(TimeoutError, match="other has no message after 0 s"):
        _topic.version_of(c, "other", None, 0)


def test_a_version_is_waited_for(c, peer):
    p = peer(f"""
        from dlx.contrib.vllm import _topic
        say(_topic.version_of(c, {TOPIC!r}, 2, 60).meta["version"])
    """)
    with c.publisher(TOPIC, retain=2, history=2) as pub:
        pub.publish(b"", meta={"version": 1})
        pub.wait(1, PATIENCE)
        pub.publish(b"", meta={"version": 2})
        assert p.hear() == "2"
    p.end()


def test_a_message_without_a_version_is_refused(c):
    retain(c, checkpoint(), step=3)
    for version in (1, None):
        with pytest.raises(ValueError, match=f"{TOPIC} has a message without a version"):
            _topic.version_of(c, TOPIC, version, 0)


def test_versions_are_of_one_model(c):
    retain(c, checkpoint())
    first = _checkpoint.layout_of(c.get(TOPIC))
    _checkpoint.compare({}, first, TOPIC)
    _checkpoint.compare(first, first, TOPIC)
    for changes, told in (
        ({"up": None}, r"'up' is missing and was \(2, 3\) float32"),
        ({"up": torch.ones(2, 4)}, r"'up' is \(2, 4\) float32 and was \(2, 3\) float32"),
        ({"new": torch.ones(1)}, r"'new' is \(1,\) float32 and was missing"),
    ):
        retain(c, checkpoint(**changes))
        with pytest.raises(ValueError, match=told):
            _checkpoint.compare(first, _checkpoint.layout_of(c.get(TOPIC)), TOPIC)


def test_the_plugin_disturbs_no_vllm_that_it_does_not_fit(monkeypatch):
    monkeypatch.setattr(dlx.contrib.vllm, "_is_registered", False)
    for name in ("model_executor.model_loader", "distributed.weight_transfer.factory"):
        monkeypatch.setitem(sys.modules, f"vllm.{name}", None)
    with pytest.raises(ImportError):
        dlx.contrib.vllm.register()
    with pytest.warns(RuntimeWarning, match="does not fit this vLLM .*transfer back end dlx are"):
        dlx.contrib.vllm.plugin()


# -- with vLLM -------------------------------------------------------------------------------------


@pytest.fixture
def files(c, tmp_path):
    """A folder with the files of a model, and vLLM with the plugin."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (docs/guide/vllm.md says how it was)")
    from dlx.contrib.vllm import register

    register()
    register()  # vLLM may do so, too
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def expected(weights):
    """The parameters that vLLM makes of a Llama's weights, on one rank."""
    made = {}
    for name, t in weights.items():
        for packed, parts in (("qkv_proj", "qkv"), ("gate_up_proj", ("gate", "up"))):
            for part in parts:
                if f".{part}_proj." in name:
                    made.setdefault(name.replace(f"{part}_proj", packed), []).append(t)
                    break
        if not any(f".{part}_proj." in name for part in ("q", "k", "v", "gate", "up")):
            made[name] = [t]
    return {name: torch.cat(parts) for name, parts in made.items()}


def assert_same(params, weights):
    want = expected(weights)
    assert params.keys() == want.keys()
    assert [name for name in want if not torch.equal(params[name], want[name])] == []


def test_the_first_engine_publishes_the_files_and_the_next_does_not_need_them(files, c):
    weights = vllm_model.write(files)
    config = vllm_model.config_of(files)
    assert_same(vllm_model.load(config), weights)
    topic = "weights" + str(files)
    (there,) = c.publishers(topic)
    assert there["retained"] and there["client_name"] == "vllm"
    msg = c.get(topic)
    assert msg.meta["model"] == str(files) and set(msg) == set(weights)
    (files / "model.safetensors").rename(files / "model.safetensors.away")
    config = vllm_model.config_of(files, extra={"topic": topic})
    assert_same(vllm_model.load(config), weights)
    assert c.publishers(topic)[0]["publisher"] == there["publisher"]


def model_of(config):
    from vllm.model_executor.model_loader import get_model

    with vllm_model.parallel(config):
        return get_model(vllm_config=config)


def outputs_of(files, load_format):
    return vllm_model.outputs_of(model_of(vllm_model.config_of(files, load_format)))


def test_a_model_runs_alike_from_files_and_from_the_topic(files):
    """vLLM's whole way: make, load, pack for this CPU."""
    vllm_model.write(files)
    outputs = [outputs_of(files, load_format) for load_format in ("auto", "dlx")]
    assert torch.equal(*outputs) and outputs[0].std() > 0


def test_files_that_have_changed_are_not_served_as_the_old_ones(files, c):
    vllm_model.write(files)
    vllm_model.load(vllm_model.config_of(files))
    weights = vllm_model.write(files, seed=2)
    topic = "weights" + str(files)
    with pytest.raises(ValueError, match=f"files that have changed since: `dlxctl rm {topic}`"):
        vllm_model.load(vllm_model.config_of(files))
    c.drop_retained(topic)
    assert_same(vllm_model.load(vllm_model.config_of(files)), weights)


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda w: w.pop("model.norm.weight"), "model.norm.weight"),
        (lambda w: w.pop("model.layers.1.mlp.down_proj.weight"), "layers.1.mlp.down_proj.weight"),
        (
            lambda w: w.pop("model.layers.1.self_attn.k_proj.weight"),
            "first is 'model.layers.1.self_attn.k_proj.weight'",
        ),
        (
            lambda w: w.update({"model.layers.0.mlp.down_proj.weight": torch.ones(7, 7)}),
            r"'model.layers.0.mlp.down_proj.weight' \[7, 7\] float32 does not fit into Llama",
        ),
        (
            lambda w: w.update({"model.norm.weight": torch.ones(128).int()}),
            r"'model.norm.weight' \[128\] int32 .*torch.float32, the tensor torch.int32",
        ),
        (
            lambda w: w.update({"model.layers.7.mlp.down_proj.weight": torch.ones(7, 7)}),
            "'model.layers.7.mlp.down_proj.weight'",
        ),
    ],
)
def test_a_set_of_another_model_is_refused(files, c, change, told):
    weights = vllm_model.write(files)
    change(weights)
    retain(c, weights)
    with pytest.raises(ValueError, match=f"(?s){TOPIC}.*{told}"):
        vllm_model.load(vllm_model.config_of(files, extra={"topic": TOPIC}))


def test_the_set_must_have_the_metadata_that_is_asked_for(files, c):
    weights = vllm_model.write(files)
    retain(c, weights, version=2)
    with pytest.raises(ValueError, match=f"{TOPIC} holds a set with version=2.* asks for 3"):
        extra = {"topic": TOPIC, "meta": {"version": 3}}
        vllm_model.load(vllm_model.config_of(files, extra=extra))
    extra = {"topic": TOPIC, "meta": {"version": 2}}
    assert_same(vllm_model.load(vllm_model.config_of(files, extra=extra)), weights)


def test_a_set_of_dlx_weights_is_a_checkpoint(files):
    weights = vllm_model.write(files)
    said = dlx.weights.publish(files / "model.safetensors", TOPIC)
    (files / "model.safetensors").unlink()
    meta = {"fingerprint.content": said["fingerprint.content"]}
    extra = {"topic": TOPIC, "meta": meta, "publish": False}
    assert_same(vllm_model.load(vllm_model.config_of(files, extra=extra)), weights)


def test_extra_config_is_checked_and_publish_false_reads_no_file(files, c):
    vllm_model.write(files)
    with pytest.raises(ValueError, match="has tpoic: its keys are topic, publish"):
        vllm_model.load(vllm_model.config_of(files, extra={"tpoic": TOPIC}))
    with pytest.raises(TimeoutError, match="has no message and no publisher"):
        extra = {"publish": False, "timeout": 0}
        vllm_model.load(vllm_model.config_of(files, extra=extra))
    assert not c.publishers("**")


def test_each_rank_loads_its_part_of_a_set_and_swaps_to_that_of_another(files, c, monkeypatch):
    weights = vllm_model.write(files)
    monkeypatch.setenv("VLLM_DIST_IDENT", f"dlx{os.getpid()}")  # as workers of one engine have it
    new = {name: t + 0.5 for name, t in weights.items()}
    retain(c, new, TOPIC, version=1)
    command = [sys.executable, vllm_model.__file__, files]
    port = str(vllm_model.free_port())
    ranks = [subprocess.Popen([*command, str(i), port, TOPIC]) for i in range(2)]
    assert [rank.wait(START) for rank in ranks] == [0, 0]
    parts = [{n: torch.from_dlpack(t) for n, t in c.get(f"rank/{i}").items()} for i in range(2)]
    name = "model.layers.0.self_attn.qkv_proj.weight"
    want = [
        torch.cat([weights[name.replace("qkv", x)].chunk(2)[i] for x in ("q", "k", "v")])
        for i in range(2)
    ]
    assert all(torch.equal(part[name], w) for part, w in zip(parts, want))
    down = weights["model.layers.1.mlp.down_proj.weight"].chunk(2, dim=1)
    assert all(
        torch.equal(p["model.layers.1.mlp.down_proj.weight"], d) for p, d in zip(parts, down)
    )
    assert len(c.publishers("weights" + str(files))) == 1
    name = name.replace("layers.0", "layers.1")
    for i in range(2):
        swapped = {n: torch.from_dlpack(t) for n, t in c.get(f"swapped/{i}").items()}
        rows = torch.cat([new[name.replace("qkv", x)].chunk(2)[i] for x in ("q", "k", "v")])
        assert torch.allclose(swapped["qkv"], rows.sum(1)[None], rtol=1e-4)
        assert torch.equal(swapped["lm_head"], new["lm_head.weight"].chunk(2)[i])


@pytest.fixture
def plugin(files, tmp_path, monkeypatch):
    """What pip installs for vLLM to find; runs a program, and returns its lines."""
    with open(TESTS.parents[1] / "pyproject.toml", "rb") as f:
        groups = tomllib.load(f)["project"]["entry-points"]
    info = tmp_path / "site" / "dlpackd-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dlpackd\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in points.items())
            for group, points in groups.items()
        )
    )
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}:{os.environ['PYTHONPATH']}")

    def run(*command):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=START,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_vllm_finds_the_plugin_by_its_entry_point(plugin):
    """In a process that does not name it, as all of vLLM's."""
    code = """if True:
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        from vllm.config.load import LoadConfig
        from vllm.model_executor.model_loader import get_model_loader
        print(type(get_model_loader(LoadConfig(load_format="dlx"))).__name__)
    """
    assert plugin("-c", code) == ["DlxModelLoader"]


def test_the_engine_of_the_guide_runs_alike_without_its_files(plugin, files, c, tmp_path):
    """A whole engine, twice: the second one has no checkpoint to read."""
    vllm_model.write(files)
    write_programs("vllm.md", tmp_path)
    tokens = plugin("engine.py", files)[-1].split()
    assert len(tokens) == 8
    (there,) = c.publishers("weights" + str(files))
    assert there["retained"] and there["published"] == 1
    stat = (files / "model.safetensors").stat()
    (files / "model.safetensors").write_bytes(bytes(stat.st_size))  # not read, but looked at
    os.utime(files / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert plugin("engine.py", files)[-1].split() == tokens
