# SPDX-License-Identifier: BSD-3-Clause
"""Residual norms against the plain composition, eager, exported and bad."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.ops.fused.residual import KEPT, RESIDUAL_LAYER_NORM, RESIDUAL_RMS_NORM
from tests.support.fused_cases import FORMATS, RESULTS, coded, decoded, encoded, quantizer_of
from tests.support.op_samples import bits

SHAPE = (3, 4, 32)
WEIGHT, BIAS = torch.linspace(0.5, 2, 32), torch.linspace(-1, 1, 32)


def layer_norm(a: Value, b: Value, keep: str, dtype: torch.dtype, y: Quantizer) -> list[Tensor]:
    weight, bias = WEIGHT.to(dtype), BIAS.to(dtype)
    found: list[Tensor] = RESIDUAL_LAYER_NORM(a, b, [32], weight, bias, 1e-3, keep, dtype, y)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("keep", KEPT)
def test_the_composition(keep: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, z = torch.randn(SHAPE).to(dtype), torch.randn(SHAPE).to(dtype)
    for i, fmt in enumerate(FORMATS):
        a = coded(x, fmt) if fmt else Value(x)
        b = Value(z) if i % 2 else coded(z, FORMATS[(i + 3) % len(FORMATS)] or "mxfp8")
        total = decoded(a, dtype) + decoded(b, dtype)
        weight, bias = WEIGHT.to(dtype), BIAS.to(dtype)
        for norm, call in (
            (F.layer_norm(total, [32], weight, bias, 1e-3), layer_norm),
            (F.rms_norm(total, [32], weight), _rms),
        ):
            for result in RESULTS:
                by = quantizer_of(norm, result)
                with bs.use("reference"):
                    found = call(a, b, keep, dtype, by)
                wanted = [norm if keep == "norm" else total, *encoded(norm, by)]
                assert bits(found) == bits(wanted), (fmt, result)
                assert all(each.is_contiguous() for each in found)


def _rms(a: Value, b: Value, keep: str, dtype: torch.dtype, y: Quantizer) -> list[Tensor]:
    found: list[Tensor] = RESIDUAL_RMS_NORM(a, b, [32], WEIGHT.to(dtype), None, keep, dtype, y)
    return found


@pytest.mark.parametrize("y", [UNQUANTIZED, Quantizer(None, None, None, "int8:token:fp32")])
def test_exported_with_any_batch(y: Quantizer) -> None:
    class Model(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Any:
            return layer_norm(Value(a), Value(b), "sum", torch.float32, y)

    a, b = torch.randn(SHAPE), torch.randn(SHAPE)
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(Model(), (a, b), dynamic_shapes=(batch, batch))
    for rows in (2, 7):
        a, b = torch.randn(rows, 4, 32), torch.randn(rows, 4, 32)
        assert bits([*program.module()(a, b)]) == bits(Model()(a, b))


@pytest.mark.parametrize("op", [RESIDUAL_LAYER_NORM, RESIDUAL_RMS_NORM], ids=lambda op: op.name)
def test_torch_accepts_the_op(op: Any) -> None:
    x = Value(torch.randn(SHAPE))
    bias = [BIAS] if op is RESIDUAL_LAYER_NORM else []
    for keep in KEPT:
        for y in (UNQUANTIZED, Quantizer(None, None, None, "int8:token:fp32")):
            arguments = op.flatten(x, x, [32], WEIGHT, *bias, 1e-5, keep, torch.float32, y)
            torch.library.opcheck(op.overload, arguments)


def test_bad_input() -> None:
    x = Value(torch.randn(SHAPE))
    with pytest.raises(ValueError, match="keeps 'norm' or 'sum', not 'all'"):
        layer_norm(x, x, "all", torch.float32, UNQUANTIZED)
    with pytest.raises(ValueError, match="a has a scale and no format"):
        layer_norm(x._replace(scale=torch.ones(1)), x, "sum", torch.float32, UNQUANTIZED)
    with pytest.raises(ValueError, match="its result has a scale and no format"):
        bad = Quantizer(torch.ones(1, 1, 1), None, None, "")
        layer_norm(x, x, "sum", torch.float32, bad)
