# SPDX-License-Identifier: BSD-3-Clause
"""The metadata of a GGUF file for a model of transformers: its configuration and its tokenizer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.export.writers import Planned
from blockscale.export.writers.gguf import kind_of
from blockscale.export.writers.gguf_files.architectures import keys, of_config, rope
from blockscale.export.writers.gguf_files.architectures import kind_of as kind_of_positions
from blockscale.export.writers.gguf_files.file import (
    ALIGNMENT,
    MetadataValue,
    encoded,
    rope_factors,
)
from blockscale.export.writers.gguf_files.tokenizer import tokenizer_keys

# general.file_type: what most weights are, llama.cpp's llama_ftype
_FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
    "Q3_K": 12, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32,
    "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "NVFP4": 39, "Q1_0": 40, "Q2_0": 41,
}  # fmt: skip
_FLOATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass
class Extra:
    """Tensors that the file has besides. step: general.alignment."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    step: int = ALIGNMENT

    @property
    def planned(self) -> list[Planned]:
        """As the file is laid out."""
        return [Planned(n, tuple(t.shape), None, t.dtype) for n, t in self.tensors.items()]


def _most(tensors: Sequence[Planned]) -> str | None:
    """The type of most matrices: of those that are quantized, if there are any."""
    kinds = Counter(kind_of(t.format) for t in tensors if t.format is not None)
    if not kinds:
        kinds = Counter(_FLOATS.get(t.dtype) for t in tensors if len(t.shape) > 1 and not t.grid)
    return kinds.most_common(1)[0][0] if kinds else None


def metadata_for(
    config: Mapping[str, Any], folder: Path | None, tensors: Sequence[Planned]
) -> tuple[dict[str, bytes], Extra, tuple[str, ...]]:
    """{key: type and value}, what tensors there are besides, and what has to be said.

    tensors: with their names in GGUF. A model of an architecture that is not known, whose tensors
    keep their names, has no keys but those of any file.
    """
    most = _most(tensors)
    found = {"general.quantization_version": MetadataValue("u32", 2)}
    if most in _FILE_TYPES:
        found["general.file_type"] = MetadataValue("u32", _FILE_TYPES[most])
    extra = Extra()
    notes: list[str] = []
    if any(t.name == "token_embd.weight" for t in tensors):
        told, said = keys(config)
        found, notes = told | found, [*notes, *said]
        arch = of_config(config).arch
        if kind_of_positions(rope(config)) == "llama3":
            positions = rope(config)
            size = found[f"{arch}.rope.dimension_count"].value
            extra.tensors["rope_freqs.weight"] = rope_factors(positions, size)
        vocabulary = next(t.shape[0] for t in tensors if t.name == "token_embd.weight")
        if folder is not None:
            tokens, text = tokenizer_keys(folder, vocabulary)
            found |= tokens
            notes += [text] if text else []
    else:
        found = {
            "general.architecture": MetadataValue("text", str(config.get("model_type", "unknown")))
        } | found
        notes.append("tensors keep their names, which llama.cpp does not know")
    return {key: encoded(value) for key, value in found.items()}, extra, tuple(notes)
