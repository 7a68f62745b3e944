# SPDX-License-Identifier: BSD-3-Clause
"""How a float body runs on operands: the composition that a fused op means, and its shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blockscale.core.operand import Quantizer, Value
from blockscale.kernels.activations import ACTIVATIONS
from blockscale.ops.fused import values

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
        given, settings, dtype, by = self._parts(args)
        compute = torch.float32 if self.wide else dtype
        first = given[0].data
        with values.precise(compute, first):
            if self.floats is not None:
                y = self.floats(*given, dtype=compute, **settings)
            else:
                y = self._body([values.floats(v, compute, self.wide) for v in given], settings)
        if self.indices:
            return [y]
        if y.dtype is not dtype:
            y = y.to(dtype)
        if self.activation and args[-3]:
            order, activate = self.activation, partial(activated, name=args[-3])
            with values.precise(dtype, first):
                plain = order is True or args[-3] not in BY_PLACE
                y = activate(y) if plain else order(y, activate)  # type: ignore[operator]
        return values.quantized(y, by)

    def empty(self, *args: Any) -> list[Tensor]:
        """What `reference` gives, empty."""
        self.check(args)
        given, settings, dtype, by = self._parts(args)
        compute = torch.float32 if self.wide else dtype
        found = [values.empty(v, compute, self.wide) for v in given]
        if self.shape is not None:
            size = self.shape(*found, **settings)
        else:
            size = self._body(found, settings).shape
        y = found[0].new_empty(size, dtype=torch.int64 if self.indices else dtype)
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
            activated(args[0].data, args[-3])

    def _body(self, found: list[Tensor], settings: dict[str, Any]) -> Tensor:
        return self.body(found, **settings) if self.many else self.body(*found, **settings)

    def _parts(
        self, args: tuple[Any, ...]
    ) -> tuple[Sequence[Value], dict[str, Any], torch.dtype, Quantizer]:
        """An op's arguments as its operands, its body's settings, the dtype and the quantizer."""
        count = len(self.operands)
        settings = dict(zip(self.settings, args[count:], strict=False))
        return args[0] if self.many else args[:count], settings, args[-2], args[-1]


def activated(x: Tensor, name: str) -> Tensor:
    """x [...] -> the same after the activation of this name, in x's dtype, as an op behind it does.

    Raises ValueError for a name that there is not.
    """
    function = ACTIVATIONS.get(name)
    if function is None:
        known = ", ".join(repr(each) for each in ACTIVATIONS)
        raise ValueError(f"unknown activation {name!r}; choose from {known}")
    return function(x)
