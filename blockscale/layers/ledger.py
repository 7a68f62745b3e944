# SPDX-License-Identifier: BSD-3-Clause
"""The ledger of a model that is being quantized: from the decisions, and from what was done."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from blockscale.core.ledger import Entry, Ledger, SkippedError
from blockscale.core.recipe import Recipe
from blockscale.layers.plan import Decision, Plan


def without_data(recipe: Recipe, *, strict: bool) -> tuple[Recipe, tuple[str, ...]]:
    """What a recipe is where there is no data, and notes for the ledger.

    Raises SkippedError where `strict` and the recipe asks for a calibration.
    """
    recipe, notes = recipe.uncalibrated()
    if strict and notes:
        raise SkippedError(f"strict: {notes[0]}; nothing was changed")
    return recipe, notes


def ledger_of(
    decisions: Sequence[Decision],
    others: Sequence[Entry],
    recipe: Recipe,
    done: Mapping[str, Entry] | None = None,
) -> Ledger:
    """What becomes of every layer, and of the parameters that belong to none (`others`).

    done: {first name of a layer: its entry}, for the layers of which there is more to say than
        their decision knew.
    """
    entries = [
        entry
        for decision in decisions
        for entry in _of_every_name(decision, (done or {}).get(decision.name, decision.entry))
    ]
    names = [name for decision in decisions for name in decision.names]
    names += [entry.name for entry in others]
    if recipe.has_biases:
        biased = [each for each in decisions if each.module._parameters.get("bias") is not None]
        names += [f"{name}.bias" for each in biased for name in each.names]
    return Ledger([*entries, *others], recipe.unmatched(names))


def _of_every_name(decision: Decision, entry: Entry) -> Iterator[Entry]:
    """A layer's entry, one for a bias that could not be quantized with it, and one for each further
    name that the layer has in the model."""
    yield entry
    if isinstance(decision, Plan) and decision.bias_left:
        kind, told = f"bias of {entry.kind}", f"bias left in float: {decision.bias_left}"
        yield Entry(f"{entry.name}.bias", kind, "skipped", reason=told)
    same = f"the same layer as {decision.name}"
    again = replace(entry, reason=same, notes=(), elements=0, bytes_before=0, bytes_after=0)
    for name in decision.names[1:]:
        yield replace(again, name=name)
