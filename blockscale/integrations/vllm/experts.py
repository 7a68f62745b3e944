# SPDX-License-Identifier: BSD-3-Clause
"""Layers that a server joins, and the experts of a mixture as it calls them: tokens, and for each
its experts and their weights. Nothing of this file knows a server.

A file has experts one by one, or as stacks. Here they are a stack wherever one format says where
each number of every expert is, so that one product computes all of them and a CUDA graph can hold
it (ops.grouped_linear); codes and numbers stay as they are.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.core.cuts import placements
from blockscale.core.joined_weights import of_stack
from blockscale.core.operand import UNQUANTIZED
from blockscale.core.reference import QParams
from blockscale.layers.kinds import QLinear
from blockscale.layers.store import QInput, QWeight, StackInput
from blockscale.layers.weight_pieces import sorted_product
from blockscale.ops.grouped_linear import waits
from blockscale.ops.linear import linear
from blockscale.ops.tensor import QTensor


class Joined(nn.Module):
    """Layers that a server joins to one: x [..., k] -> [..., n of all of them], one after another.

    layers: each with its own format; sizes: the outputs of each
    """

    def __init__(self, layers: Iterable[QLinear]):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.sizes: list[int] = [layer.out_features for layer in self.each()]

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """bias [n of all]: added before a layer's sums are rounded, as the layer itself does."""
        each = [None] * len(self.sizes) if bias is None else bias.split(self.sizes)
        outputs = [_product(layer, x, own) for layer, own in zip(self.each(), each, strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def each(self) -> list[QLinear]:
        """The layers, in order."""
        return list(self.layers)  # type: ignore[arg-type]


def _product(layer: QLinear, x: Tensor, bias: Tensor | None) -> Tensor:
    """QLinear.forward with a bias that is not the layer's own."""
    x = layer.prepare_input(x)
    return layer.finish_output(linear(x, layer.qweight.operand, bias, layer.of_input(x)))


def one_stack(experts: Sequence[Sequence[QLinear]]) -> QWeight:
    """The weights of experts as one stack [E, n, k]: of each expert those of its layers, one below
    another, with every code and number that they have.

    Raises ValueError, with why, where no format of a stack says the same.
    """
    every = [layer for layers in experts for layer in layers]
    weight, by = every[0].qweight, every[0].input
    _check_alike(every)
    n, k = weight.tensor.shape
    shape = (len(experts), n * len(experts[0]), k)
    fmt = of_stack(weight.format, shape, len(experts[0]))
    parts = {name: _stack_part(experts, name) for name in ("codes", *fmt.parts)}
    for name, (_, expected) in fmt.stored(shape).items():
        if tuple(parts[name].shape) != tuple(expected):
            raise ValueError(f"{weight.fmt}: its {name} of each matrix is none of {fmt}")
    codes = parts.pop("codes")
    stack = QWeight(QTensor(codes, QParams(**parts), fmt, k), shape, weight.dtype, "plain")
    stack.name = weight.name
    if by is not None:
        rows = StackInput(by.format)
        if by.static:
            rows.set_each([_input_of(layers) for layers in experts])
        stack.set_input(rows)
    return stack


def _check_alike(layers: Sequence[QLinear]) -> None:
    """Raise ValueError, with why, where layers differ in more than their numbers, or do more than
    a product."""
    kinds = {
        (str(each.qweight.fmt), tuple(each.qweight.tensor.shape), each.qweight.dtype)
        for each in layers
    }
    if len(kinds) > 1:
        raise ValueError("experts have several formats or shapes")
    if any(each.before is not None or each.output is not None for each in layers):
        raise ValueError("inputs of experts are transformed, or their outputs quantized")
    inputs = [each.input for each in layers]
    if len({None if by is None else (by.fmt, by.static) for by in inputs}) > 1:
        raise ValueError("experts have several input formats")


def _input_of(layers: Sequence[QLinear]) -> QInput:
    """The static input of all layers of an expert. Raises ValueError where they have several."""
    first, *others = (layer.input for layer in layers)
    assert first is not None
    for other in others:
        assert other is not None
        own, theirs = first.present(), other.present()
        if any(part is not None and not torch.equal(part, theirs[n]) for n, part in own.items()):
            raise ValueError("layers of one expert have input scales of their own")
    return first


def _stack_part(experts: Sequence[Sequence[QLinear]], part: str) -> Tensor:
    """A part of the weights of all experts, [E, ..]."""
    each = [[layer.qweight.present()[part] for layer in layers] for layers in experts]
    return torch.stack([torch.cat(tensors) for tensors in each])


def shared_numbers(stack: QWeight) -> str:
    """Why the matrices of a stack cannot be told apart."""
    return f"{stack.name}: experts share numbers of {stack.fmt}"


def chosen_of(stack: QWeight, experts: Sequence[int]) -> QWeight:
    """These matrices of a stack, in this order: itself where they are all, else copied.

    Raises ValueError for a matrix that is not there, and where matrices share numbers.
    """
    count = stack.shape[0]
    if list(experts) == list(range(count)):
        return stack
    if not all(0 <= each < count for each in experts):
        raise ValueError(
            f"{stack.name} has {count} experts, expected some of them: {list(experts)}"
        )
    which, q = torch.tensor(list(experts), device=stack.device), stack.tensor
    dims = placements(q.format, q.shape, 0)
    if any(dim is None for name, dim in dims.items() if name != "book"):
        raise ValueError(shared_numbers(stack))
    parts = {
        name: part[which] if dims.get(name) == 0 else part
        for name, part in q.qparams._asdict().items()
    }
    own = QWeight(
        QTensor(q.packed[which], QParams(**parts), q.format, q.size),
        (len(experts), *stack.shape[1:]), stack.dtype, stack.layout,
    )  # fmt: skip
    own.name = stack.name
    if stack.input is not None:
        rows = StackInput(stack.input.format)
        if stack.input.static:
            rows.set_each([stack.input.of_matrix(each) for each in experts])
        own.set_input(rows)
    return own


class ExpertMatrices(nn.Module):
    """A matrix for each expert: one stack [E, n, k], or a layer for each as a file holds them.

    apart: why they are no stack, in words; empty if they are one
    """

    apart = ""

    def __init__(self, stack: QWeight | None, layers: Sequence[Joined] = ()):
        super().__init__()
        self.stack = stack
        self.layers = nn.ModuleList(layers)
        self.sizes: list[int] = layers[0].sizes if layers else []

    @classmethod
    def of_layers(cls, layers: Sequence[Joined]) -> "ExpertMatrices":
        """Of a joined layer for each expert: as a stack, where that can be."""
        try:
            return cls(one_stack([layer.each() for layer in layers]))
        except ValueError as why:
            matrices = cls(None, layers)
            matrices.apart = str(why)
            return matrices

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """x [rows, k], sorted by expert, those of e ending before row `ends[e]` -> [rows, n].
        Rows after the last end belong to no expert here and give 0.

        Raises RuntimeError where a CUDA graph records it and it has to look at `ends`.
        """
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            self._check_captured(x)
        if self.stack is not None:
            y = sorted_product(x, self.stack.operand, ends, self.stack.rows)
            if y is None:  # checked when it was read
                raise ValueError(shared_numbers(self.stack))
            return y
        start, pieces = 0, []
        for layer, end in zip(self.layers, ends.tolist(), strict=True):
            if end > start:
                pieces.append(layer(x[start:end]))
                start = end
        if start < len(x):
            outputs = sum(self.sizes)
            pieces.append(x.new_zeros(len(x) - start, outputs))
        return torch.cat(pieces)

    def _check_captured(self, x: Tensor) -> None:
        """Raise RuntimeError where products are made one after another, as many as have rows."""
        stack = self.stack
        by = UNQUANTIZED if stack is None or stack.rows is None else stack.rows.of_each(x)
        if stack is not None and by is not None and not waits(x, stack.operand, by):
            return
        first: Any = None if stack is not None else self.layers[0]
        weight: QWeight = stack or first.each()[0].qweight
        raise RuntimeError(
            f"{weight.name}: experts in {weight.fmt} are computed one after another "
            f"({self.apart or 'no CUDA kernel takes all of them'}), as many as have tokens, which "
            "a CUDA graph cannot hold: serve with --enforce-eager (enforce_eager=True)"
        )


class Biases(NamedTuple):
    """Of experts: up [experts, outputs of gate and up], down [experts, k]."""

    up: Tensor
    down: Tensor


def check_biases(layer: str, activation: str, processes: int) -> None:
    """Raise ValueError where the experts of `layer` have biases and cannot be served with them.

    activation: as the server calls it; processes: how many have a part of the model
    """
    if activation != "swigluoai":
        raise ValueError(
            f"{layer}: its experts have biases, which are served with gpt-oss's activation "
            f"(swigluoai), and these have {activation}: keep them in float"
        )
    if processes > 1:
        raise ValueError(
            f"{layer}: its experts have biases (gpt-oss), which one process serves whole, and "
            f"tensor_parallel_size is {processes}: set tensor_parallel_size=1"
        )


def _plus(y: Tensor, bias: Tensor, experts: Tensor) -> Tensor:
    """y [rows, n] and the bias of each row's expert; rows after the last expert's stay."""
    own = F.pad(bias, (0, 0, 0, 1))[experts]  # a row of zeros for experts elsewhere
    return y + own.to(y.dtype)


class Experts(nn.Module):
    """up: of gate and up, joined in this order; down: the way back."""

    def __init__(self, up: ExpertMatrices, down: ExpertMatrices, count: int):
        super().__init__()
        self.up, self.down, self.count = up, down, count

    def forward(
        self,
        x: Tensor,
        weights: Tensor,
        ids: Tensor,
        activation: Callable[[Tensor], Tensor],
        weigh_inputs: bool = False,
        biases: Biases | None = None,
    ) -> Tensor:
        """x [tokens, k], weights and ids [tokens, experts of each] -> [tokens, k].

        ids: -1 where the expert is in another process, which adds its part
        activation: gate and up [rows, 2 n] -> [rows, n]
        weigh_inputs: whether weights multiply what goes into the experts instead of what comes out
        biases: of gpt-oss's experts
        """
        tokens, each = ids.shape
        if not tokens:
            return torch.zeros_like(x)
        flat = ids.reshape(-1).long()
        flat = torch.where(flat < 0, self.count, flat)
        order = flat.argsort(stable=True)
        own = flat[order]
        # not bincount, which waits for the GPU
        ends = torch.searchsorted(own, torch.arange(self.count, device=own.device), right=True)
        rows, scale = x[order // each], weights.reshape(-1, 1)[order].to(x.dtype)
        rows = rows * scale if weigh_inputs else rows
        y = self.up(rows, ends)
        y = y if biases is None else _plus(y, biases.up, own)
        y = self.down(activation(y), ends)
        y = y if biases is None else _plus(y, biases.down, own)
        y = y if weigh_inputs else y * scale
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return y[back].reshape(tokens, each, -1).sum(1).to(x.dtype)


def clamped_swiglu(y: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """gpt-oss's activation: gate and up [rows, 2 n], one beside the other in turn -> [rows, n].

    The gate is at most `limit`, up is within +-limit, and 1 is added to it.
    """
    gate, up = y[..., ::2].clamp(max=limit), y[..., 1::2].clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))
