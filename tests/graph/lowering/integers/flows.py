# SPDX-License-Identifier: BSD-3-Clause
"""From a model to its integers: programs under power-of-two scales, and what the tests compare."""

import warnings
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

import blockscale as bs

INT8 = "int8:tensor:pow2/nearest"
UINT8 = "uint8:tensor:pow2/nearest:asym"
INT16 = "int16:tensor:pow2/ceil"
WEIGHT = "int8:channel0:pow2/nearest"
BOTH = {"input": INT8, "output": INT8}


def fused(
    model: nn.Module,
    x: Any,
    rules: dict[str, Any] | None = None,
    *,
    weight: str = WEIGHT,
    fmt: str = INT8,
    output: str | None = None,
) -> Any:
    """The model's fused graph, calibrated with x."""
    batch = x if isinstance(x, tuple) else (x,)
    program = torch.export.export(model.eval(), batch)
    recipe = bs.Recipe(weight, fmt, output, bias="int32", rules=rules or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        prepared = bs.graph.prepare(program, recipe, observer="min_max")
        bs.calibrate(prepared, [batch], progress=False)
        return bs.graph.fuse(bs.graph.convert(prepared))


_integers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def integers(graph: Any) -> Any:
    """The graph lowered to integers, once however often a test looks at it."""
    if graph not in _integers:
        _integers[graph] = bs.graph.lower(graph, "integer")
    return _integers[graph]


@torch.no_grad()
def compared(graph: Any, *x: Tensor) -> tuple[Tensor, Tensor]:
    """What integers give, by kernels as by the reference; and what the fused graph gives."""
    lowered = integers(graph)
    with bs.use("reference"):
        found, expected = lowered(*x), graph(*x)
    assert torch.equal(lowered(*x), found)
    assert bs.graph.audit_integer(lowered).integer
    return found, expected


def check(graph: Any, *x: Tensor) -> None:
    """Equal bits where float32 holds every sum, which is proven; else nearly equal."""
    found, expected = compared(graph, *x)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if bs.graph.audit_integer(integers(graph)).exact:
        assert torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
