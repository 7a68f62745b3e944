# SPDX-License-Identifier: BSD-3-Clause
"""Hypothesis strategies: spellings from the whole grammar, shapes that fit, and awkward numbers."""

import math
import re

import torch
from hypothesis import strategies as st
from torch import Tensor

from blockscale.core.block import read_block
from blockscale.core.elements import FAMILIES, read_element
from tests.support.exact import FLT_MAX, RULES, SCALE_RANGE
from tests.support.oracle import Oracle
from tests.support.oracle_elements import Minifloat, element_of

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ROUNDINGS = ("", "nearest_away", "toward_zero", "down", "up", "stochastic")


@st.composite
def minifloats(draw, inner: bool = False) -> str:
    """`eXmY` or `eXmYrN`; as an inner element with a NaN code."""
    y = draw(st.integers(0, 6))
    x = draw(st.integers(1 if y else 2, min(7, 7 - y)))  # 3 to 8 bits
    most = 2 ** (x + y) - 1 - 2**y
    n = draw(st.integers(int(inner), min(most, 9)))
    plain = element_of(f"e{x}m{y}").reserved
    return f"e{x}m{y}" if n == plain else f"e{x}m{y}r{n}"


ELEMENTS = st.one_of(
    *(st.sampled_from(family.EXAMPLES) for family in FAMILIES if family.EXAMPLES),
    st.sampled_from(["int8", "int4", "uint8", "uint4", "ternary", "binary"]),
    st.sampled_from(["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"]),
    minifloats(),
)


@st.composite
def nd_blocks(draw, rank: int) -> str:
    """`blockAxBxC` in its canonical spelling: what no other block says."""
    sizes = draw(st.lists(st.sampled_from(["1", "2", "3", "*"]), min_size=2, max_size=rank))
    while sizes[0] == "1":
        sizes = sizes[1:] or ["*"]
    return str(read_block("block" + "x".join(sizes)))


def blocks(rank: int) -> st.SearchStrategy[str]:
    """Blocks that a tensor of this rank admits, in their canonical spelling."""
    found = [st.just("tensor")]
    size = st.integers(1, 7)
    if rank >= 1:
        dim = st.integers(-rank, rank - 1)
        found += [
            st.just("token"),
            size.map("flat{}".format),
            size.map("group{}".format),
            dim.map("channel{}".format),
        ]
        found.append(
            st.tuples(size, dim).map(lambda a: f"group{a[0]}" + (f"@{a[1]}" if a[1] != -1 else ""))
        )
    if rank >= 2:
        found.append(st.tuples(size, size).map(lambda a: f"tile{a[0]}x{a[1]}"))
        found.append(nd_blocks(rank))
    return st.one_of(found)


@st.composite
def inner_formats(draw, rank: int) -> str:
    """A scale's own format: any element that has no means, under a float."""
    element = draw(
        st.one_of(
            st.sampled_from([f"uint{b}" for b in range(1, 9)]),
            st.sampled_from([f"uint{b}" for b in range(1, 9)]),
            minifloats(inner=True),
            minifloats(inner=True),
            st.sampled_from(["int6", "int8", "log4", "nf4", "book(0.25,-3,1e-05,7)"]),
        )
    )
    block, scale = draw(blocks(rank)), draw(st.sampled_from(["fp32", "fp32", "fp16", "bf16"]))
    inv = draw(st.sampled_from(["", "", "", "/inv"]))
    if block == "tensor" and element in ("e4m3", "e5m2") and scale == "fp32":
        return element + inv
    return f"({element}:{block}:{scale}){inv}"


@st.composite
def offsets(draw, rank: int, scale: str) -> str:
    """An option `offset`, in its canonical spelling."""
    own = scale if scale in SCALE_RANGE else "fp32"
    inner = inner_formats(rank).filter(lambda text: text.startswith("(") and "/" not in text)
    kind = draw(st.one_of(st.sampled_from(list(SCALE_RANGE)), inner))
    return "offset" if kind == own else f"offset({kind.strip('()') if ':' in kind else kind})"


@st.composite
def spellings(draw, rank: int) -> str:
    """A canonical spelling for tensors of this rank."""
    element = draw(ELEMENTS)
    powers = st.tuples(st.sampled_from(["e8m0", "pow2"]), st.sampled_from(RULES)).map("/".join)
    codes = st.sampled_from(["ue5m3", "ue4m3", "ue4m4r0", "ue6m2", "ue2m3r3"])
    floats = st.sampled_from(list(SCALE_RANGE))
    scale = draw(st.one_of(floats, powers, inner_formats(rank), codes))
    spans, kind = [""], read_element(element)
    if kind.integer:
        spans += ["asym", "asym", f"asym({draw(st.sampled_from(list(SCALE_RANGE)))})"]
    if kind.integer and kind.signed:
        halves = scale in SCALE_RANGE or scale.endswith("/nearest")
        spans += ["full"] + ["half"] * halves + ["signed"] * (scale in SCALE_RANGE)
    options = [draw(st.sampled_from(spans))]
    if "/" not in scale.removesuffix("/inv"):
        options.append(draw(st.sampled_from(["", "recip"])))
    if not options[0] and kind.uses_range:
        options.append(draw(st.one_of(st.just(""), st.just(""), offsets(rank, scale))))
    if kind.roundings_matter:
        options.append(draw(st.sampled_from(ROUNDINGS)))
    return ":".join([element, draw(blocks(rank)), scale, *filter(None, options)])


def is_searchable(spelling: str) -> bool:
    """Whether algorithms can look for the scale of one block after another: they refuse blocks
    over the flattened tensor, and offsets that share a scale."""
    return "flat" not in spelling and not re.search(r"offset\(([^()]|\([^()]*\))*:", spelling)


SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(1, 20), min_size=1, max_size=1),
    st.lists(st.integers(1, 9), min_size=2, max_size=2),
    st.lists(st.integers(1, 4), min_size=3, max_size=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
).map(tuple)

ODD = st.sampled_from(
    [0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-126, 1e-40, -1e-38, FLT_MAX, -FLT_MAX, 3.3e38]
)
NON_FINITE = st.sampled_from([math.inf, -math.inf, math.nan])


@st.composite
def numbers(draw, spelling: str, count: int) -> list[float]:
    """Mostly halves and quarters of one unit, which are ties; or anything that float32 holds."""
    anything = st.floats(width=32, allow_nan=False, allow_infinity=False)
    element = Oracle(spelling).element
    top = 16.0 if isinstance(element, Minifloat) else float(Oracle(spelling).levels)
    unit = draw(st.one_of(st.sampled_from([1.0, 2.0**-120, 2.0**-140, 2.0**100]), anything))
    near = st.integers(-int(4 * top) - 4, int(4 * top) + 4).map(lambda k: k / 4 * unit)
    small = st.integers(-12, 12).map(lambda k: k / 4 * unit)
    palettes = [near, st.one_of(near, small), anything, st.one_of(small, ODD), ODD]
    palette = draw(st.sampled_from(palettes))
    if draw(st.integers(0, 4)) == 0:
        palette = st.one_of(palette, palette, palette, NON_FINITE)
    return draw(st.lists(palette, min_size=count, max_size=count))


@st.composite
def tensors(draw, spelling: str, shape: tuple[int, ...]) -> Tensor:
    """Float32, bfloat16 or float16; contiguous, strided or transposed."""
    values = draw(numbers(spelling, math.prod(shape)))
    dtype = DTYPES[draw(st.sampled_from(["fp32", "fp32", "bf16", "fp16"]))]
    x = torch.tensor(values, dtype=torch.float64).to(torch.float32).to(dtype).reshape(shape)
    memory = draw(st.sampled_from(["contiguous", "contiguous", "strided", "transposed"]))
    if memory == "strided" and shape:
        return torch.stack([x, torch.full_like(x, math.nan)], -1)[..., 0]
    if memory == "transposed":
        backwards = tuple(reversed(range(len(shape))))
        return x.permute(backwards).contiguous().permute(backwards)
    return x
