# SPDX-License-Identifier: BSD-3-Clause
"""torchao 0.18.0 itself is the oracle: 0 differing scales, zero points and codes."""

from math import frexp

import pytest
import torch
import torchao
from torch import Tensor
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale
from torchao.quantization import PerBlock, PerRow, PerTensor
from torchao.quantization.quant_primitives import MappingType
from torchao.quantization.quantize_.workflows import (
    Float8Tensor,
    Int8Tensor,
    IntxUnpackedToInt8Tensor,
)

import blockscale as bs
from blockscale.core.pack import pack
from blockscale.core.profiles.codes import quantize
from blockscale.core.profiles.producers.torchao import PROFILES
from tests.support.profile_inputs import KINDS

TWO = (torch.float32, torch.bfloat16)
MX = {
    "mxfp8": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
    "mxfp6": DTYPE_FP6_E3M2,
    "mxfp6_e2m3": DTYPE_FP6_E2M3,
    "mxfp4": torch.float4_e2m1fn_x2,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_dtype = pytest.mark.parametrize("dtype", [*TWO, torch.float16], ids=str)
fp32_bf16 = pytest.mark.parametrize("dtype", TWO, ids=str)


def equal(ours: Tensor, theirs: Tensor) -> None:
    """The same numbers and, of floats, the same bits."""
    assert ours.dtype == theirs.dtype
    assert tuple(ours.shape) == tuple(theirs.shape)
    assert int((bits(ours) != bits(theirs)).sum()) == 0


def bits(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x
    return x.contiguous().view({4: torch.int32, 2: torch.int16}[x.element_size()])


def test_the_version() -> None:
    assert {profile.version for profile in PROFILES} == {torchao.__version__.partition("+")[0]}


@every_kind
@every_dtype
@pytest.mark.parametrize(
    ("block", "granularity"), [("channel0", PerRow()), ("tensor", PerTensor())]
)
def test_int8(kind: str, dtype: torch.dtype, block: str, granularity: object) -> None:
    x = KINDS[kind]().to(dtype)
    codes, qparams, fmt = quantize(x, bs.profile(f"torchao.int8:{block}"))
    expected = Int8Tensor.from_hp(x, granularity)
    assert str(fmt) == f"int8:{block}:fp32:full"
    equal(qparams.scale, expected.scale)
    equal(codes, expected.qdata)


@every_kind
@every_dtype
def test_int8_asym(kind: str, dtype: torch.dtype) -> None:
    x = KINDS[kind]().to(dtype)
    codes, qparams, _ = quantize(x, bs.profile("torchao.int8_asym"))
    expected = Int8Tensor.from_hp(x, PerRow(), mapping_type=MappingType.ASYMMETRIC)
    equal(qparams.scale, expected.scale)
    equal(qparams.zero_point.to(torch.int8), expected.zero_point)
    equal(codes, expected.qdata)


MAPPINGS = {
    "": MappingType.SYMMETRIC,
    "_no_clipping": MappingType.SYMMETRIC_NO_CLIPPING_ERR,
    "_asym": MappingType.ASYMMETRIC,
}


@pytest.mark.some(4)
@every_kind
@every_dtype
@pytest.mark.parametrize("bits_", range(2, 9))
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_intx(kind: str, dtype: torch.dtype, bits_: int, mapping: str) -> None:
    x = KINDS[kind]().to(dtype)
    size = 32 if bits_ % 2 else 64
    codes, qparams, fmt = quantize(x, bs.profile(f"torchao.intx{bits_}{mapping}:group{size}"))
    expected = IntxUnpackedToInt8Tensor.from_hp(
        x, (1, size), getattr(torch, f"int{bits_}"), mapping_type=MAPPINGS[mapping]
    )
    assert fmt.scale.dtype == dtype
    equal(qparams.scale, expected.scale)
    if mapping == "_asym":
        equal(qparams.zero_point.to(torch.int8), expected.zero_point)
    else:
        assert not expected.zero_point.any()
    equal(codes, expected.qdata)


FLOAT8 = {"float8": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}


@every_kind
@fp32_bf16
@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize(
    ("block", "granularity"),
    [("channel0", PerRow()), ("tensor", PerTensor()), ("tile32x64", PerBlock([32, 64]))],
)
def test_float8(kind: str, dtype: torch.dtype, name: str, block: str, granularity: object) -> None:
    x = KINDS[kind]().to(dtype)
    codes, qparams, fmt = quantize(x, bs.profile(f"torchao.{name}:{block}"))
    expected = Float8Tensor.from_hp(x, FLOAT8[name], granularity)
    equal(qparams.scale, expected.scale)
    theirs = expected.qdata.view(torch.uint8)
    missing = expected.qdata.float().isnan()  # of rows of zeros: 0 / 0, with the processor's sign
    assert bool(missing.any()) == (kind == "mixed" and block == "channel0")
    assert torch.equal(fmt.element.decode(codes).isnan(), missing)
    equal(codes[~missing], theirs[~missing])


@pytest.mark.some(4)
@every_kind
@fp32_bf16
@pytest.mark.parametrize("rule", ["", "_ceil", "_even", "_rceil"])
@pytest.mark.parametrize("name", MX)
def test_mx(kind: str, dtype: torch.dtype, rule: str, name: str) -> None:
    check_mx(KINDS[kind]().to(dtype), f"torchao.{name}{rule}", MX[name], rule)


def check_mx(x: Tensor, name: str, element: object, rule: str) -> None:
    mode = ScaleCalculationMode[rule.removeprefix("_").upper() or "FLOOR"]
    codes, qparams, fmt = quantize(x, bs.profile(name))
    scale, data = to_mx(x, element, 32, mode)
    equal(qparams.scale, scale.view(torch.uint8))
    equal(pack(codes, fmt.element) if fmt.bits == 4 else codes, data.view(torch.uint8))


@pytest.mark.parametrize("rule", ["", "_ceil", "_even", "_rceil"])
@pytest.mark.parametrize("name", MX)
def test_mx_just_above_and_below_every_power_of_two(rule: str, name: str) -> None:
    """Where a logarithm in float32 and the bits of an exponent part, and where bytes are 0."""
    near = torch.arange(-40, 41, dtype=torch.int32)
    top = torch.tensor(frexp(bs.profile(f"torchao.{name}").format.element.max)[0])
    amax = [((top * 2.0**n).view(torch.int32) + near).view(torch.float32) for n in range(-125, 127)]
    amax += [torch.arange(0, 4000, 7, dtype=torch.int32).view(torch.float32)]  # subnormals
    check_mx(
        torch.cat(amax)[:, None] * torch.linspace(-1, 1, 32),
        f"torchao.{name}{rule}",
        MX[name],
        rule,
    )


@every_kind
@fp32_bf16
def test_nvfp4(kind: str, dtype: torch.dtype) -> None:
    x = KINDS[kind]().to(dtype)
    codes, qparams, fmt = quantize(x, bs.profile("torchao.nvfp4"))
    outer = per_tensor_amax_to_scale(x.float().abs().max())
    scale, data = nvfp4_quantize(x, 16, outer)
    equal(qparams.outer.reshape(()), outer)
    equal(qparams.scale, scale.view(torch.uint8))
    equal(pack(codes, fmt.element), data.view(torch.uint8))


@every_kind
@fp32_bf16
def test_nvfp4_of_one_level(kind: str, dtype: torch.dtype) -> None:
    x = KINDS[kind]().to(dtype)
    q = bs.quantize(x, bs.profile("torchao.nvfp4_one_level"))
    scale, data = nvfp4_quantize(x, 16)
    assert q.qparams.outer.tolist() == [[1.0]]
    equal(q.qparams.scale, scale.view(torch.uint8))
    equal(q.packed, data.view(torch.uint8))


def test_a_tensor_of_zeros_has_no_nvfp4() -> None:
    x = torch.zeros(2, 32)
    q = bs.quantize(x, bs.profile("torchao.nvfp4"))
    scale, _ = nvfp4_quantize(x, 16, per_tensor_amax_to_scale(x.max()))
    assert bool(scale.float().isnan().all())
    assert q.qparams.scale.tolist() == [[0x7F, 0x7F]] * 2  # NaN, under an outer scale of 0


def test_what_torchao_refuses() -> None:
    for name in ("intx4", "mxfp4", "nvfp4"):
        with pytest.raises(ValueError, match=r"blocks of group\d+ do not divide a tensor of"):
            bs.quantize(torch.randn(4, 40), bs.profile(f"torchao.{name}"))


@pytest.mark.parametrize("name", ["int8", "intx4", "float8", "nvfp4"])
def test_the_contract_is_something_else(name: str) -> None:
    """Twin of the above: without the profile's rules, some of the same inputs differ."""
    differ = 0
    for make in KINDS.values():
        x = make().bfloat16()
        codes, qparams, fmt = quantize(x, bs.profile(f"torchao.{name}"))
        plain = bs.quantize(x, fmt)
        differ += int((codes != plain.codes).sum())
        differ += int((qparams.scale != plain.qparams.scale).sum())
    assert differ > 0
