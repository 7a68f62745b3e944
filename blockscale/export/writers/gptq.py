# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ, as GPTQModel, transformers and vLLM read it: codes in columns, groups of inputs.

Layout: ModelCloud/GPTQModel, nn_modules/qlinear/__init__.py. `qweight` is a stream of bits down the
inputs, a column for each output; `qzeros` a stream along the outputs.

A model whose zero points are all 2^(bits - 1) is symmetric (`sym: true`) and of version 1, which
stores zero points less one: vLLM takes no other (0.32.0, quantization/auto_gptq.py, TYPE_MAP).
One with other zero points is of version 2, which stores them as they are: version 1 has no place
for 0.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.export.to_compressed_tensors.tensors import words
from blockscale.export.writers import (
    Json,
    Kind,
    PlannedTensor,
    Writer,
    group_of,
    group_setting,
    layer_of,
    not_plain_linear,
    only,
)
from blockscale.ops.tensor import QTensor

_BITS = (2, 3, 4, 8)


class GPTQWriter(Writer):
    """GPTQ without act-order. Signed formats are symmetric."""

    name = "gptq"
    computes = "readers of this layout compute (code - zero) * scale in fp16"

    def forms(self, fmt: Format, shape: Sequence[int]) -> Iterable[str]:
        """intB:groupN:fp16:full and uintB:groupN:fp16:asym, with the source's groups."""
        group = group_of(fmt, shape[-1])
        for bits in _BITS:
            if fmt.element.signed or fmt.asym:
                yield f"int{bits}:group{group or 128}:fp16:full"
            yield f"uint{bits}:group{group or 128}:fp16:asym"

    def holds(self, fmt: Format, shape: Sequence[int]) -> str | None:
        """Matrices of integers of 2, 3, 4 and 8 bits with fp16 scales, symmetric or with zeros."""
        if fmt.bits not in _BITS or str(fmt) not in (_symmetric(fmt), _with_zeros(fmt)):
            return (
                f"{fmt}: GPTQ supports uint2, uint3, uint4 and uint8 with fp16 scales and "
                "zero points, and int2, int3, int4 and int8 with fp16 scales and all codes "
                "(full)"
            )
        if reason := not_plain_linear(fmt, shape):
            return reason
        if any(size * fmt.bits % 32 for size in shape):
            return f"{list(shape)} codes of {fmt.bits} bits do not fill whole words of 32 bits"
        return None

    def depends(self, fmt: Format) -> bool:
        """Zero points decide between the two."""
        return fmt.asym

    def lacks(self, q: QTensor) -> str | None:
        """Zero points that are all in the middle are written as a signed format."""
        zero = q.zero_point
        if zero is not None and bool((zero == 2 ** (q.format.bits - 1)).all()):
            return f"its zero points are all {2 ** (q.format.bits - 1)}: written as symmetric"
        return None

    def settle(self, tensors: Sequence[PlannedTensor]) -> list[Format | None]:
        """Symmetric tensors among others get zero points: a model has one `sym`."""
        formats = [t.format for t in tensors]
        if not any(fmt.asym for fmt in formats if fmt is not None):
            return formats
        return [fmt and (fmt if fmt.asym else parse(_with_zeros(fmt))) for fmt in formats]

    def parts(self, name: str, fmt: Format, shape: Sequence[int]) -> dict[str, Kind]:
        """qweight, qzeros, scales, g_idx."""
        (rows, columns), layer = shape, layer_of(name)
        groups = columns // (group_of(fmt, columns) or columns)
        return {
            f"{layer}.qweight": (torch.int32, (columns * fmt.bits // 32, rows)),
            f"{layer}.qzeros": (torch.int32, (groups, rows * fmt.bits // 32)),
            f"{layer}.scales": (torch.float16, (groups, rows)),
            f"{layer}.g_idx": (torch.int32, (columns,)),
        }

    def store(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """Our rows of bits are its columns, from code 0 on."""
        layer, columns, bits = layer_of(name), q.size, q.format.bits
        if q.format.element.signed:
            half = 2 ** (bits - 1)
            codes = words((q.codes.to(torch.int16) + half).to(torch.uint8), bits)
            zeros = torch.full_like(q.qparams.scale, half - 1, dtype=torch.int32)
        else:
            assert q.zero_point is not None
            codes, zeros = q.packed.contiguous().view(torch.int32), q.zero_point
        return {
            f"{layer}.qweight": codes.T.contiguous(),
            f"{layer}.qzeros": words(zeros.T, bits),
            f"{layer}.scales": q.qparams.scale.T.contiguous(),
            f"{layer}.g_idx": torch.arange(columns, dtype=torch.int32)
            // (group_of(q.format, columns) or columns),
        }

    def together(self, tensors: Sequence[PlannedTensor]) -> str | None:
        """One number of bits, one size of groups, all symmetric or all with zero points."""
        if group_setting(tensors) is None:
            return only({str(t.format.block) for t in tensors if t.format}, "its size of groups")
        formats = [t.format for t in tensors if t.format is not None]
        return only({fmt.bits for fmt in formats}, "its number of bits") or only(
            {_sort(fmt) for fmt in formats}, "whether it is symmetric"
        )

    def notes(self, tensors: Sequence[PlannedTensor]) -> list[str]:
        """vLLM takes 4 and 8 bits, symmetric alone."""
        first = next(t.format for t in tensors if t.format is not None)
        if first.element.signed and first.bits in (4, 8):
            return []
        what = "zero points" if first.asym else f"{first.bits} bits"
        return [
            f"vLLM (0.32.0) supports only symmetric GPTQ of 4 and 8 bits, not {what}; "
            "transformers with GPTQModel loads it. For vLLM, write compressed-tensors"
        ]

    def _settings(self, tensors: Sequence[PlannedTensor]) -> Json:
        first = next(t for t in tensors if t.format is not None)
        assert first.format is not None
        symmetric = first.format.element.signed
        version = "gptq" if symmetric else "gptq_v2"
        return {
            "bits": first.format.bits,
            "group_size": group_setting(tensors),
            "desc_act": False,
            "sym": symmetric,
            "checkpoint_format": version,
            "format": version,
            "pack_dtype": "int32",
            "lm_head": any(t.format and layer_of(t.name) == "lm_head" for t in tensors),
        }

    def config(self, tensors: Sequence[PlannedTensor], config: Json) -> Json:
        """`quantization_config` of transformers."""
        settings = {"quant_method": "gptq"} | self._settings(tensors)
        return config | {"quantization_config": settings}

    def more_files(self, tensors: Sequence[PlannedTensor]) -> dict[str, Json]:
        """quantize_config.json, which AutoGPTQ and vLLM look for."""
        return {"quantize_config.json": self._settings(tensors)}


def _symmetric(fmt: Format) -> str:
    return f"int{fmt.bits}:{fmt.block}:fp16:full"


def _with_zeros(fmt: Format) -> str:
    return f"uint{fmt.bits}:{fmt.block}:fp16:asym"


def _sort(fmt: Format) -> str:
    return "symmetric" if fmt.element.signed else "with zero points"


writer = GPTQWriter()
