# SPDX-License-Identifier: BSD-3-Clause
"""Parameters that have a shape and hold one number, in the place of weights that are quantized.

transformers ties, initializes and counts float parameters after it has read them. It goes on doing
so on stand-ins, and quantized layers take their places at the very end.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Parts = Mapping[str, Tensor]


def stand_in(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | str, value: float = 0.0
) -> nn.Parameter:
    """A parameter of this shape whose every element is the one number that it holds."""
    one = torch.full((1,) * len(shape), value, dtype=dtype, device=device)
    return nn.Parameter(one.expand(tuple(shape)), requires_grad=dtype.is_floating_point)


class TieMarks:
    """The numbers in stand-ins of weights that are to be tied: equal where the codes are equal,
    different where they differ.

    A checkpoint may hold both sides of a tie; transformers ties them only if they are equal.
    ties: {name: the name it is tied to}
    """

    def __init__(self, ties: Mapping[str, str]):
        self._ties = ties
        self._both = {*ties, *ties.values()}
        self._variants: dict[str, list[Parts]] = {}

    def of(self, name: str, parts: Parts) -> float:
        """The number for the weight `name` with these codes and scales, or these floats."""
        if name not in self._both:  # nothing to compare with, and nothing to keep for it
            return 0.0
        variants = self._variants.setdefault(self._ties.get(name, name), [])
        for number, other in enumerate(variants):
            if _equal(parts, other):
                return float(number)
        variants.append(parts)
        return float(len(variants) - 1)


def _equal(a: Parts, b: Parts) -> bool:
    return a.keys() == b.keys() and all(_equal_bits(a[part], b[part]) for part in a)


def _equal_bits(a: Tensor, b: Tensor) -> bool:
    if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device) or a.device.type == "meta":
        return a is b
    return torch.equal(a, b)


@contextmanager
def standing_in(model: nn.Module) -> Iterator[None]:
    """Stand-ins on the CPU for parameters on "meta", tied as the model says they will be.

    So a model whose weights are still to be read is planned like one that has them.
    """
    ties: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    old = dict(model.named_parameters(remove_duplicate=False))
    by_name = {id(parameter): _on_cpu(parameter) for parameter in old.values()}
    new = {name: by_name[id(parameter)] for name, parameter in old.items()}
    new |= {to: new[of] for to, of in ties.items() if to in new and of in new}
    try:
        _set_parameters(model, new)
        yield
    finally:
        _set_parameters(model, old)


def _on_cpu(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.device.type != "meta":
        return parameter
    return stand_in(parameter.shape, parameter.dtype, "cpu")


def _set_parameters(model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        owner, _, attribute = name.rpartition(".")
        model.get_submodule(owner)._parameters[attribute] = parameter
