# SPDX-License-Identifier: Apache-2.0
"""A small model with random weights for tests of dlx.contrib.vllm, and vLLM's way to load it on a
CPU without an engine.

    vllm_model.py FOLDER RANK PORT TOPIC    one of two ranks loads it, and publishes its part on
                                            rank/RANK; swaps to version 1 of the topic, and
                                            publishes what its layers make of ones on swapped/RANK
"""

import contextlib
import os
import socket
import sys

os.environ.update(
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_LOGGING_STREAM="ext://sys.stderr",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
)


def write(folder, seed=1, **changes):
    """Writes the files of a Llama of 1 MiB; returns its weights by name."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 256}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**{**shape, **layers, "max_position_embeddings": 128, **changes})
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def config_of(folder, load_format="dlx", extra=None, tensor_parallel_size=1):
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=64,
        load_format=load_format,
        model_loader_extra_config=extra or {},
        tensor_parallel_size=tensor_parallel_size,
    ).create_engine_config()


def free_port():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def parallel(config, rank=0, port=None):
    """The context in which vLLM's workers make a model: this process is a rank of it."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    size = config.parallel_config.tensor_parallel_size
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():  # once in a process
            address = f"tcp://127.0.0.1:{port or free_port()}"
            init_distributed_environment(size, rank, address, rank, backend="gloo")
            initialize_model_parallel(size)
        config.compilation_config.static_forward_context.clear()
        yield


def outputs_of(model):
    """What the layers make of numbers, as they are packed for this CPU."""
    import torch

    with torch.inference_mode():
        layer = model.model.layers[1]
        x = model.model.embed_tokens(torch.arange(8))
        qkv, _ = layer.self_attn.qkv_proj(layer.input_layernorm(x))
        return torch.cat([qkv, model.compute_logits(model.model.norm(layer.mlp(x)))], 1)


def load(config, **of_rank):
    """Returns the parameters by name as vLLM's loader leaves them, before layers are packed for
    this CPU.
    """
    import torch
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model

    with parallel(config, **of_rank):
        model = initialize_model(vllm_config=config)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(float("nan"))
        get_model_loader(config.load_config).load_weights(model, config.model_config)
    return {name: p.detach() for name, p in model.named_parameters()}


def swap(config, topic, **of_rank):
    """Returns the outputs of layers of an engine that has swapped to version 1 of a topic."""
    import torch
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.model_executor.model_loader import get_model
    from vllm.v1.worker.cpu_model_runner import _set_torch_accelerator_to_noop

    _set_torch_accelerator_to_noop()  # as a worker on a CPU does
    with parallel(config, **of_rank):
        model = get_model(vllm_config=config)
        engine = WeightTransferEngineFactory.create_engine(
            WeightTransferConfig(backend="dlx"), config, torch.device("cpu"), model
        )
        engine.init_transfer_engine(engine.parse_init_info({"topic": topic}))
        engine.update_weights({"version": 1})
        with torch.inference_mode():
            qkv, _ = model.model.layers[1].self_attn.qkv_proj(torch.ones(1, 128))
        return {"qkv": qkv.clone(), "lm_head": model.lm_head.weight.detach()}


def main(folder, rank, port, topic):
    import dlx
    from dlx.contrib.vllm import register

    register()
    config = config_of(folder, tensor_parallel_size=2)
    with dlx.connect() as c:
        with c.publisher(f"rank/{rank}", retain=1) as pub:
            pub.publish(load(config, rank=rank, port=port))
        with c.publisher(f"swapped/{rank}", retain=1) as pub:
            pub.publish(swap(config, topic, rank=rank))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4])
