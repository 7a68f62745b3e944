# SPDX-License-Identifier: BSD-3-Clause
"""What becomes of each tensor of a directory, decided from its name, dtype and shape."""

from dataclasses import replace
from math import prod
from typing import Any

from blockscale.core.ledger import Entry, Status
from blockscale.core.recipe import BiasFormat, Recipe
from blockscale.files.directory.computed import ComputedWeight
from blockscale.files.directory.eligibility import (
    DirectoryFacts,
    is_experts,
    is_layer,
    judge,
    settle,
    why_not_slabs,
    why_not_vector,
)
from blockscale.files.directory.tied import is_table
from blockscale.files.header import StoredTensor, tensor_of
from blockscale.files.metadata import TensorInfo

Decided = tuple[Entry, TensorInfo | None]


def decide(
    name: str, source: StoredTensor, recipe: Recipe, facts: DirectoryFacts, biased: set[str]
) -> Decided:
    """The ledger's entry for a tensor, and how it is stored, if it is quantized.

    biased: the layers whose weight is quantized, and whose bias therefore may be.
    """
    weight = facts.computed_weights.get(name)
    if weight is not None:
        entry, info = _decide_weight(name, source, recipe, facts)
        return _folded(entry, weight), info
    whole = facts.whole(name)
    if whole != name:  # of a layer that goes on computing its weight
        kind, _, outcome = judge(whole, facts.computed_weights[whole].tensor, recipe, facts)
        return _entry(name, kind, outcome.status, source, outcome.reason), None
    # a pattern covers what is below the names it matches: this name stands for the layer's too
    scheme, _ = recipe.decide(name)
    layer, _, attribute = name.rpartition(".")
    if scheme.bias is not None and attribute == "bias" and layer in biased:
        return _decide_bias(name, source, scheme.bias)
    return _decide_weight(name, source, recipe, facts)


def _folded(entry: Entry, weight: ComputedWeight) -> Entry:
    """The same with a word on what is folded, and what its parts take."""
    _, _, attribute = weight.definition.name.rpartition(".")
    details = f"{weight.definition.how} folded into the {attribute}"
    details = ", ".join(filter(None, [entry.details, details]))
    return replace(entry, details=details, elements=weight.elements, bytes_before=weight.nbytes)


def _decide_weight(
    name: str, source: StoredTensor, recipe: Recipe, facts: DirectoryFacts
) -> Decided:
    kind, layout, outcome = settle(name, source, recipe, facts)
    fmt, scheme = outcome.format, outcome.scheme
    if fmt is None:
        return _entry(name, kind, outcome.status, source, outcome.reason), None
    if scheme.profile is None and (why := why_not_slabs(fmt)):
        raise ValueError(f"{name} cannot be quantized in {fmt}: {why}")
    dtype = str(source.torch_dtype).removeprefix("torch.")
    info = TensorInfo(str(fmt), source.shape, dtype, layout)
    size = sum(tensor_of(*part).nbytes for part in info.parts().values())
    details: dict[str, Any] = {"weight": info.format, "bytes_after": size, "details": scheme.note}
    layer, stack = is_layer(name, kind), is_experts(name, source.shape, kind, facts)
    if layer or stack:
        scheme = scheme if layer else replace(recipe.decide(name)[0], output=None)
        for part, each in (("input", scheme.input), ("output", scheme.output)):
            if each is not None and each.unchosen:
                raise ValueError(
                    f"the {part} of {name} cannot be quantized in {each}: {each.unchosen}: "
                    "bs.calibrate can choose it from data, or use a format that chooses its "
                    "own"
                )
        details |= {"input": _spelling(scheme.input), "output": _spelling(scheme.output)}
    return _entry(name, kind, outcome.status, source, outcome.reason, **details), info


def _decide_bias(name: str, source: StoredTensor, fmt: BiasFormat) -> Decided:
    """The bias of a layer whose weight is quantized."""
    reason = why_not_vector(source, fmt)
    if reason:
        reason_of_note = f"bias left in float: {reason}"
        return _entry(name, "bias", "skipped", source, reason_of_note), None
    info = TensorInfo(str(fmt), source.shape, str(source.torch_dtype).removeprefix("torch."))
    size = sum(tensor_of(*part).nbytes for part in info.parts().values())
    entry = _entry(name, "bias", "quantized", source)
    return replace(entry, bias=info.format, bytes_after=size), info


def _entry(
    name: str, kind: str, status: Status, source: StoredTensor, reason: str = "", **fields: Any
) -> Entry:
    """The entry of a tensor that stays as it is, but for what is told."""
    about: dict[str, Any] = {"reason": reason, "bytes_after": source.nbytes} | fields
    return Entry(
        name, kind, status, elements=prod(source.shape), bytes_before=source.nbytes, **about
    )


def _spelling(fmt: object) -> str:
    return "" if fmt is None else str(fmt)


def tied_formats(name: str, recipe: Recipe) -> dict[str, str]:
    """Those of a layer whose weight, `name`, is stored under the name that it is tied to; none for
    a table of embeddings, whose input is indices."""
    scheme, _ = recipe.decide(name)
    parts = {"input": _spelling(scheme.input), "output": _spelling(scheme.output)}
    return {} if is_table(name) else {part: text for part, text in parts.items() if text}


def layer_formats(entry: Entry) -> dict[str, str]:
    """The formats of a layer's input and output, which `load` leaves unused for an embedding."""
    return {part: text for part, text in (("input", entry.input), ("output", entry.output)) if text}
