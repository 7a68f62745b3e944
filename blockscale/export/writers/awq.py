# SPDX-License-Identifier: BSD-3-Clause
"""AWQ in AutoAWQ's layout `gemm`: four bits, eight outputs interleaved in each word.

Layout: casper-hansen/AutoAWQ, awq/modules/linear/gemm.py and utils/packing_utils.py.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.export.checkpoints.assembling import turned_back
from blockscale.export.checkpoints.layouts.awq import ORDER
from blockscale.export.writers import (
    Json,
    Kind,
    PlannedTensor,
    Writer,
    float_layers,
    group_of,
    group_setting,
    layer_of,
    not_plain_linear,
    only,
)
from blockscale.ops.tensor import QTensor


class AWQWriter(Writer):
    """AWQ, gemm."""

    name = "awq"
    computes = "readers of this layout compute (code - zero) * scale in fp16"

    def forms(self, fmt: Format, shape: Sequence[int]) -> Iterable[str]:
        """uint4:groupN:fp16:asym, with the source's groups."""
        return [f"uint4:group{group_of(fmt, shape[-1]) or 128}:fp16:asym"]

    def holds(self, fmt: Format, shape: Sequence[int]) -> str | None:
        """Matrices in uint4:groupN:fp16:asym."""
        if str(fmt) != f"uint4:{fmt.block}:fp16:asym":
            return f"{fmt}: AWQ supports uint4 with fp16 scales and zero points"
        if reason := not_plain_linear(fmt, shape):
            return reason
        return f"{shape[0]} outputs are not a multiple of 8" if shape[0] % 8 else None

    def parts(self, name: str, fmt: Format, shape: Sequence[int]) -> dict[str, Kind]:
        """qweight, qzeros, scales."""
        (rows, columns), layer = shape, layer_of(name)
        groups = columns // (group_of(fmt, columns) or columns)
        return {
            f"{layer}.qweight": (torch.int32, (columns, rows // 8)),
            f"{layer}.qzeros": (torch.int32, (groups, rows // 8)),
            f"{layer}.scales": (torch.float16, (groups, rows)),
        }

    def store(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """Codes transposed, and eight of a row in a word."""
        layer = layer_of(name)
        assert q.zero_point is not None
        return {
            f"{layer}.qweight": turned_back(q.packed, ORDER, q.size),
            f"{layer}.qzeros": _words(q.zero_point.to(torch.uint8)),
            f"{layer}.scales": q.qparams.scale.T.contiguous(),
        }

    def together(self, tensors: Sequence[PlannedTensor]) -> str | None:
        """One size of groups."""
        if group_setting(tensors) is None:
            return only({str(t.format.block) for t in tensors if t.format}, "its size of groups")
        return None

    def config(self, tensors: Sequence[PlannedTensor], config: Json) -> Json:
        """`quantization_config` of transformers."""
        settings = {
            "quant_method": "awq",
            "bits": 4,
            "group_size": group_setting(tensors),
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": float_layers(tensors, config) or None,
        }
        return config | {"quantization_config": settings}


def _words(codes: Tensor) -> Tensor:
    """Codes uint8 [outputs, n] -> int32 [n, outputs / 8]."""
    nibbles = codes.unflatten(0, (-1, 8))[:, list(ORDER)].unflatten(1, (4, 2))
    bytes_ = nibbles[:, :, 0] | nibbles[:, :, 1] << 4  # [outputs / 8, 4, n]
    return bytes_.permute(2, 0, 1).contiguous().flatten(1).view(torch.int32)


writer = AWQWriter()
