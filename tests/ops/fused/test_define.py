# SPDX-License-Identifier: BSD-3-Clause
"""The list of fused ops is whole; each has the schema, arguments and files that it promises."""

from inspect import Parameter

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.ops import fused as package
from blockscale.ops.fused import FUSED, Fused
from blockscale.ops.op import OPS
from tests.support.fused_cases import FORMATS, cases_of, coded
from tests.support.op_samples import bits

# graph.md, section 4; conv1d … conv_transpose3d are one op
PRODUCTS = "linear matmul bmm baddbmm addmm conv embedding embedding_bag sdpa"
TWO = "add sub mul div maximum minimum where pow"
NUMBER = (
    "add_scalar sub_scalar rsub_scalar mul_scalar div_scalar pow_scalar where_scalar masked_fill"
)
ACTIVATIONS = (
    "relu relu6 hardtanh leaky_relu elu prelu hardsigmoid hardswish sigmoid tanh gelu silu mish "
    "softplus"
)
FUNCTIONS = "exp sqrt rsqrt neg abs clamp reciprocal requantize"
NORMS = (
    "softmax log_softmax layer_norm add_layer_norm rms_norm batch_norm group_norm instance_norm "
    "l2_normalize"
)
REDUCTIONS = (
    "mean sum amax amin max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d argmax"
)
JOINING = "cat stack"
FAMILIES = {
    "products": PRODUCTS, "arithmetic": f"{TWO} {NUMBER} {JOINING}",
    "activations": f"{ACTIVATIONS} {FUNCTIONS}", "norms": NORMS, "reductions": REDUCTIONS,
}  # fmt: skip
ALL = [pytest.param(each, id=name) for name, each in FUSED.items()]


def test_every_op_of_the_list_is_there() -> None:
    wanted = {name for names in FAMILIES.values() for name in names.split()}
    assert FUSED.keys() == wanted


@pytest.mark.parametrize(("family", "names"), FAMILIES.items())
def test_a_file_a_family_and_cases_for_each_op(family: str, names: str) -> None:
    for name in names.split():
        assert FUSED[name].body.__module__ == f"{package.__name__}.{family}"
        assert cases_of(name)


@pytest.mark.parametrize("fused", ALL)
def test_names(fused: Fused) -> None:
    op = fused.op
    assert op.name == f"fused_{fused.name}"
    assert op.overload is getattr(torch.ops.blockscale, op.name).default
    assert op.name not in OPS  # those have samples for every format and their own gradients
    assert torch.Tag.pt2_compliant_tag in op.overload.tags
    assert fused.ulps == op.ulps


@pytest.mark.parametrize("fused", ALL)
def test_schema(fused: Fused) -> None:
    """Operands, settings, dtype, the result, and last what few formats have."""
    fields = ("", "_scale", "_zero_point", "_outer", "_fmt", "_size")
    names = [f"{each}{field}" for each in fused.operands for field in fields]
    names += [*fused.settings, "dtype", "y_scale", "y_zero_point", "y_outer", "y_fmt", "y_seed"]
    names += [f"{each}_more" for each in (*fused.operands, "y")]
    assert [each.name for each in fused.op.overload._schema.arguments] == names
    assert str(fused.op.overload._schema).endswith("-> Tensor[]")


def test_the_schema_of_the_contract() -> None:
    assert str(FUSED["add"].op.overload._schema) == (
        "blockscale::fused_add(Tensor a, Tensor? a_scale, Tensor? a_zero_point, Tensor? a_outer, "
        "str a_fmt, SymInt a_size, Tensor b, Tensor? b_scale, Tensor? b_zero_point, "
        "Tensor? b_outer, str b_fmt, SymInt b_size, float alpha, ScalarType dtype, "
        "Tensor? y_scale, Tensor? y_zero_point, Tensor? y_outer, str y_fmt, Tensor? y_seed=None, "
        "Tensor[]? a_more=None, Tensor[]? b_more=None, Tensor[]? y_more=None) -> Tensor[]"
    )
    assert str(FUSED["cat"].op.overload._schema) == (
        "blockscale::fused_cat(Tensor[] tensors, Tensor?[] tensors_scale, "
        "Tensor?[] tensors_zero_point, Tensor?[] tensors_outer, str[] tensors_fmt, "
        "SymInt[] tensors_size, SymInt dim, ScalarType dtype, Tensor? y_scale, "
        "Tensor? y_zero_point, Tensor? y_outer, str y_fmt, Tensor? y_seed=None, "
        "Tensor[]? tensors_more=None, Tensor[]? y_more=None) -> Tensor[]"
    )


def test_there_and_back_and_the_arguments_that_few_have() -> None:
    """flatten makes a node's arguments, bind reads them; those with defaults may be left out."""
    x, y = torch.randn(4, 36), torch.randn(4, 36)
    for fmt in (*FORMATS[1:], "book4:group16:fp32"):
        a, b = coded(x, fmt), Value(y)
        for name, given in (("add", (a, b)), ("cat", (a, b, a))):
            fused = FUSED[name]
            flat = fused.flatten(given, {}, torch.float32, UNQUANTIZED)
            own = fused.op.signature.bind(*flat)
            found = own[0] if fused.many else own[:2]
            for got, wanted in zip(found, given, strict=True):
                same = [u is v or u == v for u, v in zip(got[:6], wanted[:6], strict=True)]
                assert all(same) and len(got.more or ()) == len(wanted.more or ())
            short = flat[: -2 if fused.many else -3] if a.more is None else flat
            with bs.use("reference"):
                assert bits(fused.op.overload(*short)) == bits(fused(*given))


def test_settings_by_name_and_by_default() -> None:
    clamp, x = FUSED["clamp"], Value(torch.randn(4))
    assert clamp.settings == {"min": None, "max": None}
    assert FUSED["softmax"].settings == {"dim": Parameter.empty}
    assert torch.equal(clamp(x, max=0.0)[0], x.data.clamp(max=0.0))
    with pytest.raises(
        TypeError, match=r"fused_clamp: missing settings \[\], unknown ones \['lo'\]"
    ):
        clamp(x, lo=0.0)
    with pytest.raises(TypeError, match=r"fused_softmax: missing settings \['dim'\]"):
        FUSED["softmax"](x)
    with pytest.raises(TypeError, match=r"fused_add takes 2 operands \(a, b\), found 1"):
        FUSED["add"](x)


def test_a_number_of_columns_that_do_not_fit() -> None:
    """As a hand-written node might have them."""
    x = torch.zeros(2, 4)
    flat = list(FUSED["cat"].flatten((Value(x), Value(x)), {}, torch.float32, UNQUANTIZED))
    flat[4] = [""]
    with pytest.raises(ValueError, match="as many scales, zero points, outer scales, formats and"):
        FUSED["cat"].op.overload(*flat)
    more = list(FUSED["cat"].flatten((Value(x), Value(x)), {}, torch.float32, UNQUANTIZED))
    more[-2] = [x]
    with pytest.raises(ValueError, match="1 more tensors were passed than the formats"):
        FUSED["cat"].op.overload(*more)


def test_results_in_every_form() -> None:
    x = Value(torch.randn(4, 36))
    assert len(FUSED["relu"](x)) == 1
    assert len(FUSED["relu"](x, y=Quantizer(None, None, None, "nvfp4"))) == 3
    codes, scale, zero = FUSED["relu"](x, y=Quantizer(None, None, None, "uint8:token:fp32:asym"))
    assert (codes.dtype, scale.dtype, zero.dtype) == (torch.uint8, torch.float32, torch.int32)
    static = Quantizer(scale, zero, None, "uint8:token:fp32:asym")
    assert bits(FUSED["relu"](x, y=static)) == bits(codes)


def test_a_kernel_takes_the_ops_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    from blockscale.kernels import registry

    monkeypatch.setitem(registry.KERNELS, ("fused_add", "cpu"), [])
    asked = []

    def supports(formats: tuple, arguments: tuple) -> bool:
        asked.append((tuple(map(str, formats)), arguments))
        return arguments[2] == 2.0

    @registry.kernel("fused_add", backend="cpu", supports=supports)
    def run(a: Value, b: Value, alpha: float, dtype: torch.dtype, y: Quantizer) -> list[Tensor]:
        return [torch.full((1,), alpha)]

    x = coded(torch.randn(4, 36), "int8:tensor:fp32")
    by = Quantizer(None, None, None, "mxfp8")
    assert FUSED["add"](x, Value(x.data), alpha=2.0, y=by)[0].item() == 2.0
    assert len(FUSED["add"](x, Value(torch.ones(36)), alpha=1.0, y=by)) == 2
    formats, arguments = asked[-1]
    assert formats == ("int8:tensor:fp32", "e4m3:group32:e8m0/floor")
    assert arguments[2:4] == (1.0, torch.float32) and arguments[4] is by


NUMBERS = {"other": 0.3, "exponent": 2.0, "min": -0.5}
SETTINGS = {
    name: {k: v for k, v in NUMBERS.items() if k in FUSED[name].settings}
    for name in f"{ACTIVATIONS} {FUNCTIONS} {NUMBER}".split()
    if not FUSED[name].ulps and name not in ("prelu", "where_scalar", "masked_fill")
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SETTINGS)
def test_equal_bits_are_promised_where_an_elements_place_says_nothing(
    name: str, dtype: torch.dtype
) -> None:
    """Torch's vectors and its code for what is left over give the same, so a table can too."""
    x = torch.linspace(0.1, 9, 7 * 300).to(dtype)
    body, settings = FUSED[name].body, SETTINGS[name]
    pieces = torch.cat([body(each.clone(), **settings) for each in x.split(7)])
    assert bits(body(x, **settings)) == bits(pieces)
