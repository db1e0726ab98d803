# SPDX-License-Identifier: Apache-2.0
"""dlx for vLLM: engines take their weights from a retained set in shared memory, and new ones from
a trainer on the same machine.

    vllm serve MODEL --load-format dlx                                # loader.py
    vllm serve MODEL --weight-transfer-config '{"backend": "dlx"}'    # transfer.py

vLLM finds plugin() by the entry point group "vllm.general_plugins" and calls it in each of its
processes. A trainer calls register() itself. Tested with vLLM 0.32.
"""

import warnings

__all__ = ["register"]

_is_registered = False


def register() -> None:
    """Registers the load format and the weight transfer engines "dlx" with vLLM. May be called
    again.
    """
    global _is_registered
    if _is_registered:  # vLLM refuses, or warns of, a name that is taken
        return
    from vllm.distributed.weight_transfer.factory import (
        WeightTransferEngineFactory,
        WeightTransferTrainerFactory,
    )
    from vllm.model_executor.model_loader import register_model_loader

    from .loader import DlxModelLoader

    register_model_loader("dlx")(DlxModelLoader)
    transfer = f"{__name__}.transfer"  # imported when it is used
    WeightTransferEngineFactory.register_engine("dlx", transfer, "DlxWeightTransferEngine")
    WeightTransferTrainerFactory.register_engine("dlx", transfer, "DlxTrainerWeightTransferEngine")
    _is_registered = True


def plugin() -> None:
    """Does as register(), but only warns if this vLLM lacks what dlx extends: every process of
    vLLM calls it, also where dlx is not used.
    """
    try:
        register()
    except ImportError as e:
        warnings.warn(
            f"dlpackd's plugin does not fit this vLLM ({e}): the load format and the weight "
            "transfer back end dlx are missing",
            RuntimeWarning,
            stacklevel=2,
        )
