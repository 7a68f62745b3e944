# SPDX-License-Identifier: BSD-3-Clause
"""Formats that kernels know only restated, and numbers that their scales may be."""

import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.registry import supporting, unavailable

FORMATS = (
    "int4:group32:(int6:group16:fp16)",
    "e2m1:group16:e4m3/inv",
    "e2m1:group16:e4m3/inv:recip",
    "int4:group8:(e3m2:channel0:fp16)/inv",
    "int8:group8:(nf4:group4:fp32)",
    "uint4:group8:(uint6:group4:fp16):asym",
    "binary:group16:(int8:group4:fp16)",
    "int4:group32:fp16:signed",
    "int8:group16:bf16:signed:recip",
    "int4:flat64:fp32",
    "int8:flat24:fp16",
    "int8:flat8:e8m0",
    "uint4:flat20:fp32:asym",
    "int4:flat7:fp32:stochastic",
    "e2m1:flat16:(e4m3:tensor:fp32)",
    "int4:flat4@0:fp32",
    "ternary:flat32:fp32",
    "e2m1:group16:ue5m3",
    "e2m1:group16:e4m3/four_six",
    "e2m1:flat16:e4m3/inv/four_six:recip",
    "int4:group32:ue4m4:asym:recip",
    "e4m3:flat16:ue6m2r0",
    # and with kernels that know codebooks or offsets
    "nf4:flat64:fp32",
    "nf4:flat64:(book(0,0.25,0.5,1):flat16:fp32)",
    "iq4_nl:group32:(int6:group8:fp16)",
    "uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)",
    "uint4:group8:fp32:offset(int6:tensor:fp16)",
    "int8:flat8:fp32:offset(fp16)",
)
UNCHOSEN = (
    "int8:group8:e8m0/given",
    "int4:group8:pow2/given",
    "e4m3:group8:pow2/given",
    "binary:group8:pow2/given",
    "int4:group8:(uint6:group4:fp16:offset(fp16))",
    "int4:flat8:(uint8:flat4:fp32:offset(tensor:fp32))",
    "uint4:group8:fp16:offset(block2x16:fp32)",
    "nf4:flat8:fp32:offset(flat16:fp16)",
    "int8:flat8:fp16:offset(tensor:fp32)",
    "int8:tile2x4:fp16:offset(block4x*:bf16)",
    "uint8:group8@0:(uint8:tensor:fp32:offset(tensor:fp32)):offset(int8:tensor:fp32)",
)
ODD = (0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-140), 2.0**-126, 3e38, 0.3, torch.nan, torch.inf)
SHAPES = ((8, 96), (4, 40), (3, 4, 64), (5, 20), (12,), (0, 8))


def runs(backend: str, op: str, fmt: str) -> bool:
    """Whether the backend has the kernels that this format is restated for."""
    assert unavailable(backend) is None  # loads its kernels
    return supporting(op, backend, (fmt,), ()) is not None


def shapes(fmt: str) -> list[tuple[int, ...]]:
    """Those of SHAPES that have the dimensions which its blocks name."""
    fitting = [shape for shape in SHAPES if _fits(fmt, shape)]
    assert len(fitting) >= 5
    return fitting


def _fits(fmt: str, shape: tuple[int, ...]) -> bool:
    try:
        return bool(parse(fmt).stored(shape))
    except ValueError:
        return False


def given(fmt: str, shape: tuple[int, ...], seed: int, odd: bool) -> QParams:
    """Scales and what goes with them as a file might have them: of any sign, `odd` or ordinary."""
    form, generator = parse(fmt), torch.Generator().manual_seed(seed)
    parts: dict[str, Tensor] = {}
    for name, (dtype, own) in form.stored(shape).items():
        if dtype == torch.uint8:
            bits = form.offset.inner.bits if name == "offset" else _bits_of_scale(fmt)
            parts[name] = torch.randint(0, 2**bits, own, generator=generator).to(dtype)
        elif dtype == torch.int32:
            low, high = (int(end) for end in form.element.limits(form.wide))
            parts[name] = torch.randint(low, high + 1, own, generator=generator).to(dtype)
        elif odd:
            place = torch.randint(0, len(ODD), own, generator=generator)
            parts[name] = torch.tensor(ODD)[place].to(dtype)
        else:
            parts[name] = torch.randn(own, generator=generator).to(dtype)
    return QParams(**parts)


def _bits_of_scale(fmt: str) -> int:
    scale = parse(fmt).scale
    return scale.inner.bits if hasattr(scale, "inner") else 8


def awkward(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Numbers of many magnitudes, with zeros of both signs, NaN and infinities."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    x = x * torch.exp(3 * torch.randn(shape, generator=generator))
    flat = x.view(-1)
    flat[::7], flat[1::23], flat[3::29], flat[4::31] = 0.0, -0.0, torch.nan, -torch.inf
    return x
