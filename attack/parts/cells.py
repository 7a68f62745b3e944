# SPDX-License-Identifier: BSD-3-Clause
"""Kernels against the reference: instruction set, format, dtype, layout and numbers that are hard.

A cell is one result of one op: equal in every bit, NaN too.
"""

import random
from pathlib import Path

import torch
from torch import Tensor

import blockscale as bs
from attack.part import Case, Counts, Found, Part
from blockscale.core.elements import FAMILIES
from blockscale.core.operand import Operand, quantizer
from blockscale.core.parse import CATALOG, parse
from blockscale.ops import primitives

_BLOCKS = (
    "tensor",
    "channel0",
    "token",
    "group16",
    "group32",
    "group7",
    "group1",
    "group16@0",
    "tile4x8",
    "tile3x5",
)
_SCALES = (
    "fp32",
    "fp16",
    "bf16",
    "pow2/floor",
    "e8m0/even",
    "e8m0/ceil",
    "e8m0",
    "e4m3",
    "(uint4:tensor:fp32)",
)
_OPTIONS = (
    "",
    "",
    ":asym",
    ":full",
    ":recip",
    ":half_away",
    ":offset",
    ":asym:recip",
    ":stochastic",
)
_SHAPES = (
    (1, 1),
    (3, 64),
    (5, 33),
    (16, 16),
    (1, 257),
    (64, 7),
    (2, 3, 40),
    (4, 128),
    (130,),
    (9, 512),
    (300, 256),
)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def prepare(_: Path) -> None:
    """Warm the kernels up."""
    bs.fake_quantize(torch.ones(4, 4), "int8:tensor:fp32")


def missing() -> str | None:
    from blockscale.kernels import cpu

    return cpu.available()


def fmt(rng: random.Random) -> str:
    """A format that there is."""
    if rng.random() < 0.2:
        return rng.choice(tuple(CATALOG))
    names = [name for family in FAMILIES for name in family.EXAMPLES]
    while True:
        text = (
            f"{rng.choice(names)}:{rng.choice(_BLOCKS)}:{rng.choice(_SCALES)}{rng.choice(_OPTIONS)}"
        )
        try:
            made = parse(text)
        except ValueError:
            continue
        if not made.unchosen and not made.element.learned:
            return text


def numbers(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Ordinary ones, ties, subnormals, both zeros, huge ones, infinities and NaN, or any bits."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 60))
    x = torch.randn(shape, generator=generator)
    kind = rng.randrange(8)
    if kind == 0:
        x = (
            torch.randint(-(2**31), 2**31 - 1, shape, generator=generator)
            .to(torch.int32)
            .view(torch.float32)
        )
    elif kind == 1:
        x = x * 2.0 ** rng.choice((-149, -140, -126, -100, 60, 120, 127))
    elif kind == 2:
        x = (x * 16).round() / 2  # ties
    elif kind == 3:
        x = x * torch.exp2(torch.randint(-140, 127, shape, generator=generator).float())
    elif kind == 4:
        x = torch.full(
            shape, rng.choice((0.0, -0.0, 1.0, 2.0**-149, 3.4e38, float("inf"), float("nan")))
        )
    x = x.to(dtype)
    if kind == 5:
        special = torch.tensor(
            [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 2.0**-149, 65504.0]
        ).to(dtype)
        chosen = torch.randint(0, 4 * len(special), shape, generator=generator)
        x = torch.where(chosen < len(special), special[chosen % len(special)], x)
    return x


def laid_out(rng: random.Random, x: Tensor) -> Tensor:
    """The same numbers in another order of memory."""
    kind = rng.randrange(4)
    if kind == 1 and x.ndim > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 2:
        wide = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1]))
        wide[..., ::2] = x
        return wide[..., ::2]
    if kind == 3:  # not aligned
        flat = x.new_zeros(x.numel() + 1)
        flat[1:] = x.reshape(-1)
        return flat[1:].view(x.shape)
    return x


def bits(x: Tensor | None) -> bytes:
    """Dtypes have many NaN, and no arithmetic says which one it gives: all are one here."""
    if x is None:
        return b""
    flat = x.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
    if flat.is_floating_point():
        flat[flat.isnan()] = float("nan")
    return flat.view(torch.uint8).numpy().tobytes()


def results(x: Tensor, text: str, given: list[Tensor] | None) -> tuple[list[bytes], list[Tensor]]:
    """What each op makes of x; codes and scales of `given` for those that take them."""
    seed = torch.tensor([7, 3]) if "stochastic" in text else None
    chosen = primitives.choose_quantize(x, text, seed)
    parts = primitives.from_list((given or chosen)[1:], parse(text))
    by = quantizer(parts, text, seed)
    packed = Operand(
        (given or chosen)[0], by.scale, by.zero_point, by.outer, text, x.shape[-1], *_more(by)
    )
    found = [
        *chosen,
        *primitives.to_list(parts),
        primitives.quantize(x, by),
        primitives.fake_quantize(x, by),
    ]
    found += [primitives.dequantize(packed, dtype) for dtype in _DTYPES]
    found += [primitives.straight_through(torch.ones_like(x), x, by)]
    return [bits(each) for each in found], chosen


def _more(by: object) -> tuple:
    more = getattr(by, "more", ())
    return (more,) if more else ()


def case(case: Case) -> Counts:
    from blockscale.kernels.cpu import _native

    rng = case.random()
    text, shape, dtype = fmt(rng), rng.choice(_SHAPES), rng.choice(_DTYPES)
    x = laid_out(rng, numbers(rng, shape, dtype))
    try:
        with bs.use("reference"):
            expected, given = results(x, text, None)
    except ValueError:
        return {"cells": 0, "refused": 1}  # a block that the shape cannot have
    cells, sets = 0, _native.isas()
    for isa in sets:
        _native.select_isa(isa)
        found, _ = results(x, text, given)
        unlike = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
        if unlike:
            raise Found(
                "a kernel differs from the reference",
                f"{isa}: {text}, {shape}, {dtype}: results {unlike}",
            )
        cells += len(found)
    return {"cells": cells, "instruction sets": max(0, len(sets) if case.number == 0 else 0)}


PARTS = (
    Part("cells", "cells", 100_000, case, seconds=30, share=1.0, prepare=prepare, missing=missing),
)
