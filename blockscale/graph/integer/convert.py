# SPDX-License-Identifier: BSD-3-Clause
"""A model under power-of-two scales, executed on integers alone (docs/power_of_two.md)."""

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn

from blockscale.core.arithmetic.bits import pow2
from blockscale.graph.integer.builder import Sum
from blockscale.graph.integer.layers import sums
from blockscale.graph.integer.translate import translate
from blockscale.graph.pickled import Graph
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QBias


class IntegerModel(nn.Module):
    """What `to_integer` returns: floats in, floats out, integers between.

    steps: the graph module that runs; sums: what is known of each place that sums.
    """

    def __init__(self, steps: fx.GraphModule, sums: tuple[Sum, ...]):
        super().__init__()
        self.steps, self.sums = steps, sums

    @property
    def exact(self) -> bool:
        """Whether `with_integer_bias(model)` is proven to give the same bits for every input."""
        return all(each.exact for each in self.sums)

    def forward(self, *inputs: Tensor) -> Any:
        """The model's inputs, float32 -> its outputs, float32."""
        return self.steps(*inputs)


def with_integer_bias(model: nn.Module) -> nn.Module:
    """A copy of a quantized model in which every bias is one that int32 sums can add.

    A bias in an integer model is round_half_even(bias / step) steps of the sums that it is added
    to. This copy is the fake-quantized model with those biases, the one that `to_integer` equals
    bit for bit. Where a recipe made the biases such integers (`bias="int32"`), the copy has the
    model's own. Raises as `to_integer`.
    """
    model = copy.deepcopy(model)
    for name, layer in model.named_modules():
        if isinstance(layer, QLayer) and not isinstance(layer.quantized_bias, QBias):
            if layer.bias is None:
                continue
            _, bias, fixed = sums(layer, name)
            assert bias is not None
            values = bias.to(torch.float32) * pow2(fixed.exponent)
            layer.set_float_bias(nn.Parameter(values, requires_grad=False))
    return model


@torch.no_grad()
def to_integer(model: nn.Module, *example: Tensor) -> IntegerModel:
    """A quantized model -> one that computes on integers alone from its input to its output.

    model: quantized layers (bs.quantize_, bs.calibrate, bs.convert) whose weights are integers,
        ternary or binary in blocks `tensor` or `channel0`, and whose inputs, and outputs where they
        have a format, are integers in the block `tensor` with static scales; all scales powers of
        two. Between them what docs/power_of_two.md lists. The model stays as it is.
    example: its inputs, float32; their sizes are what average pooling needs.

    Each layer sums products of codes in int32 and shifts the sums into the next format, rounding
    as that format says. `.sums` tells how large each sum can get; where all are `exact`, the
    outputs are those of `with_integer_bias(model)` bit for bit, whatever the input.

    Raises NotIntegerError, a ValueError, which names the first part that integers cannot take over,
    and TypeError for an example that is not float32.
    """
    for x in example:
        if not isinstance(x, Tensor) or x.dtype != torch.float32:
            given = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"an example input must be a float32 tensor, found {given}")
    built = translate(_Tracer().trace(model), model, list(example))
    steps = Graph(built.modules, built.graph, "IntegerSteps")
    return IntegerModel(steps.train(model.training), tuple(built.sums))


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Quantized layers are steps of their own."""
        return isinstance(m, QLayer) or super().is_leaf_module(m, module_qualified_name)
