"""Linear with bias and activations; the activation computes in the result's dtype."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Value
from blockscale.ops.fused import FUSED
from blockscale.ops.fused.activation import ACTIVATIONS
from tests.ops.fused.cases import Case, check, coded, decoded, every
from tests.ops.samples import bits

SHAPES = ((4, 36), (20, 36))
TORCH = {
    "relu": F.relu, "relu6": F.relu6, "gelu": F.gelu, "silu": F.silu, "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "": lambda x: x,
}  # fmt: skip


def biased(dtype: torch.dtype) -> dict[str, Tensor]:
    return {"bias": torch.linspace(-2, 2, 20, dtype=dtype)}


def plain(x: Tensor, weight: Tensor, *, bias: Tensor | None = None, activation: str = "") -> Tensor:
    return F.linear(x, weight, None if bias is None else bias.float())


CASES = [
    Case(SHAPES, plain, rows=False),
    Case(((2, 3, 36), (20, 36)), plain, biased, rows=False),
    *[
        Case(SHAPES, plain, {"activation": name}, after=run, rows=False, name=name)
        for name, run in TORCH.items()
    ],
]


@pytest.mark.some(3)
@every(CASES)
def test_linear(case: Case, dtype: torch.dtype) -> None:
    check("linear", case, dtype)


def test_every_activation_is_tested() -> None:
    assert TORCH.keys() == ACTIVATIONS.keys()


def test_as_the_layer_computes() -> None:
    """A quantized nn.Linear, an input chosen from x, under the reference."""
    layer = torch.nn.Sequential(torch.nn.Linear(36, 20))
    x = torch.randn(5, 36)
    bs.quantize_(layer, bs.Recipe("int8_channel", "uint8:tensor:fp32:asym"))
    stored = layer[0].weight.tensor
    weight = Value(layer[0].weight.codes, layer[0].weight.scale, None, None, str(stored.format), 36)
    with bs.use("reference"):
        wanted = layer(x)
        found = FUSED["linear"](coded(x, "uint8:tensor:fp32:asym"), weight, bias=layer[0].bias)
    assert bits(found) == bits(wanted)


def test_no_such_activation() -> None:
    x, weight = Value(torch.zeros(2, 4)), Value(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="no activation 'swish'; there are '', 'relu'"):
        FUSED["linear"](x, weight, activation="swish")


def test_widens_its_floats_and_stays_float32_under_autocast() -> None:
    x, weight = torch.randn(4, 36), coded(torch.randn(20, 36), "int8:channel0:fp32")
    wanted = F.linear(x, decoded(weight, torch.float32))
    with torch.autocast("cpu", torch.bfloat16), bs.use("reference"):
        found = FUSED["linear"](Value(x), weight, y=UNQUANTIZED)
    assert bits(found) == bits(wanted)
