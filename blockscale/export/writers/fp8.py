# SPDX-License-Identifier: BSD-3-Clause
"""FP8 in tiles, as DeepSeek V3 and Qwen store it and transformers' quant_method `fp8` reads it.

Layout: huggingface/transformers, integrations/finegrained_fp8.py: `weight` e4m3 and
`weight_scale_inv`, a scale a tile, which multiplies whatever its name says.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.scale import PowerOfTwo
from blockscale.export.writers import Json, Kind, PlannedTensor, Writer, float_layers, only
from blockscale.ops.tensor import QTensor


class FP8Writer(Writer):
    """e4m3 in tiles."""

    name = "fp8"
    computes = "readers of this layout round values to the model's dtype"

    def forms(self, fmt: Format, shape: Sequence[int]) -> Iterable[str]:
        """The source's own tiles, else those of 128 x 128."""
        del shape
        if "tile" in str(fmt.block):
            yield f"e4m3:{fmt.block}:e8m0/given"
            yield f"e4m3:{fmt.block}:fp32"
        yield "e4m3:tile128x128:fp32"

    def holds(self, fmt: Format, shape: Sequence[int]) -> str | None:
        """Matrices of e4m3 in tiles under fp32 or e8m0."""
        if str(fmt) not in (f"e4m3:{fmt.block}:fp32", f"e4m3:{fmt.block}:e8m0/given"):
            return f"{fmt}: fp8 files hold e4m3 with fp32 scales, or with powers of two in a byte"
        if len(shape) != 2 or not str(fmt.block).startswith("tile"):
            return f"{list(shape)} in {fmt.block}: fp8 files hold matrices in tiles"
        return None

    def parts(self, name: str, fmt: Format, shape: Sequence[int]) -> dict[str, Kind]:
        """weight, weight_scale_inv."""
        kind = torch.float8_e8m0fnu if isinstance(fmt.scale, PowerOfTwo) else torch.float32
        return {
            name: (torch.float8_e4m3fn, tuple(shape)),
            f"{name}_scale_inv": (kind, fmt.block.scale_shape(shape)),
        }

    def store(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """The bits as they are."""
        scale = q.qparams.scale
        scale = scale.view(torch.float8_e8m0fnu) if scale.dtype == torch.uint8 else scale
        return {name: q.packed.view(torch.float8_e4m3fn), f"{name}_scale_inv": scale}

    def together(self, tensors: Sequence[PlannedTensor]) -> str | None:
        """One size of tiles, one type of scales."""
        names = {f"{t.format.block}:{t.format.scale}" for t in tensors if t.format is not None}
        return only(names, "its tile and the type of its scales")

    def config(self, tensors: Sequence[PlannedTensor], config: Json) -> Json:
        """`quantization_config` of transformers."""
        fmt = next(t.format for t in tensors if t.format is not None)
        settings = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [size for _, size in fmt.block.sizes],
            "modules_to_not_convert": float_layers(tensors, config),
        }
        if isinstance(fmt.scale, PowerOfTwo):
            settings["scale_fmt"] = "ue8m0"
        return config | {"quantization_config": settings}


writer = FP8Writer()
