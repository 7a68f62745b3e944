# SPDX-License-Identifier: BSD-3-Clause
"""Computed weights as files hold them: which tensors are the parts of one, and its value.

    weight_norm     X.parametrizations.weight.original0, .original1, or X.weight_g, X.weight_v
    spectral_norm   X.parametrizations.weight.original, .0._u, .0._v, or X.weight_orig, _u, _v

The value is what `computed_in` finds in the module that was saved, to the last bit: torch's own
functions compute it (torch.nn.utils.parametrizations and its older hooks). What was computed
otherwise is not known from names and shapes.
"""

import re
from collections.abc import Iterator, Mapping, Set
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.torch_private import weight_norm

Shape = tuple[int, ...]

_KINDS = {  # {how: the ends of its parts' names, parametrized and hooked; the longest part first}
    "weight_norm": ((".original1", ".original0"), ("_v", "_g")),
    "spectral_norm": ((".original", ".0._u", ".0._v"), ("_orig", "_u", "_v")),
}
_INSIDE = re.compile(r"^(?:(.*)\.)?parametrizations\.([^.]+)\.")


class ComputedInFile(NamedTuple):
    """A computed tensor of a file.

    name:  the model's, once it is folded: "encoder.conv.weight"
    how:   "weight_norm" or "spectral_norm"
    parts: what it is computed from, in the order that `value` takes it; the first has its shape
    dims:  the dimension that its norm is taken along, or those that shapes leave open
    """

    name: str
    how: str
    parts: tuple[str, ...]
    dims: tuple[int, ...]

    @property
    def owner(self) -> str:
        """The name of the layer."""
        return self.name.rpartition(".")[0]

    def by_rows(self, dtype: torch.dtype) -> bool:
        """Whether rows of the parts give rows of the value, bit for bit.

        torch's kernel takes rows one by one in wide floats; in half precision a reduction decides.
        """
        return self.how == "weight_norm" and self.dims == (0,) and dtype != torch.float16

    def value(self, *parts: Tensor) -> Tensor:
        """The tensor that these parts give, in evaluation."""
        with torch.no_grad():
            if self.how == "weight_norm":
                v, g = parts
                return weight_norm(v, g, self.dims[0])
            original, u, v = parts
            matrix = _matrix(original, self.dims[0])
            for dim in self.dims[1:]:
                other = _matrix(original, dim)
                if _misfit(other, u, v) < _misfit(matrix, u, v) / 2:
                    matrix = other
            return original / torch.dot(u, torch.mv(matrix, v))


def stored_computed(shapes: Mapping[str, Shape]) -> dict[str, ComputedInFile]:
    """{name: a tensor that the layers of these tensors compute}, of those that are known.

    shapes: {name of a stored tensor: its shape}. A layer that computes one more in a way that is
    not known is left out: it cannot be folded.
    """
    inside = {name: match for name in shapes if (match := _INSIDE.match(name))}
    lists: dict[str, set[str]] = {}
    for name, match in inside.items():
        lists.setdefault(match[0], set()).add(name)
    computed_tensors: dict[str, ComputedInFile] = {}
    for name, how, parts in [
        *_of_parametrizations(lists),
        *_of_hooks(shapes.keys() - inside.keys()),
    ]:
        if dims := _dims(how, *(shapes[part] for part in parts)):
            computed_tensors[name] = ComputedInFile(name, how, parts, dims)
    values = {part for each in computed_tensors.values() for part in each.parts}
    unknown = {match[1] or "" for name, match in inside.items() if name not in values}
    return {
        name: each for name, each in sorted(computed_tensors.items()) if each.owner not in unknown
    }


def _of_parametrizations(
    lists: Mapping[str, set[str]],
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for prefix, names in lists.items():
        for how, (ends, _) in _KINDS.items():
            parts = tuple(prefix.removesuffix(".") + end for end in ends)
            if names == {*parts}:
                owner, _, name = prefix.removesuffix(".").rpartition("parametrizations.")
                yield owner + name, how, parts


def _of_hooks(names: Set[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for how, (_, ends) in _KINDS.items():
        for whole in (name.removesuffix(ends[0]) for name in names if name.endswith(ends[0])):
            parts = tuple(whole + end for end in ends)
            if names >= {*parts} and whole not in names:
                yield whole, how, parts


def _dims(how: str, shape: Shape, first: Shape, *more: Shape) -> tuple[int, ...]:
    """The dimensions that a norm with parts of these shapes may be taken along."""
    dims = range(len(shape))
    if len(shape) < 2 or not prod(shape):
        return ()
    if how == "weight_norm":
        if not first:
            return (-1,)  # torch's spelling of a norm of the whole tensor
        fits = [d for d in dims if first == tuple(n if d == i else 1 for i, n in enumerate(shape))]
        return tuple(fits[:1]) if 0 in fits or len(fits) == 1 else ()
    sizes = first, *more
    return tuple(d for d in dims if sizes == ((shape[d],), (prod(shape) // shape[d],)))


def _matrix(original: Tensor, dim: int) -> Tensor:
    """As spectral norms see it: one row for each index of `dim`."""
    return original.movedim(dim, 0).reshape(original.shape[dim], -1)


def _misfit(matrix: Tensor, u: Tensor, v: Tensor) -> float:
    """How far v is from what u gives: training left them the singular vectors of the matrix. Before
    the first step of the older hook they are random, and fit none."""
    gives = torch.nn.functional.normalize(torch.mv(matrix.t(), u).float(), dim=0)
    return float((gives - v.float()).norm().nan_to_num(torch.inf))
