# SPDX-License-Identifier: Apache-2.0
"""The weight transfer engines "dlx": a trainer publishes each version of its weights as one set,
and the engines of the machine swap to it, each when it is told to.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import nn
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger

import dlx

from . import _checkpoint, _topic
from .loader import check_loaded

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger("vllm.dlx")


@dataclass
class DlxWeightTransferInitInfo(WeightTransferInitInfo):
    """What a worker is told once."""

    topic: str


@dataclass
class DlxWeightTransferUpdateInfo(WeightTransferUpdateInfo):
    """What a worker is told to swap to. No version: the newest one, for engines of one rank."""

    version: int | None = None
    timeout: float = 60.0  # seconds to wait for that version
    allow_missing: bool = False  # accept a version without some of the model's tensors


class DlxWeightTransferEngine(
    WeightTransferEngine[DlxWeightTransferInitInfo, DlxWeightTransferUpdateInfo]
):
    """A worker's side. All of a swap is in update_weights(): between the worker's steps, so that no
    step sees two versions.
    """

    init_info_cls = DlxWeightTransferInitInfo
    update_info_cls = DlxWeightTransferUpdateInfo
    supports_draft_weight_update = False  # has not run

    def __init__(
        self,
        config: WeightTransferConfig,
        vllm_config: "VllmConfig",
        device: torch.device,
        model: nn.Module,
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._connection: dlx.Connection | None = None
        self._topic = ""
        self._layout: _checkpoint.Layout = {}
        self.version: int | None = None  # that the model has; None: that of the loader

    def init_transfer_engine(self, init_info: DlxWeightTransferInitInfo) -> None:
        self.shutdown()
        self._connection = dlx.connect(name="vllm")
        self._topic = init_info.topic

    def start_weight_update(self) -> None:
        pass

    def finish_weight_update(self) -> None:
        pass

    def shutdown(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def receive_weights(self, update_info: DlxWeightTransferUpdateInfo) -> None:
        if self._connection is None:
            raise RuntimeError("no topic yet: call init_weight_transfer_engine() first")
        if update_info.version is None and self.parallel_config.world_size > 1:
            raise ValueError(
                f"an engine of {self.parallel_config.world_size} ranks swaps to a version that is "
                "named, or each rank could find another newest one: give `version`"
            )
        begin = time.monotonic()
        msg = _topic.version_of(
            self._connection, self._topic, update_info.version, update_info.timeout
        )
        layout = _checkpoint.layout_of(msg)
        _checkpoint.compare(self._layout, layout, self._topic)
        if not update_info.allow_missing:
            _checkpoint.check_parts(self.model, msg)
        found = time.monotonic()
        self._load(msg, update_info.allow_missing)
        self._layout, self.version = layout, msg.meta["version"]
        logger.info(
            "Swapped to version %d of topic %s, %d tensors: found in %.3f s, loaded in %.3f s",
            self.version,
            self._topic,
            len(msg),
            found - begin,
            time.monotonic() - found,
        )

    def _load(self, msg: dlx.Message, allow_missing: bool) -> None:
        """Loads as vLLM does from a trainer's checkpoint: into tensors of the checkpoint's form,
        which are packed for the kernels, and copied to where the model's tensors are.
        """
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        check = None if allow_missing else partial(check_loaded, self.model)
        initialize_layerwise_reload(self.model)
        try:
            with disable_mtp_completeness_check():
                _checkpoint.load(self.model, msg, check)
        except Exception as e:
            e.add_note("some layers may be new, and the others old: swap to a version that fits")
            raise
        finally:
            finalize_layerwise_reload(self.model, self.model_config)


@dataclass
class DlxTrainerInitInfo(TrainerInitInfo):
    """topic: where the versions go; versions: how many the topic keeps side by side; allow_missing:
    engines accept versions without some of the model's tensors.
    """

    backend: ClassVar[str] = "dlx"
    topic: str
    versions: int = 2
    allow_missing: bool = False


class DlxTrainerWeightTransferEngine(TrainerWeightTransferEngine[DlxTrainerInitInfo]):
    """A trainer's side. send_weights() publishes a version, and has the engine of `client` swap to
    it. For several engines, each at its own time:

        version = engine.publish_weights()
        for client in clients:                  # the first time: engine.init_engine(client)
            engine.swap(client, version)
    """

    init_info_cls = DlxTrainerInitInfo

    def __init__(
        self, init_info: DlxTrainerInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource
    ) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self.topic, self.version = init_info.topic, 0
        self.allow_missing = init_info.allow_missing
        self._publisher: dlx.Publisher | None = None
        if self.is_sender:
            self._connection = c = dlx.connect(name="trainer")
            live = [p for p in c.publishers(self.topic) if not p["retained"]]
            if live:
                raise ValueError(
                    f'topic {self.topic} has a trainer, "{live[0]["client_name"]}" (process '
                    f"{live[0]['pid']}): end it, or give this one another topic"
                )
            n = init_info.versions
            self._publisher = c.publisher(self.topic, retain=n, history=n)
            self.version = _topic.last_version(c, self.topic)

    @classmethod
    def trainer_init(
        cls,
        init_info: DlxTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        if source is None:
            raise ValueError("the trainer's engine dlx needs a WeightSource: give `source`")
        if source.held_names() is not None:
            raise ValueError(
                "this trainer's ranks hold parts of the model, and rank 0 publishes it alone: give "
                "a source that gathers each tensor, as ModuleSource does for FSDP"
            )
        engine = cls(init_info, client=client, source=source)
        if engine.is_sender:
            engine.init_engine(client)
        return engine

    def init_engine(self, client: VLLMWeightSyncClient) -> None:
        """Tells another engine the topic."""
        client.init_weight_transfer_engine({"topic": self.topic})

    def publish_weights(self) -> int:
        """Publishes the source's tensors as the next version. Every rank of the trainer calls it;
        what rank 0 returns is the version's number. Raises dlx.LimitError and dlx.NoMemory, on rank
        0 alone: engines keep what they have.
        """
        assert self.source is not None
        metadata = self.source.metadata()
        weights = iter(self.source)
        try:
            if self._publisher is not None:
                tensors = self._copy(self._publisher, metadata, weights)
        finally:  # each step may gather, for which all ranks wait
            for _ in weights:
                pass
        if self._publisher is not None:
            self._publisher.publish(tensors, meta={"version": self.version + 1}, strict=True)
        self.version += 1
        return self.version

    def _copy(
        self,
        publisher: dlx.Publisher,
        metadata: list[ParamMeta],
        weights: Iterator[tuple[str, torch.Tensor]],
    ) -> dict[str, dlx.Tensor]:
        """Returns the tensors as copies in shared memory."""
        shapes = {m.name: torch.zeros((), dtype=m.dtype).expand(m.shape) for m in metadata}
        try:
            tensors: dict[str, dlx.Tensor] = publisher.empty_like(shapes)
        except (dlx.LimitError, dlx.NoMemory) as e:
            e.add_note(_topic.size_note(self.topic, shapes))
            raise
        left = dict.fromkeys(tensors)
        for name, tensor in weights:
            if name not in left or tensor.shape != tensors[name].shape:
                raise ValueError(f"{name!r} {list(tensor.shape)} is not in the metadata so")
            torch.from_dlpack(tensors[name]).copy_(tensor.detach())
            del left[name]
        if left:
            raise ValueError(f"{len(left)} tensors of the metadata did not come, as {min(left)!r}")
        return tensors

    def swap(self, client: VLLMWeightSyncClient, version: int) -> None:
        """Has an engine swap to a version that the topic retains."""
        client.start_weight_update()
        client.update_weights({"version": version, "allow_missing": self.allow_missing})
        client.finish_weight_update(str(version))

    def send_weights(self) -> None:
        version = self.publish_weights()
        if self.is_sender:
            self.swap(self.client, version)

    def shutdown(self) -> None:
        """Leaves the topic, which retains the newest versions."""
        if self._publisher is not None:
            self._publisher.close()
            self._connection.close()
            self._publisher = None
