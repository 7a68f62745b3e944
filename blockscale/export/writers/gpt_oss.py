# SPDX-License-Identifier: BSD-3-Clause
"""gpt-oss: experts in OCP MXFP4 as transformers' quant_method `mxfp4` reads them.

Layout: huggingface/transformers, integrations/mxfp4.py: `NAME_blocks` u8 [experts, out, in / 32,
16], even elements in the low nibbles, and `NAME_scales` u8 [experts, out, in / 32].
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.export.writers import Json, Kind, PlannedTensor, Writer, float_layers
from blockscale.ops.tensor import QTensor

_FORMAT = "e2m1:group32:e8m0/given"


class GptOssWriter(Writer):
    """gpt-oss's MXFP4."""

    name = "gpt-oss"
    computes = "transformers decodes it to bf16"
    parameters = True

    def forms(self, fmt: Format, shape: Sequence[int]) -> Iterable[str]:
        """MXFP4 alone."""
        del fmt, shape
        return [_FORMAT]

    def holds(self, fmt: Format, shape: Sequence[int]) -> str | None:
        """Stacks of matrices in MXFP4 with rows of whole groups."""
        if str(fmt) != _FORMAT:
            return f"{fmt}: gpt-oss files hold MXFP4 ({_FORMAT})"
        if len(shape) != 3 or shape[-1] % 32:
            return f"{list(shape)}: gpt-oss files hold stacks of experts [experts, outputs, 32 * n]"
        return None

    def parts(self, name: str, fmt: Format, shape: Sequence[int]) -> dict[str, Kind]:
        """NAME_blocks, NAME_scales."""
        del fmt
        groups = (*shape[:-1], shape[-1] // 32)
        return {
            f"{name}_blocks": (torch.uint8, (*groups, 16)),
            f"{name}_scales": (torch.uint8, groups),
        }

    def store(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """Our packed rows are its blocks."""
        return {
            f"{name}_blocks": q.packed.unflatten(-1, (-1, 16)),
            f"{name}_scales": q.qparams.scale,
        }

    def config(self, tensors: Sequence[PlannedTensor], config: Json) -> Json:
        """`quantization_config` of transformers."""
        plain = float_layers(tensors, config)
        settings = {"quant_method": "mxfp4", "modules_to_not_convert": plain}
        return config | {"quantization_config": settings}


writer = GptOssWriter()
