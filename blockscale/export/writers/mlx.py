# SPDX-License-Identifier: BSD-3-Clause
"""MLX: rows of bits in words of 32 with a scale and a bias a group, OCP's microscaling formats, and
nvfp4.

Layout: ml-explore/mlx, mlx/ops.cpp, `quantize`; configuration: ml-explore/mlx-lm, utils.py. A
value is code * scale + bias in the dtype of the scales. Its nvfp4 has no scale of scales: one
of 1 is left out, another goes into the scales where every product is a number of e4m3.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.export.writers import (
    Json,
    Kind,
    PlannedTensor,
    Writer,
    group_of,
    layer_of,
    not_plain_linear,
)
from blockscale.ops.tensor import QTensor

_BITS = (2, 3, 4, 5, 6, 8)
_GROUPS = (128, 64, 32)
_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
_NVFP4 = ("e2m1:group16:e4m3", "e2m1:group16:e4m3/inv")
_MODES = {
    "e2m1:group32:e8m0/given": "mxfp4", "e4m3:group32:e8m0/given": "mxfp8",
    **dict.fromkeys(_NVFP4, "nvfp4"),
}  # fmt: skip


class MLXWriter(Writer):
    """MLX's affine quantization, mxfp4, mxfp8 and nvfp4."""

    name = "mlx"
    embeddings = True
    computes = "MLX computes code * scale + bias in the dtype of the scales, rounding twice"

    def forms(self, fmt: Format, shape: Sequence[int]) -> Iterable[str]:
        """The fewest bits and the largest groups first; the shortest scales first."""
        yield from (mode for mode in _MODES if mode not in _NVFP4 or mode == str(fmt))
        group = group_of(fmt, shape[-1])
        own = [str(fmt.scale)] if str(fmt.scale) in _TYPES else []
        for bits in (each for each in _BITS if each >= fmt.bits):
            for kind in dict.fromkeys([*own, *_TYPES]):
                for size in (group,) if group in _GROUPS else _GROUPS:
                    yield f"uint{bits}:group{size}:{kind}:offset"

    def holds(self, fmt: Format, shape: Sequence[int]) -> str | None:
        """Matrices in uintB:groupN:TYPE:offset, mxfp4 and mxfp8 with given scales, and nvfp4."""
        if len(shape) != 3 and (reason := not_plain_linear(fmt, shape)):
            return reason
        if str(fmt) in _MODES:
            return None
        kind, group = str(fmt.scale), group_of(fmt, shape[-1])
        text = f"uint{fmt.bits}:group{group}:{kind}:offset"
        if fmt.bits not in _BITS or kind not in _TYPES or group not in _GROUPS:
            return f"{fmt}: MLX supports uint2 … uint6 and uint8 in groups of 32, 64 and 128"
        if str(fmt) != text:
            return f"{fmt}: MLX stores offsets of the scales' dtype instead of zero points"
        words = shape[-1] * fmt.bits % 32
        return f"rows of {shape[-1]} codes do not fill whole words" if words else None

    def depends(self, fmt: Format) -> bool:
        """Its nvfp4 has no scale of scales."""
        return str(fmt) in _NVFP4

    def lacks(self, q: QTensor) -> str | None:
        """Scales of scales that do not go into the scales."""
        if not self.depends(q.format) or torch.equal(_steps(_scales(q)), _group_steps(q)):
            return None
        if bool(_group_steps(q).isnan().any()):
            return "it has NaN scales"
        outer = q.qparams.outer
        assert isinstance(outer, Tensor)
        return (
            f"it has an outer scale, {outer.flatten()[0].item():.4g}, which MLX does not "
            "support and e4m3 scales cannot include: quantize the float model as "
            "profile:gguf.nvfp4, whose outer scale is 1, or as mxfp4"
        )

    def parts(self, name: str, fmt: Format, shape: Sequence[int]) -> dict[str, Kind]:
        """weight, scales and, under floats, biases."""
        layer, rows = layer_of(name), tuple(shape[:-1])
        groups = (*rows, shape[-1] // (group_of(fmt, shape[-1]) or shape[-1]))
        weight = {f"{layer}.weight": (torch.uint32, (*rows, shape[-1] * fmt.bits // 32))}
        if str(fmt) in _MODES:
            return weight | {f"{layer}.scales": (torch.uint8, groups)}
        kind = _TYPES[str(fmt.scale)]
        return weight | {f"{layer}.scales": (kind, groups), f"{layer}.biases": (kind, groups)}

    def store(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """Our rows of bits are its words."""
        layer = layer_of(name)
        parts = {
            f"{layer}.weight": q.packed.contiguous().view(torch.uint32),
            f"{layer}.scales": _scales(q) if self.depends(q.format) else q.qparams.scale,
        }
        if q.qparams.offset is not None:
            parts[f"{layer}.biases"] = q.qparams.offset
        return parts

    def config(self, tensors: Sequence[PlannedTensor], config: Json) -> Json:
        """`quantization`, which says what most layers have, and each layer that has another."""
        of = {layer_of(t.name): _settings(t) for t in tensors if t.format is not None}
        most = Counter(str(sorted(each.items())) for each in of.values()).most_common(1)[0][0]
        usual = next(each for each in of.values() if str(sorted(each.items())) == most)
        others = {name: each for name, each in of.items() if each != usual}
        settings = usual | others
        return config | {"quantization": settings, "quantization_config": settings}


def _group_steps(q: QTensor) -> Tensor:
    """Steps of nvfp4's groups, float32 (numerics.md, 3.5): scales times or by the outer one."""
    outer = q.qparams.outer
    assert isinstance(outer, Tensor)
    scale = _steps(q.qparams.scale)
    return scale / outer if str(q.format) == _NVFP4[1] else scale * outer


def _scales(q: QTensor) -> Tensor:
    """The nearest codes of e4m3 for these steps, uint8."""
    return _group_steps(q).to(torch.float8_e4m3fn).view(torch.uint8)


def _steps(codes: Tensor) -> Tensor:
    return codes.view(torch.float8_e4m3fn).to(torch.float32)


def _settings(tensor: PlannedTensor) -> Json:
    assert tensor.format is not None
    mode = _MODES.get(str(tensor.format), "affine")
    group = group_of(tensor.format, tensor.shape[-1])
    return {"group_size": group, "bits": tensor.format.bits, "mode": mode}


writer = MLXWriter()
