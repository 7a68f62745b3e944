# SPDX-License-Identifier: BSD-3-Clause
"""IF4: e2m1 or integers by the sign of a block's scale, against the paper's definition in numpy."""

import copy
import math

import ml_dtypes
import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.calibration.algorithms.block_scales import nearest_scale
from blockscale.core import reference
from blockscale.core.elements.int_float import IntFloat
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.numbers import lower

pytestmark = pytest.mark.filterwarnings("ignore:no cpu kernel runs")
IF4 = "if4:group16:e4m3"


def if4(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Blocks [n, 16] float32 -> the outer scale, bytes of scales, codes and values, by ml_dtypes'
    casts: NVFP4's scale; integers of 7 levels, of which 7 is the block's 6, where they lose less
    (arXiv 2603.28765, section 3)."""
    amax = np.abs(x).max(1)
    outer = (amax.max() / np.float32(6 * 448)).astype(np.float32)
    ratio = np.clip(amax / np.float32(6) / outer, np.float32(2.0**-6), np.float32(448))
    scale = ratio.astype(ml_dtypes.float8_e4m3fn)
    step = (outer * scale.astype(np.float32))[:, None]
    y = x / step
    floats = np.clip(y, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    whole = np.clip(np.rint(y.astype(np.float64) * 7 / 6), -7, 7)
    values = [floats.astype(np.float32) * step, (whole * 6 / 7).astype(np.float32) * step]
    lost = [((v.astype(np.float64) - x) ** 2).sum(1) for v in values]
    integer = lost[1] < lost[0]
    codes = np.where(integer[:, None], whole.astype(np.int8).view(np.uint8) & 15,
                     floats.view(np.uint8))  # fmt: skip
    sign = np.where(integer, 128, 0).astype(np.uint8)
    return outer, scale.view(np.uint8) | sign, codes, np.where(integer[:, None], *values[::-1])


@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_grids_scales_codes_and_values_are_numpys(spread: float) -> None:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(4096, 16, generator=generator)
    x *= torch.exp(spread * torch.randn(4096, 1, generator=generator))
    outer, scale, codes, values = if4(x.numpy())
    q = bs.quantize(x, IF4)
    assert q.qparams.outer is not None and q.qparams.outer.item() == outer
    np.testing.assert_array_equal(q.qparams.scale.numpy()[:, 0], scale)
    np.testing.assert_array_equal(q.codes.numpy(), codes)
    np.testing.assert_array_equal(q.dequantize().numpy(), values)
    assert 0.3 < (scale > 127).mean() < 0.8
    if not spread:
        plain = bs.quantize(x, "nvfp4").dequantize()
        ratio = float((q.dequantize() - x).square().sum() / (plain - x).square().sum())
        assert 0.68 < ratio < 0.72  # the paper's figure is .71


@pytest.mark.parametrize(
    "fmt",
    ["if4:group16:fp32", "if4:token:fp16", "if4:tile2x8:(e4m3:token:fp32)", "if4:flat16:bf16",
     "if4:group16:e4m3/inv", "if4:group16:e5m2:recip"],
)  # fmt: skip
def test_no_block_loses_more_than_either_grid(fmt: str) -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).half().float()
    q = bs.quantize(x, fmt)
    assert torch.equal(bs.fake_quantize(x, fmt), q.dequantize())
    scale = q.qparams.scale
    for sign in (0, 1):  # all blocks as floats, all as integers
        same = (
            scale & 127 | sign << 7 if scale.dtype == torch.uint8 else scale.abs() * (1 - 2 * sign)
        )
        parts = q.qparams._replace(scale=same)
        codes = bs.core.reference.quantize(x, parts, q.format)
        other = bs.core.reference.dequantize(codes, parts, q.format, torch.float32)
        assert (q.dequantize() - x).square().sum() <= (other - x).square().sum()


def test_every_code_under_either_sign() -> None:
    codes = torch.arange(16, dtype=torch.uint8).expand(2, 16)
    fmt = parse("if4:group16:fp32")
    parts = bs.core.reference.QParams(torch.tensor([[2.0], [-2.0]]))
    values = bs.core.reference.dequantize(codes, parts, fmt, torch.float32)
    bits = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)
    np.testing.assert_array_equal(values[0].numpy(), bits.astype(np.float32) * 2)
    whole = np.array([*range(8), *range(-8, 0)])
    np.testing.assert_array_equal(values[1].numpy(), (whole * 6 / 7).astype(np.float32) * 2)
    back = bs.core.reference.quantize(values, parts, fmt)
    expected = codes.clone()
    expected[1, 8] = 9  # -8 is read, and never written
    assert torch.equal(back, expected)
    inside = bs.core.reference.in_range(torch.tensor([[12.5] * 16] * 2), parts, fmt)
    assert not bool(inside[1].any())


def test_zeros_and_poison() -> None:
    x = torch.zeros(3, 16)
    x[1, 3], x[2] = math.nan, 1.0
    q = bs.quantize(x, IF4)
    assert bool((q.dequantize()[0] == 0).all()) and bool(q.dequantize()[1].isnan().all())
    assert q.qparams.scale[2] == 0x7E  # of equal ones e2m1 wins
    assert bs.quantize(torch.zeros(0, 16), IF4).shape == (0, 16)


@pytest.mark.slow
@pytest.mark.parametrize("weight", ["mse", "gptq", "gptq:absmax", "hqq", "search"])
def test_weight_algorithms_lose_no_more_than_rounding(weight: str) -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48)).eval()
    x = torch.randn(256, 64) @ torch.randn(64, 64)
    lost = {}
    for how in ("absmax", weight):
        made = copy.deepcopy(model)
        bs.calibrate(made, [x], IF4, weight=how, progress=False)
        error = made(x) - model(x) if "gptq" in weight or weight == "search" else (
            made[0].dequantize_weight() - model[0].weight).abs()  # fmt: skip
        lost[how] = float(error.detach().abs().pow(0.7 if weight == "hqq" else 2).sum())
    assert lost[weight] <= lost["absmax"] * 1.0001


def test_the_scale_nearest_to_a_step_of_its_own_is_itself() -> None:
    """With its sign, which says whether a block's codes are integers."""
    fmt = parse(IF4)
    scale = torch.arange(256, dtype=torch.uint8)[:, None]
    size = scale[:, 0] & 0x7F
    scale = scale[(size >= 8) & (size < 0x7F)]  # from 2^-6, below which no step is chosen
    qparams = QParams(scale, torch.tensor(0.5))
    step = reference.step_of(qparams, fmt)
    assert bool((step[: len(step) // 2] > 0).all()) and bool((step[len(step) // 2 :] < 0).all())
    assert torch.equal(nearest_scale(step, qparams.outer, fmt), scale)


def test_layers_train_convert_and_lie_in_files(tmp_path) -> None:
    torch.manual_seed(3)
    recipe, ids = bs.Recipe(IF4, input="if4:group16:(e4m3:token:fp32)"), torch.arange(10)[None]
    model = torch.nn.Sequential(torch.nn.Embedding(10, 32), torch.nn.Linear(32, 16)).eval()
    weights = [bs.quantize(m.weight.detach(), IF4).dequantize() for m in model]
    x = torch.cat([bs.fake_quantize(weights[0][i : i + 1], recipe.input) for i in range(10)])
    expected = torch.nn.functional.linear(x, weights[1], model[1].bias)[None]
    trained = bs.prepare_qat(copy.deepcopy(model), recipe)
    trained(ids).square().sum().backward()
    assert all(bool(p.grad.any()) for p in trained.parameters())
    torch.testing.assert_close(trained.eval()(ids), expected)
    bs.convert(trained)
    quantized = copy.deepcopy(model)
    bs.quantize_(quantized, recipe)
    for made in (trained, quantized):
        torch.testing.assert_close(made(ids), expected)
    bs.save(quantized, tmp_path / "model.safetensors")
    bs.load(model, tmp_path / "model.safetensors")
    assert torch.equal(model(ids), quantized(ids))


def test_steps_are_not_learned_and_that_is_said() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 16))
    with pytest.warns(UserWarning, match="the sign of its scale is not learned"):
        bs.prepare_qat(model, IF4, learn="steps")


@pytest.mark.parametrize(
    ("spelling", "words"),
    [
        ("if4:group32:e8m0", "if4 needs scales with a sign, which says what a block's grid is"),
        ("if4:group16:ue5m3", "if4 needs scales with a sign"),
        ("if4:group16:(uint8:tensor:fp32)", "if4 needs scales with a sign"),
        ("if4:group16:e4m3/four_six", "four_six needs e2m1"),
        ("if4:group16:fp32:offset", "if4 takes no offset"),
        ("if4:group16:e4m3:stochastic", "if4 rounds in one way only"),
        ("if4:group16:fp32:asym", "needs an integer element"),
    ],
)
def test_what_it_cannot_be_with(spelling: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(spelling)


def test_alone_it_means_nothing_and_no_kernel_takes_it_for_another() -> None:
    codes = torch.zeros(2, dtype=torch.uint8)
    for read in (IntFloat().decode, lambda x: IntFloat().encode(x.float(), None, None, False)):
        with pytest.raises(ValueError, match="if4: its codes mean floats or integers as the signs"):
            read(codes)
    assert lower(parse(IF4)) is None and parse(IF4).compares and parse(IF4).plain == parse(IF4)
    model = torch.nn.Sequential(torch.nn.Linear(32, 16))
    with pytest.raises(ValueError, match="rounding is learned on one: choose codes by 'gptq'"):
        bs.calibrate(model, [torch.randn(4, 32)], IF4, weight="signround", progress=False)
