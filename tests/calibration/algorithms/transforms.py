# SPDX-License-Identifier: BSD-3-Clause
"""What the transforms' tests share: inputs with outliers, and the error of a layer's output."""

import numpy as np
import torch
from torch import Tensor

import blockscale as bs
from blockscale.calibration.input_stats import InputStats, InputStatsCollector
from blockscale.layers.before import Before

N, K, ROWS = 8, 24, 40


def stats_of(x: Tensor) -> InputStats:
    """What calibration knows of inputs x [rows, k]."""
    gathered = InputStatsCollector(x.shape[-1], x.device)
    gathered.add(x)
    return gathered.result()


def outlying(seed: int = 0, k: int = K, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """A weight [N, k], and inputs [rows, k] of which one feature in 24 is ten times the others."""
    draw = torch.Generator().manual_seed(seed)
    weight, x = (torch.randn(n, k, generator=draw) for n in (N, rows))
    x[:, 5 % k :: 24] *= 10
    return weight, x


def error(before: Before | None, weight: Tensor, x: Tensor, fmt: str, given: str | None) -> float:
    """Sum (x w - Q(x') Q(w'))², summed by numpy in float64."""
    moved, inputs = weight, x
    if before is not None:
        moved, inputs = before.to_weight(weight), before(x)
    moved = bs.quantize(moved, fmt).dequantize()
    if given is not None:
        inputs = bs.quantize(inputs, given).dequantize()
    a, b, c, d = (t.double().numpy() for t in (x, weight, inputs, moved))
    return float(np.square(a @ b.T - c @ d.T).sum())
