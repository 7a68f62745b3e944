# SPDX-License-Identifier: BSD-3-Clause
"""Values from packed codes."""

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.core.reference import FLOATS
from blockscale.kernels.cuda.primitives.decoding import decode_tile
from blockscale.kernels.cuda.primitives.form import form
from blockscale.kernels.cuda.primitives.launch import launch
from blockscale.kernels.cuda.primitives.plan import plan
from blockscale.kernels.cuda.replay.replay import replayed
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.registry import kernel


@kernel("dequantize", backend="cuda", supports=known)
@replayed()
def dequantize(packed: Operand, dtype: torch.dtype) -> Tensor:
    """As ops.primitives.dequantize; other dtypes than the three are cast from float32."""
    return decoded(packed, dtype, "decode")


def decoded(packed: Operand, dtype: torch.dtype, result: str) -> Tensor:
    """As dequantize; of the result "rest" what bfloat16 leaves of each value, in dtype."""
    f, size = form(packed.fmt), packed.size
    shape = packed.shape
    codes = f.checked_codes(packed.codes, shape)
    parts = f.given_parts(codes, shape, packed.scale, packed.zero_point, packed.outer, packed.more)
    kind = dtype if dtype in FLOATS else torch.float32
    values = torch.empty(shape, dtype=kind, device=codes.device)
    if values.numel():
        planned = plan(f.format.spelling, tuple(shape), result, True, 0, kind.itemsize)
        assert planned is not None
        count = 1 if parts.outer is None else parts.outer.numel()
        launch(
            decode_tile, planned, codes, codes, values, parts.scale, parts.outer,
            parts.zero_point, parts.offset, count, size if shape else 1,
        )  # fmt: skip
    return values if kind == dtype else values.to(dtype)
