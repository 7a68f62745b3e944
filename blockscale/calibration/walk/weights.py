# SPDX-License-Identifier: BSD-3-Clause
"""The codes of weights on the walk: of a layer from its gram, of a block from its calls."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn

from blockscale.calibration.algorithms import Transform
from blockscale.calibration.algorithms.hessian import by_nearest
from blockscale.calibration.block_calls import BlockTask, LazySequence
from blockscale.calibration.choose import (
    choose_each,
    leave,
    share,
    transform_layers,
    weight_of,
    weights_only,
)
from blockscale.calibration.find_blocks import LayerBlock
from blockscale.calibration.input_stats import InputStats
from blockscale.calibration.session import Session, changed_weight_message
from blockscale.calibration.walk.resume import FinishedBlocks
from blockscale.core.work import Progress
from blockscale.layers.apply import swap
from blockscale.layers.assembly import build, fitting, parameter_tops, settle_top, without_dynamic
from blockscale.layers.decisions import weights_to_come
from blockscale.layers.layer import QLayer
from blockscale.layers.parameters import ParameterPlan, quantize_parameter, quantized
from blockscale.layers.plan import Plan
from blockscale.layers.store import QWeight
from blockscale.ops.tensor import QTensor

# Weights that are read one block at a time, of a model on the meta device.

Source = str | Path | Mapping[str, Tensor] | Callable[[str], Tensor]


class Stream:
    """Reads parameters and buffers of a model on the meta device, and forgets them again.

    source: a directory of safetensors files, or one of them; a mapping; a function of a name
    """

    def __init__(self, model: nn.Module, source: Source):
        self.model = model
        self._read = _reader(source)
        self._names: dict[int, list[str]] = {}
        self._meta: dict[int, tuple[Tensor, Tensor]] = {}  # what was read, and what it replaced
        real = [t.device for t in model.parameters() if not t.is_meta]
        self.device = real[0] if real else torch.device("cpu")
        for name, tensor in _named_tensors(model):
            self._names.setdefault(id(tensor), []).append(name)

    def load(self, *inside: str, outside: tuple[str, ...] = ()) -> None:
        """Read what the modules of these names have ("" for all), and not what `outside` have."""
        for name, tensor in list(_named_tensors(self.model)):
            target = any(_in(name, each) for each in inside)
            if tensor.is_meta and target and not any(_in(name, each) for each in outside):
                self._load(tensor)

    def unload(self, tensors: list[Tensor]) -> None:
        """Forget what was read of these."""
        for tensor in tensors:
            if id(tensor) in self._meta:
                torch.utils.swap_tensors(*self._meta.pop(id(tensor)))

    def restore(self) -> None:
        """Forget everything."""
        self.unload([tensor for tensor, _ in list(self._meta.values())])

    def _load(self, tensor: Tensor) -> None:
        result = None
        for name in self._names[id(tensor)]:
            try:
                result = self._read(name)
                break
            except KeyError:
                continue
        if result is None:
            raise ValueError(
                f"the source has no {self._names[id(tensor)][0]!r}, which is on the meta "
                "device: a buffer that no file holds (a table of positions) must be made on "
                "a real device"
            )
        if result.shape != tensor.shape:
            raise ValueError(
                f"{self._names[id(tensor)][0]}: expected {tuple(tensor.shape)}, the source has "
                f"{tuple(result.shape)}"
            )
        result = result.detach().to(self.device, tensor.dtype)
        if isinstance(tensor, nn.Parameter):
            result = nn.Parameter(result, requires_grad=tensor.requires_grad)
        torch.utils.swap_tensors(tensor, result)
        self._meta[id(tensor)] = tensor, result


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _in(name: str, module: str) -> bool:
    return not module or name.startswith(f"{module}.")


def _reader(source: Source) -> Callable[[str], Tensor]:
    if isinstance(source, Mapping):
        return source.__getitem__
    if callable(source):
        return source
    path = Path(source)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise ValueError(f"{path} holds no safetensors files")
    places: dict[str, Path] = {}
    for file in files:
        with safe_open(str(file), "pt") as file_:
            places |= dict.fromkeys(file_.keys(), file)

    def read(name: str) -> Tensor:
        with safe_open(str(places[name]), "pt") as file_:
            tensor: Tensor = file_.get_tensor(name)
            return tensor

    return read


# Layers of a block that are built as soon as it is done, so that its floats can go.


class Settler:
    """What becomes of a model whose weights are streamed, block by block.

    parameters: its parameters of no layer that are quantized, too; seed: as in `bs.calibrate`
    """

    def __init__(self, stream: Stream, seed: int | None):
        self.stream, self.seed = stream, seed
        self.parameters: list[ParameterPlan] = []
        self._weights: dict[int, QWeight] = {}

    def load(self, block: LayerBlock) -> None:
        """Read the weights of a block, those that are not there."""
        self.stream.load(block.name)

    def settle(self, session: Session, block: str, plans: Sequence[Plan]) -> None:
        """Build the layers of a block, and forget their float weights."""
        places = session.places
        for plan in without_dynamic(plans, lambda plan: places[plan.name].input is not None):
            assert isinstance(plan, Plan)
            place = places[plan.name]
            settle_top(plan, session.by_name, places)
            session.ready[plan.name] = build(plan, self._weights, place, self.seed)
        inside = [each for each in self.parameters if each.name.startswith(f"{block}.")]
        tops = parameter_tops(inside)
        for each in inside:
            session.weights[each.name] = quantized(each, self.seed, top=tops.get(each.name))[0]
        floats = [plan.parameter for plan in plans if plan.owns_weight]
        self.stream.unload([*floats, *(each.parameter for each in inside)])


@contextmanager
def stream_weights(
    model: nn.Module,
    source: Source,
    seed: int | None,
) -> Iterator[Settler]:
    """Who settles blocks whose weights come from `source`. Where anything is raised, the model is
    on the meta device again."""
    stream = Stream(model, source)
    try:
        with weights_to_come():
            yield Settler(stream, seed)
    except BaseException:
        stream.restore()
        raise


# How to walk.


class Options(NamedTuple):
    """How to walk. settler: of weights that are streamed; finished_blocks: those of an earlier run;
    seed: of what block algorithms draw by chance.

    sequential: each block sees what the quantized ones before it leave; "layers": and in a block
        each group of layers side by side sees the groups before it, in a run of its own.
    """

    sequential: bool | str
    budget: float
    progress: Progress
    settler: Settler | None = None
    finished_blocks: FinishedBlocks | None = None
    seed: int = 0


# Quantized layers that stand in a model for a while, so that what comes after them sees them.


def whole(session: Session, plans: Sequence[Plan]) -> dict[str, QLayer]:
    """{name: the layer with its weight, inputs and outputs quantized}, biases in float."""
    layers: dict[str, QLayer] = {}
    for plan in plans:
        place, q = session.places[plan.name], session.places[plan.name].weight
        if not plan.owns_weight:
            continue
        if q is None:  # what will be rounded plainly
            stored = weight_of(plan)
            stored = stored if place.before is None else place.before.to_weight(stored)
            settle_top(plan, session.by_name, session.places)
            q = quantize_parameter(stored, by_nearest(plan.format), None, place.top)[0]
        formats = {
            part: fmt
            for part in ("input", "output")
            if (fmt := getattr(plan.scheme, part)) is not None
            and (not fmt.block.static or getattr(place, part) is not None)
        }
        scheme = replace(plan.scheme, **{"input": None, "output": None, "bias": None} | formats)
        parameter = plan.parameter
        weight = QWeight(q, tuple(parameter.shape), parameter.dtype, plan.layout)
        layer = plan.kind.from_float(plan.module, weight, scheme)
        for part in formats:
            if (quantizer := getattr(place, part)) is not None:
                setattr(layer, part, quantizer.to(parameter.device))
        if place.before is not None:
            layer.set_before(place.before)
        layer.take_place_of(plan.module)
        layers |= dict.fromkeys(plan.names, layer)
    return layers


@contextmanager
def standing_in(model: nn.Module, layers: dict[str, QLayer]) -> Iterator[None]:
    """These layers are in the model, as long as this lasts."""
    for layer in layers.values():
        layer.training = False
    old = swap(model, layers)
    there: dict[str, nn.Module] = dict(layers)
    try:
        yield
        there = {name: model.get_submodule(name) for name in layers}
    finally:
        swap(model, old)
    for name, layer in layers.items():
        if there[name] is not layer:
            raise RuntimeError(changed_weight_message(name))


def quantized_so_far(session: Session, plans: Sequence[Plan], *, inputs: bool) -> dict[str, QLayer]:
    """What stands in for layers that are chosen. inputs: quantize those as well."""
    return whole(session, plans) if inputs else weights_only(session, plans)


class Weights:
    """The weight algorithm, or block algorithm, of a walk, and what it has chosen.

    by_block: whether it chooses for a whole block
    needs_gram: whether it must know the layers' inputs; looks: whether it must know any data
    needs_drift: whether it must know the layers' inputs in the float model, too
    steps: what progress is told of for each block that it chooses for
    """

    def __init__(
        self, session: Session, algorithm: Any, transform: Transform | None, options: Options
    ):
        self.session, self.algorithm, self.transform = session, algorithm, transform
        self.by_block = callable(getattr(algorithm, "quantize_block", None))
        self.needs_gram = algorithm is not None and algorithm.needs_gram
        self.needs_drift = bool(getattr(algorithm, "needs_drift", False))
        self.looks = self.by_block or self.needs_gram
        self.steps: int = getattr(algorithm, "steps", 0) if self.by_block else 0
        self._progress, self._seed = options.progress, options.seed

    def transform_layers(self, group: Sequence[Plan], stats: Mapping[str, InputStats]) -> None:
        """What the inputs of a group go through first."""
        if self.transform is not None:
            transform_layers(self.session, self.transform, group, stats)

    def choose(self, plans: Sequence[Plan], grams: Mapping[str, Tensor]) -> None:
        """The codes of layers one by one. A block algorithm leaves them to plain rounding."""
        if callable(getattr(self.algorithm, "quantize", None)):
            choose_each(self.session, self.algorithm, plans, grams)
            return
        if self.algorithm is not None:
            own = [plan for plan in plans if plan.owns_weight]
            share(self.session, own, lambda: leave(self.session.details, self.algorithm, own))

    def choose_block(
        self,
        block: LayerBlock,
        plans: Sequence[Plan],
        grams: Mapping[str, Tensor],
        calls: LazySequence,
        targets: LazySequence,
    ) -> None:
        """The codes of all layers of a block at once. plans: in the order of their calls."""
        own = [plan for plan in plans if plan.owns_weight]
        steps, places = Steps(self.steps, self._progress), self.session.places
        for plan in own:
            settle_top(plan, self.session.by_name, places)
        task = BlockTask(
            block.name, block.module, own, places, calls, targets, grams, self._seed, steps,
            self.session.ranks,
        )  # fmt: skip
        result = self.algorithm.quantize_block(task)
        steps.close()
        for plan in own:
            if plan.name not in result:
                raise ValueError(f"{self.algorithm.name} returned no weight for {plan.name}")
        share(self.session, own, lambda: self._take(own, result))

    def _take(self, plans: Sequence[Plan], stacks: Mapping[str, tuple[QTensor, list[str]]]) -> None:
        for plan in plans:
            q, notes = stacks[plan.name]
            self.session.places[plan.name].weight = fitting(plan, q)
            self.session.details[plan.name].append(f"weight by {self.algorithm.name}")
            self.session.notes[plan.name] += notes

    def stand_ins(self, plans: Sequence[Plan]) -> dict[str, QLayer]:
        """What stands in for these layers while those after them are chosen: weights are quantized,
        and for a block algorithm inputs and outputs as well."""
        return quantized_so_far(self.session, plans, inputs=self.by_block)


class Steps(Progress):
    """The steps that a block algorithm takes for one block: `count` of them are told in all, also
    where it takes fewer, such as none for a block without calls, or more."""

    def __init__(self, count: int, progress: Progress):
        self._rest, self._progress = count, progress

    def advance(self, name: str = "", amount: int = 1) -> None:
        amount = min(amount, self._rest)
        if amount:
            self._rest -= amount
            self._progress.advance(name, amount)

    def say(self, text: str) -> None:
        self._progress.say(text)

    def close(self) -> None:
        self.advance(amount=self._rest)
