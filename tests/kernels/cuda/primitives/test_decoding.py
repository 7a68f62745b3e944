# SPDX-License-Identifier: BSD-3-Clause
"""Bit streams of every width, beside the bits of one large number a row."""

import pytest
import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.kernels.cuda.primitives.plan import form
from blockscale.kernels.cuda.quantize import pack_patterns, unpack
from tests.support.cuda_equal import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def streams(codes: Tensor, bits: int) -> Tensor:
    """Rows of codes, the first in the lowest bits, each row padded to whole bytes."""
    rows = []
    for row in codes.tolist():
        number = sum((code % 2**bits) << (i * bits) for i, code in enumerate(row))
        rows.append(list(number.to_bytes(-(-len(row) * bits // 8), "little")))
    return torch.tensor(rows, dtype=torch.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 9, 12, 15])
@pytest.mark.parametrize("size", [1, 7, 16, 33])
def test_codes_lie_side_by_side(bits: int, size: int) -> None:
    fmt = str(parse(f"int{bits}:tensor:fp32"))
    codes = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (3, size))
    stored = codes.to(parse(fmt).element.code_dtype).to(DEVICE)
    packed = pack_patterns(form(fmt), stored)
    assert torch.equal(packed.cpu(), streams(codes, bits))
    assert torch.equal(unpack.run(packed, fmt, size).cpu(), stored.cpu())
