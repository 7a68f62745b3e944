# SPDX-License-Identifier: BSD-3-Clause
"""GGUF, as llama.cpp reads it: blocks of ggml's types. How a file is put together: gguf_files/."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.pack import packed_size
from blockscale.core.parse import parse
from blockscale.core.profiles import profile
from blockscale.core.weight_scheme import for_rows
from blockscale.export.checkpoints.gguf.records import TYPES, blocks_of, scale_of
from blockscale.export.writers import Json, Kind, PlannedTensor, Writer
from blockscale.ops.tensor import QTensor

_BY_SIZE = sorted(TYPES, key=lambda name: (TYPES[name].size / TYPES[name].elements, name))
_LAST = ("TQ1_0", "TQ2_0", "Q1_0", "Q2_0")  # few programs read them: only what is one already


class GGUFWriter(Writer):
    """GGUF files."""

    name = "gguf"
    embeddings = True
    floats = True
    parameters = True
    one_file = True

    def forms(self, fmt: Format, shape: Sequence[int]) -> Iterable[str]:
        """Formats of all types, the fewest bytes first."""
        del fmt, shape
        return dict.fromkeys(TYPES[name].format for name in (*_first(), *_LAST))

    def holds(self, fmt: Format, shape: Sequence[int]) -> str | None:
        """What is a type of ggml, with rows of whole blocks."""
        kind = kind_of(fmt)
        if kind is None:
            return f"{fmt}: ggml has no such type"
        elements = TYPES[kind].elements
        if not shape or len(shape) > 4 or shape[-1] % elements:
            return f"rows of {list(shape)[-1:]} do not divide into blocks of {elements} ({kind})"
        return None

    def depends(self, fmt: Format) -> bool:
        """Types with less than their formats have."""
        return kind_of(fmt) in ("Q2_0", "MXFP4", "NVFP4")

    def lacks(self, q: QTensor) -> str | None:
        """Q2_0 has one zero point, and scales that are NaN mean something else."""
        kind, scale, zero = kind_of(q.format), q.qparams.scale, q.qparams.zero_point
        if kind == "Q2_0" and zero is not None and not bool((zero == 1).all()):
            return "its zero points are not all 1, as they are in Q2_0"
        if kind == "NVFP4" and bool((scale >= 127).any()):
            return "it has negative or NaN scales, which ggml would read as other values"
        if kind == "MXFP4" and bool((scale == 255).any()):
            return "it has NaN scales, which ggml would read as 2^128"
        return None

    def instead(self, fmt: Format, shape: Sequence[int]) -> Format | None:
        """As llama-quantize: Q5_0 for Q4_K, and so on, where rows are no whole blocks of 256."""
        kind = kind_of(fmt)
        if kind is None or not shape:
            return None
        choice = for_rows(profile(f"gguf.{kind.lower()}"), shape).format
        return None if choice == fmt or self.holds(choice, shape) else choice

    def beside(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """NVFP4's scale of scales, by which llama.cpp multiplies products: `blk.N.attn_q.scale`."""
        outer = q.qparams.outer
        if kind_of(q.format) != "NVFP4" or outer is None or bool((outer == 1).all()):
            return {}
        place = scale_of(name)
        if place is None:
            raise ValueError(
                "it has an outer scale, which llama.cpp does not read for this tensor: leave "
                "it in float (--float), or quantize with profile:gguf.nvfp4"
            )
        count = q.shape[0] if len(q.shape) > 2 else 1  # experts have one each
        return {place: outer.reshape(-1).to(torch.float32).expand(count).contiguous()}

    def parts(self, name: str, fmt: Format, shape: Sequence[int]) -> dict[str, Kind]:
        """Blocks are laid out by gguf_files/."""
        raise NotImplementedError("a GGUF file is not a safetensors file")

    def store(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """Blocks uint8 [n, size]."""
        kind = kind_of(q.format)
        assert kind is not None and packed_size(q.format.element, q.size)
        return {name: blocks_of(q, TYPES[kind])}

    def config(self, tensors: Sequence[PlannedTensor], config: Json) -> Json:
        """There is no config.json."""
        del tensors
        return config


def kind_of(fmt: Format, kind: str = "") -> str | None:
    """The type that has this format; of several the one that is asked for."""
    if kind in TYPES and parse(TYPES[kind].format) == fmt:
        return kind
    names = (*_first(), "TQ2_0", *_LAST)
    return next((name for name in names if parse(TYPES[name].format) == fmt), None)


def _first() -> list[str]:
    return [name for name in _BY_SIZE if name not in _LAST]


writer = GGUFWriter()
