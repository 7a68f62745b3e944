# SPDX-License-Identifier: BSD-3-Clause
"""What a server's layers get of a directory of ours: whole quantized layers, read by name.

Servers join layers (q, k and v; gate and up) and name them after the joined layer. Here each keeps
its own codes, scales, input format and transform, as it has in the model: two layers whose outer
scales differ are never given one. Nothing of this file knows a server.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.cuts import cut, share
from blockscale.core.joined_weights import of_matrix
from blockscale.core.pack import inputs_first, stored_shape
from blockscale.core.recipe import Scheme
from blockscale.core.reference import QParams
from blockscale.core.shared_scales import spans
from blockscale.core.stacks import rows_of
from blockscale.files.load import quantized_layer, read_quantized
from blockscale.files.stored_model import OpenFiles, StoredModel
from blockscale.integrations.vllm.experts import (
    ExpertMatrices,
    Experts,
    Joined,
    chosen_of,
    one_stack,
)
from blockscale.layers.kinds import QLinear, QTransposedLinear
from blockscale.layers.layer import QBias, QLayer
from blockscale.layers.store import QWeight
from blockscale.ops.grouped_linear import whole_matrix
from blockscale.ops.tensor import QTensor
from blockscale.parallel.parts import refuses_input

Names = Sequence[str]

_TABLE = re.compile(r"(embed|wte\.|word_embeddings)")  # names of tables that begin a model


@dataclass
class Served:
    """A stored model, and which of its quantized tensors a server's layers took.

    Its files stay open from the first layer until `read_names`.

    name: {the server's name of a tensor: the stored one}, where they differ
    apart: {why experts are computed one after another: their layers' first matrices}
    """

    stored: StoredModel
    name: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    apart: dict[str, list[str]] = field(default_factory=dict)
    _tables: dict[tuple[str, tuple[int, int]], QWeight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stored = replace(self.stored, held=OpenFiles())

    def rename(self, to_server: Callable[[str], str | None]) -> None:
        """From now on the server's names are what `to_server` makes of the stored ones."""
        every = {*self.stored.metadata.tensors, *self.stored.metadata.aliases, *self.stored.files}
        renamed = {name: to_server(name) for name in every}
        self.name = {to: name for name, to in renamed.items() if to not in (None, name)}

    def tensor(self, name: str) -> str | None:
        """The quantized tensor that the server calls `name`, followed to what it is tied to."""
        known = self.stored.metadata
        followed = (known.aliases.get(each, each) for each in self._stored_names(name))
        return next((each for each in followed if each in known.tensors), None)

    def _stored_names(self, name: str) -> Iterable[str]:
        """What the tensor that the server calls `name` may be called in files."""
        return (self.name.get(each, each) for each in _spellings(name))

    def shards(self, names: Names, what: str) -> list[str] | None:
        """The stored layers of these server's names, that are one layer of its; None if all are
        float.

        Raises ValueError if some are quantized and others are not: a server has one method for all.
        """
        stored = [self.tensor(f"{name}.weight") for name in names]
        if not any(stored):
            return None
        if not all(stored):
            plain = [n for n, s in zip(names, stored, strict=True) if s is None]
            raise ValueError(
                f"{what} is one layer in the server, of which {', '.join(plain)} are float and the "
                f"others quantized: quantize all of them or none (Recipe(skip=[…]))"
            )
        return [each for each in stored if each is not None]

    def table(self, name: str, shape: tuple[int, int]) -> str | None:
        """The stored table of embeddings or head `name` [rows, features]; None if it is float.

        One that vLLM's model does not name, and a head that files do not have because it is tied,
        is the only table of this shape. Raises ValueError where several would do.
        """
        if name and (found := self.tensor(f"{name}.weight")) is not None:
            return found
        if name and any(each in self.stored.files for each in self._stored_names(f"{name}.weight")):
            return None
        known = self.stored.metadata
        every = [n for n, info in known.tensors.items() if info.shape == shape]
        every = [n for n in every if _TABLE.search(n)]
        if len(every) > 1:
            raise ValueError(f"which of {', '.join(every)} is the model's table of embeddings?")
        return every[0] if every else None

    def experts(
        self, name: str, count: int, projections: Sequence[str | None]
    ) -> "StoredExperts | None":
        """The experts of the server's layer `name`: one by one, or as stacks; None if float.

        projections: what files call gate, up and down
        """
        gate, up, down = projections
        above = name.removesuffix(".routed_experts")
        first = [each for each in (gate, up) if each is not None]

        def one_by_one(expert: int, of: Sequence[str | None]) -> list[str] | None:
            names = [f"{above}.{expert}.{each}" for each in of]
            return self.shards(names, f"expert {expert} of {name}")

        ups = [one_by_one(expert, first) for expert in range(count)]
        downs = [one_by_one(expert, [down]) for expert in range(count)]
        if all(ups) and all(downs):
            return StoredExperts(self, ups, downs, stacked=False)  # type: ignore[arg-type]
        if any(ups) or any(downs):
            raise ValueError(
                f"{name}: some experts are quantized and others are not: quantize all of them or "
                f"none"
            )
        stacks = [self.tensor(f"{above}.{each}") for each in ("gate_up_proj", "down_proj")]
        if not any(stacks):
            return None
        if stacks[0] is None or stacks[1] is None:
            raise ValueError(
                f"{name}: one of gate_up_proj and down_proj is quantized: quantize both or none"
            )
        return StoredExperts(self, [[stacks[0]]], [[stacks[1]]], stacked=True)

    def joined(
        self, tensors: Sequence[str], dtype: torch.dtype, parts: Sequence["Part | None"] = ()
    ) -> "Joined":
        """The layers of these stored weights as one; parts: what this process has of each."""
        each = parts or [None] * len(tensors)
        return Joined([self.layer(t, dtype, p) for t, p in zip(tensors, each, strict=True)])

    def layer(self, tensor: str, dtype: torch.dtype, part: "Part | None" = None) -> QLinear:
        """The linear layer of a stored weight, or a part of it, with its quantizers and its
        transform, without a bias.

        Raises ValueError where a part would compute other numbers than the whole does.
        """
        info = self.stored.metadata.tensors[tensor]
        kind = QTransposedLinear if inputs_first(info.layout) else QLinear
        if len(info.shape) != 2:
            raise ValueError(f"{tensor} has shape {info.shape}, expected a matrix [n, k]")
        owner = tensor.rpartition(".")[0]
        if part is not None and part.dim == 1 and (how := self.stored.metadata.before(owner)):
            raise ValueError(
                f"{owner}: its inputs are transformed by {how}, which takes all of them, and each "
                f"process has a part: set tensor_parallel_size=1"
            )
        weight = self.weight(tensor, dtype)
        if part is not None:
            weight = _cut(weight, part)

        def make(scheme: object) -> QLayer:
            return kind(weight, None, scheme)  # type: ignore[arg-type]

        layer = quantized_layer(self.stored, owner, weight, make)
        assert isinstance(layer, QLinear)
        if part is not None and part.dim == 1:
            _check_inputs(tensor, layer, part, stored_shape(info.shape, info.layout)[1])
        return layer

    def weight(self, tensor: str, dtype: torch.dtype) -> QWeight:
        """A stored weight, as a layer of this dtype holds it."""
        found = read_quantized(self.stored, tensor, dtype)
        if not isinstance(found, QWeight):
            raise ValueError(f"{tensor} holds sums, which are no weight")
        found.name = tensor
        self.taken.add(tensor)
        return found

    def rows(
        self, tensor: str, dtype: torch.dtype, device: torch.device, rows: tuple[int, int]
    ) -> QWeight:
        """These rows of a table on a device, read once: the head may be tied to it by name."""
        if (tensor, rows) not in self._tables:
            whole = self.weight(tensor, dtype)
            own = whole if rows == (0, whole.shape[0]) else _cut(whole, Part(0, *rows))
            self._tables[tensor, rows] = own.to(device)
        return self._tables[tensor, rows]

    def bias(self, layer: str) -> Tensor | None:
        """A layer's quantized bias as float32 numbers; None where it is float, or there is none."""
        tensor = self.tensor(f"{layer}.bias")
        if tensor is None:
            return None
        self.taken.add(tensor)
        held: QBias | QWeight = read_quantized(self.stored, tensor, torch.float32)
        return held.dequantize(torch.float32)

    def notes(self) -> list[str]:
        """What is slower than it could be, a sentence for each reason."""
        return [
            f"{len(names)} matrices of experts, the first {names[0]}, are computed one after "
            f"another instead of at once, and in no CUDA graph (--enforce-eager): {why}"
            for why, names in self.apart.items()
        ]

    def read_names(self) -> set[str]:
        """The stored tensors that make the layers which were taken, as the file and the server name
        them; asked for when all layers are there: files are closed.

        Raises ValueError if a quantized tensor was taken by no layer: the model would compute with
        numbers that were never set.
        """
        if self.stored.held is not None:
            self.stored.held.close()
            self.stored = replace(self.stored, held=None)
        left = sorted(set(self.stored.metadata.tensors) - self.taken)
        left = [name for name in left if not name.endswith(".bias")]
        if left:
            skip = [name.removesuffix(".weight") for name in left[:3]]
            raise ValueError(
                f"{self.stored.path}: {len(left)} quantized tensors belong to layers that the "
                f"server computes itself, such as {', '.join(left[:3])}: quantize the model with "
                f"Recipe(skip={skip})"
            )
        names = {*self.stored.files, *self.taken} - self.stored.plain()
        names |= {name for name, to in self.stored.metadata.aliases.items() if to in self.taken}
        return names | {server for server, name in self.name.items() if name in names}


def _spellings(name: str) -> Iterable[str]:
    """A server's name, and what it is in files of the model without its head, and with it."""
    yield name
    yield name.removeprefix("model.")
    yield f"model.{name}"
    yield name.removeprefix("transformer.")


class Part(NamedTuple):
    """Outputs (dim 0) or inputs (dim 1) of a layer that one of several processes has."""

    dim: int
    start: int
    stop: int


class Slice(NamedTuple):
    """One of `ranks` equal parts of a dimension: outputs (dim 0) or inputs (dim 1)."""

    dim: int
    rank: int
    ranks: int

    def of(self, tensor: str, size: int) -> "Part | None":
        """This part of `size`, None for the whole. Raises ValueError where parts are not equal."""
        if size % self.ranks:
            raise ValueError(
                f"{tensor}: {size} cannot be cut into {self.ranks} equal parts: set "
                f"tensor_parallel_size to a number that divides it"
            )
        each = size // self.ranks
        return None if self.ranks == 1 else Part(self.dim, self.rank * each, (self.rank + 1) * each)


def _cut(weight: QWeight, part: Part) -> QWeight:
    """A part of a weight, copied. Raises ValueError, with its name, where no cut can be."""
    try:
        own = cut(weight.operand, *part)
    except ValueError as error:
        raise ValueError(f"{weight.name}: {error}") from None
    parts = {name: part.clone() for name, part in own.qparams._asdict().items() if part is not None}
    return _weight_of(QTensor(own.codes.clone(), QParams(**parts), own.format, own.size), weight)


def _weight_of(q: QTensor, of: QWeight) -> QWeight:
    """A part of a weight, with its name."""
    held = QWeight(q, tuple(q.shape), of.dtype, "plain")
    held.name = of.name
    return held


def _check_inputs(tensor: str, layer: QLinear, part: Part, size: int) -> None:
    """Raise ValueError where a scale is chosen from inputs of which this process has a part."""
    if layer.input is None:
        return
    name = tensor.removesuffix(".weight")
    if why := refuses_input(layer.input):
        raise ValueError(f"{name}: {why}: set tensor_parallel_size=1")
    if layer.input.static:
        return
    own = share((1, size), 1, (0, part.start, part.stop, size), 1)
    shared = sorted(spans(layer.input.format, own) - {"book"})
    if shared:
        raise ValueError(
            f"{name}: the {shared[0]} of its inputs in {layer.input.format} is chosen from inputs "
            f"of several processes (this one has {part.start} to {part.stop} of {size}): quantize "
            f"inputs in groups that divide them, such as 'mxfp8', by a static scale, or set "
            f"tensor_parallel_size=1"
        )


@dataclass
class StoredExperts:
    """Where a directory has the experts of a layer.

    tensors: all names; up, down: those of each expert in turn, `up` of gate and up, or of one stack
    """

    served: Served
    up: list[list[str]]
    down: list[list[str]]
    stacked: bool

    @property
    def tensors(self) -> list[str]:
        """Every stored name."""
        return [name for names in (*self.up, *self.down) for name in names]

    def outputs(self) -> int:
        """Of gate and up of an expert together, in the float model."""
        known = self.served.stored.metadata.tensors
        shapes = [stored_shape(known[n].shape, known[n].layout) for n in self.up[0]]
        return sum(shape[-2] for shape in shapes)

    def read(
        self, chosen: Sequence[int], dtype: torch.dtype, rank: int = 0, ranks: int = 1
    ) -> Experts:
        """The chosen experts, in this order. Raises ValueError for experts that are not there, and
        where each has no part of its own for each process.

        rank, ranks: this process of how many that have a part of each expert: as many outputs of
            gate and up, and the inputs of down that they are. Sums of down are parts, to be added.
        """
        if not self.stacked:
            parts = [self._matrices(names, chosen, dtype, Slice(dim, rank, ranks))
                     for dim, names in enumerate((self.up, self.down))]  # fmt: skip
            return Experts(parts[0], parts[1], len(chosen))
        own = [chosen_of(self.served.weight(names[0][0], dtype), chosen)
               for names in (self.up, self.down)]  # fmt: skip
        if ranks > 1:  # gate and up are halves
            own = [one_stack([_layers(stack, e, 2 - dim, Slice(dim, rank, ranks))
                              for e in range(len(chosen))])
                   for dim, stack in enumerate(own)]  # fmt: skip
        return Experts(ExpertMatrices(own[0]), ExpertMatrices(own[1]), len(chosen))

    def _matrices(
        self, names: list[list[str]], chosen: Sequence[int], dtype: torch.dtype, own: "Slice"
    ) -> ExpertMatrices:
        for expert in set(range(len(names))) - set(chosen):  # another process reads them
            self.served.taken.update(names[expert])
        layers = []
        for each in chosen:
            parts = [self._part(tensor, own) for tensor in names[each]]
            layers.append(self.served.joined(names[each], dtype, parts))
        matrices = ExpertMatrices.of_layers(layers)
        if matrices.apart:
            self.served.apart.setdefault(matrices.apart, []).append(names[chosen[0]][0])
        return matrices

    def _part(self, tensor: str, own: "Slice") -> "Part | None":
        """What this process has of one matrix."""
        info = self.served.stored.metadata.tensors[tensor]
        return own.of(tensor, stored_shape(info.shape, info.layout)[own.dim])


def _layers(stack: QWeight, expert: int, count: int, own: "Slice") -> list[QLinear]:
    """This process's part of each of the `count` matrices that an expert of a stack consists of,
    one below another, as layers. Raises ValueError where they share numbers, or cannot be cut."""
    try:
        whole = whole_matrix(stack.operand, expert)
    except ValueError as error:
        raise ValueError(f"{stack.name}: {error}") from None
    rows, by = whole.shape[0] // count, stack.input
    layers = []
    for i in range(count):
        one = rows_of(whole, i * rows, (i + 1) * rows)
        if one is None:
            raise ValueError(f"{stack.name}: gates and ups share numbers of {stack.fmt}")
        fmt = of_matrix(one.format, one.shape)
        weight = _weight_of(QTensor(one.codes, one.qparams, fmt, one.size), stack)
        size = weight.shape[own.dim]
        part = own.of(stack.name, size)
        layer = QLinear(weight if part is None else _cut(weight, part), None, Scheme(fmt))
        layer.input = None if by is None else by.of_matrix(expert)
        if own.dim == 1 and part is not None:
            _check_inputs(stack.name, layer, part, size)
        layers.append(layer)
    return layers
