# SPDX-License-Identifier: BSD-3-Clause
"""Four-bit weights by others' code, on the same model and batches: torchao and AutoRound.

Both choose integers of 4 bits in groups of 32 for the linear layers of the model's blocks, and
leave tables in float, as our preset w4a16 does. AutoRound takes rows of one length without padding,
so it sees the same sentences one after another.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Batches = list[dict[str, Tensor]]
LENGTH = 64  # tokens of a row that AutoRound takes
STEPS = 200  # of AutoRound's descent for each block: its default


def torchao_rounded(model: nn.Module, _: Batches) -> nn.Module:
    """torchao's IntxWeightOnlyConfig as it is: rounding to nearest."""
    return _torchao(model, "affine")


def torchao_hqq(model: nn.Module, _: Batches) -> nn.Module:
    """torchao's scales by half-quadratic descent, which needs no data."""
    return _torchao(model, "hqq_scale_only")


def _torchao(model: nn.Module, scales: str) -> nn.Module:
    from torchao.quantization import IntxWeightOnlyConfig, quantize_  # type: ignore[import-untyped]
    from torchao.quantization.granularity import PerGroup  # type: ignore[import-untyped]

    made = copy.deepcopy(model)
    config = IntxWeightOnlyConfig(
        weight_dtype=torch.int4,  # type: ignore[attr-defined]
        granularity=PerGroup(32), scale_dtype=torch.float16,
        intx_choose_qparams_algorithm=scales,
    )  # fmt: skip
    quantize_(made, config)
    return made


def auto_round(model: nn.Module, batches: Batches) -> nn.Module:
    """AutoRound with its defaults: symmetric, 200 steps a block."""
    from auto_round import AutoRound  # type: ignore[import-not-found]

    rows = _rows(batches)
    given: list[dict[str, Tensor]] = [
        {"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in rows
    ]
    made: Any = AutoRound(
        copy.deepcopy(model), tokenizer=_NoWords(), bits=4, group_size=32, sym=True, dataset=given,
        iters=STEPS, seqlen=LENGTH, nsamples=len(given), batch_size=8, device_map="cpu", amp=False,
        enable_torch_compile=False,
    ).quantize()  # fmt: skip
    quantized: nn.Module = made[0] if isinstance(made, tuple) else made
    return quantized.float().eval()


class _NoWords:
    """In the place of a tokenizer, which AutoRound asks for and does not need for tokens."""


def _rows(batches: Batches) -> Tensor:
    """The batches' tokens without padding, one sentence after another: [rows, LENGTH]."""
    ids = torch.cat([b["input_ids"][b["attention_mask"].bool()] for b in batches])
    return ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)


PEERS: dict[str, Callable[[nn.Module, Batches], nn.Module]] = {
    "torchao": torchao_rounded,
    "torchao hqq": torchao_hqq,
    "AutoRound": auto_round,
}
