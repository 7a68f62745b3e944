# SPDX-License-Identifier: BSD-3-Clause
"""What marks stand for in a graph that torch's exporter translates: the parts that quantize.

A mark is a node `blockscale.export::Placed` with a number and the sizes of what will be there.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.reference import QParams
from blockscale.export.to_onnx.split import Sizes
from blockscale.export.to_onnx.weight import Move

MARK = "blockscale.export", "Placed"


@dataclass(frozen=True, eq=False)
class Weight:
    """A dequantized weight. moves: the views and permutations that its reader wants."""

    name: str
    stored: Operand
    moves: tuple[Move, ...]
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a quantized table; the mark is given their indices."""

    name: str
    stored: Operand
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Activation:
    """A round trip of what the mark is given.

    qparams: static ones; sizes: None where free; given, dtype: of what comes in and goes out
    """

    name: str
    fmt: Format
    qparams: QParams | None
    sizes: Sizes
    given: torch.dtype
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Step:
    """An op of an integer graph, without `integer_`. given: {argument: as integer.py takes it}"""

    name: str
    op: str
    given: dict[str, Any]


Piece = Weight | Rows | Activation | Step


def placed(
    number: int, x: Tensor, sizes: tuple[Any, ...], dtype: torch.dtype, *more: Tensor
) -> Tensor:
    """A mark: to torch an op that makes of x, and more, a tensor of these sizes and this dtype."""
    made: Tensor = torch.onnx.ops.symbolic(
        "::".join(MARK), [x, *more], {"number": number}, dtype=dtype, shape=sizes, version=1
    )
    return made


def placed_as(number: int, y: Tensor, x: Tensor, *more: Tensor) -> Tensor:
    """A mark that takes x, and more, and whose result has the sizes and the dtype of y."""
    return placed(number, x, tuple(y.shape), y.dtype, *more)


def placed_like(number: int, x: Tensor, behind: tuple[Any, ...], dtype: torch.dtype) -> Tensor:
    """A mark whose result has the sizes of x and those in `behind`."""
    return placed(number, x, (*x.shape, *behind), dtype)
