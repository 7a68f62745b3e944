# SPDX-License-Identifier: BSD-3-Clause
"""Pools of largest values over codes against the reference, which pools what they mean."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.kernels.cpu.fused.max_pool import pooled
from blockscale.ops.fused import FUSED
from tests.support.same import same
from tests.support.some import crossed

FORMATS = (
    *("int8:tensor:fp32", "uint8:tensor:fp32:asym"),
    *("int8:tensor:fp32:full", "uint8:tensor:pow2/nearest"),
)
WINDOWS = [
    {"kernel_size": [2]},
    {"kernel_size": [3], "stride": (2,), "padding": (1,)},
    {"kernel_size": [3], "stride": (2,), "ceil_mode": True},
    {"kernel_size": [2], "stride": (3,), "padding": (1,), "ceil_mode": True},
    {"kernel_size": [3], "stride": (1,), "dilation": (2,)},
]


def coded(fmt: str, shape: tuple[int, ...]) -> Value:
    torch.manual_seed(0)
    q = bs.quantize(torch.randn(shape) - 1, fmt)  # negative codes, so that padding shows
    return Value(q.codes, q.scale, q.zero_point, None, q.format.spelling, shape[-1])


@pytest.mark.parametrize(("fmt", "window"), crossed(3, FORMATS, WINDOWS))
def test_the_references_bits(fmt, window) -> None:
    for count, shape in ((1, (2, 3, 11)), (2, (2, 3, 9, 11)), (3, (2, 3, 7, 5, 9))):
        value = coded(fmt, shape)
        own = Quantizer(value.scale, value.zero_point, None, fmt)
        other = Quantizer(torch.full([1] * len(shape), 0.07), None, None, "int8:tensor:fp32")
        for y in (own, other, UNQUANTIZED):
            found = []
            for backend in ("reference", "cpu"):
                with bs.use(backend):
                    found.append(FUSED[f"max_pool{count}d"](value, y=y, **window))
            assert same(found[0][0], found[1][0]), (fmt, window, count, y.fmt)


def test_sides_differ_and_memory_may_lie_otherwise() -> None:
    x = torch.randint(-128, 128, (2, 8, 9, 4), dtype=torch.int8).permute(0, 3, 1, 2)
    settings = ([3, 2], [2, 1], [1, 0], [1, 2], False)
    expected = torch.max_pool2d(x.float(), *settings)
    assert torch.equal(pooled(x, 2, settings).float(), expected)
