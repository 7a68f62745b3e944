# SPDX-License-Identifier: BSD-3-Clause
"""A stored model in which tensors have other names, and some are made of several."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.pack import from_stored, stored_shape
from blockscale.core.recipe import read_bias
from blockscale.files.metadata import QUANTIZERS, FileError, Metadata, TensorInfo
from blockscale.files.renaming_carry import CarriedTensor, carry
from blockscale.files.renaming_moves import Move
from blockscale.files.stored_model import StoredKind, StoredModel
from blockscale.layers.parameters import of_experts
from blockscale.ops.tensor import from_parts


class ViewTensor(NamedTuple):
    """A tensor of the view: the stored tensors that it needs, and what it is, made of them."""

    needs: tuple[str, ...]
    make: Callable[[Mapping[str, Tensor]], Tensor]
    kind: StoredKind


@dataclass(frozen=True)
class RenamedModel(StoredModel):
    """A view of `origin`; views: {name: how its tensor is made}."""

    origin: StoredModel | None = None
    views: Mapping[str, ViewTensor] = field(default_factory=dict)

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The tensors of these names, made anew."""
        sources = dict.fromkeys(each for name in names for each in self.views[name].needs)
        assert self.origin is not None
        stored = self.origin.read(list(sources))
        return {name: self.views[name].make(stored) for name in names}


class View:
    """Gathers what a RenamedModel is made of.

    dense: stored tensors whose codes cannot be kept
    without_place: layers whose formats of input and output the model has no place for
    """

    def __init__(self, model: nn.Module, source: StoredModel, targets: Mapping[str, torch.Size]):
        """targets: {name: shape} of the model's tensors."""
        self._model, self._source, self._targets = model, source, targets
        self._views: dict[str, ViewTensor] = {}
        self._metadata = Metadata()
        self._names: dict[str, str] = {}  # {stored name: the model's}, where that is all
        self.dense: list[str] = []
        self.without_place: list[str] = []

    def add(self, move: Move) -> None:
        """Give what moves its names; what is made of several is carried, or made in float."""
        if move.converter is None:
            self._rename(move.names[0], move.first)
            return
        infos = self._source.metadata.tensors
        places = {name: self._place(name) for name in move.names}
        quantized = {name: infos[to] for name, to in places.items() if to in infos}
        for name in quantized:
            self._check(name, places[name])
        tensors = self._try_to_carry(move, quantized) if quantized else None
        if tensors is None:
            self.dense += quantized
            self._convert(move, quantized)
        for new, each in (tensors or {}).items():
            self._carry(new, each)
        self._layers(move, list(tensors or {}))

    def finish(self) -> RenamedModel:
        """The view, complete."""
        source = self._source
        for alias, to in source.metadata.aliases.items():
            if alias in self._names and to in self._names:
                self._metadata.aliases[self._names[alias]] = self._names[to]
        files = {name: source.files[tensor.needs[0]] for name, tensor in self._views.items()}
        kinds = {name: tensor.kind for name, tensor in self._views.items()}
        return RenamedModel(
            source.path, files, kinds, self._metadata, origin=source, views=self._views
        )

    @property
    def targets(self) -> list[str]:
        """The model's names of what there is so far."""
        return [*self._names.values(), *self._metadata.tensors, *self._views]

    def _place(self, name: str) -> str:
        return self._source.metadata.aliases.get(name, name)

    def _rename(self, name: str, new: str) -> None:
        """One tensor, or another name of one, that keeps its form."""
        self._names[name] = new
        for end in ("", ".weight"):  # of a stack of experts, and of a layer
            layer, to = name.removesuffix(end), new.removesuffix(end)
            if f"{layer}{end}" == name and (formats := self._source.metadata.layers.get(layer)):
                self._metadata.layers[to] = formats
                self._same_parts(layer, to)
        if name in self._source.metadata.aliases:
            return
        info = self._source.metadata.tensors.get(name)
        if info is None:
            self._same(name, new)
            return
        self._metadata.tensors[new] = info
        for part, stored in self._source.parts_of(name).items():
            self._same(stored, f"{new}.{part}")

    def _same_parts(self, layer: str, new: str) -> None:
        """What a layer holds besides: static scales, and what transforms its input."""
        for owner in QUANTIZERS:
            for part, stored in self._source.quantizer_parts(f"{layer}.{owner}").items():
                self._same(stored, f"{new}.{owner}.{part}")
        for part, stored in self._source.before_parts(layer).items():
            self._same(stored, f"{new}.before.{part}")

    def _same(self, stored: str, new: str) -> None:
        self._views[new] = ViewTensor(
            (stored,), lambda tensors: tensors[stored], self._source.kinds[stored]
        )

    def _check(self, name: str, place: str) -> None:
        """Raise FileError for a piece that cannot be part of another tensor."""
        self._source.parts_of(place)
        if self._source.metadata.before(name.removesuffix(".weight")):
            raise FileError(
                f"{self._source.path}: the input of {name.removesuffix('.weight')} is "
                "transformed, and in this model that weight is part of another tensor: save "
                "the model under its current names"
            )

    def _try_to_carry(
        self, move: Move, quantized: Mapping[str, TensorInfo]
    ) -> dict[str, CarriedTensor] | None:
        with _fitting(self._source, move):
            return carry(self._model, move, quantized, self._targets)

    def _carry(self, new: str, each: CarriedTensor) -> None:
        """A quantized tensor made of quantized pieces."""
        self._metadata.tensors[new] = each.info
        kinds = each.info.parts()
        for part, pieces in each.parts.items():
            stored = {name: self._source.parts_of(self._place(name))[part] for name in pieces.names}

            def make(
                tensors: Mapping[str, Tensor], part: str = part, stored: dict[str, str] = stored
            ) -> Tensor:
                return each.part(part, {name: tensors[at] for name, at in stored.items()})

            self._views[f"{new}.{part}"] = ViewTensor(tuple(stored.values()), make, kinds[part])

    def _layers(self, move: Move, targets: list[str]) -> None:
        """Formats of inputs and outputs: those of a layer that is cut are those of its pieces, and
        those of experts that become a stack are the stack's."""
        stack = targets[0] if len(targets) == 1 and len(move.names) > 1 else ""
        layers = [name.removesuffix(".weight") for name in move.names]
        formats = of_stack_of(self._source, layers) if of_experts(stack) else None
        if formats:
            self._metadata.layers[stack] = formats
            return
        for name in move.names:
            layer = name.removesuffix(".weight")
            formats = self._source.metadata.formats(layer)
            static = any(self._source.quantizer_parts(f"{layer}.{part}") for part in formats)
            is_cut = len(move.names) == 1 and all(new.endswith(".weight") for new in targets)
            if formats and (static or not is_cut or not targets):
                self.without_place.append(layer)
            elif formats:
                for new in targets:
                    self._metadata.layers[new.removesuffix(".weight")] = formats

    def _convert(self, move: Move, quantized: Mapping[str, TensorInfo]) -> None:
        """Float tensors made of pieces, those that are quantized dequantized."""
        needs: dict[str, dict[str, str]] = {}
        shapes: dict[str, Tensor] = {}
        for name in move.names:
            place = self._place(name)
            dtype, shape = None, quantized[name].shape if name in quantized else ()
            needs[name] = self._source.parts_of(place) if name in quantized else {"": place}
            if name not in quantized:
                dtype, shape = self._source.kinds[place]
            dtype = torch.float32 if quantized else dtype
            shapes[name] = torch.empty(shape, dtype=dtype, device="meta")
        with _fitting(self._source, move):
            results = move.converted(self._model, shapes)
        every = tuple(stored for parts in needs.values() for stored in parts.values())

        def make(tensors: Mapping[str, Tensor], new: str) -> Tensor:
            floats = {}
            for name, parts in needs.items():
                own = {part: tensors[stored] for part, stored in parts.items()}
                floats[name] = piece_values(own, quantized.get(name)) if quantized else own[""]
            return move.converted(self._model, floats)[new]

        for new, result in results.items():
            self._check_shape(move, new, tuple(result.shape))
            self._views[new] = ViewTensor(
                every, partial(make, new=new), (result.dtype, tuple(result.shape))
            )

    def _check_shape(self, move: Move, new: str, shape: tuple[int, ...]) -> None:
        """Raise FileError where pieces are too few or too many."""
        expected = tuple(self._targets.get(new, shape))
        if shape != expected:
            raise FileError(
                f"{self._source.path}: {new}, made of {move.names[0]} and {len(move.names) - 1} "
                f"more, has shape {shape}, this model's has {expected}: build the model it was "
                f"made from"
            )


def of_stack_of(source: StoredModel, layers: Sequence[str]) -> dict[str, str] | None:
    """The format of the input of a stack of these layers: theirs, which choose their scales when
    they run; empty where they have none, None where they differ or have more than that."""
    every = [source.metadata.layers.get(layer, {}) for layer in layers]
    static = any(source.quantizer_parts(f"{layer}.input") for layer in layers)
    alike = all(each == every[0] for each in every) and set(every[0]) <= {"input"}
    return dict(every[0]) if alike and not static else None


def piece_values(parts: dict[str, Tensor], info: TensorInfo | None) -> Tensor:
    """A stored tensor in float32, in its float shape.

    parts: {part: tensor} of a quantized one; {"": tensor} of one in float, which has no `info`
    """
    if info is None:
        return parts[""].to(torch.float32)
    fmt = read_bias(info.format)
    if isinstance(fmt, SumInteger):
        return fmt.decode(parts["codes"], parts["scale"])
    size = (stored_shape(info.shape, info.layout) or (1,))[-1]
    return from_stored(from_parts(fmt, size, parts).dequantize(), info.layout, info.shape)


@contextmanager
def _fitting(source: StoredModel, move: Move) -> Iterator[None]:
    """Say of which pieces an error is."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, IndexError) as error:
        names = move.names
        raise FileError(
            f"{source.path}: {names[0]} and {len(names) - 1} more do not make the {move.first} of "
            f"this model ({error}): build the model it was made from"
        ) from error
