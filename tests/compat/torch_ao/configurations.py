# SPDX-License-Identifier: BSD-3-Clause
"""Observers and a configuration that several tests of blockscale.compat.torch_ao use."""

from typing import Any

import torch

from blockscale.compat.torch_ao import (
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    QConfig,
)

SYMMETRIC, AFFINE = torch.per_tensor_symmetric, torch.per_tensor_affine


def given(dtype: torch.dtype, qscheme: torch.qscheme, *limits: int, **more: Any) -> dict[str, Any]:
    """An observer's arguments."""
    ends = dict(zip(("quant_min", "quant_max"), limits, strict=False))
    return {"dtype": dtype, "qscheme": qscheme, **ends, **more}


FORMATS: list[tuple[dict[str, Any], str]] = [
    (given(torch.quint8, AFFINE), "uint8:tensor:fp32:asym:recip"),
    (given(torch.qint8, AFFINE), "int8:tensor:fp32:asym:recip"),
    (given(torch.qint8, SYMMETRIC), "int8:tensor:fp32:half:recip"),
    (given(torch.int8, SYMMETRIC), "int8:tensor:fp32:half:recip"),
    (given(torch.quint8, SYMMETRIC), "int8:tensor:fp32:half:recip"),
    (given(torch.qint8, SYMMETRIC, reduce_range=True), "int7:tensor:fp32:half:recip"),
    (given(torch.quint8, AFFINE, reduce_range=True), "uint7:tensor:fp32:asym:recip"),
    (given(torch.int16, SYMMETRIC), "int16:tensor:fp32:half:recip"),
    (given(torch.quint8, AFFINE, 0, 15), "uint4:tensor:fp32:asym:recip"),
    (given(torch.quint8, SYMMETRIC, 0, 254), "int8:tensor:fp32:recip"),
    (given(torch.qint8, SYMMETRIC, -127, 127), "int8:tensor:fp32:recip"),
    (given(torch.qint8, SYMMETRIC, -8, 7), "int4:tensor:fp32:half:recip"),
    (given(torch.qint8, AFFINE, -2, 1), "int2:tensor:fp32:asym:recip"),
]
BY_CHANNEL = {SYMMETRIC: torch.per_channel_symmetric, AFFINE: torch.per_channel_affine}
CHANNELS = [
    ({**arguments, "qscheme": BY_CHANNEL[arguments["qscheme"]]}, fmt.replace("tensor", "channel0"))
    for arguments, fmt in FORMATS
]


def qconfig(bits: int) -> QConfig:
    """One of as many different ones as there are ranges."""
    half = 2 ** (bits - 1)
    weight = MinMaxObserver.with_args(**given(torch.qint8, SYMMETRIC, -half, half - 1))
    return QConfig(MovingAverageMinMaxObserver.with_args(power_of_2_scale=True), weight)
