# SPDX-License-Identifier: BSD-3-Clause
"""What becomes of every tensor, decided before anything is written."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.recipe import Recipe
from blockscale.core.reference import QParams
from blockscale.core.rules import matches
from blockscale.core.untrusted import TEXT, quote, shown
from blockscale.export.checkpoints.checkpoint import Checkpoint
from blockscale.export.checkpoints.gguf.reading import GGUF
from blockscale.export.checkpoints.gguf.records import GRIDS
from blockscale.export.checkpoints.regrouped import RegroupedCheckpoint
from blockscale.export.checkpoints.safetensors import Safetensors
from blockscale.export.conversion.directory import requantized
from blockscale.export.conversion.exact import (
    CodesNeededError,
    InexactError,
    carry,
    certain,
    obstacle,
)  # fmt: skip
from blockscale.export.conversion.same_numbers import meaning
from blockscale.export.conversion.source import (
    AT_A_TIME,
    ConvertedSource,
    plain_dtype,
    settle_joined,
)
from blockscale.export.writers import PlannedTensor, Writer, layer_of
from blockscale.export.writers.gguf_files.architectures import of_config
from blockscale.files.slabs.pool import Pool
from blockscale.layers.parameters import quantize_parameter
from blockscale.ops.tensor import QTensor

_GRIDS = {name for name, _, _ in GRIDS.values()}
EXACT, COPIED, FLOATS, REQUANTIZED = "exact", "copied", "dequantized", "requantized"


class NotLosslessError(ValueError):
    """Tensors that the target cannot hold with the same values. reasons: {name: why}."""

    def __init__(self, text: str, reasons: Mapping[str, str]):
        super().__init__(text)
        self.reasons = dict(reasons)


@dataclass
class Step:
    """What becomes of one tensor. how: EXACT, COPIED, FLOATS or REQUANTIZED; kind: the source's

    beside: what a file of blocks has beside it
    """

    source: str
    name: str
    shape: tuple[int, ...]
    kind: str
    how: str
    stored_format: Format | None
    target_format: Format | None
    dtype: torch.dtype = torch.float32
    bytes_before: int = 0
    grid: str = ""
    beside: list[PlannedTensor] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def plan(self) -> PlannedTensor:
        """As writers take it."""
        return PlannedTensor(self.name, self.shape, self.target_format, self.dtype, self.grid)

    def become(self, value: QTensor | Tensor) -> QTensor | Tensor:
        """The tensor as it is to be written. Raises InexactError where that would change it."""
        if isinstance(value, Tensor):
            return value.to(self.dtype)
        if self.target_format is None:
            return value.dequantize()
        if (top := self.more.get("top")) is not None:  # it shares its outer scale
            return quantize_parameter(value.dequantize(), self.target_format, None, top)[0]
        if self.how == REQUANTIZED:
            return requantized(value, self.target_format)
        return carry(value, self.target_format)


def make_plan(
    source: ConvertedSource, writer: Writer, recipe: Recipe | None, floats: tuple[str, ...]
) -> list[Step]:
    """A step for each tensor. Raises NotLosslessError that names all that cannot stay as they are.

    recipe: the formats of tensors that cannot; floats: patterns of layers that become floats
    """
    steps, reasons = [], {}

    def one(name: str) -> tuple[str, Step | str]:
        try:
            return name, _step(source, name, writer, recipe, floats)
        except (InexactError, ValueError) as error:
            return name, str(error)

    with Pool(AT_A_TIME) as pool:
        for name, result in pool.map(one, list(source.view)):
            if isinstance(result, Step):
                steps.append(result)
            else:
                reasons[name] = result
    if reasons := reasons or settle_joined(source, steps, writer, recipe):
        raise _refusal(writer, reasons, recipe)
    for step, target in zip(steps, writer.settle([s.plan for s in steps]), strict=True):
        step.target_format = step.target_format if step.how == REQUANTIZED else target
    plans = [step.plan for step in steps]
    floats_fit = writer.floats and (writer.one_file or isinstance(source.checkpoint, GGUF))
    if not floats_fit and not any(step.target_format is not None for step in steps):
        raise ValueError(
            f"{source.checkpoint.path} holds no quantized tensor to convert: use blockscale "
            "quantize for float models"
        )
    if reason := writer.together(plans):
        raise NotLosslessError(f"{writer.name}: {reason}", {})
    return steps


def _step(
    source: ConvertedSource,
    name: str,
    writer: Writer,
    recipe: Recipe | None,
    floats: tuple[str, ...],
) -> Step:
    stored, origin = source.view.stored[name], source.piece(name).name
    if stored.kind in _GRIDS and isinstance(source.checkpoint, GGUF) and writer.name == "gguf":
        return Step(origin, name, stored.shape, stored.kind, COPIED, None, None, torch.uint8,
                    stored.nbytes, stored.kind)  # fmt: skip
    if stored.unread:
        raise InexactError(stored.unread)
    if stored.kind in _GRIDS and stored.format is None:  # read as floats
        return Step(origin, name, stored.shape, stored.kind, FLOATS, None, None,
                    bytes_before=stored.nbytes)  # fmt: skip
    if stored.format is None:
        dtype = plain_dtype(stored, writer.one_file)
        step = Step(origin, name, stored.shape, stored.kind, COPIED, None, None, dtype,
                    stored.nbytes)  # fmt: skip
        if addend := source.piece(name).addend:
            step.more["note"] = f"{addend:+g}: Gemma's norms multiply by the weight and 1"
        return step
    fmt = parse(stored.format)
    step = Step(origin, name, stored.shape, stored.kind, EXACT, fmt, None,
                bytes_before=stored.nbytes)  # fmt: skip
    layer = layer_of(name)
    if any(matches(pattern, layer) or matches(pattern, name) for pattern in floats):
        step.how = FLOATS
        return step
    try:
        step.target_format = _choose(source, step, writer)
    except InexactError as error:
        _requantize(step, writer, None if recipe is None else recipe.decide(layer)[0].weight, error)
    _plan_beside(source, step, writer)
    return step


def _requantize(step: Step, writer: Writer, fmt: Format | None, error: InexactError) -> None:
    """Have the tensor quantized in the recipe's format, or in what stands in for it. Raises
    InexactError, which is `error` where the recipe says nothing."""
    if fmt is None:
        raise error
    if reason := writer.holds(fmt, step.shape):
        other = writer.instead(fmt, step.shape)
        if other is None:
            raise InexactError(f"the recipe's format: {reason}")
        fmt, step.more["note"] = other, f"{reason}: {other}, as llama.cpp's quantizer does"
    step.how, step.target_format = REQUANTIZED, fmt
    step.more["reason"] = str(error)


def _plan_beside(source: ConvertedSource, step: Step, writer: Writer) -> None:
    """What is written beside the tensor. Raises InexactError where its readers would not look."""
    assert step.target_format is not None
    if not writer.depends(step.target_format):
        return
    if step.how == REQUANTIZED:  # its numbers are not known yet: as if they need a place
        dtype, shape = step.target_format.packed(step.shape)
        codes = torch.empty(shape, dtype=dtype, device="meta")
        parts = QParams(torch.empty(0), torch.full((1,) * len(step.shape), 2.0))
        value = QTensor(codes, parts, step.target_format, step.shape[-1])
    else:
        q = source.view.without_codes(step.name)
        assert isinstance(q, QTensor)
        value = carry(q, step.target_format)
    try:
        result = writer.beside(step.name, value)
    except ValueError as error:
        raise InexactError(str(error)) from None
    if result and isinstance(source.view, RegroupedCheckpoint):
        _check_scaled(source, step.name)
    step.beside = [PlannedTensor(n, tuple(t.shape), None, t.dtype) for n, t in result.items()]
    if result:
        step.more["note"] = "its outer scale is applied to products instead of scales"


def _check_scaled(source: ConvertedSource, name: str) -> None:
    """Raise InexactError where llama.cpp would not multiply by a scale of scales, or gives up."""
    family, bias = of_config(source.config), f"{name.removesuffix('weight')}bias"
    if family.scaled and "_exps." not in name and not ("ffn_" in name and bias in source.view):
        return
    raise InexactError(
        f"it has an outer scale, which llama.cpp's graph of {family.arch} does not apply "
        "here: quantize with profile:gguf.nvfp4, which has none"
    )


def _choose(source: ConvertedSource, step: Step, writer: Writer) -> Format:
    """The format that the tensor is written in. Raises InexactError where there is none."""
    result, shape = step.stored_format, step.shape
    assert result is not None
    _check_place(source, step, writer)
    tries: dict[str, str] = {}
    reasons: dict[str, str] = {}
    value: QTensor | Tensor | None = None
    rows: QTensor | None = None
    forms = [parse(spelling) for spelling in writer.forms(result, shape)]
    for target in sorted(forms, key=lambda each: meaning(each) != meaning(result)):
        reason = writer.holds(target, shape) or obstacle(result, target, shape)
        if reason is None and certain(result, target) and not writer.depends(target):
            return target
        if reason is None:
            value = source.view.without_codes(step.name) if value is None else value
            try:
                reason = _obstacle(value, target, writer)
            except CodesNeededError:
                rows = source.view.first_rows(step.name) if rows is None else rows
                reason = None if rows is None else _of_rows(rows, target)
                if reason is None:
                    value = source.view[step.name]
                    reason = _obstacle(value, target, writer)
            if reason is None:
                return target
            tries[str(target)] = reason
        else:
            reasons[str(target)] = reason
    raise InexactError(_why(result, tries | reasons if len(tries) < 3 else tries))


def _of_rows(rows: QTensor, target: Format) -> str | None:
    """Why some rows, and so the tensor, cannot be written as `wanted`; None where they do not
    tell."""
    try:
        if obstacle(rows.format, target, rows.shape) is None:
            carry(rows, target)
    except InexactError as error:
        return str(error)
    return None


def _obstacle(value: QTensor | Tensor, target: Format, writer: Writer) -> str | None:
    """Why this very tensor cannot be written as `wanted`; None where it can."""
    assert isinstance(value, QTensor)
    try:
        return writer.lacks(carry(value, target))
    except InexactError as error:
        return str(error)


def _check_place(source: ConvertedSource, step: Step, writer: Writer) -> None:
    """Raise InexactError for what no format would help."""
    if reason := no_place(writer, step.name):
        raise InexactError(reason)
    piece = source.piece(step.name)
    for each in piece.sources:
        _check_beside(source.checkpoint, each, step)
    if isinstance(source.checkpoint, Safetensors):
        for each in piece.sources:
            _check_stored(source.checkpoint, each, "transposed" if piece.transpose else "plain")
    elif piece.transpose and not writer.one_file:
        raise InexactError(
            "its weight is stored as [inputs, outputs], and blocks of the layout run along inputs"
        )


def _check_beside(checkpoint: Checkpoint, name: str, step: Step) -> None:
    """Raise InexactError for what its producer means by a weight and no target can say."""
    if checkpoint.order(name) is not None:
        raise InexactError(
            "its groups are of reordered inputs (act-order), which the layout cannot store"
        )
    if checkpoint.rounds(name):
        if step.kind.startswith("bitsandbytes"):
            raise InexactError(
                "its values are a product of three factors, which no format here has"
            )
        step.more["note"] = (
            "codes and scales are the same; its producer's own library rounds the values"
        )


def _check_stored(checkpoint: Checkpoint, name: str, layout: str) -> None:
    """Raise InexactError for a weight that is stored in another layout, or behind a transform."""
    info = checkpoint.own_metadata.tensors.get(name)
    stored = "plain" if info is None else info.layout
    if stored != layout:
        why = "which is not the matrix of a linear layer" if layout == "plain" else f"not {layout}"
        raise InexactError(f"it is stored {stored}, {why}")
    before = checkpoint.own_metadata.before(layer_of(name))
    if before is not None:
        raise InexactError(f"its input passes {before} first, which the layout cannot store")


def _why(result: Format, reasons: Mapping[str, str]) -> str:
    """The most useful reasons: those of the nearest formats, which come first."""
    pairs = list(reasons.items())
    same = dict.fromkeys(why for _, why in pairs)
    if len(same) == 1 or not pairs:
        return f"{result}: {next(iter(same), 'no format of it')}"
    text = "; ".join(f"as {fmt}: {why}" for fmt, why in pairs[:3])
    return f"{result}: {text}"


def _refusal(writer: Writer, reasons: Mapping[str, str], recipe: Recipe | None) -> NotLosslessError:
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault(reason, []).append(name)
    lines = []
    for reason, names in groups.items():
        more = f" and {len(names) - 3} more" * (len(names) > 3)
        lines.append(f"\n  {', '.join(map(quote, names[:3]))}{more}: {shown(reason, TEXT)}")
    remedy = "" if recipe else " or quantize them again, which changes values: --requantize RECIPE"
    return NotLosslessError(
        f"{len(reasons)} tensors cannot be written as {writer.name} with the same values:"
        f"{''.join(lines)}\nWrite them as float32 (--float PATTERN){remedy}. Nothing is written.",
        reasons,
    )


def total_bytes(steps: list[Step]) -> int:
    """Bytes of the source's tensors."""
    return sum(step.bytes_before for step in steps)


# Which quantized tensors have a place in what a producer's readers build, by their names.
#
# Readers build the model with layers of their own in the place of linear ones, and ask the file
# for the parts of those. A quantized tensor that belongs to no such layer is written in vain:
# they draw that parameter at random, often without an error.


# The last name of a module that is a table: nn.Embedding and its kin in models of transformers
_TABLE = re.compile(
    r"(?!patch)((\w*_)?(embeddings?|embed|emb)|embed_(tokens|positions|in)|token_embd"
    r"|tok_embeddings|wte|wpe|shared|relative_attention_bias)"
)


def no_place(writer: Writer, name: str) -> str | None:
    """Why readers of a producer ask for no quantized tensor of this name; None where they do."""
    if not writer.parameters and (reason := no_layer(name)):
        return reason
    if not writer.embeddings and is_table(name):
        return "readers of this layout do not support quantized embeddings"
    return None


def no_layer(name: str) -> str | None:
    """Why a tensor of this name is not the weight of a layer; None where it is one."""
    if name.endswith(".weight"):
        return None
    return (
        "it is a parameter, and readers of this layout take only weights of layers, called "
        "<layer>.weight"
    )


def is_table(name: str) -> bool:
    """Whether it is the table of an embedding by its name: `embed_tokens.weight`, `wte.weight`."""
    owner = name.removesuffix(".weight").rpartition(".")[2]
    return _TABLE.fullmatch(owner) is not None
