# SPDX-License-Identifier: BSD-3-Clause
"""Arguments for every op, from the tests of its file.

The op of blockscale/ops/FILE.py has its samples in tests/ops/test_FILE.py: `samples(made)`, which
maps the name of each op there to arguments for it, with and without what is optional.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, quantizer
from blockscale.core.parse import parse
from blockscale.ops import primitives as P
from blockscale.ops.op import OPS

K = 36  # divides into no block of FORMATS, so the last block of a row is partial
FORMATS = (
    "int8:token:fp32",
    "int4:group16:fp16:full:recip",
    "uint4:group16:fp32:asym",
    "uint16:tensor:fp32:asym",
    "int6:group32:e8m0/floor",
    "e2m1:group16:e4m3",
    "e4m3:tile2x16:bf16",
    "e3m2:group8:(uint4:tensor:fp32)",
    "log4:channel0:pow2/nearest",
    "binary:channel1:fp32",
    "ternary:tensor:fp32",
    "int8:group16@0:fp32:stochastic",
)


@dataclass(frozen=True)
class Made:
    """What samples are made of, for one format and dtype.

    x:       floats [5, K]
    seed:    for the format, or None
    chosen:  the format, x choosing the scale; given: with the scale that x chose
    packed:  x in the format
    own:     the format as a layer's input, unless it needs a seed, which layers' ops are not given
    """

    fmt: str
    dtype: torch.dtype
    x: Tensor
    seed: Tensor | None
    chosen: Quantizer
    given: Quantizer
    packed: Operand
    own: Quantizer


def make(fmt: str, dtype: torch.dtype) -> Made:
    torch.manual_seed(0)
    x = torch.randn(5, K).to(dtype)
    seed = torch.tensor([3, 4]) if "stochastic" in fmt else None
    qparams = P.from_list(P.choose_qparams.reference(x, fmt), parse(fmt))
    given = quantizer(qparams, fmt, seed)
    chosen = Quantizer(None, None, None, fmt, seed)
    codes = P.quantize.reference(x, given)
    packed = Operand(codes, given.scale, given.zero_point, given.outer, fmt, K)
    own = UNQUANTIZED if seed is not None else chosen
    return Made(fmt, dtype, x, seed, chosen, given, packed, own)


def samples(fmt: str, dtype: torch.dtype = torch.float32) -> dict[str, list[tuple[Any, ...]]]:
    """Arguments for each op, by its name. An op without samples is an AssertionError."""
    files = {op.reference.__module__.rpartition(".")[2] for op in OPS.values()}
    found: dict[str, list[tuple[Any, ...]]] = {}
    for file in sorted(files):
        found |= importlib.import_module(f"tests.ops.test_{file}").samples(make(fmt, dtype))
    assert found.keys() == OPS.keys(), "each op has samples in tests/ops/test_<its file>.py"
    return found


def bits(value: Any) -> list[Any]:
    """Dtype, shape and bytes of every tensor: equality that knows NaN and -0."""
    tensors = [t.detach() for t in (value if isinstance(value, list | tuple) else [value])]
    data = [t.contiguous().reshape(-1).view(torch.uint8).tolist() for t in tensors]
    return [(t.dtype, tuple(t.shape), each) for t, each in zip(tensors, data, strict=True)]
