# SPDX-License-Identifier: BSD-3-Clause
"""Scales that are codes (numerics.md, 3.3, 3.5) and offsets of blocks (3.8)."""

import copy
import math

import ml_dtypes
import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.core import reference as R
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scales import Offset, TwoLevel


def test_the_lowest_value_gets_the_lowest_code_and_the_highest_the_highest() -> None:
    x = torch.tensor([[5.0, 6.0, 7.0, 8.0], [-3.0, -3.0, -2.0, -1.5]])
    for element in ("uint2", "int2"):
        q = bs.quantize(x, f"{element}:group4:fp32:offset")
        low = {"uint2": 0, "int2": -2}[element]
        assert q.codes.tolist() == [[low, low + 1, low + 2, low + 3], [low, low, low + 2, low + 3]]
        assert torch.equal(q.dequantize(), x)  # two bits hold four steps, 0 is not among them


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_q4_1_as_ggml_stores_it(backend: str) -> None:
    """d = (max - min) / 15 and m = min, both float16; values fl(q * d) + m."""
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    with bs.use(backend):
        q = bs.quantize(x, "uint4:group32:fp16:offset")
        values = q.dequantize()
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    assert torch.equal(q.qparams.scale, ((high - low) / 15).half())
    assert q.offset is not None and torch.equal(q.offset, low.half())
    d, m = q.qparams.scale.float(), low.half().float()
    assert torch.equal(values, q.codes.float() * d + m)


def test_unsigned_offsets_are_at_most_zero_and_have_a_negative_scale() -> None:
    """GGUF's K types subtract dmin * m with m >= 0."""
    x = torch.cat([torch.rand(1, 32) + 1, -torch.rand(1, 32) - 1]).reshape(1, 64)
    q = bs.quantize(x, "uint4:group32:(uint6:group2:fp16):offset(uint6:group2:fp16)")
    offset = q.offset
    assert isinstance(offset, bs.QTensor)
    assert bool((offset.qparams.scale < 0).all())
    values = offset.dequantize()
    assert values[0, 0] == 0 and values[0, 1] < -1


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_offsets_beyond_a_type_become_its_largest(kind: str) -> None:
    largest = torch.finfo({"fp16": torch.float16, "bf16": torch.bfloat16}[kind]).max
    offset = Offset(parse(f"int4:tensor:{kind}").scale)
    stored, outer = offset.store(torch.tensor([3.4e38, -3.4e38, 1e-45]))
    assert outer is None
    assert stored.tolist() == [largest, -largest, 0.0]


def test_blocks_without_numbers_have_no_offset() -> None:
    x = torch.tensor([[float("nan")] * 4, [float("inf")] * 4])
    q = bs.quantize(x, "uint4:group4:fp32:offset")
    assert q.offset is not None and q.offset.tolist() == [[0.0], [0.0]]


def test_an_offset_that_blocks_share_is_given() -> None:
    fmt = "int4:group4:fp32:offset(tensor:fp32)"
    x = torch.randn(2, 8)
    with pytest.raises(ValueError, match="must be supplied"):
        bs.quantize(x, fmt)
    q = bs.quantize(x, fmt, scale=torch.ones(2, 2), offset=torch.tensor(0.25))
    assert torch.equal(q.dequantize(), (x - 0.25).round().clamp(-8, 7) + 0.25)


def test_given_offsets_are_checked() -> None:
    x, scale = torch.randn(2, 8), torch.ones(2, 2)
    with pytest.raises(ValueError, match="needs an offset"):
        bs.quantize(x, "int4:group4:fp32:offset", scale=scale)
    with pytest.raises(ValueError, match="has no offset"):
        bs.quantize(x, "int4:group4:fp32", scale=scale, offset=scale)
    with pytest.raises(
        ValueError, match=r"the offset must be float32 of shape \(2, 2\), found float16"
    ):
        bs.quantize(x, "int4:group4:fp32:offset", scale=scale, offset=scale.half())
    with pytest.raises(ValueError, match="without its scale"):
        bs.quantize(x, "int4:group4:fp32:offset", offset=scale)


# Scales of two levels beyond NVFP4's: other outer types, reciprocals, signs, zeros, offsets.


def scale_of(text: str) -> TwoLevel:
    scale = parse(f"int4:group4:{text}").scale
    assert isinstance(scale, TwoLevel)
    return scale


def test_a_step_keeps_its_sign_and_is_zero_only_where_a_factor_is() -> None:
    scale = scale_of("(int8:tensor:fp32)")
    codes = torch.tensor([[1, 255, 0, 127]], dtype=torch.uint8)  # 255 is -1
    tiny = scale.step(codes, torch.tensor([[2.0**-149]]))
    assert tiny.tolist() == [[2.0**-149, -(2.0**-149), 0.0, 127 * 2.0**-149]]
    small = scale_of("e4m3").step(torch.tensor([[1, 129, 0]]).byte(), torch.tensor([[2.0**-149]]))
    assert small.tolist() == [[2.0**-149, -(2.0**-149), 0.0]]  # underflow is no zero
    assert scale.step(codes, torch.zeros(1, 1)).tolist() == [[0.0, -0.0, 0.0, 0.0]]
    large = scale.step(codes, torch.tensor([[-3e38]]))
    assert large[0, 3] == -torch.finfo(torch.float32).max


def test_a_reciprocal_divides_as_compressed_tensors_does() -> None:
    """fl(c / G) is not fl(c * fl(1 / G)) for a fifth of ordinary numbers: the direction is kept."""
    generator = torch.Generator().manual_seed(0)
    outer = torch.rand(4096, 1, generator=generator) * 1000 + 1
    codes = torch.randint(1, 127, (4096, 1), generator=generator).to(torch.uint8)
    fmt = parse("e2m1:group16:(e4m3:group1@0:fp32)/inv")
    assert isinstance(fmt.scale, TwoLevel)
    values = fmt.scale.values(codes)
    steps = fmt.scale.step(codes, outer)
    exact = (
        values.double() / outer.double()
    ).float()  # a double quotient rounds once more, rightly
    assert torch.equal(steps, exact)
    assert 0.1 < float((steps != values * outer.reciprocal()).float().mean()) < 0.4


def test_the_scale_chosen_for_a_reciprocal_is_that_of_nvfp4_files() -> None:
    """compressed-tensors: G = 448 * 6 / amax, block scales e4m3(amax / 6 * G)."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    q = bs.quantize(x, "e2m1:group16:e4m3/inv")
    amax = x.view(4, 4, 16).abs().amax(-1)
    outer = torch.tensor(2688.0) / x.abs().max()
    assert torch.equal(q.qparams.outer, outer.reshape(1, 1))
    wanted = (amax / 6 * outer).to(torch.float8_e4m3fn)
    assert torch.equal(q.qparams.scale.view(torch.float8_e4m3fn).float(), wanted.float())


@pytest.mark.parametrize("outer", ["fp16", "bf16"])
def test_outer_scales_of_other_types_are_stored_in_them(outer: str) -> None:
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(2))
    q = bs.quantize(x, f"int6:group16:(int8:group4:{outer})")
    assert q.qparams.outer is not None
    assert q.qparams.outer.dtype == {"fp16": torch.float16, "bf16": torch.bfloat16}[outer]
    numerators = x.view(2, 4, 16).abs().amax(-1)
    expected = (numerators.amax(-1, keepdim=True) / (31.0 * 127.0)).to(q.qparams.outer.dtype)
    assert torch.equal(q.qparams.outer, expected)


def test_an_offset_of_scales_is_added_to_their_steps() -> None:
    """bitsandbytes' double quantization: absmax = map[u] * nested_absmax + nested_offset."""
    fmt = parse("nf4:group4:(book(-1,-0.5,0,0.5,1):group2:fp32:offset(tensor:fp32))")
    codes = torch.tensor([[0, 1, 3, 4]], dtype=torch.uint8)
    parts = QParams(codes, torch.tensor([[0.5, 2.0]]), scale_offset=torch.tensor([[3.0]]))
    assert R.step_of(parts, fmt).tolist() == [[2.5, 2.75, 4.0, 5.0]]
    with pytest.raises(ValueError, match="offset of its scales must be supplied"):
        bs.quantize(torch.ones(1, 16), fmt)


def test_the_scale_of_a_tensor_reads_back_as_a_tensor_of_its_own() -> None:
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(3))
    q = bs.quantize(x, "int6:group16:(int8:group4:fp16)")
    scale = q.scale
    assert isinstance(scale, bs.QTensor)
    assert scale.shape == (2, 4) and str(scale.format) == "int8:group4:fp16"
    assert torch.equal(scale.dequantize(), R.step_of(q.qparams, q.format))
    again = bs.quantize(x, q.format, scale=scale)
    assert torch.equal(again.packed, q.packed)
    assert not math.isnan(float(again.dequantize().sum()))


def e5m3(codes: np.ndarray) -> np.ndarray:
    """The values of ue5m3's codes, by hand: 5 bits of exponent, 3 of mantissa, bias 15."""
    exponent, mantissa = codes.astype(np.int64) >> 3, codes.astype(np.int64) & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 15)
    return np.where(exponent == 0, np.ldexp(mantissa / 8, -14), normal).astype(np.float32)


def every_scale_and_between() -> np.ndarray:
    """Quotients at every value of ue5m3 below NaN, at each middle, and one float32 beside them."""
    values = e5m3(np.arange(255))
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2]).astype(np.float32)
    sides = [np.nextafter(points, np.float32(side)) for side in (0, np.inf)]
    return np.concatenate([points, *sides, np.float32([1e-30, 2e5])])


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_every_scale_of_one_level_is_the_nearest_of_numpy(backend: str) -> None:
    """A block for each quotient: its largest magnitude is 16 of them, the largest value of e3m0.
    Ties go to the even code."""
    quotients = every_scale_and_between()
    x = np.zeros((len(quotients), 16), np.float32)
    x[:, 3], x[:, 5] = -16 * quotients, quotients
    with bs.use(backend):
        q = bs.quantize(torch.from_numpy(x), "e3m0:group16:ue5m3")  # values 0.25 … 16
        back = q.dequantize().numpy()
    values = e5m3(np.arange(255)).astype(np.float64)
    distance = np.abs(values[None] - quotients[:, None].astype(np.float64))
    tied = distance == distance.min(1, keepdims=True)
    even = tied & (np.arange(255) % 2 == 0)
    code = np.where(tied.sum(1) == 2, even.argmax(1), tied.argmax(1))
    code = np.maximum(code, 1)  # the smallest scale, not 0
    np.testing.assert_array_equal(q.qparams.scale.numpy()[:, 0], code)
    assert q.qparams.scale.dtype == torch.uint8 and q.qparams.outer is None
    steps = e5m3(code).astype(np.float32)
    named = {0.0} | {2.0**k for k in range(-2, 5)}
    assert set(np.unique(np.abs(back / steps[:, None]))) <= named


def test_a_row_of_one_level_depends_on_nothing_else() -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(4))
    alone = [bs.quantize(row, "nvfp4_e5m3").dequantize() for row in x]
    beside = torch.cat([x, 1e4 * torch.ones(1, 64)])
    assert torch.equal(bs.quantize(beside, "nvfp4_e5m3").dequantize()[:8], torch.stack(alone))
    two = bs.quantize(beside, "nvfp4").dequantize()[:8]
    assert not torch.equal(two, torch.stack([bs.quantize(row, "nvfp4").dequantize() for row in x]))


def test_zeros_and_what_is_not_finite_under_a_scale_of_one_level() -> None:
    x = torch.ones(4, 16)
    x[0], x[1, 3], x[2, 4] = 0.0, math.nan, -math.inf
    q = bs.quantize(x, "nvfp4_e5m3")
    assert q.qparams.scale.flatten().tolist() == [1, 255, 255, 99]  # 1.375 · 2^-3
    back = q.dequantize()
    assert bool((back[0] == 0).all()) and bool(back[1:3].isnan().all())
    open_ended = bs.quantize(x, "e2m1:group16:ue5m3r0")  # without a NaN
    assert not bool(open_ended.dequantize().isnan().any())


@pytest.mark.parametrize("code", [0, 1, 7, 8, 0x78, 254, 255])
def test_scales_that_are_given_may_be_any_code(code: int) -> None:
    x = torch.tensor([[0.0, 1.0, -2.0, 1e-5] * 4])
    scale = torch.full((1, 1), code, dtype=torch.uint8)
    q = bs.quantize(x, "nvfp4_e5m3", scale=scale)
    step = math.nan if code == 255 else float(e5m3(np.array([code]))[0])
    values = R.dequantize(q.codes, QParams(torch.tensor([[step]])), parse("e2m1:group16:fp32"),
                          torch.float32)  # fmt: skip
    assert torch.equal(q.dequantize().nan_to_num(7.0), values.nan_to_num(7.0))


def test_the_error_of_one_level_is_that_of_two() -> None:
    x = torch.randn(256, 1024, generator=torch.Generator().manual_seed(5))
    one, two = (float((bs.quantize(x, f).dequantize() - x).square().mean())
                for f in ("nvfp4_e5m3", "nvfp4"))  # fmt: skip
    assert abs(one / two - 1) < 0.01


def test_spellings_of_scales_without_a_sign() -> None:
    for name in ("ue5m3", "ue4m3", "ue4m4", "ue6m2r0", "ue2m3r3"):
        fmt = parse(f"e2m1:group16:{name}")
        assert str(fmt.scale) == name and parse(str(fmt)) == fmt and fmt.bits == 4
    assert parse("nvfp4_e5m3") == parse("e2m1:group16:ue5m3")
    with pytest.raises(ValueError, match="unknown element 'ue9m3'"):
        parse("e2m1:group16:ue9m3")
    with pytest.raises(ValueError, match="half needs an fp32"):
        parse("int4:group16:ue5m3:half")


FOUR_SIX = "e2m1:group16:e4m3/four_six"
RECIPE = bs.Recipe(FOUR_SIX, FOUR_SIX)


def four_six(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """4/6 from its description (Cook et al. 2025, section 3), by ml_dtypes' casts: blocks [n, 16]
    float32 -> the outer scale, bytes of scales and codes."""
    amax = np.abs(x).max(1)
    outer = (amax.max() / np.float32(6 * 256)).astype(np.float32)
    found = []
    for wider in (np.float32(1), np.float32(1.5)):
        ratio = np.clip(amax / np.float32(6) / outer * wider, np.float32(2.0**-6), np.float32(448))
        scale = ratio.astype(ml_dtypes.float8_e4m3fn)
        step = (outer * scale.astype(np.float32))[:, None]
        codes = np.clip(x / step, -6, 6).astype(ml_dtypes.float4_e2m1fn)
        values = (codes.astype(np.float32) * step).astype(np.float64)
        found.append(((values - x) ** 2, scale.view(np.uint8), codes.view(np.uint8)))
    (lost, scale, codes), (other_lost, other_scale, other_codes) = found
    better = other_lost.sum(1) < lost.sum(1)
    codes = np.where(better[:, None], other_codes, codes)
    return outer, np.where(better, other_scale, scale), codes


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_blocks_choose_between_6_and_4_as_numpy_says(backend: str, spread: float) -> None:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(4096, 16, generator=generator)
    x *= torch.exp(spread * torch.randn(4096, 1, generator=generator))
    outer, scale, codes = four_six(x.numpy())
    with bs.use(backend):
        q = bs.quantize(x, FOUR_SIX)
    assert q.qparams.outer is not None and q.qparams.outer.item() == outer
    np.testing.assert_array_equal(q.qparams.scale.numpy()[:, 0], scale)
    np.testing.assert_array_equal(q.codes.numpy(), codes)
    six = bs.quantize(x, "nvfp4").dequantize()
    ratio = float((q.dequantize() - x).square().sum() / (six - x).square().sum())
    assert ratio < (0.99 if spread else 0.86)


def test_every_scale_of_4_and_6_is_numpys() -> None:
    """Blocks whose largest numbers ask for each code of e4m3, and for what lies between two."""
    sizes = torch.arange(1, 257, dtype=torch.float32)[:, None] * 6
    x = torch.cat([sizes / 2**k for k in (0, 4, 8, 12)]) * torch.linspace(-1, 0.9, 16)
    outer, scale, codes = four_six(x.numpy())
    q = bs.quantize(x, FOUR_SIX)
    assert outer == 1.0 and len(np.unique(scale)) > 110
    np.testing.assert_array_equal(q.qparams.scale.numpy()[:, 0], scale)
    np.testing.assert_array_equal(q.codes.numpy(), codes)


def test_what_four_six_stores_is_read_as_nvfp4() -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(7))
    q = bs.quantize(x, FOUR_SIX)
    plain = bs.QTensor(q.packed, q.qparams, bs.parse("nvfp4"), 64)
    assert torch.equal(plain.dequantize(), q.dequantize())
    assert parse(FOUR_SIX).plain == parse("nvfp4") and parse("nvfp4").plain == parse("nvfp4")


def test_inputs_and_weights_of_layers_choose_between_6_and_4() -> None:
    torch.manual_seed(8)
    layer, x = torch.nn.Linear(64, 32), torch.randn(16, 64)
    expected = torch.nn.functional.linear(
        bs.quantize(x, FOUR_SIX).dequantize(),
        bs.quantize(layer.weight.detach(), FOUR_SIX).dequantize(),
        layer.bias,
    )
    trained = bs.prepare_qat(torch.nn.Sequential(copy.deepcopy(layer)), RECIPE)
    model = torch.nn.Sequential(layer)
    bs.quantize_(model, RECIPE)
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(trained(x), expected)
    trained(x).sum().backward()
    assert trained[0].weight.grad is not None and bool(trained[0].weight.grad.any())


def test_poisoned_blocks_and_zeros_of_four_six() -> None:
    x = torch.ones(3, 16)
    x[0], x[1, 3] = 0.0, math.nan
    q = bs.quantize(x, FOUR_SIX)
    # the last block has no error under 256 (0x78) nor under 384: of equal ones 6 wins
    assert q.qparams.scale.flatten().tolist() == [8, 0x7F, 0x78]
    assert bool((q.dequantize()[0] == 0).all()) and bool(q.dequantize()[1].isnan().all())


@pytest.mark.parametrize("text", ["e4m3", "e4m3/inv", "(e4m3:token:fp32)"])
def test_spellings_of_four_six(text: str) -> None:
    fmt = parse(f"e2m1:group16:{text}/four_six")
    assert str(fmt) == f"e2m1:group16:{text}/four_six" and str(fmt.plain.scale) == text
    given = parse(f"e2m1:group16:{text}/four_six/given")
    assert given.choosing == fmt and given.unchosen


@pytest.mark.parametrize("text", ["int4:group16:e4m3", "e2m1:group16:e5m2", "e3m0:group16:e4m3"])
def test_other_grids_have_no_4_and_6(text: str) -> None:
    with pytest.raises(ValueError, match="four_six needs e2m1 under scales in e4m3"):
        parse(f"{text}/four_six")
