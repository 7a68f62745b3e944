"""Values from packed codes."""

import torch
from torch import Tensor

from blockscale.core.reference import FLOATS
from blockscale.kernels.cuda.choose_qparams import every
from blockscale.kernels.cuda.primitives.decoding import decode_tile
from blockscale.kernels.cuda.primitives.form import form
from blockscale.kernels.cuda.primitives.launch import launch
from blockscale.kernels.cuda.primitives.plan import plan
from blockscale.kernels.cuda.replay.replay import replayed
from blockscale.kernels.registry import kernel


@kernel("dequantize", backend="cuda", supports=every)
@replayed()
def dequantize(
    packed: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    outer: Tensor | None,
    fmt: str,
    size: int,
    dtype: torch.dtype,
) -> Tensor:
    """As ops.primitives.dequantize; other dtypes than the three are cast from float32."""
    f = form(fmt)
    shape = (*packed.shape[:-1], size) if scale.ndim else ()
    packed = f.checked_codes(packed, shape)
    parts = f.given_parts(packed, shape, scale, zero_point, outer)
    kind = dtype if dtype in FLOATS else torch.float32
    values = torch.empty(shape, dtype=kind, device=packed.device)
    if values.numel():
        planned = plan(f.format.spelling, tuple(shape), "decode", True, 0, kind.itemsize)
        assert planned is not None
        count = 1 if parts.outer is None else parts.outer.numel()
        launch(
            decode_tile, planned, packed, packed, values, parts.scale, parts.outer,
            parts.zero_point, count, size if shape else 1,
        )  # fmt: skip
    return values if kind == dtype else values.to(dtype)
