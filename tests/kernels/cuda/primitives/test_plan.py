# SPDX-License-Identifier: BSD-3-Clause
"""What does not fit a format, or is not where kernels can reach it, is refused."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Operand, Quantizer
from blockscale.kernels.cuda.primitives.plan import setting
from blockscale.kernels.cuda.primitives.tiling import BlockedMatrix, tiling
from blockscale.ops import primitives as P
from tests.support.cuda_equal import DEVICE, wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_what_does_not_fit_is_refused() -> None:
    x = torch.randn(4, 32, device=DEVICE)
    scale = torch.ones(4, 1, device=DEVICE)
    with bs.use("cuda"):
        with pytest.raises(TypeError, match="found float64"):
            P.choose_qparams(x.double(), "int8:token:fp32")
        with pytest.raises(ValueError, match=r"expected torch.float32 of shape \(4, 1\)"):
            P.quantize(x, Quantizer(scale[:3], None, None, "int8:token:fp32", None))
        with pytest.raises(ValueError, match="expected a scale, a zero point for blocks"):
            P.quantize(x, Quantizer(scale, None, None, "uint8:token:fp32:asym", None))
        with pytest.raises(ValueError, match="stochastic rounding needs a seed"):
            P.fake_quantize(x, Quantizer(None, None, None, "int8:token:fp32:stochastic", None))
        with pytest.raises(ValueError, match="a seed is int64 of shape"):
            seed = torch.zeros(3, dtype=torch.int64)
            P.fake_quantize(x, Quantizer(None, None, None, "int8:token:fp32:stochastic", seed))
        with pytest.raises(ValueError, match=r"are packed as torch\.uint8 of shape"):
            codes = torch.zeros(4, 9, dtype=torch.uint8, device=DEVICE)
            P.dequantize(Operand(codes, scale, None, None, "int4:token:fp32", 32), torch.float32)
        with pytest.raises(ValueError, match="expected a gradient of shape"):
            P.straight_through(x[:2], x, Quantizer(None, None, None, "int8:token:fp32"))
        with pytest.raises(ValueError, match="block 'tile2x2' needs dimension -2"):
            P.fake_quantize(x[0], Quantizer(None, None, None, "int8:tile2x2:fp32", None))


# numpy, in which the interpreter computes, tells of infinities and NaN


@pytest.mark.slow
@pytest.mark.usefixtures("settings_of_a_gpu")
@pytest.mark.parametrize(
    "fmt", ["mxfp4", "int6:group12:fp32", "e4m3:tensor:fp32", "int8:group16@0:fp32:stochastic"]
)
def test_several_programs(fmt: str) -> None:
    assert wrong(torch.randn(45, 192), fmt) == []


@pytest.mark.usefixtures("settings_of_a_gpu")
@pytest.mark.parametrize("given", [False, True])
def test_every_size_of_block_has_a_setting(given: bool) -> None:
    """A block as large as a program may hold has the most warps; larger ones take other ways."""
    for size in (*range(1, 70), *(2**k + d for k in range(7, 18) for d in (-1, 0, 1))):
        box = BlockedMatrix(1, 6 * size, 9, 3 * size, 1, before=((3, 3), (2 * size, size)))
        for shape in (
            BlockedMatrix(1, 7, 2 * size, 1, size),
            BlockedMatrix(1, 2 * size, 9, size, 1),
            box,
        ):
            for merged in (False, True):
                chosen = setting(shape, has_scale=given, merged=merged)
                laid = tiling(shape, chosen.elements, whole=not given, unit=chosen.unit)
                if laid is None:
                    assert not given and shape.bm * shape.bk > 2**15
                    continue
                tile = laid.tile
                assert tile.rows * tile.columns <= 2**15
                assert tile.rows * tile.columns * laid.programs >= 7 * 2 * size
