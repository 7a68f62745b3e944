# SPDX-License-Identifier: BSD-3-Clause
"""Scales that onnxruntime chooses are the reference's, to the bit: all rules, all kinds."""

import pytest
import torch

from blockscale.core import reference
from blockscale.core.parse import CATALOG, parse
from blockscale.export.to_onnx.choose import choose, refused
from blockscale.export.to_onnx.split import split
from tests.export.to_onnx.running import EDGES, run, same

RULES = ("floor", "ceil", "rceil", "even", "tosa", "nearest")
SPELLINGS = [
    *CATALOG.values(),
    *(f"{e}:group8:e8m0/{rule}" for rule in RULES for e in ("int8", "e4m3", "e2m1")),
    *(f"{e}:group8:pow2/{rule}" for rule in RULES for e in ("int8", "e4m3", "e2m1")),
    *("int8:group8:fp16", "int8:group8:bf16", "int8:token:fp32:full", "int8:token:fp32:half"),
    *("int4:group8:fp16:signed", "uint8:group8:fp32", "uint8:group8:e8m0", "uint4:token:fp16:asym"),
    *("uint8:group8:pow2/nearest:asym", "uint8:group8:fp32:asym(fp16)", "iq4_nl:group8:fp32"),
    *("int8:group8:e4m3", "e2m1:group8:e4m3/inv", "int4:group8:(uint8:tensor:fp16)"),
    *("log4:group8:e8m0", "binary:group8:fp32", "ternary:group8:pow2/floor", "int8:tile4x8:fp32"),
]  # fmt: skip


def inputs():
    """Blocks of every size of numbers: near powers of two, zeros, tiny, large, with odd ones."""
    torch.manual_seed(0)
    x = torch.randn(8, 32) * 2.0 ** torch.randint(-20, 20, (8, 1))
    near = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    x[1, :8] = torch.cat([2.0 ** torch.arange(-4.0, 3.0), near[None]])
    x[2, 8:16], x[2, 16:24] = 0, -torch.arange(8.0)
    x[3, :28] = EDGES
    x[4] = torch.arange(32) % 5 * 1e-39
    return x


def steps(fmt, x):
    def build(scope, names):
        blocks = split(scope, names[0], fmt.block, tuple(x.shape))
        chosen = choose(scope, blocks, fmt)
        step = chosen.step
        if chosen.zero:
            step = scope.op("Concat", scope.op("Reshape", step, scope.ints(-1)),
                            scope.op("Reshape", chosen.zero, scope.ints(-1)), axis=0)  # fmt: skip
        return scope.op("Reshape", step, scope.ints(-1))

    return run(build, x)


def expected(fmt, x):
    parts = reference.choose_qparams(x, fmt)
    step = reference.step_of(parts, fmt).flatten()
    if parts.zero_point is None:
        return step
    return torch.cat([step, parts.zero_point.float().flatten()])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_scales_are_the_references(spelling):
    fmt, x = parse(spelling), inputs()
    assert same(steps(fmt, x), expected(fmt, x))


@pytest.mark.parametrize("spelling", ["int8:group8:fp32", "mxfp8", "nvfp4", "binary:token:fp32"])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_none(spelling, odd):
    fmt, x = parse(spelling), inputs()
    x[0, 3], x[5, :] = odd, odd
    found, wanted = steps(fmt, x), expected(fmt, x)
    if fmt.asym:
        wanted = wanted.where(~found.isnan(), torch.nan)
    assert same(found, wanted)


def test_what_no_file_chooses():
    assert "given" in refused(parse("int8:tensor:e8m0/given"))
    assert "offsets" in refused(parse("uint4:group32:fp16:offset"))
    assert "are for parts of a tensor: use one for the whole" in refused(
        parse("uint4:group32:(uint6:group8:fp16)")
    )
    assert refused(parse("nvfp4")) is None
