# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/kernels/cpu/test_primitives.py: `BLOCKS`, `DTYPES`, `ELEMENTS`, ….
"""

import torch
from torch import Tensor

from blockscale.core.parse import parse

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


RULES = ("floor", "ceil", "rceil", "even", "tosa", "nearest")


ROUNDINGS = ("nearest_away", "toward_zero", "down", "up", "stochastic")


SIZES = (1, 2, 3, 5, 7, 8, 16, 17, 32, 33, 48, 64, 100, 128, 1000)


ELEMENTS = (
    *(f"int{b}" for b in range(2, 17)),
    *(f"uint{b}" for b in range(1, 17)),
    *(f"log{b}" for b in range(2, 9)),
    *("ternary", "binary", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e4m3r3", "e1m6", "e6m1r2"),
    *("e2m0", "e7m0", "e1m1", "e3m4r9"),
    *("nf4", "fp4", "iq4_nl", "log4f1", "log5f1", "log6f3", "log8f3", "log8f6"),
    *("book(-1,-0.5,0,0.5,1)", "book(0,1)", "book(1,2,0,-0,-1,-2)", "book(0.25,-3,1e-05,7)"),
    f"book({','.join(str(7 * k % 200 - 100) for k in range(200))})",
    f"book({','.join(str(k * k) for k in range(1, 20))},-1000)",
)


SCALES = (
    *("fp32", "fp16", "bf16", "e4m3", "e5m2"),
    *(f"{kind}/{rule}" for kind in ("e8m0", "pow2") for rule in RULES),
    *(f"({inner}:fp32)" for inner in ("uint8:tensor", "uint3:channel0", "e4m3:token")),
    *(f"({inner}:fp32)" for inner in ("e5m2:group3", "e3m2r1:tile2x2", "uint1:group2@0")),
)


BLOCKS = (
    *(f"group{n}" for n in SIZES),
    *(f"group{n}@0" for n in SIZES),
    *("tensor", "token", "channel0", "channel1", "channel-1", "channel-2"),
    *("tile1x7", "tile3x16", "tile5x5", "tile16x33", "tile33x1", "tile100x100", "tile7x200"),
    *("tile3x8", "block*x16"),
)


SHAPES = (
    *((41, 203), (203, 41), (33, 64), (1, 500), (500, 1), (8, 2049), (16, 5), (3, 3)),
    *((5, 6, 33), (3, 70, 16), (2, 3, 5, 17), (7, 1, 2, 9), (4, 4, 1, 3)),
)


def spelling(i: int, element: str, block: str) -> str:
    """One of the formats of an element and a block: `i` counts through scales and options."""
    scale = SCALES[i % len(SCALES)]
    spans = [""]
    if "int" in element:
        spans += ["asym"]
    if element.startswith("int"):
        halves = scale in ("fp32", "fp16", "bf16") or scale.endswith("/nearest")
        spans += ["full"] + ["half"] * halves
    span = spans[i // 3 % len(spans)]
    span += ("", "(fp16)", "(fp32)", "(bf16)")[i // 11 % 4] if span == "asym" else ""
    options = [span, *["recip"] * ("/" not in scale and i // 5 % 2)]
    offset = ("", "offset", "offset(fp16)", "offset(bf16)")[i // 7 % 4]
    options += [offset] * (not span and element not in ("binary", "ternary"))
    matters = parse(f"{element}:tensor:fp32").element.roundings_matter
    options += [("", *ROUNDINGS)[i // 2 % 6]] * matters
    return ":".join([element, block, scale, *filter(None, options)])


def rough(shape: tuple[int, ...], seed: int) -> Tensor:
    """Normal numbers, ties, wide exponents, zeros, and in every fifth tensor the non-finite."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g).reshape(-1)
    kind = torch.randint(0, 8, x.shape, generator=g)
    x = torch.where(kind == 0, torch.randint(-300, 300, x.shape, generator=g) / 2, x)
    wide = torch.exp2(torch.randint(-149, 120, x.shape, generator=g).float())
    x = torch.where(kind == 1, x * wide, x)
    x = torch.where(kind == 2, torch.zeros(()).copysign(x), x)
    if seed % 5 == 0:
        odd = torch.tensor([torch.nan, torch.inf, -torch.inf])
        x[::97] = odd.repeat(x[::97].shape[0])[: x[::97].shape[0]]
    if seed % 3 == 0:
        x *= 2.0 ** (-130 if seed % 2 else -90)
    return x.reshape(shape)


def sample(number: int) -> tuple[str, Tensor]:
    """One of endlessly many formats, and a tensor for it."""
    g = torch.Generator().manual_seed(number)
    pick = torch.randint(0, 2**31, (5,), generator=g).tolist()
    element = ELEMENTS[number % len(ELEMENTS)]
    fmt = spelling(pick[0], element, BLOCKS[pick[1] % len(BLOCKS)])
    dtype = list(DTYPES.values())[pick[3] % 3]
    return fmt, rough(SHAPES[pick[2] % len(SHAPES)], pick[4]).to(dtype)
