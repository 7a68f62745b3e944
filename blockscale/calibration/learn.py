# SPDX-License-Identifier: BSD-3-Clause
"""What can be learned from batches: block by block where there are blocks, or in whole passes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import nn

from blockscale.calibration import algorithms, observers
from blockscale.calibration.algorithms import Transform, WeightAlgorithm
from blockscale.calibration.batches import Batches, inference, listener
from blockscale.calibration.block_calls import BlockAlgorithm
from blockscale.calibration.choose import (
    choose_before,
    choose_weights,
    groups,
    share,
    side_by_side,
    statistics_bytes,
)
from blockscale.calibration.find_blocks import LayerBlock, blocks_of
from blockscale.calibration.mixing import ALL, Mixing, place_of
from blockscale.calibration.padding import MASK, Padding
from blockscale.calibration.ranks import ALONE, Ranks
from blockscale.calibration.session import (
    Session,
    has_rows,
    nbytes_of,
    static_parts,
    takes_transform,
)
from blockscale.calibration.walk.resume import FinishedBlocks, digests_of, run_identity
from blockscale.calibration.walk.schedule import choose_whole, learns_whole, walk_chains
from blockscale.calibration.walk.weights import Options, Settler
from blockscale.core.presets import Calibration, closest_preset, presets
from blockscale.core.recipe import Recipe
from blockscale.core.work import Progress
from blockscale.layers.plan import Decision, Plan

_MANY = 4  # passes that are not worth a word
AUTO = "auto"  # the weight algorithm and the transform that the recipe's formats are best served by


class Data(NamedTuple):
    """Batches and how to go through them: arguments of `calibrate`."""

    batches: Iterable[Any]
    strict: bool = False
    progress: bool | Progress = True
    sequential: bool | str = True
    budget: float = 2e9
    blocks: bool | str = True
    resume: str | Path | None = None
    settler: Settler | None = None
    seed: int | None = None
    padding: str | bool | None = MASK
    ranks: Ranks = ALONE
    minimum: int = 0  # tokens that an expert's own statistics need
    every: bool = False  # whether all experts see all tokens (mixing.all_tokens)


def choose(model: nn.Module, plans: Sequence[Decision], methods: "Methods", data: Data) -> Session:
    """All that can be learned from batches for these plans; the model is as it was.

    Raises as `calibrate`.
    """
    padding = Padding(data.padding, model)
    bar = listener(data.progress)
    layers = [plan for plan in plans if isinstance(plan, Plan)]
    try:
        steps = _Steps(model, plans, methods, data.budget, sequential=bool(data.sequential))
        blocks = _blocks(model, layers, methods, data, steps)
        why = [f"no blocks: {steps.passes[0]} passes over the whole model"]
        session = None
        begin = partial(_session, model, plans, data, padding)
        if blocks:
            batches = Batches(data.batches, 1, "", Progress()).whole()
            data = data._replace(batches=batches)
            for batch in batches:
                padding.count(batch)
            options = Options(data.sequential, data.budget, bar, data.settler, seed=data.seed or 0)
            if data.resume is not None:
                options = options._replace(
                    finished_blocks=_finished_blocks(data, layers, blocks, methods, padding)
                )
            whole = learns_whole(methods.algorithm, options)
            session, why = walk_chains(begin, blocks, batches, methods, options)
            if session is not None and whole:
                choose_whole(session, methods.algorithm, batches, options)
        if session is None:
            _refuse(data, why)
            padding.left_out = padding.tokens = 0
            session = _in_passes(begin, methods, data, steps, bar)
    finally:
        bar.close()
    if layers and (blocks or steps.passes[0] > _MANY):
        session.details[layers[0].name] += why
    if layers:
        padding.merge(data.ranks)
        session.details[layers[0].name] += padding.notes()
    return session


def _session(
    model: nn.Module,
    plans: Sequence[Decision],
    data: Data,
    padding: Padding,
    source: Batches | None = None,
) -> Session:
    session = Session(model, plans, source, strict=data.strict, by_observers=True, ranks=data.ranks)
    session.padding = padding
    session.mixing = Mixing(session.layers, data.minimum, every=data.every)
    session.deal(session.layers)
    return session


def _finished_blocks(
    data: Data,
    layers: Sequence[Plan],
    blocks: Sequence[LayerBlock],
    methods: "Methods",
    padding: Padding,
) -> FinishedBlocks:
    """What an earlier run has finished. Raises ResumeError where that was another."""
    names = [block.name for block in blocks]
    assert data.resume is not None
    ranks = data.ranks
    batches = digests_of(cast("list[Any]", data.batches), ranks)
    draws = callable(getattr(methods.algorithm, "quantize_block", None))
    seeds = [data.seed] if draws and data.seed else []  # 0 is what None is
    without = sum(ranks.together(lambda: padding.left_out))
    more = [f"{without} padding tokens left out"] if without else []
    mixed = ALL if data.every else data.minimum
    more += [f"experts {mixed}"] if any(place_of(plan) for plan in layers) else []
    more += ["in a group"] if draws and not ranks.alone else []  # which has bits of its own
    run = run_identity(layers, methods, batches, names, data.sequential, *seeds, *more)
    return FinishedBlocks(data.resume, run, ranks)


def _refuse(data: Data, why: Sequence[str]) -> None:
    """Raise ValueError for what is only done block by block."""
    for option, value in (("resume", data.resume), ("source", data.settler)):
        if value is not None:
            raise ValueError(
                f"{option} needs a model that can be calibrated block by block: {why[0]}"
            )


def _blocks(
    model: nn.Module, layers: Sequence[Plan], methods: "Methods", data: Data, steps: "_Steps"
) -> list[LayerBlock]:
    """The blocks to be walked; none where one pass will do."""
    by_block = callable(getattr(methods.algorithm, "quantize_block", None))
    if data.sequential and getattr(methods.algorithm, "needs_drift", False):
        by_block = True  # only a walk runs the float model beside the quantized one
    by_walk = by_block or steps.passes[0] > 1 or data.resume is not None or data.settler is not None
    if by_block or (by_walk and data.blocks is not False):
        return blocks_of(model, layers, data.blocks, by_block=by_block)
    return []


def _in_passes(
    begin: Callable[..., Session],
    methods: "Methods",
    data: Data,
    steps: "_Steps",
    bar: Progress,
) -> Session:
    """What is learned while the whole model runs, as often as there are groups of layers."""
    source = Batches(data.batches, *steps.passes, bar)
    session = begin(source=source)
    with inference(session.model):
        choose_before(session, methods.transform, steps.to_transform)
        for group in steps.to_observe:
            callbacks, observers = session.observing(group, methods.observer)
            session.run(callbacks)
            share(session, [plan for plan, _ in group], partial(session.use_observers, observers))
        algorithm = cast("WeightAlgorithm | None", methods.algorithm)
        choose_weights(session, algorithm, steps.to_weigh, sequential=bool(data.sequential))
    return session


DEFAULT = "mse"  # the observer of static scales where none is named


class Methods(NamedTuple):
    """How weights, inputs and static scales are chosen; None for what needs no choice."""

    algorithm: WeightAlgorithm | BlockAlgorithm | None
    transform: Transform | None
    observer: observers.Spec

    @classmethod
    def read(
        cls,
        observer: observers.Spec,
        weight: str | WeightAlgorithm | BlockAlgorithm,
        transform: str | Transform | None,
    ) -> "Methods":
        """What the arguments of `calibrate` name. Raises ValueError for what there is not."""
        if observer != DEFAULT:
            observers.check(observer)  # also where nothing is static, so that a slip is seen
        algorithm = algorithms.weights(cast("str | WeightAlgorithm", weight))
        return cls(algorithm, algorithms.transforms(transform), observer)

    def check_profiles(self, recipe: Recipe, why_none: str = "") -> None:
        """Raises ValueError where a profile and one of these methods would choose one weight, and
        for any profile if `why_none` says why there can be none."""
        if why_none:
            recipe.refuse_profiles(why_none)
        for method in (self.algorithm, self.transform):
            if method is not None:
                recipe.refuse_profiles(
                    f"{method.name} chooses or changes weights itself: use a plain format "
                    "instead of the profile, or leave out weight and transform"
                )


def read_methods(
    recipe: Recipe, observer: Any, weight: Any, transform: Any, bias: str | None = None
) -> tuple[Recipe, Methods]:
    """The methods of arguments, else of the recipe's own calibration, else none; and the recipe,
    whose calibration is what is done now. Raises ValueError for what there is not."""
    if weight == AUTO:
        recipe, weight = _with_closest(recipe), None
    own = recipe.calibration
    arguments = {"weight": weight, "transform": transform, "observer": observer, "bias": bias}
    if own is None:
        return recipe, Methods.read(observer or DEFAULT, weight or "absmax", transform)
    parts = {part: getattr(own, part) if each is None else each for part, each in arguments.items()}
    methods = Methods.read(
        parts["observer"] or DEFAULT,
        parts["weight"] or "absmax",
        parts["transform"],
    )
    names = {part: _name_of(each) for part, each in parts.items()}
    return replace(recipe, calibration=Calibration(**names)), methods


def _with_closest(recipe: Recipe) -> Recipe:
    """The recipe with the calibration that its formats are best served by, if it says none."""
    if recipe.calibration is not None or any(recipe.profiles()):
        return recipe
    schemes = [recipe.default, *recipe.layer_rules.values()]
    name = closest_preset((each.weight, each.input) for each in schemes if each.weight is not None)
    return recipe if name is None else replace(recipe, calibration=presets()[name].calibration)


def _name_of(method: Any) -> str | None:
    """A method's name; of an instance its class's, without its settings."""
    if method is None or isinstance(method, str):
        return method
    return str(getattr(method, "name", None) or getattr(method, "__name__", type(method).__name__))


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
        fit = [plan for plan in layers if takes_transform(plan)]
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
