# SPDX-License-Identifier: BSD-3-Clause
"""A kernel of dequantize for bytes under one scale: two torch calls, without a table of blocks."""

# Goes to:   blockscale/kernels/cpu/dequantize_bytes.py: any name; files are imported in order of
#            their names, and the kernel that registers last is asked first.
# Its test:  tests/kernels/cpu/test_dequantize_bytes.py: the bits of the reference, at the edges of
#            what it supports. Those of every kernel of its op hold for it, too.
# By itself: calls of `dequantize` on the CPU that it supports; all others go to the next kernel.

import torch
from torch import Tensor

from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.scale import FloatScale
from blockscale.kernels.registry import ByFormats, kernel


def _supports(formats: tuple[Format, ...]) -> bool:
    (fmt,) = formats
    plain = type(fmt.element) is Integer and fmt.bits == 8 and fmt.parts == ("scale",)
    return plain and fmt.block.name == "tensor" and isinstance(fmt.scale, FloatScale)


@kernel("dequantize", backend="cpu", supports=ByFormats(_supports))
def dequantize_bytes(packed: Operand, dtype: torch.dtype) -> Tensor:
    """As blockscale.ops.primitives.dequantize: it takes what the op takes."""
    values = packed.codes.to(torch.float32) * packed.scale.to(torch.float32)
    return values.to(dtype).reshape(packed.shape)
