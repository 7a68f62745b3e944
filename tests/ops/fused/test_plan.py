# SPDX-License-Identifier: BSD-3-Clause
"""What every fused op has from its body: symbolic sizes, opcheck, compile, export, no gradient.

And the activations that products end in; test_products.py compares each with torch's own.
"""

import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.kernels.numbers import ACTIVATIONS
from blockscale.ops import primitives as P
from blockscale.ops.fused import FUSED, Fused
from blockscale.ops.fused.plan import KEPT, RESIDUAL_LAYER_NORM, RESIDUAL_RMS_NORM, activate
from tests.support.fused_cases import FORMATS as FUSED_CASES_FORMATS
from tests.support.fused_cases import RESULTS, Case, cases_of, coded, decoded, encoded, quantizer_of
from tests.support.op_samples import bits
from tests.support.some import crossed

CHOSEN = Quantizer(None, None, None, "bfp8")
FORMATS = ("mxfp8", "", "uint8:tensor:fp32:asym", "nvfp4")


ROWS = [
    pytest.param(name, case, id=f"{name}-{i}", marks=[pytest.mark.slow] * (i > 0))
    for name in sorted(FUSED)
    for i, case in enumerate(cases_of(name))
    if case.rows
]


class Inside(nn.Module):
    """Floats are quantized, go through the op, and come out as codes and floats."""

    def __init__(self, fused: Fused, case: Case, by: Quantizer):
        super().__init__()
        self.fused, self.by = fused, by
        settings = case.given(torch.float32)
        self.plain = {k: v for k, v in settings.items() if not isinstance(v, Tensor)}
        self.names = [k for k, v in settings.items() if isinstance(v, Tensor)]
        for name in self.names:
            self.register_buffer(f"setting_{name}", settings[name])

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        given = [self.value(x, FORMATS[i % len(FORMATS)]) for i, x in enumerate(tensors)]
        settings = self.plain | {n: getattr(self, f"setting_{n}") for n in self.names}
        made: list[Tensor] = self.fused(*given, dtype=torch.float32, y=self.by, **settings)
        return made

    def value(self, x: Tensor, fmt: str) -> Value:
        if not fmt:
            return Value(x)
        form = parse(fmt)
        codes, *parts = P.choose_quantize(x, str(form), None)
        q = P.from_list(parts, form)
        return Value(codes, q.scale, q.zero_point, q.outer, str(form), x.shape[-1])


@pytest.mark.some(18)
@pytest.mark.parametrize(("name", "case"), ROWS)
def test_any_number_of_rows(name: str, case: Case) -> None:
    """Sizes that are symbols stay symbols, in every result."""
    fused = FUSED[name]
    tensors = case.tensors(torch.float32)
    module = Inside(fused, case, UNQUANTIZED if fused.indices else CHOSEN)
    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = (tuple({0: rows} for _ in tensors),)
    program = torch.export.export(module, tuple(tensors), dynamic_shapes=shapes)
    nodes = [n for n in program.graph.nodes if n.target is fused.op.overload]
    assert len(nodes) == 1
    assert all(isinstance(each.shape[0], torch.SymInt) for each in nodes[0].meta["val"])
    again = program.module()
    for count in (tensors[0].shape[0], 7):
        more = [torch.cat([x] * 4)[:count] for x in tensors]
        assert bits(again(*more)) == bits(module(*more))


CHECKED = (
    *("add", "linear", "conv", "embedding", "sdpa", "layer_norm", "argmax", "cat", "where"),
    *("max_pool2d", "mean", "clamp", "addmm", "batch_norm"),
)


@pytest.mark.slow
@pytest.mark.some(3)
@pytest.mark.parametrize("name", crossed(2, CHECKED))
def test_opcheck(name: str) -> None:
    fused, case = FUSED[name], cases_of(name)[0]
    for formats, result in (
        (FORMATS, "dynamic nvfp4"),
        (FORMATS[1:], "static uint8:tensor:fp32:asym"),
    ):
        tensors = case.tensors(torch.float32)
        given = [coded(x, f) if f else Value(x) for x, f in zip(tensors, formats, strict=False)]
        y = fused(*given, **case.given(torch.float32))[0]
        for by in (UNQUANTIZED, *([] if fused.indices else [quantizer_of(y, result)])):
            flat = fused.flatten(given, case.given(torch.float32), torch.float32, by)
            torch.library.opcheck(fused.op.overload, flat)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["add", "linear", "cat", "softmax"])
def test_compile(name: str) -> None:
    case = cases_of(name)[0]
    module, tensors = Inside(FUSED[name], case, CHOSEN), case.tensors(torch.float32)
    torch._dynamo.reset()
    run = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert bits(run(*tensors)) == bits(module(*tensors))


@pytest.mark.parametrize("name", ["add", "linear", "cat", "layer_norm"])
def test_export_save_load(name: str) -> None:
    case, file = cases_of(name)[0], io.BytesIO()
    module, tensors = Inside(FUSED[name], case, CHOSEN), case.tensors(torch.float32)
    torch.export.save(torch.export.export(module, tuple(tensors)), file)
    file.seek(0)
    assert bits(torch.export.load(file).module()(*tensors)) == bits(module(*tensors))


@pytest.mark.parametrize("name", ["add", "cat"])
def test_no_gradient(name: str) -> None:
    """Forward passes work with parameters; a backward pass says what to do instead."""
    x, y = torch.randn(4, 36, requires_grad=True), torch.randn(4, 36)
    (z,) = FUSED[name](Value(y), Value(x))
    assert z.requires_grad
    with pytest.raises(RuntimeError, match=f"fused_{name} has no gradient: it is for inference"):
        z.sum().backward()
    with torch.no_grad():
        assert not FUSED[name](Value(y), Value(x))[0].requires_grad


def test_results_share_no_memory_with_operands() -> None:
    x = torch.randn(4, 36)
    for name, settings in (("cat", {}), ("sum", {"dim": []}), ("relu", {}), ("mean", {"dim": [0]})):
        (y,) = FUSED[name](Value(x[:1]), **settings)
        assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr(), name


def test_floats_of_another_dtype_are_widened_by_products_alone() -> None:
    half = torch.randn(4, 36).bfloat16()
    with bs.use("reference"):
        product = FUSED["matmul"](Value(half), Value(half.t()), dtype=torch.bfloat16)[0]
        total = FUSED["sum"](Value(half), dtype=torch.bfloat16)[0]
    assert bits(product) == bits((half.float() @ half.t().float()).bfloat16())
    assert bits(total) == bits(half.sum())


def test_float32_bodies_stay_float32_under_autocast() -> None:
    x = coded(torch.randn(4, 36), "mxfp8")
    wanted = FUSED["bmm"](coded(torch.randn(2, 4, 36), "mxfp8"), Value(torch.ones(2, 36, 3)))
    plain = FUSED["softmax"](x, dim=-1)
    with torch.autocast("cpu", torch.bfloat16):
        assert bits(FUSED["softmax"](x, dim=-1)) == bits(plain)
    assert wanted[0].dtype == torch.float32


def test_any_one_kernel_is_asked_and_nothing_is_said(recwarn: pytest.WarningsRecorder) -> None:
    """Composed ops run by the kernels of their parts: no warning of a slow reference."""
    x = torch.randn(4, 36)
    FUSED["mish"](coded(x, "mxfp8"), y=Quantizer(None, None, None, "bfp8"))
    with bs.use("cpu", fallback=True):
        FUSED["mish"](coded(x, "mxfp8"))
    assert not recwarn.list


def test_operands_on_two_devices_are_refused() -> None:
    x = coded(torch.randn(4, 36), "mxfp8")
    with pytest.raises(
        ValueError, match="blockscale::fused_add: its tensors are on several devices, cpu, meta"
    ):
        FUSED["add"](x, Value(torch.empty(4, 36, device="meta")))


def test_a_value_of_codes_is_an_operand() -> None:
    x = coded(torch.randn(4, 36), "nvfp4")
    assert isinstance(x.operand, Operand) and x.operand.shape == (4, 36)


def test_the_activations_of_the_contract() -> None:
    assert [*ACTIVATIONS] == [
        *("", "relu", "relu6", "gelu", "gelu_tanh", "silu", "hardswish", "sigmoid", "tanh")
    ]


def test_no_activation_is_the_tensor_itself() -> None:
    x = torch.randn(3)
    assert activate(x, "") is x


@pytest.mark.parametrize("name", ["gelu", "silu", "sigmoid", "tanh"])
def test_an_activation_computes_in_the_results_dtype(name: str) -> None:
    """As an op behind the product does, whose result was cast to bfloat16 before."""
    x, weight = torch.randn(8, 36), torch.randn(64, 36)
    settings = {"dtype": torch.bfloat16}
    with bs.use("reference"):
        (y,) = FUSED["linear"](Value(x), Value(weight), activation=name, **settings)
        (before,) = FUSED["linear"](Value(x), Value(weight), **settings)
    assert bits(y) == bits(activate(before, name))
    late = activate(torch.nn.functional.linear(x, weight), name).bfloat16()
    assert bits(y) != bits(late)  # this check can fail


def test_an_unknown_activation() -> None:
    with pytest.raises(
        ValueError, match="unknown activation 'GELU'; choose from '', 'relu', 'relu6'"
    ):
        activate(torch.zeros(1), "GELU")


# Residual norms against the plain composition, eager, exported and bad.

SHAPE = (3, 4, 32)
WEIGHT, BIAS = torch.linspace(0.5, 2, 32), torch.linspace(-1, 1, 32)


def layer_norm(a: Value, b: Value, keep: str, dtype: torch.dtype, y: Quantizer) -> list[Tensor]:
    weight, bias = WEIGHT.to(dtype), BIAS.to(dtype)
    found: list[Tensor] = RESIDUAL_LAYER_NORM(a, b, [32], weight, bias, 1e-3, keep, dtype, y)
    return found


@pytest.mark.some(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("keep", KEPT)
def test_the_composition(keep: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, z = torch.randn(SHAPE).to(dtype), torch.randn(SHAPE).to(dtype)
    for i, fmt in enumerate(FUSED_CASES_FORMATS):
        a = coded(x, fmt) if fmt else Value(x)
        b = (
            Value(z)
            if i % 2
            else coded(z, FUSED_CASES_FORMATS[(i + 3) % len(FUSED_CASES_FORMATS)] or "mxfp8")
        )
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


@pytest.mark.slow
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
    with pytest.raises(ValueError, match="keep must be 'norm' or 'sum', got 'all'"):
        layer_norm(x, x, "all", torch.float32, UNQUANTIZED)
    with pytest.raises(ValueError, match="a has a scale and no format"):
        layer_norm(x._replace(scale=torch.ones(1)), x, "sum", torch.float32, UNQUANTIZED)
    with pytest.raises(ValueError, match="its result has a scale and no format"):
        bad = Quantizer(torch.ones(1, 1, 1), None, None, "")
        layer_norm(x, x, "sum", torch.float32, bad)
