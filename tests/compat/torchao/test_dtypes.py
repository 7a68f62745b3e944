"""Which codes a target dtype has, and how they are stored."""

import torch

from blockscale.compat import torchao as ours
from tests.compat.torchao.inputs import (
    SYMMETRIC,
    same,
    theirs,
)


def test_signed_codes_below_a_byte_are_stored_in_int8() -> None:
    x = torch.randn(4, 64)
    scale, zero = ours.choose_qparams_affine(x, SYMMETRIC, (1, 32), torch.int4)
    q = ours.quantize_affine(x, (1, 32), scale, zero, torch.int4)
    same(q, theirs.quantize_affine(x, (1, 32), scale, zero, torch.int8, -8, 7))
    back = theirs.dequantize_affine(q, (1, 32), scale, zero, torch.int8, -8, 7)
    same(ours.dequantize_affine(q, (1, 32), scale, zero, torch.int4), back)
