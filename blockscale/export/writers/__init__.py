# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints as other producers write them, and ours. A file for each says which formats its files
hold, and how: it defines `writer`, a Writer.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from blockscale.core import import_all
from blockscale.core.format import Format
from blockscale.ops.tensor import QTensor

# What a producer's file in producers/ says: which formats its files hold, and how.

# what transformers calls the output layer where it is not lm_head, and which classes have one
_HEADS = {
    "bert": "cls.predictions.decoder", "distilbert": "vocab_projector",
    "electra": "generator_lm_head", "roberta": "lm_head.decoder", "whisper": "proj_out",
    "xlm-roberta": "lm_head.decoder",
}  # fmt: skip
_WITH_HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
Kind: TypeAlias = tuple[torch.dtype, tuple[int, ...]]
Json: TypeAlias = dict[str, Any]


class PlannedTensor(NamedTuple):
    """A tensor that is to be written. format: as which; None for one that is not quantized.

    grid: the type of a tensor of GGUF whose bytes are copied, since its values have no format here
    """

    name: str  # as a float model of transformers has it, or as it is in a GGUF file
    shape: tuple[int, ...]
    format: Format | None
    dtype: torch.dtype = torch.float32  # of a plain tensor
    grid: str = ""


class Writer(ABC):
    """How one producer stores quantized weights.

    name: as `blockscale convert --to` has it; one_file: whether a model is a file, not a directory
    computes: what its readers do otherwise than our dequantize(), to be said in summaries; or ""
    embeddings: whether its readers have quantized tables of embeddings
    joins: whether its readers compute query, key and value as one, under one outer scale
    floats: whether its readers take a model of which nothing is quantized
    parameters: whether they have quantized parameters that are no layer's weight
    """

    name: str
    one_file: bool = False
    computes: str = ""
    embeddings: bool = False
    joins: bool = False
    floats: bool = False
    parameters: bool = False

    @abstractmethod
    def forms(self, fmt: Format, shape: Sequence[int]) -> Iterable[str]:
        """Spellings of the formats as which it could hold a tensor of `fmt`, the best first."""

    @abstractmethod
    def holds(self, fmt: Format, shape: Sequence[int]) -> str | None:
        """Why it has no place for a tensor of this format and shape; None where it has."""

    @abstractmethod
    def parts(self, name: str, fmt: Format, shape: Sequence[int]) -> dict[str, Kind]:
        """{stored name: (dtype, shape)} of what is stored for a quantized weight."""

    @abstractmethod
    def store(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """{stored name: tensor} of a quantized weight that it holds."""

    def depends(self, fmt: Format) -> bool:
        """Whether only some tensors of a format that it holds have a place: `lacks` says which."""
        del fmt
        return False

    def lacks(self, q: QTensor) -> str | None:
        """Why it has no place for this tensor of a format that it holds; None where it has.

        Told by scales, offsets and zero points: codes may be on the meta device.
        """
        del q
        return None

    def settle(self, tensors: Sequence[PlannedTensor]) -> list[Format | None]:
        """Their formats once all are known: a setting that a model has once may change some."""
        return [tensor.format for tensor in tensors]

    def notes(self, tensors: Sequence[PlannedTensor]) -> list[str]:
        """What has to be known of a model with these tensors, as of readers that refuse it."""
        del tensors
        return []

    def instead(self, fmt: Format, shape: Sequence[int]) -> Format | None:
        """The format that its own tools take for a tensor whose rows `fmt` does not fit."""
        del fmt, shape
        return None

    def beside(self, name: str, q: QTensor) -> dict[str, Tensor]:
        """{name: tensor} of what is written beside the blocks of a tensor in a file of blocks.

        Raises ValueError where its readers look for none there.
        """
        del name, q
        return {}

    def plain_name(self, name: str) -> str:
        """The stored name of a tensor that is not quantized."""
        return name

    @abstractmethod
    def config(self, tensors: Sequence[PlannedTensor], config: Json) -> Json:
        """config.json of the model: `config` with what tells how its weights are quantized."""

    def more_files(self, tensors: Sequence[PlannedTensor]) -> dict[str, Json]:
        """{file: JSON} that its readers look for beside config.json."""
        del tensors
        return {}

    def metadata(self, tensors: Sequence[PlannedTensor]) -> dict[str, str]:
        """What each safetensors file says about itself."""
        del tensors
        return {"format": "pt"}

    def together(self, tensors: Sequence[PlannedTensor]) -> str | None:
        """Why these cannot be in one model; None where they can."""
        del tensors
        return None


@cache
def writers() -> Mapping[str, Writer]:
    """{name: Writer} of all there are, in the order of names."""
    modules = import_all(__name__, __path__)
    results = [module.writer for module in modules if hasattr(module, "writer")]
    return {each.name: each for each in sorted(results, key=lambda each: each.name)}


def writer_of(name: str) -> Writer:
    """The writer of this name. Raises ValueError that lists what there is."""
    facts = writers()
    if name not in facts:
        raise ValueError(
            f"cannot write checkpoints of kind {name!r}; choose from {', '.join(facts)}"
        )
    return facts[name]


def layer_of(name: str) -> str:
    """The layer that has this weight."""
    return name.removesuffix(".weight")


def float_layers(tensors: Sequence[PlannedTensor], config: Mapping[str, Any]) -> list[str]:
    """Layers whose matrices stay in float, which the file has to list for its readers.

    A tied model stores no head: its readers have one all the same, and would take it for quantized.
    config: config.json
    """
    results = [layer_of(t.name) for t in tensors if t.format is None and len(t.shape) == 2]
    head = _HEADS.get(str(config.get("model_type")), "lm_head")
    stored = any(f".{layer_of(t.name)}".endswith(f".{head}") for t in tensors)
    kinds = config.get("architectures") or ["ForCausalLM"]
    has_head = any(str(kind).endswith(_WITH_HEADS) for kind in kinds)
    inner = config.get("text_config")
    info = inner if isinstance(inner, dict) else config
    tied = config.get("tie_word_embeddings", info.get("tie_word_embeddings", True))
    return [*results, head] if tied and has_head and not stored else results


def group_of(fmt: Format, columns: int) -> int | None:
    """Elements of a row that share a scale; None where blocks are not parts of rows."""
    if str(fmt.block) in ("channel0", "token"):
        return columns
    sizes = dict(fmt.block.sizes)
    return sizes.get(-1) if set(sizes) == {-1} and fmt.block.rest == 1 else None


def not_plain_linear(fmt: Format, shape: Sequence[int]) -> str | None:
    """Why a tensor is no matrix of a linear layer in whole groups, or None."""
    if len(shape) != 2:
        return f"it has {len(shape)} dimensions, and only matrices can be stored"
    group = group_of(fmt, shape[-1])
    if group is None:
        return f"its blocks ({fmt.block}) are not parts of rows"
    if shape[-1] % group:
        return f"its rows of {shape[-1]} do not divide into groups of {group}"
    return None


def group_setting(tensors: Sequence[PlannedTensor]) -> int | None:
    """The size of groups of all quantized tensors, -1 for whole rows; None where they differ."""
    of = [(t.format, t.shape[-1]) for t in tensors if t.format is not None]
    values = {(group_of(fmt, columns), columns) for fmt, columns in of}
    if all(group == columns for group, columns in values):
        return -1
    sizes = {group for group, _ in values}
    return sizes.pop() if len(sizes) == 1 else None


def only(results: set[Any], what: str) -> str | None:
    """Why a setting that a model has once would need several values, or None."""
    if len(results) > 1:
        return f"{what} must be the same for the whole model, found {sorted(map(str, results))}"
    return None
