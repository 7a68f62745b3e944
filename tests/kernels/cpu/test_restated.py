# SPDX-License-Identifier: BSD-3-Clause
"""Formats that the CPU's kernels know only restated: the bits of the reference, on kernels."""

import copy
import gc

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.operand import quantizer
from blockscale.core.reference import QParams
from blockscale.kernels.cpu.restated import OPS
from blockscale.ops import primitives as P
from tests.kernels.cpu.equal import decoding, differing, encoding, settings, wrong
from tests.kernels.restated import FORMATS, UNCHOSEN, awkward, given, runs, shapes
from tests.support.some import crossed

WITHOUT = ("int8:group8:(nf4:group4:fp32):recip", "int4:group8:(uint6:group4:fp16):recip")


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", crossed(3, FORMATS))
def test_every_primitive_has_the_references_bits(fmt: str) -> None:
    if not runs("cpu", "quantize", fmt):
        return  # kernels of its element or offset are not here
    for shape in shapes(fmt):
        for x in (torch.randn(shape), torch.rand(shape) + 1, awkward(shape)):
            for dtype in (torch.float32, torch.bfloat16):
                assert not wrong(x.to(dtype), fmt), (shape, dtype)
    turned = torch.randn(64, 8).t()
    assert not wrong(turned, fmt)
    assert not wrong(torch.zeros(4, 64), fmt)


def _skip_unless_clamped() -> None:
    """Where the kernels of plain formats give other bits for a scale of -0, so do these."""
    by = quantizer(QParams(torch.full((1, 1), -0.0)), "int8:tensor:fp32:recip")
    x = torch.full((1, 1), 1e-40)
    with bs.use("reference"):
        expected = P.quantize(x, by)
    if not torch.equal(P.quantize(x, by), expected):
        pytest.skip("this library does not clamp the reciprocal of -0 (numerics.md, 4)")


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", [*FORMATS, *UNCHOSEN])
@pytest.mark.parametrize("odd", [False, True])
def test_given_scales_may_be_anything(fmt: str, odd: bool) -> None:
    if not runs("cpu", "quantize", fmt):
        return
    if fmt.endswith(":recip") and (odd or "/inv" in fmt):
        _skip_unless_clamped()
    for shape in shapes(fmt):
        for seed in range(4):
            qparams, x = given(fmt, shape, seed, odd), awkward(shape, seed)
            with bs.use("reference"):
                packed = P.quantize(x, quantizer(qparams, fmt, torch.tensor([3, 1])))
                expected = encoding(x, fmt, qparams, torch.tensor([3, 1]))
                expected |= decoding(packed, fmt, qparams, shape[-1], len(shape))
            with settings(bs.kernels.cpu._native.isas()[-1], 1):
                found = encoding(x, fmt, qparams, torch.tensor([3, 1]))
                found |= decoding(packed, fmt, qparams, shape[-1], len(shape))
            assert not differing(found, expected), (shape, seed)


def test_reciprocals_of_two_levels_are_left_to_the_reference() -> None:
    for fmt in WITHOUT:
        assert not runs("cpu", "quantize", fmt)
        assert runs("cpu", "dequantize", fmt) and runs("cpu", "choose_qparams", fmt)


def test_plain_formats_have_their_own_kernels() -> None:
    assert runs("cpu", "quantize", "int8")
    for fmt in ("int4:group32:fp32", "e2m1:group16:e4m3", "int8:group32:e8m0"):
        for op in ("quantize", "dequantize", "linear"):
            found = bs.kernels.registry.supporting(op, "cpu", (fmt,), ())
            assert found is not None and found.run.__module__.endswith(f"cpu.{op}")


def model(fmt: str, inputs: str | None, n: int, k: int) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(k, n))
    bs.quantize_(made, bs.Recipe(fmt, input=inputs))
    return made


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("inputs", [None, "int8", "int8:token:fp16:signed", "e4m3:flat32:fp32"])
def test_linear_layers(fmt: str, inputs: str | None) -> None:
    if not runs("cpu", "linear", fmt) or not runs("cpu", "quantize", fmt):
        return
    for n, k in ((24, 96), (7, 40)):
        layer = model(fmt, inputs, n, k)[0]
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(3, 2, k).to(dtype)
            with bs.use("reference"):
                expected = layer(x)
                values = x.float() if inputs is None else bs.fake_quantize(x.float(), inputs)
                size = values.abs() @ layer.dequantize_weight().abs().T + layer.bias.abs()
            with bs.use("cpu"):
                found = layer(x)
            assert found.dtype == dtype and found.shape == expected.shape
            bound = 64 * 2.0**-24 * size + expected.abs() * (2.0**-7 if dtype.itemsize == 2 else 0)
            assert bool(((found.float() - expected.float()).abs() <= bound).all())


def test_what_is_made_for_a_weight_is_kept_and_freed_with_it() -> None:
    gc.collect()
    before = len(OPS._weights)
    for fmt in ("int4:group32:(int6:group16:fp16)", "int4:group32:fp16:signed", "int4:flat64:fp32"):
        layer, x = model(fmt, None, 8, 64)[0], torch.randn(2, 64)
        with bs.use("cpu"), torch.no_grad():
            first = layer(x)
            kept = OPS._weights[layer.weight.operand]
            assert OPS._weights[layer.weight.operand] is kept
            assert len(OPS._weights) == before + 1
            assert set(layer.state_dict()) == set(copy.deepcopy(layer).state_dict())
            layer.weight.scale.copy_(layer.weight.scale.roll(1))
            changed = layer(x)
        with bs.use("reference"), torch.no_grad():
            torch.testing.assert_close(changed, layer(x))
        assert not torch.equal(first, changed)
        del layer, kept
        gc.collect()
        assert len(OPS._weights) == before, fmt


def test_parts_that_would_outgrow_the_codes_are_not_kept() -> None:
    layer = model("int4:flat4@0:fp32", None, 6, 64)[0]  # each element has its own scale
    with bs.use("cpu"), torch.no_grad():
        assert OPS._weights[layer.weight.operand] is None
        found = layer(torch.ones(1, 64))
    with bs.use("reference"), torch.no_grad():
        torch.testing.assert_close(found, layer(torch.ones(1, 64)))


@pytest.mark.parametrize("fmt", FORMATS)
def test_tables_and_convolutions(fmt: str) -> None:
    if not runs("cpu", "embedding", fmt) or not runs("cpu", "quantize", fmt):
        return
    torch.manual_seed(0)
    made = nn.Sequential(nn.Embedding(20, 40), nn.Conv1d(4, 8, 3))
    if "4@0" not in fmt:
        made.extend([nn.Conv2d(5, 3, 3), nn.ConvTranspose2d(5, 4, 3, stride=2)])
    rules = {name: {"input": "int8:token:fp16:signed"} for name in "13"[: len(made) - 2 or 1]}
    bs.quantize_(made, bs.Recipe(fmt, rules=rules))
    indices = torch.randint(0, 20, (3, 4))
    small, large = torch.randn(2, 4, 9), torch.randn(2, 5, 9, 9)

    def results() -> list[torch.Tensor]:
        return [made[1](small), *(layer(large) for layer in made[2:])]

    with bs.use("reference"):
        rows, expected = made[0](indices), results()
    with bs.use("cpu"):
        assert torch.equal(made[0](indices), rows)
        found = results()
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_formats_that_are_restated_are_not_left_out() -> None:
    """Those that need no kernel of codebooks or offsets: the matrices above are not empty."""
    assert sum(runs("cpu", "quantize", fmt) for fmt in FORMATS) >= 17
    assert sum(runs("cpu", "quantize", fmt) for fmt in UNCHOSEN) >= 6
