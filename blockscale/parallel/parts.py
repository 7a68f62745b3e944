# SPDX-License-Identifier: BSD-3-Clause
"""Layers of which each process has a part: local tensors in, local tensors out, one collective.

A layer becomes one of these in place (`place`), with its part of the codes: the classes below are
those of whole layers, and say what is sent. All of them add in float what one process would add, in
another order; everything before the sum has the bits of one process.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from blockscale.core.cuts import blocks_of, check_cut, deal, refine, share
from blockscale.core.format import Format
from blockscale.core.operand import Quantizer, quantizer
from blockscale.core.scales import TwoLevel
from blockscale.core.shared_scales import choose, spans
from blockscale.layers.before.scale import Scale
from blockscale.layers.kinds import QEmbedding, QLinear
from blockscale.layers.store import QInput, QWeight
from blockscale.ops.linear import linear
from blockscale.ops.tensor import QTensor, join
from blockscale.parallel.collectives import join_parts, merge, shared, summed


@dataclass
class Place:
    """Which part of how many a process has, and with whom.

    places: where the dimension is cut, 0 to its size
    whole_io: of outputs, whether they are gathered; of inputs, whether they come whole
    """

    group: Any
    rank: int
    places: tuple[int, ...]
    whole_io: bool = False

    @property
    def start(self) -> int:
        """The first index of this process's part."""
        return self.places[self.rank]

    @property
    def length(self) -> int:
        """How many indices it has."""
        return self.places[self.rank + 1] - self.start

    def of(self, x: Tensor, dim: int) -> Tensor:
        """This process's part of x along a dimension."""
        return x.narrow(dim, self.start, self.length)

    def __deepcopy__(self, memo: Any) -> "Place":
        return Place(self.group, self.rank, self.places, self.whole_io)


def place(group: Any, n: int, whole_io: bool = False) -> Place:
    """The part of n indices that this process has, as torch.chunk deals them."""
    places = deal(n, dist.get_world_size(group))
    return Place(group, dist.get_rank(group), places, whole_io)


def check_pieces(fmt: Format, shape: tuple[int, ...], dim: int, parts: int, processes: int) -> None:
    """Raise ValueError where a weight in a format, stored in a shape, cannot be cut along `dim`,
    in each of the `parts` of equal size of which it consists, for so many processes."""
    if shape[dim] % parts:
        raise ValueError(f"{shape[dim]} rows cannot be divided into {parts} equal parts")
    n = shape[dim] // parts
    for start, stop in pairwise(deal(n, processes)):
        own = [(i * n + start, i * n + stop) for i in range(parts)]
        cuts = [share(shape, dim, (0, *each, shape[dim]), 1) for each in own]
        for each in cuts:
            check_cut(fmt, each)
        if any(refine(fmt, each) != refine(fmt, cuts[0]) for each in cuts):
            raise ValueError(f"{fmt}: the parts of the weight are cut at other places of blocks")


def pieces_of(weight: QWeight, dim: int, parts: int, group: Any) -> tuple[list[QTensor], str]:
    """This process's part along `dim` of a stored weight that consists of `parts` of equal size
    along it, as a gate and an up projection do: a view of each, and which they are in words.

    Raises ValueError where the format cannot be cut so, with its spelling.
    """
    q = weight.tensor
    check_pieces(q.format, tuple(q.shape), dim, parts, dist.get_world_size(group))
    if dim == len(q.shape) - 1 and (reason := _refuses_parts_of_rows(weight, group)):
        raise ValueError(reason)
    at = place(group, q.shape[dim] // parts)
    n = at.places[-1]
    some = [q.narrow(dim, i * n + at.start, at.length) for i in range(parts)]
    return some, f"{at.start} to {at.start + at.length} of {n}"


def cut_weight(weight: QWeight, dim: int, parts: int, group: Any) -> None:
    """Let a weight be this process's part of it, in memory of its own. Raises as `pieces_of`."""
    some, note = pieces_of(weight, dim, parts, group)
    by = weight.input
    if by is not None and by.static and dim == 0 and len(weight.tensor.shape) == 3:
        at = place(group, weight.tensor.shape[0])
        by.restore({
            name: at.of(part, 0).clone() for name, part in by.present().items() if part is not None
        })  # fmt: skip
    weight.become_part(join(some, dim), note)


def _refuses_parts_of_rows(weight: QWeight, group: Any) -> str:
    """Why the rows that meet a stack of experts cannot be quantized where each process has a part
    of each row; empty if they can: by dynamic scales of blocks that end with the parts."""
    by, k = weight.input, weight.tensor.shape[-1]
    if by is None:
        return ""
    size = by.format.block.sizes_for(2)[-1]
    n = dist.get_world_size(group)
    ends = size > 0 and all(each % size == 0 for each in deal(k, n)[:-1])
    if ends and not by.static and not isinstance(by.format.scale, TwoLevel):
        return ""
    return (
        f"its input is quantized ({by.fmt}) by scales of what several processes have: use a format "
        "in groups that end with the parts, such as mxfp8, or cut its outputs or its experts"
    )


class _Linear(QLinear):
    """A linear layer of which each process has a part; `at` says which."""

    at: Place

    def check(self, x: Tensor, features: int) -> None:
        """Raise ValueError for an input of other features than these."""
        if x.shape[-1] != features:
            raise ValueError(
                f"{self.qweight.name}: expected an input [..., {features}] on process "
                f"{self.at.rank}, found {tuple(x.shape)}"
            )

    def product(self, x: Tensor, bias: Tensor | None, by: Quantizer) -> Tensor:
        """x [..., own inputs] -> [..., own outputs]."""
        y: Tensor = linear(x, self.qweight.operand, bias, by)
        return y


class ColwiseLinear(_Linear):
    """Some of the outputs of a linear layer, of the whole input: bits of one process.

    Sends nothing, but where its outputs are gathered.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., own outputs], or all where they are gathered."""
        self.check(x, self.in_features)
        x = self.prepare_input(shared(x, self.at.group))
        y = self.product(x, self.added_bias(), self.of_input(x))
        if not self.at.whole_io:
            return self.finish_output(y)
        return self.finish_output(join_parts(y, self.at.places, self.at.rank, self.at.group))


class RowwiseLinear(_Linear):
    """Some of the inputs of a linear layer: products of parts are summed, and the bias is added.

    Where the format of the input has scales over all features, the ranges of the parts merge
    before they are chosen, so that codes are those of one process.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x [..., own inputs], or all of them -> [..., out_features]."""
        self.check(x, self.in_features if self.at.whole_io else self.at.length)
        if self.at.whole_io:
            x = self.at.of(shared(x, self.at.group), -1)
        x = self.prepare_input(x)
        y = summed(self.product(x, None, self._of_part(x)), self.at.group)
        bias = self.added_bias()
        if bias is not None:
            y = (y.to(torch.float32) + bias.to(torch.float32)).to(y.dtype)
        return self.finish_output(y)

    def _of_part(self, x: Tensor) -> Quantizer:
        """How this part of the input is quantized."""
        by: QInput | None = self.input
        if by is None or by.static:
            return self.of_input(x)
        whole = (*x.shape[:-1], self.at.places[-1])
        own = share(whole, -1, self.at.places, self.at.rank)
        if not spans(by.format, own):
            return self.of_input(x)
        qparams, fmt = choose(x.detach(), by.format, own, merge(self.at.group))
        return quantizer(qparams, fmt)


class RowwiseEmbedding(QEmbedding):
    """Some rows of a table: every process looks up those that it has, and the rest are zeros."""

    at: Place

    def forward(self, indices: Tensor) -> Tensor:
        """indices [...] of all rows -> [..., embedding_dim]."""
        own = indices - self.at.start
        here = (own >= 0) & (own < self.at.length)
        shape, dtype = (*indices.shape, self.embedding_dim), self.qweight.dtype
        rows = torch.zeros(shape, dtype=dtype, device=indices.device)
        if self.at.length:
            rows = super().forward(torch.where(here, own, 0))
        return summed(torch.where(here.unsqueeze(-1), rows, 0), self.at.group)


class ColwiseEmbedding(QEmbedding):
    """Some columns of a table, which are gathered."""

    at: Place

    def forward(self, indices: Tensor) -> Tensor:
        """indices [...] of rows -> [..., all of embedding_dim]."""
        return join_parts(super().forward(indices), self.at.places, self.at.rank, self.at.group)


def refuses(layer: nn.Module, style: str) -> str:
    """Why a layer cannot have its parts on several processes in this style; empty if it can."""
    if isinstance(layer, QEmbedding):
        return "" if layer.output is None else "its output is quantized"
    if not isinstance(layer, QLinear):
        return f"a {type(layer).__name__} is no quantized linear layer, table or stack of experts"
    if layer.quantized_bias is not None:
        return f"its bias is quantized ({layer.quantized_bias.fmt})"
    if style.startswith("colwise"):
        return _refuses_output(layer) if style == "colwise" else ""
    if layer.before is not None and not isinstance(layer.before, Scale):
        return f"{layer.before.fmt} mixes inputs of several processes"
    return refuses_input(layer.input)


def _refuses_output(layer: QLinear) -> str:
    by = layer.output
    if by is None or (by.static and by.format.block.name == "tensor"):
        return ""
    return f"its output is quantized ({by.fmt}) by scales of several processes"


def refuses_input(by: QInput | None) -> str:
    """Why a layer whose inputs lie on several processes cannot quantize them so; empty if it can,
    perhaps by scales that all of them choose."""
    if by is None:
        return ""
    if any(block.flat for block in blocks_of(by.format)):
        return f"blocks of its input ({by.fmt}) run over the flattened tensor"
    if by.format.rounding == "stochastic":
        return f"stochastic rounding of its input ({by.fmt}) counts the elements of all processes"
    if by.static and (by.format.gives_outer or by.format.block.name != "tensor"):
        return f"the static scale of its input ({by.fmt}) is not one number"
    return ""


STYLES: dict[str, tuple[type[nn.Module], int, bool]] = {
    "colwise": (ColwiseLinear, 0, False),
    "colwise_gather_output": (ColwiseLinear, 0, True),
    "rowwise": (RowwiseLinear, 1, False),
    "rowwise_split_input": (RowwiseLinear, 1, True),
    "embedding_rowwise": (RowwiseEmbedding, 0, False),
    "embedding_colwise": (ColwiseEmbedding, 1, False),
}


def cut_layer(layer: Any, style: str, group: Any) -> None:
    """Let a whole layer, whose weight is cut, be this process's part of it, in place."""
    kind, dim, whole_io = STYLES[style]
    table = isinstance(layer, QEmbedding)
    sizes = ("num_embeddings", "embedding_dim") if table else ("out_features", "in_features")
    at = place(group, getattr(layer, sizes[dim]), whole_io)
    layer.__class__ = kind
    layer.at = at
    bias = layer._parameters.get("bias")
    if kind is ColwiseLinear and bias is not None:
        own = at.of(bias.detach(), 0).clone()
        layer._parameters["bias"] = nn.Parameter(own, bias.requires_grad)
    if kind is RowwiseLinear and layer.before is not None:
        layer.before = Scale(at.of(layer.before.factor, 0))


# Float layers and parameters between quantized ones: a recipe that leaves a layer in float leaves
# it in the model's plan, and its pair gives and takes parts.


class FloatParameter(NamedTuple):
    """A float parameter that a plan names: the module that reads it, and its name there."""

    owner: nn.Module
    name: str

    @property
    def tensor(self) -> nn.Parameter:
        """The parameter itself."""
        parameter: nn.Parameter = self.owner._parameters[self.name]  # type: ignore[assignment]
        return parameter


class ColwiseFloat(nn.Linear):
    """Some of the outputs of a linear layer, of the whole input."""

    at: Place
    part: str

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., own outputs]."""
        return functional.linear(shared(x, self.at.group), self.weight, self.bias)


class RowwiseFloat(nn.Linear):
    """Some of the inputs of a linear layer: products of parts are summed, and the bias is added."""

    at: Place
    part: str

    def forward(self, x: Tensor) -> Tensor:
        """x [..., own inputs] -> [..., out_features]."""
        y = summed(functional.linear(x, self.weight), self.at.group)
        return y if self.bias is None else y + self.bias


_FLOATS: dict[str, tuple[type[nn.Linear], int]] = {
    "colwise": (ColwiseFloat, 0),
    "rowwise": (RowwiseFloat, 1),
}
# styles of parameters: the dimension from the last of a matrix, and of how many parts it consists
_OF_PARAMETERS = {"colwise": (-2, 1), "packed_colwise": (-2, 2), "rowwise": (-1, 1)}


def refuses_float(what: Any, style: str) -> str:
    """Why a float layer, or a parameter, cannot be cut so; empty if it can."""
    if isinstance(what, FloatParameter):
        shape = tuple(what.tensor.shape)
        if style not in _OF_PARAMETERS:
            return f"it is a float parameter; those are {', '.join(_OF_PARAMETERS)}"
        dim, parts = _OF_PARAMETERS[style]
        if len(shape) < 2:
            return f"it is in float and has one dimension {shape}, which no style says how to cut"
        odd = shape[dim] % parts
        return f"{shape[dim]} rows cannot be divided into {parts} equal parts" if odd else ""
    if type(what) is nn.Linear and style in _FLOATS:
        return ""
    text = f"it is in float and no nn.Linear ({type(what).__name__}), which could be cut there"
    return f"{text}: quantize it, too, or leave it and its pair out of the plan"


def put_float(what: Any, style: str, group: Any) -> None:
    """Let a float layer or parameter be this process's part of it, in place."""
    if isinstance(what, FloatParameter):
        dim, parts = _OF_PARAMETERS[style]
        own = _own(what.tensor, dim, parts, group)
        what.owner._parameters[what.name] = own
        return
    kind, dim = _FLOATS[style]
    n = what.weight.shape[dim]
    what.at = place(group, n)
    what.part = f"{what.at.start} to {what.at.start + what.at.length} of {n}"
    for name in ("weight", "bias") if dim == 0 else ("weight",):
        if what._parameters[name] is not None:
            what._parameters[name] = _own(what._parameters[name], dim, 1, group)
    what.__class__ = kind


def _own(parameter: nn.Parameter, dim: int, parts: int, group: Any) -> nn.Parameter:
    """This process's part of each of so many equal parts along a dimension, in its own memory."""
    at = place(group, parameter.shape[dim] // parts)
    own = torch.cat([at.of(each, dim) for each in parameter.detach().chunk(parts, dim)], dim)
    return nn.Parameter(own, parameter.requires_grad)
