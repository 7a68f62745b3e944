# SPDX-License-Identifier: BSD-3-Clause
"""Every primitive against the reference: named formats, blocks, dtypes, numbers of every kind."""

import pytest
import torch

import blockscale as bs
from blockscale.core.format import Format
from blockscale.core.parse import CATALOG, parse
from blockscale.kernels.webgpu.gpu.shader import Signed
from blockscale.kernels.webgpu.primitives import choices
from blockscale.kernels.webgpu.spec import Constants, FormatRoles
from tests.kernels.webgpu.equal import DTYPES, hard, wrong
from tests.support.cuda_formats import CODEBOOKS, FLOAT_ZEROS, OFFSETS
from tests.support.some import crossed

SHAPES = ((4, 96), (3, 5, 64), (4, 37), (2, 256, 128), (1,), (5, 0))
OTHERS = (
    "int8:group32:fp32:recip", "int8:group32:fp32:nearest_away", "uint4:group16:e4m3:asym",
    "int4:group32:fp32:full", "int4:group32:fp16:signed", "int4:group32:fp32:half",
    "e2m1:group32:pow2/nearest", "e3m2:group16:pow2/tosa", "uint8:token:e8m0:asym",
    "int8:group32:e8m0/rceil", "int12:group24:e8m0", "binary:token:e8m0", "ternary:group16:bf16",
    "int8:group16:(e5m2:token:fp32)", "e2m1:group16:(e4m3:token:bf16)", "e2m1:group16:e4m3/inv",
    "uint4:group32:fp32:asym(fp16)", "uint4:tile2x16:bf16:asym(bf16)",
    "e4m3:group32:fp32:stochastic", "int4:group32:fp32:down", "uint1:group32:fp32",
    "book(0.25,1):group32:fp32", "book(3,0.5,1,2):group16:bf16",
)  # fmt: skip
BLOCKS = (
    "tensor", "token", "channel0", "channel1", "channel-1", "group1", "group3", "group8", "group10",
    "group4096", "group16@0", "group2@-2", "tile4x16", "tile128x128", "flat7", "flat64", "flat4@0",
    "block2x3x2", "block2x*x4", "block*x1x8",
)  # fmt: skip


@pytest.mark.parametrize(
    "fmt",
    crossed(2, [
        "int8:group32:fp32", "nvfp4", "uint4:tile2x16:fp16:asym", "ternary",
        "int5:group10:fp32:stochastic",
    ]),
)  # fmt: skip
def test_one_format_of_each_kind(fmt: str) -> None:
    assert not wrong(hard((4, 96), torch.float32), fmt)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fmt", [*CATALOG, *OTHERS, *CODEBOOKS, *OFFSETS, *FLOAT_ZEROS])
def test_every_format(fmt: str, dtype: torch.dtype) -> None:
    bad = {}
    for shape in SHAPES:
        x = torch.randn(shape).to(dtype) if len(shape) > 2 else hard(shape, dtype)
        try:
            parse(fmt).block.scale_shape(shape)
        except ValueError:
            continue
        if found := wrong(x, fmt, decodes=DTYPES):
            bad[shape] = found
    assert not bad


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_every_block(block: str) -> None:
    bad = {}
    for element in ("int8:{}:fp32", "e2m1:{}:e8m0", "uint3:{}:bf16:asym", "ternary:{}:fp32"):
        for shape in ((6, 20), (4, 6, 8), (3, 5, 4, 10), (2, 300, 520)):
            fmt = element.format(block)
            x = hard(shape, torch.float32)
            try:
                parse(fmt).block.scale_shape(shape)
            except ValueError:
                continue
            if found := wrong(x, fmt):
                bad[fmt, shape] = found
    assert not bad


def test_rank_zero_and_empty_tensors() -> None:
    for fmt in ("int8:tensor:fp32", "int4:tensor:fp32", "binary:tensor:bf16"):
        assert not wrong(torch.tensor(-3.25), fmt)
    assert not wrong(torch.empty(0, 64), "int8:tensor:fp32")
    assert not wrong(torch.empty(3, 0), "mxfp4")


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known = choices.shader_of

    def other(fmt: Format) -> tuple[FormatRoles, Constants]:
        parts, constants = known(fmt)
        turned = dict(constants)
        turned["EMAX"] = Signed(int(turned["EMAX"]) + 1)  # type: ignore[arg-type]
        return parts, tuple(turned.items())

    monkeypatch.setattr(choices, "shader_of", other)
    found = wrong(hard((2, 64), torch.float32), "e3m2:group32:e8m0/floor")
    assert {"choose_qparams 0", "choose_quantize 0", "fake_quantize"} <= set(found)


def test_bad_input_is_told_before_anything_runs() -> None:
    x = torch.randn(4, 64)
    with bs.use("webgpu"):
        with pytest.raises(TypeError, match="float32, bfloat16 or float16"):
            bs.quantize(x.double(), "int8")
        with pytest.raises(ValueError, match="tile4x4"):
            bs.quantize(x[0], "int8:tile4x4:fp32")
        with pytest.raises(ValueError, match="scale"):
            bs.quantize(x, "int8:group32:fp32", scale=torch.ones(3, 2))
        with pytest.raises(ValueError, match="given"):
            bs.quantize(x, "int8:group8:e8m0/given")
        assert bs.quantize(x, "int8").codes.shape == (4, 64)
