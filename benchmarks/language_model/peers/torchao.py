# SPDX-License-Identifier: BSD-3-Clause
"""torchao's weight-only integers: min and max, or its HQQ. The package: torchao 0.18."""

import re

import torch
from torch import Tensor, nn
from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_
from torchao.quantization.quantize_.workflows.intx.intx_choose_qparams_algorithm import (
    IntxChooseQParamsAlgorithm,
)

from benchmarks.language_model.peers import linears
from benchmarks.language_model.settings import Setting

HQQ = IntxChooseQParamsAlgorithm.HQQ_SCALE_ONLY
AFFINE = IntxChooseQParamsAlgorithm.AFFINE


def quantize(model: nn.Module, setting: Setting, _: Tensor) -> tuple[nn.Module, float]:
    """Symmetric integers in groups, scales in float32; bits count the codes as packed."""
    bits, group = map(int, re.findall(r"\d+", setting.weight))
    config = IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, f"int{bits}"),
        granularity=PerGroup(group),
        intx_choose_qparams_algorithm=HQQ if setting.algorithm == "hqq" else AFFINE,
    )
    chosen = linears(model)
    quantize_(model, config, filter_fn=lambda _, name: name in chosen)
    scale_bits = 0
    for layer in linears(model).values():
        q = layer.weight
        scale_bits += 8 * q.scale.nbytes
        layer.weight = nn.Parameter(q.dequantize().float(), requires_grad=False)
    count = sum(layer.weight.numel() for layer in linears(model).values())
    return model, bits + scale_bits / count
