"""bs.calibrate: quantize a model with what can be learned from data."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from blockscale.calibrate import algorithms, observers
from blockscale.calibrate.algorithms import Transform, WeightAlgorithm
from blockscale.calibrate.batches import Batches, inference
from blockscale.calibrate.choose import (
    choose_before,
    choose_weights,
    groups,
    side_by_side,
    statistics_bytes,
)
from blockscale.calibrate.progress_bar import listener
from blockscale.calibrate.session import Session, has_rows, nbytes_of, static_parts
from blockscale.core.format import Format
from blockscale.core.ledger import Ledger
from blockscale.core.progress import Progress
from blockscale.core.recipe import Recipe
from blockscale.layers.apply import apply, check, plans_for
from blockscale.layers.computed import folded
from blockscale.layers.guards.entry import check_model, ordinary_tensors
from blockscale.layers.guards.optimizers import replacing
from blockscale.layers.model.wrapped import unwrapped
from blockscale.layers.parameters.planned import plan_parameters
from blockscale.layers.plan import Decision, Plan


def calibrate(  # noqa: PLR0913 - the first four are the call, the rest are options
    model: nn.Module,
    batches: Iterable[Any],
    recipe: Recipe | Format | str | Path | None = None,
    observer: observers.Spec | None = None,
    *,
    weight: str | WeightAlgorithm | None = None,
    transform: str | Transform | None = None,
    strict: bool = False,
    progress: bool | Progress = True,
    sequential: bool = True,
    budget: float = 2e9,
    seed: int | None = None,
) -> Ledger:
    """Quantize a model in place, with scales and weights that are chosen from data; or let a
    graph that `bs.graph.prepare` gave learn from it what its convert needs.

    Inputs and outputs whose block is `tensor` or `channel-1` get a static scale from an observer;
    with other blocks they stay dynamic, and the ledger says so. The model runs in evaluation mode
    and without gradients; its batches are moved to its device.

    batches: an iterable of mappings (keyword arguments), tuples or lists (positional arguments) or
        single arguments. What can be read only once, such as a generator, will do for one pass.
    recipe: as in `quantize_`; None for a prepared graph, which has one, and what follows.
    observer: a name (`bs.observers.names()`), also with a setting; a class; a function of a format.
        None is "mse".
    weight: "absmax", which None is, as `quantize_` does; "mse", "hqq", "gptq", or an instance.
    transform: None, "smoothquant", "awq", "hadamard", or an instance.
    strict: raise SkippedError, before anything is changed, if something that the recipe covers
        cannot be quantized, or saw no data. Otherwise one warning names them.
    progress: a bar on stderr if that is a terminal; False for none; or a Progress that listens.
    sequential: with a weight algorithm that needs the layers' inputs, quantize one part of the
        model after the other, each seeing the inputs that the parts before leave it; that takes a
        pass over the batches for each part. Otherwise as few passes as the budget allows.
    budget: bytes for statistics that are held at one time; what exceeds it takes another pass. A
        layer of k inputs needs 12 k² for a weight algorithm or a transform.
    seed: for stochastic rounding of weights.

    Returns the Ledger. Raises TypeError and ValueError for arguments that do not fit, and what the
    model raises. Whatever is raised, also by Ctrl-C, the model is as it was before.
    """
    data = Data(batches, strict, progress, sequential, budget)
    own: Any = getattr(model, "calibrate_from", None)
    if own is not None:
        return _prepared(own, data, recipe, observer, weight, transform)
    if recipe is None:
        raise ValueError("expected a recipe, such as 'int8': only prepared graphs have their own")
    check_model(model, "bs.calibrate")
    recipe = Recipe.read(recipe)
    methods = Methods.read(observer or "mse", weight or "absmax", transform)
    with unwrapped(model) as plain, ordinary_tensors(), replacing(plain, "bs.calibrate"):
        with folded(plain, recipe) as folding:
            plans = plans_for(plain, recipe)
            check(plans, list(plan_parameters(plain, plans, recipe)), recipe, strict=strict)
            session = chosen(plain, plans, methods, data)
            ledger = apply(plain, plans, recipe, session.places, strict=strict, seed=seed)
        ledger = folding.told(told_by(ledger, session))
    ledger.warn()
    return ledger


class Data(NamedTuple):
    """Batches and how to go through them: arguments of `calibrate`."""

    batches: Iterable[Any]
    strict: bool = False
    progress: bool | Progress = True
    sequential: bool = True
    budget: float = 2e9


def _prepared(calibrate_from: Any, data: Data, *methods: object) -> Ledger:
    """Let a prepared graph learn, which knows its recipe and methods."""
    if any(each is not None for each in methods):
        raise ValueError(
            "a prepared graph has its recipe, observer, weight algorithm and transform from "
            "bs.graph.prepare: give them there"
        )
    ledger: Ledger = calibrate_from(data)
    return ledger


def chosen(model: nn.Module, plans: Sequence[Decision], methods: "Methods", data: Data) -> Session:
    """All that can be learned from batches for these plans; the model is as it was.

    Raises as `calibrate`.
    """
    steps = _Steps(model, plans, methods, data.budget, sequential=data.sequential)
    told = listener(data.progress)
    try:
        source = Batches(data.batches, *steps.passes, told)
        session = Session(model, plans, source, strict=data.strict)
        with inference(model):
            choose_before(session, methods.transform, steps.to_transform)
            for group in steps.to_observe:
                session.observe(group, methods.observer)
            choose_weights(session, methods.algorithm, steps.to_weigh, sequential=data.sequential)
    finally:
        told.close()
    return session


class Methods(NamedTuple):
    """How weights, inputs and static scales are chosen; None for what needs no choice."""

    algorithm: WeightAlgorithm | None
    transform: Transform | None
    observer: observers.Spec

    @classmethod
    def read(
        cls,
        observer: observers.Spec,
        weight: str | WeightAlgorithm,
        transform: str | Transform | None,
    ) -> "Methods":
        """What the arguments of `calibrate` name. Raises ValueError for what there is not."""
        observers.check(observer)  # also where nothing is static, so that a slip is seen
        return cls(algorithms.weights(weight), algorithms.transforms(transform), observer)


class _Steps:
    """Which layers are looked at together: one pass over the batches for each group."""

    def __init__(
        self,
        model: nn.Module,
        plans: Sequence[Decision],
        methods: Methods,
        budget: float,
        *,
        sequential: bool,
    ):
        algorithm, transform, observer = methods
        layers = [plan for plan in plans if isinstance(plan, Plan)]
        fit = [plan for plan in layers if has_rows(plan) and not plan.tied]
        self.to_transform = groups(fit, statistics_bytes, budget) if transform else []
        sizes = {
            (plan, part): nbytes_of(plan, part, observer)
            for plan in layers
            for part in static_parts(plan)
        }
        self.to_observe = groups(sizes, sizes.__getitem__, budget)
        self.to_weigh, learning = [layers], 0
        if algorithm is not None and algorithm.needs_gram:
            place = side_by_side(model) if sequential else lambda _: None
            self.to_weigh = groups(layers, statistics_bytes, budget, place)
            learning = sum(any(has_rows(plan) for plan in group) for group in self.to_weigh)
        counts = (
            (len(self.to_transform), f"transform {transform.name!r}" if transform else ""),
            (len(self.to_observe), "static scales"),
            (learning, f"weight {algorithm.name!r}" if algorithm else ""),
        )
        why = ", ".join(f"{count} for {what}" for count, what in counts if count)
        if not why:
            self.to_observe = [[]]  # one pass all the same: to say which layers see data
        self.passes = (max(sum(count for count, _ in counts), 1), why)


_READ = "plain rounding: no layer is called with what it is multiplied by"


def told_by(ledger: Ledger, session: Session) -> Ledger:
    """The ledger with how each layer was done, and what was noted on the way."""
    entries = []
    for entry in ledger:
        details = session.details.get(entry.name)
        if details is not None:
            dynamic = [
                f"dynamic {part}"
                for part in ("input", "output")
                if getattr(entry, part) and not getattr(session.places[entry.name], part)
            ]
            told = ", ".join(dict.fromkeys([*details, *dynamic]))
            notes = (*entry.notes, *session.notes[entry.name])
            entry = replace(entry, details=told, notes=notes)  # noqa: PLW2901
        elif entry.status == "quantized" and entry.kind.startswith("parameter of "):
            told = "; ".join(filter(None, [_READ, entry.details]))
            entry = replace(entry, details=told)  # noqa: PLW2901
        entries.append(entry)
    return Ledger(entries, ledger.unmatched)
