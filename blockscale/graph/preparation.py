# SPDX-License-Identifier: BSD-3-Clause
"""prepare: a program becomes a graph that watches what convert needs to know, or trains."""

import copy
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import fx, nn

from blockscale.calibration import observers
from blockscale.calibration.algorithms import Transform, WeightAlgorithm, check_rotatable
from blockscale.calibration.batches import Batches, inference, listener
from blockscale.calibration.bias import CORRECT
from blockscale.calibration.input_stats import Callback, InputStatsCollector, watch
from blockscale.calibration.learn import Data, Methods, choose, read_methods
from blockscale.calibration.padding import Padding
from blockscale.calibration.session import Observing, Session, each_of, has_rows, static_parts
from blockscale.core.format import Format
from blockscale.core.ledger import Ledger
from blockscale.core.recipe import Recipe
from blockscale.graph import passes
from blockscale.graph.adoption.observed import is_foreign
from blockscale.graph.edges import Edge, places, put_edges
from blockscale.graph.layers import restore_containers, with_layers
from blockscale.graph.pickled import Graph, set_state, state
from blockscale.graph.program import Program, import_graph
from blockscale.layers.apply import check, ledger_of
from blockscale.layers.parameters import plan_others
from blockscale.layers.plan import Decision, plan_layers
from blockscale.qat.learned import PROFILED, Learn
from blockscale.qat.prepare import ledger as trained_ledger
from blockscale.qat.prepare import prepare_qat


@dataclass
class Watching:
    """What a prepared graph learns while its user runs batches through it."""

    session: Session
    observers: list[Observing] = field(default_factory=list)
    collectors: dict[str, InputStatsCollector] = field(default_factory=dict)
    hooks: ExitStack = field(default_factory=ExitStack)


@dataclass
class Preparation:
    """What a prepared graph is to become, and what it has learned.

    session: of bs.calibrate, once it was called
    """

    methods: Methods
    strict: bool
    qat: bool
    plans: Sequence[Decision] = ()
    watching: Watching | None = None
    session: Session | None = None

    def stop_watching(self) -> None:
        """Look no more at the batches that run through the graph."""
        if self.watching is not None:
            self.watching.hooks.close()
            self.watching = None


_WATCHES = (
    "a prepared graph cannot be copied or saved, because its observers would be lost: copy "
    "or save the program that was passed to bs.graph.prepare, or the result of "
    "bs.graph.convert"
)


class Prepared(Graph):
    """A graph between prepare and convert: batches run through it, or `bs.calibrate(p, batches)`.

    For training (qat) it is the model to train: `.train()`, `.eval()` and `.parameters()` are as
    any module's. What it knows lies in one attribute: all other names are the model's layers'.
    """

    _blockscale: Preparation

    def __reduce__(self) -> tuple[Any, ...]:
        """Raises TypeError while it watches."""
        if self._blockscale.watching is not None:
            raise TypeError(_WATCHES)
        return super().__reduce__()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Prepared":
        """Raises TypeError while it watches."""
        if self._blockscale.watching is not None:
            raise TypeError(_WATCHES)
        return super().__deepcopy__(memo)  # type: ignore[return-value]

    def calibrate_from(self, data: Data) -> Ledger:
        """What `bs.calibrate(p, batches)` does: as many passes as the methods need."""
        stage = self._blockscale
        if stage.qat:
            raise ValueError(
                "a graph prepared with qat=True learns its scales in training: train it, or "
                "prepare without qat to calibrate"
            )
        data = data._replace(strict=data.strict or stage.strict, blocks=False)
        stage.stop_watching()
        if edges_of(self):
            if not isinstance(data.batches, Sequence):
                data = data._replace(batches=list(data.batches))
            _observe_edges(self, data.batches, Padding(data.padding, self))
        stage.session = choose(self, stage.plans, stage.methods, data)
        return state(self).ledger


def preparation(prepared: Prepared) -> Preparation:
    """What the graph is to become, and what it has learned."""
    return prepared._blockscale


def edges_of(graph: nn.Module) -> list[Edge]:
    """The edges of ops that rules gave a format."""
    return [module for module in graph.modules() if isinstance(module, Edge)]


def _observe_edges(graph: Prepared, batches: Iterable[Any], padding: Padding) -> None:
    """One pass for the ops' edges, which then look no more."""
    with inference(graph):
        Batches(batches, 1, "edges", listener(False)).run(graph, padding)
    for edge in edges_of(graph):
        edge.observing = False


def prepare(
    program: Program,
    recipe: Recipe | Format | str | Path,
    *,
    observer: observers.Spec | None = None,
    weight: str | WeightAlgorithm | None = None,
    transform: str | Transform | None = None,
    qat: bool = False,
    learn: Learn = None,
    strict: bool = False,
) -> Prepared:
    """A program of torch.export -> a graph that can be calibrated, or trained, and converted.

    program: of a float model in evaluation mode, torch.export.export(model, example); it stays as
        it is, and the graph shares its tensors (with qat, it has its own).
    recipe: as in `bs.quantize_`, of layers by their names in the model; and rules for other ops,
        `op:softmax` or `op:add@encoder.*`, with an "input" format, an "output" format, and
        "shared": true for inputs of one scale.
    observer: as in `bs.calibrate` ("mse"), with qat as in `bs.prepare_qat` ("moving_average").
    weight, transform: as in `bs.calibrate`. What needs several passes (a transform, gptq layer by
        layer) is for `bs.calibrate(p, batches)`; batches that are run through p are seen once.
    qat: prepare for training, as `bs.prepare_qat` does; learn: as there.
    strict: raise SkippedError if something that the recipe covers cannot be quantized.

    `bs.graph.ledger(p)` says what becomes of each layer; one warning names what is skipped.
    Raises TypeError for what is no program, ValueError for a recipe that does not fit.
    """
    recipe, notes = Recipe.read(recipe).uncalibrated(_TRAINED) if qat else (Recipe.read(recipe), ())
    own = observer or ("moving_average" if qat else None)
    recipe, methods, more = _methods(recipe, own, weight, transform)
    methods.check_profiles(recipe, PROFILED if qat else "")
    _check_training(qat, plain=weight in (None, "absmax") and transform is None)
    check_rotatable(methods.transform, _EXPORTED)
    graph = _float(program)
    _put_layers(graph, qat=qat)
    result, unused_rules = places(graph, recipe)
    edges = list(put_edges(graph, result, methods.observer, fake=qat))
    output = _as_prepared(graph, methods, strict=strict, qat=qat)
    if qat:
        ledger = _prepared_for_training(output, recipe, methods, learn, strict=strict)
    else:
        ledger = _watch(output, recipe, strict=strict)
    rest = (*(p for p in ledger.unmatched if not p.startswith("op:")), *unused_rules)
    info = Ledger([*ledger.entries, *edges], rest, notes=(*notes, *more))
    if strict:
        info.raise_if_skipped()
    info.warn()
    set_state(output, replace(state(graph), stage="prepared", ledger=info, recipe=recipe))
    return output


_TRAINED = "training chooses in its place"


def _methods(
    recipe: Recipe, observer: Any, weight: Any, transform: Any
) -> tuple[Recipe, Methods, tuple[str, ...]]:
    """As `read_methods`, without corrected biases, and a sentence for the ledger if the recipe
    asks for them."""
    if recipe.calibration is None or recipe.calibration.bias != CORRECT:
        return *read_methods(recipe, observer, weight, transform), ()
    owner = "the recipe" if recipe.preset is None else f"preset {recipe.preset}"
    note = (
        f"{owner} corrects biases, which takes a run of the quantized model: a prepared graph "
        "keeps its own. Call bs.calibrate(model, batches, recipe) on the model, then export it"
    )
    recipe = replace(recipe, calibration=replace(recipe.calibration, bias=None))
    return *read_methods(recipe, observer, weight, transform), (note,)


def _check_training(qat: bool, plain: bool) -> None:
    if qat and not plain:
        raise ValueError("qat=True trains the weights themselves: leave out weight and transform")


def _float(program: Program) -> fx.GraphModule:
    """The graph of a program, which is a float model's."""
    graph = import_graph(program)
    _check_float(graph)
    return graph


_EXPORTED = (
    "a graph does not show where its embeddings, norms and heads are. Export the model after "
    "bs.calibrate(model, ...) rotated it, or use transform='hadamard'"
)


def _put_layers(graph: fx.GraphModule, *, qat: bool) -> None:
    """Clean the graph and give it layers."""
    if qat:  # before anything is cleaned away that training needs, such as dropout
        _own_tensors(graph)
        with_layers(graph, training=True)
        passes.apply(graph, (passes.clean,))
    else:
        passes.apply(graph, passes.FLOAT)
        with_layers(graph)


def _check_float(graph: fx.GraphModule) -> None:
    stage = state(graph).stage
    others = [n for n in graph.graph.nodes if str(n.target).startswith("blockscale.")]
    others += [n for n in graph.graph.nodes if is_foreign(n)]
    if stage != "imported" or others:
        what = f"a {stage} graph" if stage != "imported" else f"{others[0].target} in the program"
        raise ValueError(
            f"expected a program of a float model, found {what}: pass a quantized one to "
            "bs.graph.fuse"
        )
    norms = [n for n in graph.graph.nodes if str(n.target) == "aten.batch_norm.default"]
    if any(len(n.args) > 5 and n.args[5] for n in norms):
        raise ValueError(
            "the program was exported in training mode, so its batch norms still learn: "
            "export model.eval(); a graph for training (qat=True) has its own .train() and "
            ".eval()"
        )


def _own_tensors(graph: fx.GraphModule) -> None:
    """Copies of all parameters and buffers: training must not change the program's."""
    memo: dict[int, Any] = {}
    for module in graph.modules():
        every: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in every:
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = copy.deepcopy(tensor, memo)
                    if isinstance(tensor, nn.Parameter) and tensor.is_floating_point():
                        tensors[name].requires_grad_()


def _as_prepared(graph: fx.GraphModule, methods: Methods, *, strict: bool, qat: bool) -> Prepared:
    prepared = Prepared(graph, graph.graph)
    prepared.meta = graph.meta
    restore_containers(prepared)
    prepared.eval()
    prepared._blockscale = Preparation(methods, strict, qat)
    return prepared


def _watch(graph: Prepared, recipe: Recipe, *, strict: bool) -> Ledger:
    """Plans for the layers, and hooks that see what batches give them."""
    stage = preparation(graph)
    stage.plans = plan_layers(graph, recipe)
    others = list(plan_others(graph, stage.plans, recipe))
    check(stage.plans, others, replace_ops(recipe), strict=strict)
    session = Session(graph, stage.plans, None, strict=strict)
    watching = Watching(session)
    targets = [(plan, part) for plan in session.layers for part in static_parts(plan)]
    callbacks, watching.observers = session.observing(targets, stage.methods.observer)
    algorithm = stage.methods.algorithm
    if algorithm is not None and algorithm.needs_gram:
        fit = [plan for plan in session.layers if has_rows(plan)]
        more, watching.collectors = session.collect(fit)
        callbacks = {**callbacks, **{n: each_of(c, callbacks.get(n)) for n, c in more.items()}}
    modules: dict[nn.Module, Callback] = {
        plan.module: callbacks[plan.name] for plan in session.layers if plan.name in callbacks
    }
    watching.hooks.enter_context(watch(modules))
    stage.watching = watching
    return ledger_of(stage.plans, others, recipe)


def replace_ops(recipe: Recipe) -> Recipe:
    """The recipe without its rules for ops, which a ledger of layers knows nothing of."""
    skip = [pattern for pattern in recipe.skip if not pattern.startswith("op:")]
    return replace(recipe, rules=recipe.layer_rules, skip=tuple(skip))


def _prepared_for_training(
    graph: Prepared, recipe: Recipe, methods: Methods, learn: Learn, *, strict: bool
) -> Ledger:
    prepare_qat(graph, replace_ops(recipe), strict=strict, learn=learn, observer=methods.observer)
    return trained_ledger(graph)
