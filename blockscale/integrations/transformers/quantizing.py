# SPDX-License-Identifier: BSD-3-Clause
"""Quantize each weight of a float checkpoint as it arrives, on its device, and free the float.

The codes wait beside the model, which holds stand-ins, until everything is read and tied. Then the
model is quantized as by `bs.quantize_`, with these codes as its weights. Weights that did not
arrive, because the checkpoint lacks them, are quantized then.
"""

import ctypes
import mmap
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers.core_model_loading import ConversionOps, WeightConverter, WeightTransform

from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.ledger import Ledger
from blockscale.core.pack import stored_shape
from blockscale.core.recipe import Recipe
from blockscale.files.metadata import KEY, FileError
from blockscale.files.stored_model import open_file
from blockscale.integrations.config import RecipeConfig
from blockscale.integrations.stand_in import TieMarks, stand_in, standing_in
from blockscale.layers.apply import apply, check, plans_for, without_data
from blockscale.layers.assembly import (
    Supplied,
    largest,
    supplied,
    top_of,
    weight_in_codes,
    without_dynamic,
)
from blockscale.layers.computed import ComputedTensor, Folding, evaluating, folded
from blockscale.layers.parameters import ParameterPlan, entries_of, plan_parameters, quantized
from blockscale.layers.plan import Decision, Plan
from blockscale.layers.store import QWeight
from blockscale.parallel.plan import Stored

_ALL = sys.maxsize  # bytes that were freed: whatever there is


class Quantizing:
    """A model that is being read and quantized.

    Raises ValueError, before anything is read, for a recipe that quantizes nothing or has formats
    whose scales are supplied, and SkippedError where the config is strict.
    """

    def __init__(self, model: nn.Module, config: RecipeConfig, files: Sequence[str] | None):
        _refuse_ours(files or ())
        self._files, self._freed_bytes = real_paths(files or ()), 0
        self._strict, self._seed = config.strict, config.seed
        self._recipe, self._notes = without_data(config.recipe, strict=config.strict)
        config.recipe = self._recipe  # what config.json will say was done
        self._model = model
        self._marks = TieMarks(getattr(model, "all_tied_weights_keys", None) or {})
        self._weights: dict[str, tuple[QWeight, list[str]]] = {}
        self._waiting: dict[tuple[str, ...], dict[str, Tensor]] = {}  # {who share: {name: floats}}
        self._tops: dict[tuple[str, ...], Tensor] = {}
        with folded(model, self._foldable), standing_in(model):
            plans = plans_for(model, self._recipe)
            supplied(plans)  # raises for formats whose scales nothing chooses
            plans = without_dynamic(plans, lambda _: False)
            parameter_plans = list(plan_parameters(model, plans, self._recipe))
            check(plans, entries_of(parameter_plans), self._recipe, strict=self._strict)
        self._plans: dict[str, Plan | ParameterPlan] = {}
        for plan in [*plans, *parameter_plans]:
            if isinstance(plan, Plan):
                self._plans |= {f"{name}.weight": plan for name in plan.names}
            elif isinstance(plan, ParameterPlan):
                self._plans |= dict.fromkeys(plan.names, plan)
        if not self._plans:
            raise ValueError(no_plans_text(type(model).__name__, self._recipe, plans))
        owners = {name.rpartition(".")[0] for name in self._plans}
        with folded(model, lambda name: name in owners and self._foldable(name), stay=True) as own:
            self._folding = own
        self._converters = converters(own, getattr(model, "base_model_prefix", ""))

    def _foldable(self, layer: str) -> bool:
        """Whether a layer is to be quantized whose weight is computed of parts while it is read."""
        module = self._model.get_submodule(layer)
        return self._recipe.decide(layer)[0].weight is not None and computes_of_parts(module)

    def conversions(self, old: list[WeightTransform]) -> list[WeightTransform]:
        """transformers' ways to rename and fuse the checkpoint's tensors, with ours among them."""
        return [*old, *self._converters]

    def wants(self, name: str) -> bool:
        """Whether the parameter `name` is quantized when it arrives."""
        return name in self._plans

    def formats(self) -> dict[str, Stored]:
        """{parameter: (its format, its shape as stored)} of all that are to be quantized."""
        return {
            name: (plan.format, stored_shape(tuple(plan.parameter.shape), plan.layout))
            for name, plan in self._plans.items()
        }

    def element_size(self, name: str) -> float | None:
        """Bytes of an element of the parameter `name` once it is quantized, None if it is not."""
        plan = self._plans.get(name)
        return (
            None if plan is None else plan.format.bits_per_element(tuple(plan.parameter.shape)) / 8
        )

    def take(self, name: str, values: Tensor) -> Tensor:
        """A weight as it was read -> what the model holds for it until everything is read."""
        plan = self._plans.get(name)
        old = self._model.get_parameter(name)
        if plan is None:
            return values
        if values.shape != old.shape or values.dtype != old.dtype or values.is_meta:
            del self._plans[name]  # transformers says so, or initializes it: it stays in float
            return values
        if plan.outer_group and plan.outer_group not in self._tops:
            self._waiting.setdefault(plan.outer_group, {})[name] = values
            if self._names_of(plan.outer_group) <= self._waiting[plan.outer_group].keys():
                self._quantize_waiting(plan.outer_group)
            mark = self._marks.of(name, {"values": values})
        else:
            self._quantize(name, values)
            mark = self._marks.of(name, dict(self._weights[name][0].named_buffers()))
        return stand_in(values.shape, values.dtype, values.device, mark)

    def _names_of(self, group: tuple[str, ...]) -> set[str]:
        """The parameters that share an outer scale and are still to be quantized, one name each."""
        both = {name for each in group for name in (each, f"{each}.weight")}
        return both & self._plans.keys()

    def _quantize_waiting(self, group: tuple[str, ...]) -> None:
        """Quantize the weights that share an outer scale, of which all have arrived that will."""
        waiting = self._waiting.pop(group)
        plans = [replace(self._plans[name], parameter=waiting[name]) for name in waiting]
        for name in sorted(self._names_of(group) - waiting.keys()):  # initialized, not read
            parameter = self._model.get_parameter(name)
            plans += [] if parameter.is_meta else [replace(self._plans[name], parameter=parameter)]
        self._tops[group] = largest([top_of(plan) for plan in plans])
        for name, values in waiting.items():
            self._quantize(name, values)

    def _quantize(self, name: str, values: Tensor) -> None:
        """Keep the codes of a weight, and free its floats."""
        self._weights[name] = self._quantized(replace(self._plans[name], parameter=values))
        let_go(values, self._files)
        self._freed_bytes = give_back(self._freed_bytes + values.nbytes)

    def _quantized(self, plan: Plan | ParameterPlan) -> tuple[QWeight, list[str]]:
        top = self._tops.get(plan.outer_group)
        top = None if top is None else top.to(plan.parameter.device)
        if isinstance(plan, ParameterPlan):
            weight, entry = quantized(plan, self._seed, top=top)
            return weight, list(entry.notes)
        own = None if self._seed is None else named_seed(self._seed, f"{plan.name}.weight")
        return weight_in_codes(plan, Supplied(top=top), own)

    def finish(self) -> Ledger:
        """Put the quantized layers into the model, warn of notes, and return the ledger."""
        model = self._model
        for group in [*self._waiting]:  # some of their partners are not in the checkpoint
            self._quantize_waiting(group)
        self._freed_bytes = give_back(_ALL)
        conversions: list[WeightTransform] = getattr(model, "_weight_conversions", None) or []
        others = [each for each in conversions if each not in self._converters]
        model._weight_conversions = others  # type: ignore[assignment]
        with folded(model, self._recipe) as folding:  # those whose weight was computed by now
            ledger = self._finish()
        ledger = replace(
            self._folding.with_details(folding.with_details(ledger)), notes=self._notes
        )
        give_back(_ALL)
        ledger.warn(stacklevel=6)
        return ledger

    def _finish(self) -> Ledger:
        model = self._model
        plans = plans_for(model, self._recipe)
        every_plan = [*plans, *plan_parameters(model, plans, self._recipe)]
        names = {id(model.get_parameter(name)): name for name in self._weights}
        ours = {
            plan.name: self._weights[names[id(plan.parameter)]]
            for plan in every_plan
            if isinstance(plan, Plan | ParameterPlan) and id(plan.parameter) in names
        }
        _check_all_used(self._weights, [weight for weight, _ in ours.values()])
        owning = {each.name for each in plans if isinstance(each, Plan) and each.owns_weight}
        weights = {name: weight.tensor for name, (weight, _) in ours.items() if name in owning}
        parameters = {each.name: ours[each.name][0] for each in every_plan
                if isinstance(each, ParameterPlan) and each.name in ours}  # fmt: skip
        places = supplied(plans, weights=weights)
        for plan in plans:
            if isinstance(plan, Plan) and plan.outer_group in self._tops:
                places[plan.name].top = self._tops[plan.outer_group].to(plan.parameter.device)
        ledger = apply(
            model,
            plans,
            self._recipe,
            places,
            strict=self._strict,
            seed=self._seed,
            qweights=parameters,
        )
        ours = {name: each for name, each in ours.items() if name in owning or name in parameters}
        notes = {name: tuple(texts) for name, (_, texts) in ours.items()}
        ledger.entries = [
            replace(entry, notes=(*notes.get(entry.name, ()), *entry.notes)) for entry in ledger
        ]
        return ledger


class QuantizeStep(ConversionOps):
    """The last step of reading a weight that is to be quantized."""

    def __init__(self, quantizing: Quantizing):
        self._quantizing = quantizing

    def convert(self, input_dict: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        """{name: its float values} -> {name: a stand-in}; other names stay as they are."""
        result = {}
        for name in list(input_dict):
            values = input_dict.pop(name)
            result[name] = self._quantizing.take(name, values[0] if _is_list(values) else values)
            del values
        return result


def _is_list(values: object) -> bool:
    return isinstance(values, list)


def _refuse_ours(files: Sequence[str]) -> None:
    """Raise FileError for files that hold codes already, though no config.json says so."""
    for file in files:
        if not file.endswith(".safetensors"):
            continue
        with open_file(Path(file)) as stored:
            metadata = stored.metadata()
        if KEY in (metadata or {}):
            raise FileError(
                f"{file} is already quantized by blockscale, but its config.json has no "
                f"quantization_config: load it with bs.load, or quantize the float model"
            )


def no_plans_text(kind: str, recipe: Recipe, plans: list[Decision]) -> str:
    """The text of an error: the recipe quantizes nothing in a model of this kind, and why."""
    reasons = sorted({plan.entry.reason for plan in plans})
    why = "; ".join(reasons) or "it has no layers that can be quantized"
    return f"the recipe {recipe.to_dict()} quantizes nothing in {kind}: {why}"


def _check_all_used(weights: dict[str, tuple[QWeight, list[str]]], in_model: list[QWeight]) -> None:
    """Raise RuntimeError if a weight's codes are nowhere in the model. Of two equal sides of a tie
    the model has one."""
    others = [(name, weight) for name, (weight, _) in weights.items() if weight not in in_model]
    if unused := [
        name for name, weight in others if not any(_same(weight, each) for each in in_model)
    ]:
        raise RuntimeError(
            f"{', '.join(unused)}: quantized while the model was loaded, but the loaded model "
            "uses them in another way. Load it in float and call bs.quantize_, or skip them"
        )


def _same(a: QWeight, b: QWeight) -> bool:
    return a.fmt == b.fmt and a.codes.shape == b.codes.shape and torch.equal(a.codes, b.codes)


# Layers that compute their weight (weight_norm, spectral_norm) while a model is read.
#
# They are folded before: the model has the weight as a parameter, and what the checkpoint holds
# are parts of it. When they have arrived, the layer's own parametrization computes the weight of
# them.


_KNOWN = ("_WeightNorm", "_SpectralNorm")  # of torch.nn.utils.parametrizations


def computes_of_parts(module: nn.Module) -> bool:
    """Whether a layer's computed tensors can be computed of what a checkpoint holds, and on "meta"
    of nothing: each by one known parametrization."""
    lists: Any = getattr(module, "parametrizations", {})
    return parametrize.is_parametrized(module) and all(
        len(steps) == 1 and type(steps[0]).__name__ in _KNOWN for steps in lists.values()
    )


def converters(folding: Folding, prefix: str) -> list[WeightConverter]:
    """What computes the tensors of folded layers while they are read.

    prefix: of the model's base model, which names in a checkpoint have or have not
    """
    return [
        _converter(fold.names[0].removeprefix(f"{prefix}."), fold.module, tensor)
        for fold in folding.folds
        for tensor in fold.tensors
    ]


def _converter(layer: str, module: Any, tensor: ComputedTensor) -> WeightConverter:
    steps = module.parametrizations[tensor.name]
    prefix = f"{layer}.parametrizations.{tensor.name}."
    names = {rf"(?<![^.]){re.escape(prefix + part)}$": part for part in steps.state_dict()}
    return WeightConverter([*names], f"{layer}.{tensor.name}", [Compute(steps, names)])


class Compute(ConversionOps):
    """The step that computes a tensor when its parts are there.

    names: {source pattern: what it is in `steps`, e.g. `original0`}
    """

    def __init__(self, steps: nn.Module, names: Mapping[str, str]):
        self._steps, self._names = steps, names

    def __deepcopy__(self, memo: dict[int, Any]) -> "Compute":
        return Compute(self._steps, self._names)

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, list[Tensor]], full_layer_name: str, **_: Any
    ) -> dict[str, Tensor]:
        """{pattern: [part]} -> {name: its value}; nothing where a part is missing, of which
        transformers tells."""
        parts = {self._names[pattern]: tensors[0] for pattern, tensors in input_dict.items()}
        if parts.keys() != {*self._names.values()}:
            return {}
        with torch.no_grad(), evaluating(self._steps):
            value: Tensor = torch.func.functional_call(self._steps, parts, ())
        return {full_layer_name: value.detach()}


# Memory of files that are mapped: pages that were read count as the process's until they are let
# go. transformers maps a checkpoint and keeps it open until its last tensor is read.


_MAPS = Path("/proc/self/maps")
_ENOUGH = 1 << 23  # bytes of floats, beside whose codes several times as many were used


def real_paths(files: Iterable[str]) -> frozenset[str]:
    """The paths of files as the system calls them: links are followed."""
    return frozenset(str(Path(file).resolve()) for file in files)


def let_go(tensor: Tensor, files: frozenset[str]) -> None:
    """Tell the system that the pages of a tensor that lies in one of these files are not needed for
    now: who reads them again gets them from the file.

    files: of `real_paths`; their mappings have to be as they were made, unwritten.
    Anywhere but on Linux nothing is done.
    """
    if tensor.device.type != "cpu" or not _MAPS.exists() or not tensor.nbytes:
        return
    start = tensor.untyped_storage().data_ptr()
    end = start + tensor.untyped_storage().nbytes()
    if not _in_file(start, end, files):
        return
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def give_back(nbytes: int) -> int:
    """Return freed memory to the system where it is enough; how many bytes are still to return.

    glibc keeps freed memory below what is still used, and codes lie between freed floats.
    Returning it takes milliseconds.
    """
    if nbytes < _ENOUGH:
        return nbytes
    if trim := getattr(_libc(), "malloc_trim", None):
        trim(0)
    return 0


def _in_file(start: int, end: int, files: frozenset[str]) -> bool:
    """Whether these addresses lie in a mapping of one of these files."""
    for line in _MAPS.read_text().splitlines():
        place, _, _, _, _, *path = line.split(maxsplit=5)
        low, high = (int(each, 16) for each in place.split("-"))
        if low <= start and end <= high:
            return bool(path) and path[0] in files
    return False


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)
