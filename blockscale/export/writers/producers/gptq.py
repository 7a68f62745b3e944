"""GPTQ version 2, as GPTQModel, transformers and vLLM read it: codes in columns, groups of inputs.

Layout: ModelCloud/GPTQModel, nn_modules/qlinear/__init__.py. `qweight` is a stream of bits down the
inputs, a column for each output; `qzeros` a stream along the outputs. Zero points are stored as
they are: version 1 stores one less, and has no place for 0.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.export.to_compressed_tensors.tensors import words
from blockscale.export.writers.writer import (
    Json,
    Kind,
    Planned,
    Writer,
    group_of,
    group_setting,
    layer_of,
    not_plain_linear,
    only,
)
from blockscale.ops.tensor import QTensor

_BITS = (2, 3, 4, 8)


class GPTQ(Writer):
    """GPTQ v2 without act-order."""

    name = "gptq"
    computes = "its readers compute (code - zero) * scale in fp16"

    def forms(self, fmt: Format, shape: Sequence[int]) -> Iterable[str]:
        """uintB:groupN:fp16:asym, with the source's groups."""
        group = group_of(fmt, shape[-1])
        for bits in _BITS:
            yield f"uint{bits}:group{group or 128}:fp16:asym"

    def holds(self, fmt: Format, shape: Sequence[int]) -> str | None:
        """Matrices of unsigned integers of 2, 3, 4 and 8 bits with zero points and fp16 scales."""
        wanted = f"uint{fmt.bits}:{fmt.block}:fp16:asym"
        if fmt.bits not in _BITS or str(fmt) != wanted:
            return f"{fmt}: it has uint2, uint3, uint4 and uint8 with fp16 scales and zero points"
        if reason := not_plain_linear(fmt, shape):
            return reason
        if any(size * fmt.bits % 32 for size in shape):
            return f"{list(shape)} codes of {fmt.bits} bits do not fill whole words of 32 bits"
        return None

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
        """Our rows of bits are its columns."""
        layer, columns = layer_of(name), q.size
        assert q.zero_point is not None
        return {
            f"{layer}.qweight": q.packed.contiguous().view(torch.int32).T.contiguous(),
            f"{layer}.qzeros": words(q.zero_point.T, q.format.bits),
            f"{layer}.scales": q.qparams.scale.T.contiguous(),
            f"{layer}.g_idx": torch.arange(columns, dtype=torch.int32)
            // (group_of(q.format, columns) or columns),
        }

    def together(self, tensors: Sequence[Planned]) -> str | None:
        """One number of bits and one size of groups."""
        if group_setting(tensors) is None:
            return only({str(t.format.block) for t in tensors if t.format}, "its size of groups")
        return only({t.format.bits for t in tensors if t.format is not None}, "its number of bits")

    def _settings(self, tensors: Sequence[Planned]) -> Json:
        first = next(t for t in tensors if t.format is not None)
        assert first.format is not None
        return {
            "bits": first.format.bits,
            "group_size": group_setting(tensors),
            "desc_act": False,
            "sym": False,
            "checkpoint_format": "gptq_v2",
            "format": "gptq_v2",
            "pack_dtype": "int32",
            "lm_head": any(t.format and layer_of(t.name) == "lm_head" for t in tensors),
        }

    def config(self, tensors: Sequence[Planned], config: Json) -> Json:
        """`quantization_config` of transformers."""
        settings = {"quant_method": "gptq"} | self._settings(tensors)
        return config | {"quantization_config": settings}

    def more_files(self, tensors: Sequence[Planned]) -> dict[str, Json]:
        """quantize_config.json, which AutoGPTQ and vLLM look for."""
        return {"quantize_config.json": self._settings(tensors)}


writer = GPTQ()
