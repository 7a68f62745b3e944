# SPDX-License-Identifier: BSD-3-Clause
"""How a float body runs on operands: the composition that a fused op means, and its shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.operand import Quantizer, Value
from blockscale.kernels.numbers import ACTIVATIONS
from blockscale.kernels.registry import find
from blockscale.ops.fused import values
from blockscale.ops.gradient import not_differentiable
from blockscale.ops.op import Op, register
from blockscale.ops.operand import signature

# The norm of a residual sum, and floats beside it: what a transformer's next block begins with.
#
# A block's end is read twice: in codes, by the next linear layers, and as floats, by the next
# residual sum. After the norm where it stands behind the sum (`keep="norm"`, as in BERT), before
# the
# norm where it stands in front of a branch (`keep="sum"`, as in GPT-2 and Llama). A fused op has
# one
# result, so these are ops of their own kind: [floats, *result], where `result` is what a fused op
# gives.

KEPT = ("norm", "sum")
_INSTEAD = "it is for inference; train the prepared graph or model, and fuse what was converted"


def residual_layer_norm(
    a: Value,
    b: Value,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    keep: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """a, b [..., *normalized_shape] that broadcast -> [floats, *the layer norm of a + b].

    keep: the floats are the "norm" (what `y` quantizes), or the "sum" a + b; both of `dtype`

    Raises ValueError for another `keep`, and for operands that do not fit.
    """

    def norm(total: Tensor) -> Tensor:
        return F.layer_norm(total, normalized_shape, weight, bias, eps)

    return _results(a, b, norm, keep, dtype, y)


def residual_rms_norm(
    a: Value,
    b: Value,
    normalized_shape: list[int],
    weight: Tensor | None,
    eps: float | None,
    keep: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """a, b [..., *normalized_shape] that broadcast -> [floats, *the RMS norm of a + b].

    keep: as in residual_layer_norm
    """

    def norm(total: Tensor) -> Tensor:
        return F.rms_norm(total, normalized_shape, weight, eps)

    return _results(a, b, norm, keep, dtype, y)


def _results(
    a: Value,
    b: Value,
    norm: Callable[[Tensor], Tensor],
    keep: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """The composition of the ops that this one stands for."""
    with values.precise(dtype, a.data):
        total = values.floats(a, dtype, False) + values.floats(b, dtype, False)
        normal = norm(total)
    result = values.quantized(normal.to(dtype), y)
    floats = (normal if keep == "norm" else total).to(dtype).contiguous()
    shared = any(floats.data_ptr() == each.data_ptr() for each in result)
    return [floats.clone() if shared and floats.numel() else floats, *result]


def _empty(a: Value, b: Value, *rest: Any) -> list[Tensor]:
    """What `_results` gives, empty."""
    _check(a, b, *rest)
    dtype, y = rest[-2:]
    sizes = [values.empty(each, dtype, False).shape for each in (a, b)]
    shape = torch.broadcast_shapes(*sizes)  # type: ignore[no-untyped-call]
    floats = a.data.new_empty(shape, dtype=dtype)
    return [floats, *values.empty_quantized(floats, y)]


def _check(a: Value, b: Value, *rest: Any) -> None:
    """Raise ValueError for what does not fit, before anything is computed."""
    keep, _, y = rest[-3:]
    values.check_value("a residual norm", "a", a)
    values.check_value("a residual norm", "b", b)
    values.check_quantizer("a residual norm", y)
    if keep not in KEPT:
        raise ValueError(f"keep must be {' or '.join(map(repr, KEPT))}, got {keep!r}")


def _op(reference: Callable[..., list[Tensor]]) -> Op:
    name, takes = f"fused_{reference.__name__}", signature(reference, None)
    spellings = takes.spellings

    def run(*args: Any) -> Any:
        _check(*args)
        device = args[0].data.device.type
        kernel = find(name, spellings(*args), device, args, composite=True)
        return reference(*args) if kernel is None else kernel.run(*args)

    result = register(name, reference, takes, list[Tensor], run, shape=_empty, ulps=64)
    not_differentiable(result, _INSTEAD)
    return result


RESIDUAL_LAYER_NORM = _op(residual_layer_norm)
RESIDUAL_RMS_NORM = _op(residual_rms_norm)
RESIDUAL = (RESIDUAL_LAYER_NORM, RESIDUAL_RMS_NORM)

# torch's last bits of these depend on where in memory an element lies: vectors of numbers go
# through other code than what is left over, and tensors in order through oneDNN's
# (docs/numerics.md, section 7).
BY_PLACE = frozenset(("gelu", "gelu_tanh", "silu", "sigmoid", "tanh"))

# computes an activation of a body's result, put in memory as the float op leaves it: for those
# whose last bits depend on that
Order = Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]


@dataclass(frozen=True)
class Plan:
    """How to run a body on operands."""

    name: str
    body: Callable[..., Tensor]
    operands: tuple[str, ...]
    settings: tuple[str, ...]  # those of the body
    many: bool
    wide: bool
    indices: bool
    activation: bool | Order
    shape: Callable[..., Sequence[int]] | None
    floats: Callable[..., Tensor] | None

    def reference(self, *args: Any) -> list[Tensor]:
        """The composition of dequantize, body and quantize."""
        operands, settings, dtype, by = self._parts(args)
        compute = torch.float32 if self.wide else dtype
        first = operands[0].data
        with values.precise(compute, first):
            if self.floats is not None:
                y = self.floats(*operands, dtype=compute, **settings)
            else:
                y = self._body([values.floats(v, compute, self.wide) for v in operands], settings)
        if self.indices:
            return [y]
        if y.dtype is not dtype:
            y = y.to(dtype)
        if self.activation and args[-3]:
            order, function = self.activation, partial(activate, name=args[-3])
            with values.precise(dtype, first):
                plain = order is True or args[-3] not in BY_PLACE
                y = function(y) if plain else order(y, function)  # type: ignore[operator]
        return values.quantized(y, by)

    def empty(self, *args: Any) -> list[Tensor]:
        """What `reference` gives, empty."""
        self.check(args)
        operands, settings, dtype, by = self._parts(args)
        compute = torch.float32 if self.wide else dtype
        tensors = [values.empty(v, compute, self.wide) for v in operands]
        if self.shape is not None:
            size = self.shape(*tensors, **settings)
        else:
            size = self._body(tensors, settings).shape
        y = tensors[0].new_empty(size, dtype=torch.int64 if self.indices else dtype)
        return [y] if self.indices else values.empty_quantized(y, by)

    def check(self, args: tuple[Any, ...]) -> None:
        """Raise for operands and results that do not fit, before anything is computed."""
        if self.many:
            if not args[0]:
                raise ValueError(f"{self.name}: expected at least one tensor to join, found none")
            for i, value in enumerate(args[0]):
                values.check_value(self.name, f"{self.operands[0]}[{i}]", value)
        else:
            for name, value in zip(self.operands, args, strict=False):
                values.check_value(self.name, name, value)
        values.check_quantizer(self.name, args[-1])
        if self.indices and args[-1].fmt:
            raise ValueError(
                f"{self.name} returns indices, which have no format; found {args[-1].fmt}: "
                "leave the result's format empty"
            )
        if self.activation and args[-3] not in ACTIVATIONS:
            activate(args[0].data, args[-3])

    def _body(self, tensors: list[Tensor], settings: dict[str, Any]) -> Tensor:
        return self.body(tensors, **settings) if self.many else self.body(*tensors, **settings)

    def _parts(
        self, args: tuple[Any, ...]
    ) -> tuple[Sequence[Value], dict[str, Any], torch.dtype, Quantizer]:
        """An op's arguments as its operands, its body's settings, the dtype and the quantizer."""
        count = len(self.operands)
        settings = dict(zip(self.settings, args[count:], strict=False))
        return args[0] if self.many else args[:count], settings, args[-2], args[-1]


def activate(x: Tensor, name: str) -> Tensor:
    """x [...] -> the same after the activation of this name, in x's dtype, as an op behind it does.

    Raises ValueError for an unknown name.
    """
    function = ACTIVATIONS.get(name)
    if function is None:
        names = ", ".join(repr(each) for each in ACTIVATIONS)
        raise ValueError(f"unknown activation {name!r}; choose from {names}")
    return function(x)
