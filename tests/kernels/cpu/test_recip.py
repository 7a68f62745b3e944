# SPDX-License-Identifier: BSD-3-Clause
"""Reciprocals of steps are no powers of two: what counts on the bits of bfloat16 may not take them.

Found by `make attack`: with AVX-512 minifloats and log4 had wrong codes of bfloat16 x.
"""

import itertools

import pytest
import torch

import blockscale as bs

SCALES = ("fp32", "e4m3", "fp16", "bf16")


@pytest.mark.some(3)
@pytest.mark.parametrize("element", ["e2m1", "e1m1", "e1m2", "e2m3", "log4", "int4"])
def test_the_references_codes(isa: str, element: str) -> None:
    del isa
    x = (torch.randn(4, 130, generator=torch.Generator().manual_seed(0)) * 3).round()
    wrong = []
    for block, scale, dtype in itertools.product(
        ("tensor", "group32"), SCALES, (torch.bfloat16, torch.float16, torch.float32)
    ):
        fmt = f"{element}:{block}:{scale}:recip"
        with bs.use("reference"):
            expected = bs.quantize(x.to(dtype), fmt)
        found = bs.quantize(x.to(dtype), fmt)
        if not torch.equal(found.codes, expected.codes):
            wrong.append((fmt, dtype))
    assert not wrong
