# SPDX-License-Identifier: Apache-2.0
"""dlx.contrib.vllm: the weight transfer engines, with vLLM's factories, models and reloading. All
tests skip where vLLM is missing.
"""

import contextlib
import importlib.util
import signal
import subprocess
import sys
import time

import dlx
import pytest
import vllm_model
from conftest import read_line, run_daemon

if importlib.util.find_spec("vllm") is None:
    pytest.skip(
        "vLLM is not installed (docs/guide/vllm.md says how it was)", allow_module_level=True
    )

import torch  # noqa: E402
from test_contrib_vllm import START, files, model_of, outputs_of, plugin  # noqa: E402
from test_guide import write_programs  # noqa: E402

TOPIC = "weights/policy"


class Direct:
    """A client that calls an engine of this process, as vLLM's workers do."""

    def __init__(self, engine):
        self.engine, self.versions = engine, []

    def init_weight_transfer_engine(self, info):
        self.engine.init_transfer_engine(self.engine.parse_init_info(info))

    def start_weight_update(self):
        self.engine.start_weight_update()

    def update_weights(self, info):
        self.engine.update_weights(info)

    def finish_weight_update(self, weight_version=None):
        self.engine.finish_weight_update()
        self.versions.append(weight_version)


def worker(config, model):
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.v1.worker.cpu_model_runner import _set_torch_accelerator_to_noop

    _set_torch_accelerator_to_noop()  # as a worker on a CPU does
    with vllm_model.parallel(config):
        return WeightTransferEngineFactory.create_engine(
            WeightTransferConfig(backend="dlx"), config, torch.device("cpu"), model
        )


def trainer(client, source, topic=TOPIC, rank=0, **arguments):
    from dlx.contrib.vllm.transfer import DlxTrainerInitInfo
    from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

    if isinstance(source, torch.nn.Module):
        source = ModuleSource(source)
    return WeightTransferTrainerFactory.trainer_init(
        DlxTrainerInitInfo(topic, rank=rank, **arguments), client=client, source=source
    )


def policy(folder):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder)


@pytest.fixture
def engine(files):
    """A model of vLLM, loaded from files, and the worker's side of its engine."""
    vllm_model.write(files)
    config = vllm_model.config_of(files)
    e = worker(config, model_of(config))
    with vllm_model.parallel(config):
        yield e
    e.shutdown()


def test_an_engine_swaps_to_what_the_trainer_sends(engine, files, tmp_path):
    """Its layers compute what those of an engine do that loads the trainer's files."""
    client = Direct(engine)
    model = policy(files)
    train = trainer(client, model)
    pointers = [p.data_ptr() for p in engine.model.parameters()]
    for version in (1, 2):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.01 * version)
        model.save_pretrained(tmp_path / str(version))
        train.send_weights()
        want = outputs_of(tmp_path / str(version), "auto")
        assert torch.equal(vllm_model.outputs_of(engine.model), want)
        assert engine.version == version
    assert client.versions == ["1", "2"]
    # CUDA graphs would find them where they were.
    assert [p.data_ptr() for p in engine.model.parameters()] == pointers
    assert train._publisher.stats()["copied"] == 0
    train.shutdown()


def test_engines_swap_when_they_are_ready(engine, files, c):
    """The first engine is two versions ahead of the second, whose model nothing disturbs."""
    from vllm.config import set_current_vllm_config

    config = vllm_model.config_of(files)
    other = worker(config, model_of(config))
    first, second = Direct(engine), Direct(other)
    model = policy(files)
    train = trainer(first, model, versions=2)
    train.init_engine(second)
    old = vllm_model.outputs_of(other.model)
    outputs = {}
    for version in (1, 2):
        with torch.no_grad():
            model.lm_head.weight.add_(0.5)
        assert train.publish_weights() == version
        train.swap(first, version)
        outputs[version] = vllm_model.outputs_of(engine.model)
    assert torch.equal(vllm_model.outputs_of(other.model), old)
    with set_current_vllm_config(config):
        train.swap(second, 1)
    assert torch.equal(vllm_model.outputs_of(other.model), outputs[1])
    with set_current_vllm_config(config):
        second.update_weights({})  # the newest
    assert other.version == 2 and torch.equal(vllm_model.outputs_of(other.model), outputs[2])
    train.publish_weights()
    with pytest.raises(ValueError, match="retains version 2, 3, and 1 is gone"):
        train.swap(first, 1)
    with pytest.raises(TimeoutError, match="up to 3, and not 4"):
        first.update_weights({"version": 4, "timeout": 0})
    assert torch.equal(vllm_model.outputs_of(engine.model), outputs[2])
    train.shutdown()
    other.shutdown()


def test_a_version_that_does_not_fit_leaves_the_model_as_it_was(engine, files, c):
    client = Direct(engine)
    with pytest.raises(RuntimeError, match="call init_weight_transfer_engine"):
        client.update_weights({"version": 1})
    with pytest.raises(ValueError, match="Invalid update_info"):
        client.update_weights({"verison": 1})
    model = policy(files)
    train = trainer(client, model)
    train.send_weights()
    was = vllm_model.outputs_of(engine.model)
    model.model.norm.weight = torch.nn.Parameter(torch.ones(7))
    with pytest.raises(ValueError, match=r"norm.weight' is \(7,\) float32 and was \(128,\)"):
        train.send_weights()
    assert torch.equal(vllm_model.outputs_of(engine.model), was) and engine.version == 1
    model.model.norm.weight = torch.nn.Parameter(torch.ones(128) * 2)
    train.send_weights()
    assert engine.version == 3
    train.shutdown()


def test_a_first_version_that_does_not_fit_is_refused(engine, files):
    model = policy(files)
    model.model.layers[1].mlp.down_proj = torch.nn.Linear(3, 3, bias=False)
    train = trainer(Direct(engine), model)
    with pytest.raises(ValueError, match=r"down_proj.weight' \[3, 3\] float32 does not fit") as e:
        train.send_weights()
    assert "some layers may be new" in e.value.__notes__[0] and engine.version is None
    model = policy(files)
    train.source._module = model
    train.send_weights()  # the engine is still of use
    assert torch.equal(vllm_model.outputs_of(engine.model), outputs_of(files, "auto"))
    train.shutdown()


def test_a_version_without_some_tensors_is_refused_or_accepted_if_asked(engine, files):
    """As of a Gemma 4, whose files have no v_proj where it is k_proj."""
    model = policy(files)
    was = vllm_model.outputs_of(engine.model)
    del model.model.layers[1].self_attn.v_proj.weight
    train = trainer(Direct(engine), model)
    told = r"lacks 1 .*layers.1.self_attn.v_proj.weight'.*set allow_missing"
    with pytest.raises(ValueError, match=told) as e:
        train.send_weights()
    assert not hasattr(e.value, "__notes__")
    assert torch.equal(vllm_model.outputs_of(engine.model), was) and engine.version is None
    train.shutdown()
    train = trainer(Direct(engine), model, allow_missing=True)
    train.send_weights()
    assert engine.version == train.version == 2
    train.shutdown()


def test_ranks_are_told_a_version(engine, files):
    client = Direct(engine)
    train = trainer(client, policy(files))
    engine.parallel_config.world_size = 2
    with pytest.raises(ValueError, match="an engine of 2 ranks swaps to a version that is named"):
        client.update_weights({})
    train.shutdown()


def test_a_source_that_cannot_be_sent_is_refused(engine, files, c):
    from vllm.distributed.weight_transfer import ModuleSource

    class Part(ModuleSource):
        def held_names(self):
            return ["lm_head.weight"]

    class Short(ModuleSource):
        def __iter__(self):
            return iter(list(super().__iter__())[:-1])

    class Other(ModuleSource):
        n = 0

        def __iter__(self):
            for name, tensor in super().__iter__():
                yield name, tensor[:1]
                self.n += 1

    client, model = Direct(engine), policy(files)
    with pytest.raises(ValueError, match="needs a WeightSource"):
        trainer(client, None)
    with pytest.raises(ValueError, match="ranks hold parts of the model"):
        trainer(client, Part(model))
    train = trainer(client, Short(model))
    with pytest.raises(ValueError, match="1 tensors of the metadata did not come, as 'lm_head"):
        train.send_weights()
    train.source = Other(model)
    with pytest.raises(ValueError, match="'model.embed_tokens.weight' .* not in the metadata so"):
        train.send_weights()
    assert train.source.n == len(train.source.metadata())  # the other ranks wait for no step
    assert c.publishers(TOPIC)[0]["published"] == 0
    with pytest.raises(ValueError, match=f'{TOPIC} has a trainer, "trainer"'):
        trainer(client, model)
    other = trainer(client, model, rank=1)  # gathers, and publishes nothing
    other.send_weights()
    assert other.version == 1 and engine.version is None
    train.shutdown()


def test_a_version_beyond_the_quota_is_refused(engine, files, tmp_path, monkeypatch):
    from vllm.distributed.weight_transfer import ModuleSource

    class Counting(ModuleSource):
        n = 0

        def __iter__(self):
            for item in super().__iter__():
                yield item
                self.n += 1

    small = tmp_path / "small"
    small.mkdir()
    monkeypatch.setenv("DLX_SOCKET", str(small / "s"))
    with run_daemon(small, "--memory-limit=1MiB"):
        train = trainer(Direct(engine), Counting(policy(files)))
        with pytest.raises(dlx.LimitError) as refused:
            train.send_weights()
        assert train.source.n == len(train.source.metadata())  # the other ranks wait for no step
        assert "were not published: raise the limit" in refused.value.__notes__[0]
        assert train.version == 0 and engine.version is None
        train.shutdown()
        engine.shutdown()


TRAINER = """if True:
    import sys
    import torch
    from dlx.contrib.vllm import register
    from dlx.contrib.vllm.transfer import DlxTrainerInitInfo, DlxTrainerWeightTransferEngine
    from vllm.distributed.weight_transfer import ModuleSource

    class Stopping(ModuleSource):
        def __iter__(self):
            for i, item in enumerate(super().__iter__()):
                if i == self.stop:
                    print("filling", flush=True)
                    sys.stdin.read()
                yield item

    class Client:
        def init_weight_transfer_engine(self, info): pass

    register()
    source = Stopping(torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))))
    source.stop = -1
    train = DlxTrainerWeightTransferEngine.trainer_init(
        DlxTrainerInitInfo("weights/policy", rank=0), client=Client(), source=source
    )
    train.publish_weights()
    source.stop = 5
    train.publish_weights()
"""


def test_a_trainer_that_is_killed_while_it_publishes_leaves_the_version_before(engine, files, c):
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert read_line(process.stdout, process) == "filling"
        process.send_signal(signal.SIGKILL)
    msg = c.get(TOPIC)
    assert msg.meta == {"version": 1} and len(msg) == 8
    train = trainer(Direct(engine), policy(files))
    assert train.version == 1
    train.send_weights()
    assert engine.version == 2
    train.shutdown()


def test_20000_tensors_are_one_version(engine, c):
    """Of a model whose layers are loaded as those of vLLM are."""
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    class Many(torch.nn.Module):
        def __init__(self, value):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.ParameterDict() for _ in range(200))
            for layer in self.layers:
                for i in range(100):
                    p = torch.nn.Parameter(torch.full((64,), value), requires_grad=False)
                    layer[f"w{i}"] = p

        def load_weights(self, weights):
            loaded = set()
            for name, tensor in weights:
                p = self.get_parameter(name)
                getattr(p, "weight_loader", default_weight_loader)(p, tensor)
                loaded.add(name)
            return loaded

    model = Many(0.0)
    record_metadata_for_reloading(model)
    engine.set_weight_update_target(model, engine.model_config)
    client = Direct(engine)
    train = trainer(client, Many(7.0))
    begin = time.monotonic()
    version = train.publish_weights()
    published = time.monotonic()
    train.swap(client, version)
    print(
        f"published in {published - begin:.2f} s, swapped in {time.monotonic() - published:.2f} s"
    )
    assert len(c.get(TOPIC)) == 20000
    assert all(bool((p == 7).all()) for p in model.parameters())
    assert sum(1 for _ in model.parameters()) == 20000
    train.shutdown()


def ask(url, **body):
    import requests

    return requests.post(f"{url}/v1/completions", json=body, timeout=START)


def test_a_server_swaps_to_what_the_trainer_of_the_guide_sends(
    plugin, files, tmp_path, monkeypatch
):
    """A whole server and a trainer, in processes of their own."""
    import requests

    vllm_model.write(files)
    write_programs("vllm.md", tmp_path)
    port = vllm_model.free_port()
    url = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    arguments = (
        f"--model {files} --load-format dlx --port {port} --dtype float32 --max-model-len 64"
    )
    config = ["--weight-transfer-config", '{"backend": "dlx"}']
    switches = ["--enforce-eager", "--skip-tokenizer-init", "--host", "127.0.0.1"]
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        *arguments.split(),
        *config,
    ]
    with open(tmp_path / "server.log", "wb") as log:
        server = subprocess.Popen([*command, *switches], stdout=log, stderr=log, cwd=tmp_path)
    try:
        deadline = time.monotonic() + START
        while True:
            assert server.poll() is None and time.monotonic() < deadline, log_of(tmp_path)
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"{url}/health", timeout=START).ok:
                    break
            time.sleep(0.1)  # lint-allow: sleep: before the next attempt

        def tokens():
            body = {"model": str(files), "prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0}
            (choice,) = ask(url, **body, return_token_ids=True).json()["choices"]
            return choice["token_ids"]

        before = tokens()
        said = plugin("trainer.py", files, url)
        assert said == [f"{url} has version 1", f"{url} has version 2"]
        model = policy(files)
        torch.manual_seed(0)
        for _ in range(2):
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(torch.randn_like(p), alpha=0.05)
        prompt = torch.tensor([[1, 2, 3]])
        out = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None)
        assert tokens() == out[0, 3:].tolist() != before
    finally:
        server.terminate()
        server.wait(START)


def log_of(folder):
    return (folder / "server.log").read_text()
