# SPDX-License-Identifier: BSD-3-Clause
"""What is converted: a checkpoint's tensors with the names and the rows that they are to have."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.joined_weights import disagreement_text, groups, partners, shares, top_of
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import json_object, quote, read_json
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.gguf.families import IN_FLOAT32, of_metadata
from blockscale.export.checkpoints.gguf.reading import GGUF
from blockscale.export.checkpoints.gguf.tensors import from_gguf, to_gguf
from blockscale.export.checkpoints.regrouped import RegroupedCheckpoint, TensorPiece
from blockscale.export.conversion.exact import CodesNeededError, carry
from blockscale.export.writers import Writer, layer_of
from blockscale.export.writers.gguf_files import architectures
from blockscale.files.directory.model_files import CONFIG, LEDGER, OTHER_WEIGHTS
from blockscale.files.stored_model import INDEX
from blockscale.layers.assembly import largest
from blockscale.layers.saturation import block_ranges
from blockscale.ops.tensor import QTensor

_QUANTIZATION = ("quantization_config", "quantization", "compression_config")
_NOT_COPIED = (
    *OTHER_WEIGHTS, "*.safetensors", "*.bin", "*.pt", "*.pth", "*.index.json", CONFIG, INDEX,
    LEDGER, "quantize_config.json", "quant_config.json", "hf_quant_config.json", "quanto_qmap.json",
    "quantization_map.json",
)  # fmt: skip
AT_A_TIME = 2  # tensors that are held, each by a thread of its own
_GGUF_PLAIN = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8,
               torch.int16, torch.int32, torch.int64)  # fmt: skip
# Old models store what readers compute: GPT-2's masks, too
_COMPUTED = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")


@dataclass
class ConvertedSource:
    """A checkpoint that is open, and its tensors as the result has them.

    view: the tensors with the names, shapes and orders of rows of the result
    left_out: {name in the checkpoint: why it is not in the result}
    config: of the model of transformers, without how it is quantized; {} where there is none
    folder: where the files beside config.json are, or None
    """

    checkpoint: Checkpoint
    view: Checkpoint
    left_out: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def read(self, name: str, raw: bool = False) -> QTensor | Tensor:
        """A tensor of the result. raw: the bytes of its blocks, which are only copied."""
        return read(self.view, name, raw)

    def piece(self, name: str) -> TensorPiece:
        """How a tensor of the result is made of the checkpoint's."""
        return (
            self.view.pieces[name]
            if isinstance(self.view, RegroupedCheckpoint)
            else TensorPiece((name,))
        )

    def other_files(self) -> list[Path]:
        """Tokenizer, settings, the model's card: what lies beside weights and is copied."""
        if self.folder is None:
            return []
        files = (file for file in sorted(self.folder.iterdir()) if file.is_file())
        return [
            file
            for file in files
            if not file.name.startswith(".")
            and not any(fnmatch(file.name, pattern) for pattern in _NOT_COPIED)
        ]


def source_of(
    checkpoint: Checkpoint, to_gguf: bool, names: str, config: Path | None
) -> ConvertedSource:
    """What a checkpoint becomes. names: "auto" or "keep"; config: a directory with config.json.

    Raises ValueError for a model whose names are not known, and FileError for damaged files.
    """
    from_gguf = isinstance(checkpoint, GGUF)
    folder = config if config is not None else _folder(checkpoint)
    source = ConvertedSource(checkpoint, checkpoint, config=_config(folder), folder=folder)
    if from_gguf == to_gguf or names == "keep":
        return source
    if to_gguf:
        _into_gguf(source)
    else:
        _out_of_gguf(source, config is not None)
    return source


def read(checkpoint: Checkpoint, name: str, raw: bool = False) -> QTensor | Tensor:
    """A tensor. raw: the bytes of one in a grid of ggml's, which has no format here."""
    if raw:
        assert isinstance(checkpoint, GGUF)
        return checkpoint.blocks(name)
    return checkpoint[name]


def _into_gguf(source: ConvertedSource) -> None:
    family = architectures.of_config(source.config)
    names = []
    for name in source.checkpoint:
        if name.endswith(_COMPUTED):
            source.left_out[name] = "readers compute it"
        else:
            names.append(name)
    pieces, unknown = to_gguf(names, family, source.config)
    _refuse_unknown(unknown, f"the architecture {family.arch} of GGUF")
    tied = family.ties and source.config.get("tie_word_embeddings", True)
    if tied and "output.weight" in pieces and "token_embd.weight" in pieces:
        [head] = pieces.pop("output.weight").sources
        source.left_out[head] = "it is the table of embeddings (tie_word_embeddings)"
    source.view = RegroupedCheckpoint(source.checkpoint, pieces)


def _out_of_gguf(source: ConvertedSource, is_set: bool) -> None:
    checkpoint = source.checkpoint
    _, family = of_metadata(checkpoint.metadata)
    if not is_set:
        source.config = architectures.config_of(checkpoint.metadata, checkpoint)
    shapes = {name: checkpoint.stored[name].shape for name in checkpoint}
    if "rope_freqs.weight" in shapes and is_set:
        del shapes["rope_freqs.weight"]
        source.left_out["rope_freqs.weight"] = "config.json says how positions are scaled"
    pieces, unknown = from_gguf(shapes, family, source.config)
    if "rope_freqs.weight" in unknown:
        raise ValueError(
            "rope_freqs.weight scales the positions, and transformers keeps that in "
            "config.json: pass the directory of the original model's config.json (--config "
            "DIR)"
        )
    _refuse_unknown(unknown, f"{family.arch} in transformers")
    source.view = RegroupedCheckpoint(checkpoint, pieces)


def _refuse_unknown(unknown: list[str], where: str) -> None:
    if unknown:
        more = f" and {len(unknown) - 3} more" * (len(unknown) > 3)
        text = ", ".join(map(quote, unknown[:3]))
        raise ValueError(
            f"{text}{more} have no known name in {where}. With names='keep' (--names keep), "
            "tensors keep their names"
        )


def _folder(checkpoint: Checkpoint) -> Path | None:
    if isinstance(checkpoint, GGUF):
        return None
    path = checkpoint.path
    folder = path if path.is_dir() else path.parent
    return folder if path.is_dir() or (folder / CONFIG).is_file() else None


def _config(folder: Path | None) -> dict[str, Any]:
    """config.json without how the weights are quantized. Raises FileError if it is damaged."""
    if folder is None or not (folder / CONFIG).is_file():
        return {}
    path = folder / CONFIG
    data = json_object(read_json(path, unique_keys=False, finite=False), path)
    return {key: value for key, value in data.items() if key not in _QUANTIZATION}


def plain_dtype(stored: Stored, to_gguf: bool) -> torch.dtype:
    """That of a tensor which is not quantized. Raises ValueError for one that has no place."""
    dtype = stored.dtype
    if dtype is None:
        raise ValueError(f"its type {stored.kind} is not a dtype of torch")
    if not to_gguf:
        return dtype
    if dtype not in _GGUF_PLAIN:
        raise ValueError(f"GGUF cannot store tensors of {stored.kind}")
    if stored.name.split(".")[-2:-1] and stored.name.split(".")[-2] in IN_FLOAT32:
        return torch.float32
    short = dtype in (torch.float16, torch.bfloat16) and len(stored.shape) < 2
    return torch.float32 if short else dtype  # llama.cpp takes norms and biases as F32 only


# Tensors of layers that readers join: one outer scale for all, or none is written.
#
# vLLM keeps the largest outer scale of query, key and value (blockscale.core.joined_weights): codes
# that were chosen under another one would mean other numbers there.


class TensorStep(Protocol):
    """What becomes of one tensor (plan.Step)."""

    source: str
    name: str
    shape: tuple[int, ...]
    how: str
    target_format: Format | None
    more: dict[str, Any]

    def become(self, value: QTensor | Tensor) -> QTensor | Tensor:
        """The tensor as it is to be written."""


def settle_joined(
    source: ConvertedSource, steps: Sequence[TensorStep], writer: Writer, recipe: Recipe | None
) -> dict[str, str]:
    """{name: why it cannot be written} of tensors whose outer scales differ and must not.

    recipe: the formats in which such tensors are quantized again, sharing one
    """
    reasons: dict[str, str] = {}
    if not writer.joins:
        return reasons
    by_layer = {layer_of(step.name): step for step in steps}
    for group in groups(by_layer):
        members = [by_layer[layer] for layer in group]
        some = [step for step in members if _has_outer(step.target_format, step.shape)]
        outers = {step.name: _outer_of(source, step) for step in some}
        if len(some) < 2 or _same(list(outers.values())):
            continue
        info = disagreement_text({layer_of(n): outer for n, outer in outers.items()})
        if recipe is None:
            reasons |= dict.fromkeys(outers, info)
            continue
        for step in some:
            target = recipe.decide(layer_of(step.name))[0].weight
            reason = writer.holds(target, step.shape) if target else "the recipe has none for it"
            if reason:
                reasons[step.name] = f"{info}; the recipe's format: {reason}"
                continue
            step.how, step.target_format = "requantized", target
            step.more.setdefault("reason", info)
    if not reasons:
        _share_tops(source, [step for step in steps if step.how == "requantized"])
    return reasons


def _share_tops(source: ConvertedSource, steps: Sequence[TensorStep]) -> None:
    """Let those that are quantized again share their outer scale."""
    by_layer = {layer_of(step.name): step for step in steps}
    kinds = {
        layer: (str(step.target_format), step.shape[-1])
        for layer, step in by_layer.items()
        if _has_outer(step.target_format, step.shape)
    }
    sharing, _ = partners(by_layer, kinds, True)
    for group in dict.fromkeys(sharing.values()):
        top = largest([_top_of(source, by_layer[layer]) for layer in group])
        for layer in group:
            by_layer[layer].more["top"] = top


def _has_outer(fmt: Format | None, shape: Sequence[int]) -> bool:
    return fmt is not None and not shares(fmt, shape)


def _outer_of(source: ConvertedSource, step: TensorStep) -> Tensor | None:
    """The outer scale of a tensor as it would be written; None if it is to be chosen."""
    if step.how != "exact" or step.target_format is None:
        return None
    value = source.view.without_codes(step.name)
    try:
        value = value if isinstance(value, Tensor) else carry(value, step.target_format)
    except CodesNeededError:
        value = step.become(source.read(step.name))
    return value.qparams.outer if isinstance(value, QTensor) else None


def _same(outers: Sequence[Tensor | None]) -> bool:
    first, *others = outers
    if first is None:
        return all(each is None for each in others)
    return all(each is not None and torch.equal(first, each) for each in others)


def _top_of(source: ConvertedSource, step: TensorStep) -> Tensor:
    value = source.read(step.name)
    target = step.target_format
    assert isinstance(value, QTensor) and target is not None
    return top_of(block_ranges(value.dequantize(), target), target)
