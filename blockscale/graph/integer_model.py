# SPDX-License-Identifier: BSD-3-Clause
"""A quantized model as one of integers: exported, fused, and lowered to integers and shifts.

What `bs.graph.lower(graph, "integer")` does for programs is done here for a model of layers, which
is looked at first, so that errors name its layers (docs/power_of_two.md).
"""

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export import Dim

from blockscale.core.arithmetic.precision import pow2
from blockscale.core.arithmetic.sums import INT32_MAX
from blockscale.core.torch_private import DropoutNd
from blockscale.core.untrusted import kind_of
from blockscale.graph.fusion import fuse
from blockscale.graph.lowering.integers.audit import SUMS, name_of
from blockscale.graph.lowering.integers.builder import Sum
from blockscale.graph.lowering.integers.fixed import (
    NotIntegerError,
    check_format,
    fixed_of,
    steps,
)
from blockscale.graph.lowering.integers.fixed import sums as check_sums
from blockscale.graph.lowering.integers.rules.products import bias_of
from blockscale.graph.lowering.integers.weights import check_weight, whole
from blockscale.graph.lowering.lowering import lower
from blockscale.graph.nodes import aten, calls, each_call, shape
from blockscale.layers.conv import Convolution
from blockscale.layers.kinds import QLinear
from blockscale.layers.layer import QBias, QLayer
from blockscale.layers.store import QInput

Sizes = tuple[int | None, ...]


class IntegerModel(nn.Module):
    """What `to_integer` returns: floats in, floats out, integers between.

    steps: the graph that runs, of `bs.graph.lower(…, "integer")`; sums: what is known of each place
        that sums; sizes: those that each input must have, None where any will do
    """

    def __init__(self, steps: fx.GraphModule, sums: tuple[Sum, ...], sizes: tuple[Sizes, ...] = ()):
        super().__init__()
        self.steps, self.sums, self.sizes = steps, sums, sizes

    @property
    def exact(self) -> bool:
        """Whether `with_integer_bias(model)` is proven to give the same bits for every input."""
        return all(each.exact for each in self.sums)

    def forward(self, *inputs: Tensor) -> Any:
        """The model's inputs, float32 -> its outputs, float32.

        Raises ValueError for an input of other sizes where the integers were made for some.
        """
        for x, sizes in zip(inputs, self.sizes, strict=False):
            fits = len(sizes) == x.ndim
            if not fits or any(n not in (None, m) for n, m in zip(sizes, x.shape, strict=True)):
                text = ", ".join("any" if n is None else str(n) for n in sizes)
                raise ValueError(
                    f"this integer model was made for inputs of [{text}], not {list(x.shape)}: "
                    f"give to_integer an example of that size"
                )
        return self.steps(*inputs)


def with_integer_bias(model: nn.Module) -> nn.Module:
    """A copy of a quantized model in which every bias is one that int32 sums can add.

    A bias in an integer model is round_half_even(bias / step) steps of the sums that it is added
    to. This copy is the fake-quantized model with those biases, the one that `to_integer` equals
    bit for bit. Where a recipe made the biases such integers (`bias="int32"`), the copy has the
    model's own. Raises as `to_integer`.
    """
    model = copy.deepcopy(model)
    for name, layer in _layers(model):
        if layer.bias is not None and not isinstance(layer.quantized_bias, QBias):
            exponents = exponents_of(layer, name)
            codes = bias_of(_float_bias(layer, name), exponents, repr(name))
            values = codes.to(torch.float32) * pow2(exponents)
            layer.set_float_bias(nn.Parameter(values, requires_grad=False))
    return model


@torch.no_grad()
def to_integer(model: nn.Module, *example: Tensor) -> IntegerModel:
    """A quantized model -> one that computes on integers alone from its input to its output.

    model: quantized layers (bs.quantize_, bs.calibrate, bs.convert) whose weights are integers,
        ternary or binary in blocks `tensor` or `channel0`, and whose inputs, and outputs where they
        have a format, are integers in the block `tensor` with static scales; all scales powers of
        two. Between them what docs/power_of_two.md lists. The model stays as it is.
    example: its inputs, float32. Batches may have any size afterwards; other sizes, too, where no
        op asks for them.

    Each layer sums products of codes in int32 and shifts the sums into the next format, rounding
    as that format says. `.sums` tells how large each sum can get; where all are `exact`, the
    outputs are those of `with_integer_bias(model)` bit for bit, whatever the input.

    Raises NotIntegerError, a ValueError, which names the first part that integers cannot take over,
    and TypeError for an example that is not float32 or that the model does not take.
    """
    _check_example(model, example)
    for name, layer in _layers(model):
        _check_layer(layer, name)
    _check_dropout(model)
    steps, sizes = _of_sizes(model, example)
    sums = tuple(_with_name(each, model) for each in steps.meta[SUMS])
    _check_sums(sums)
    return IntegerModel(steps.train(model.training), sums, sizes).train(model.training)


def _check_example(model: nn.Module, example: Sequence[Tensor]) -> None:
    for x in example:
        if not isinstance(x, Tensor) or x.dtype != torch.float32:
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"an example input must be a float32 tensor, found {kind}")
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*example)
    except TypeError as error:
        names = list(signature.parameters)[len(example) :]
        missing = f"the model has an input {names[0]!r}: give an example of it" if names else ""
        raise TypeError(missing or f"the examples are no inputs of the model: {error}") from None


def _layers(model: nn.Module) -> Iterator[tuple[str, QLayer]]:
    """The layers whose results are sums of products."""
    for name, layer in model.named_modules():
        if isinstance(layer, QLinear | Convolution):
            yield name, layer


def exponents_of(layer: QLayer, name: str) -> Tensor:
    """The exponents [n] int32 of a layer's sums: of its input's step times its weight's.

    Raises NotIntegerError for scales and formats that integers do not have.
    """
    if layer.before is not None:
        raise NotIntegerError(
            f"{name!r} transforms its input in float ({layer.before.fmt}): calibrate without it"
        )
    exponent = _exponent_of(layer.input, f"the input of {name!r}")
    q, what = layer.qweight.tensor, f"the weight of {name!r}"
    fmt = q.format
    check_weight(fmt, q.qparams.scale, q.shape[0], what)
    values = fmt.element.decode(q.codes)
    if q.zero_point is not None:
        values = values - q.zero_point.to(torch.float32)
    result = steps(q.qparams, fmt, what).reshape(-1).expand(q.shape[0])
    exponents = exponent + whole(values, result, fmt, what)[1]
    for end in (exponents.min(), exponents.max()):
        check_sums(int(end), 0, repr(name))  # whose steps float32 has to hold
    return exponents


def _exponent_of(quantizer: QInput | None, what: str) -> int:
    """Of the codes of a layer's static input or output. Raises NotIntegerError for others."""
    if quantizer is None:
        raise NotIntegerError(f"{what} has no format: set one such as 'int8:tensor:pow2/nearest'")
    check_format(quantizer.format, what)
    scale, zero_point, _ = quantizer.parts if quantizer.static else (None, None, None)
    return fixed_of(quantizer.format, scale, zero_point, what).exponent


def _float_bias(layer: QLayer, name: str) -> Tensor:
    bias = layer.added_bias()
    assert bias is not None
    if bias.dtype != torch.float32:
        raise NotIntegerError(f"the bias of {name!r} is {bias.dtype}: use model.float()")
    return bias


def _check_layer(layer: QLayer, name: str) -> None:
    """Raise NotIntegerError for what a program of the layer would not tell by the layer's name."""
    if getattr(layer, "own_forward", False):
        raise NotIntegerError(f"{name} is {kind_of(layer)}, which has its own forward")
    if getattr(layer, "padding_mode", "zeros") != "zeros":
        raise NotIntegerError(
            f"{name!r} pads with {layer.padding_mode!r}: only zeros are supported"
        )
    exponents = exponents_of(layer, name)
    if layer.output is not None:
        _exponent_of(layer.output, f"the output of {name!r}")
    bias = layer.quantized_bias
    if not isinstance(bias, QBias):
        if layer.bias is not None:
            bias_of(_float_bias(layer, name), exponents, repr(name))
    elif not torch.equal(bias.scale, pow2(exponents.clamp(-149, 127))):
        raise NotIntegerError(
            f"the bias of {name!r} was quantized for other scales of its input and weight, "
            "which have changed since: quantize the float model again"
        )


def _check_sums(sums: Sequence[Sum]) -> None:
    for each in sums:
        if each.largest > INT32_MAX:
            raise NotIntegerError(
                f"sums of {each.name!r} can reach {each.largest}, more than int32 holds "
                f"({INT32_MAX}): use fewer bits or inputs"
            )


def _check_dropout(model: nn.Module) -> None:
    for name, module in model.named_modules():
        drops = isinstance(module, DropoutNd) and module.training and module.p
        if drops:
            raise NotIntegerError(
                f"{name!r} ({type(module).__name__}) drops values: call model.eval() first"
            )


def _lowered(model: nn.Module, example: Sequence[Tensor], free: bool = False) -> fx.GraphModule:
    """The model's graph of integers. free: any number of rows, the first size of every input"""
    sizes: Any = tuple({0: Dim.AUTO} for _ in example) if free else None
    first = next(iter(inspect.signature(model.forward).parameters.values()), None)
    if sizes and first is not None and first.kind is inspect.Parameter.VAR_POSITIONAL:
        sizes = (sizes,)
    with _evaluation(model):
        program = torch.export.export(model, tuple(example), dynamic_shapes=sizes)
    return lower(fuse(program), "integer")


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode in here."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _of_sizes(
    model: nn.Module, example: Sequence[Tensor]
) -> tuple[fx.GraphModule, tuple[Sizes, ...]]:
    """The model's graph of integers, and the sizes that it takes.

    A program for the example's sizes serves all batches where nothing in it says how many rows
    there are, and then is smaller and made sooner than one of free sizes.
    """
    steps = _lowered(model, example)
    _free_rows(steps)
    free = min((_freedom(node) for node in steps.graph.nodes), default=_ANY)
    if free == _ANY and not any(each.kind.startswith(_OF_A_SIZE) for each in steps.meta[SUMS]):
        return steps, ()
    rows: tuple[Sizes, ...] = tuple((None, *x.shape[1:]) for x in example)
    if free == _NONE and all(x.ndim for x in example):
        return _lowered(model, _rows(example), free=True), rows
    return steps, rows if free else tuple(tuple(x.shape) for x in example)


def _free_rows(graph: fx.GraphModule) -> None:
    """Let views that keep the first size keep any."""
    for node in each_call(graph, *_VIEWS):
        view_sizes, sizes = cast("Any", node.args[1]), shape(node.args[0])
        if sizes and view_sizes and -1 not in view_sizes and view_sizes[0] == sizes[0]:
            node.update_arg(1, [-1, *view_sizes[1:]])
    graph.recompile()


_NONE, _ROWS, _ANY = range(3)
_OF_ANY_SIZE = (
    *(aten.permute, aten.transpose, aten.contiguous, aten.clone, aten.flatten),
    *(aten.pad, aten.constant_pad_nd, aten.cat, aten.alias),
)
_OF_A_SIZE = ("adaptive_avg_pool", "mean")  # divide by a number of the example's
_VIEWS = (aten.view, aten.reshape, aten._unsafe_view)


def _freedom(node: fx.Node) -> int:
    """Which sizes a node of an integer graph leaves free: all, the number of rows, or none."""
    if calls(node, *_VIEWS):
        value: Any = node.args[1]
        return _ROWS if len(value) and value[0] == -1 else _NONE
    if name_of(node) == "integer_sum_over":
        dims: Any = node.args[1]
        return _ROWS if 0 not in dims else _NONE
    is_fixed = node.op != "call_function" or bool(name_of(node)) or calls(node, *_OF_ANY_SIZE)
    return _ANY if is_fixed else _NONE


def _rows(example: Sequence[Tensor]) -> Sequence[Tensor]:
    """The example with two rows where it has one, of which torch.export would make a constant."""
    if any(x.shape[0] != 1 for x in example):
        return example
    return [torch.cat([x, x]) for x in example]


def _with_name(each: Sum, model: nn.Module) -> Sum:
    """The sums of a layer with its class for a kind."""
    if each.kind not in ("linear", "conv"):
        return each
    layer = dict(_layers(model)).get(each.name)
    return each if layer is None else replace(each, kind=type(layer).__name__)
