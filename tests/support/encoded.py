# SPDX-License-Identifier: BSD-3-Clause
"""What the ops that encode make of a tensor: of the reference's, each number computed once."""

from functools import lru_cache

import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Quantizer, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import primitives as P

Results = dict[str, Tensor]


def slope(x: Tensor) -> Tensor:
    """A gradient of x's shape, dtype and strides, without zeros."""
    return torch.empty_like(x).copy_(_slope(x.shape))


@lru_cache(maxsize=1)  # for both of a tensor, by each kernel
def _slope(shape: torch.Size) -> Tensor:
    return torch.arange(shape.numel()).reshape(shape) % 97 + 1


def choosing(x: Tensor, fmt: str, seed: Tensor | None) -> Results:
    """What the ops make of x that choose its scale."""
    by = Quantizer(None, None, None, fmt, seed)
    return _chosen(P.choose_qparams(x, fmt), P.choose_quantize(x, fmt, seed)) | {
        "fake_quantize": P.fake_quantize(x, by),
        "straight_through": P.straight_through(slope(x), x, by._replace(seed=None)),
    }


def encoding(x: Tensor, fmt: str, given: QParams, seed: Tensor | None) -> Results:
    """What the ops make of x with a given scale."""
    return {
        "quantize": P.quantize(x, quantizer(given, fmt, seed)),
        "fake_quantize given": P.fake_quantize(x, quantizer(given, fmt, seed)),
        "straight_through given": P.straight_through(slope(x), x, quantizer(given, fmt)),
    }


def by_reference(
    x: Tensor, fmt: str, seed: Tensor | None, given: QParams | None = None
) -> tuple[QParams, Results]:
    """(The given scale or that of x, the reference's `choosing` and `encoding`.)

    An op of the reference that chooses a scale is `choose_qparams` and then the op that takes one
    (ops/primitives.py): without a given scale, their results are the same ones.
    """
    with bs.use("reference"):
        if given is not None:
            return given, choosing(x, fmt, seed) | encoding(x, fmt, given, seed)
        scale = P.choose_qparams(x, fmt)
        given = P.from_list(scale, parse(fmt))
        found = encoding(x, fmt, given, seed)
        own = {name: found[f"{name} given"] for name in ("fake_quantize", "straight_through")}
        return given, _chosen(scale, [found["quantize"], *scale]) | own | found


def _chosen(scale: list[Tensor], with_codes: list[Tensor]) -> Results:
    parts = {"choose_qparams": scale, "choose_quantize": with_codes}
    return {f"{op} {i}": each for op, found in parts.items() for i, each in enumerate(found)}
