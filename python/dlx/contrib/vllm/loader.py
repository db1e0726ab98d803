# SPDX-License-Identifier: Apache-2.0
"""The load format "dlx": the checkpoint is a retained set, in memory once for all engines of a
machine. The first engine reads the files and publishes them; the others, and those that start
later, copy from shared memory what their rank needs.
"""

import hashlib
import os
import re
import time
from functools import partial
from typing import Any

from torch import nn
from vllm.config import ModelConfig
from vllm.config.load import LoadConfig
from vllm.config.utils import replace
from vllm.logger import init_logger
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

import dlx

from . import _checkpoint, _topic

logger = init_logger("vllm.dlx")  # below "vllm", whose logging is set up


def topic_of(model_config: ModelConfig) -> str:
    """Returns the topic of a model's checkpoint, if the loader was given none."""
    name = "/".join(filter(None, (str(model_config.model), model_config.revision)))
    return "weights/" + re.sub(r"/+", "/", re.sub(r"[^A-Za-z0-9_./-]", "_", name)).strip("/")


def _files_of(model_config: ModelConfig) -> str | None:
    """Returns a fingerprint of the names, sizes and times of a checkpoint's files; None for a model
    that is not in a folder of this machine.
    """
    folder = str(model_config.model)
    if not os.path.isdir(folder):
        return None
    stats = (
        (e.name, e.stat().st_size, e.stat().st_mtime_ns)
        for e in os.scandir(folder)
        if e.name.endswith((".safetensors", ".bin", ".pt", ".pth"))
    )
    return hashlib.sha256(repr(sorted(stats)).encode()).hexdigest()


class DlxModelLoader(BaseModelLoader):
    """Loads the set that a topic retains; publishes it first, if no other process has.

    Keys of --model-loader-extra-config:

    topic          of the checkpoint; left out: weights/MODEL, and then the set must be of the files
                   that the model's folder has now
    publish        false: never read files, but wait for another process that publishes (true)
    timeout        seconds to wait for weights that another process publishes (600)
    meta           what the metadata of the set must contain, such as {"version": 3}
    allow_missing  true: accept a set without some of the model's tensors (false)
    """

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        extra: dict[str, Any] = dict(load_config.model_loader_extra_config or {})
        self.topic: str | None = extra.pop("topic", None)
        self.publish: bool = extra.pop("publish", True)
        self.timeout: float = float(extra.pop("timeout", 600))
        self.meta: dict[str, object] = extra.pop("meta", {})
        self.allow_missing: bool = extra.pop("allow_missing", False)
        if extra:
            raise ValueError(
                f"model_loader_extra_config of load format dlx has {', '.join(sorted(extra))}: its "
                "keys are topic, publish, timeout, meta and allow_missing"
            )

    def download_model(self, model_config: ModelConfig) -> None:
        if self.publish:
            self._files().download_model(model_config)

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        begin = time.monotonic()
        topic = self.topic or topic_of(model_config)
        read = partial(self._read, model, model_config) if self.publish else None
        with dlx.connect(name="vllm") as c:
            msg = _topic.get_or_publish(c, topic, read, self.timeout)
        self._check_meta(msg, model_config)
        found = time.monotonic()
        if not self.allow_missing:
            _checkpoint.check_parts(model, msg)
        _checkpoint.load(model, msg, None if self.allow_missing else partial(check_loaded, model))
        logger.info(
            "Loaded %d tensors of topic %s: found in %.3f s, copied in %.3f s",
            len(msg),
            topic,
            found - begin,
            time.monotonic() - found,
        )

    def _files(self) -> DefaultModelLoader:
        return DefaultModelLoader(
            replace(self.load_config, load_format="auto", model_loader_extra_config={})
        )

    def _read(
        self, model: nn.Module, model_config: ModelConfig
    ) -> tuple[dict[str, object], dict[str, object]]:
        """Returns all tensors of the files, which are mapped and not read yet, and metadata."""
        meta = {
            "model": str(model_config.model),
            "revision": model_config.revision,
            "files": _files_of(model_config),
        }
        return dict(self._files().get_all_weights(model_config, model)), meta

    def _check_meta(self, msg: dlx.Message, model_config: ModelConfig) -> None:
        meta = msg.meta if isinstance(msg.meta, dict) else {}
        for key, value in self.meta.items():
            if meta.get(key) != value:
                raise ValueError(
                    f"{msg.topic} holds a set with {key}={meta.get(key)!r}, and the loader's extra "
                    f"config asks for {value!r}: publish that one"
                )
        files = None if self.topic else _files_of(model_config)
        if files and meta.get("files") not in (None, files):
            raise ValueError(
                f"{msg.topic} was read from files that have changed since: `dlxctl rm {msg.topic}` "
                "removes it, and the next engine publishes those of now"
            )


def check_loaded(model: nn.Module, loaded: set[str]) -> None:
    """Raises ValueError if a parameter that a checkpoint can have was not loaded. quantized=True is
    vLLM's strict check, also right for models that are not quantized.
    """
    DefaultModelLoader(LoadConfig()).track_weights_loading(model, loaded, quantized=True)
