"""Why a layer cannot be quantized."""

import warnings

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.kinds import quantized_class
from blockscale.layers.linear import QLinear
from blockscale.layers.reasons import looks_like_a_layer, why_not_layer, why_not_weight


def test_lazy_modules_are_skipped_as_such() -> None:
    for lazy in (nn.LazyLinear(3), nn.LazyConv2d(3, 1)):
        with pytest.warns(UserWarning, match=r"1: skipped, .*(lazy|no data|initialized)"):
            bs.quantize_(nn.Sequential(nn.Linear(4, 4), lazy), "int8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ledger = bs.quantize_(nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d()), "int8")
    assert ledger["0"].status == "quantized"


class Sub(nn.Linear):
    """A subclass of a layer that is replaced."""


def replaced_forward() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.forward = lambda x: x
    return layer


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Linear(2, 2), None),
        (Sub(2, 2), "Sub is a subclass: a quantized layer would replace what it adds"),
        (nn.Bilinear(2, 2, 2), "there is no quantized Bilinear"),
        (nn.LazyLinear(2), "it is lazy and its weight holds no data: run the model once first"),
        (replaced_forward(), "its forward was replaced on the instance"),
        (nn.Embedding(2, 2, max_norm=1.0), "its max_norm changes the weight at every call"),
    ],
)
def test_layers(module: nn.Module, reason: str | None) -> None:
    model = nn.Sequential(module)
    assert looks_like_a_layer(module)
    found = why_not_layer(model, module, ["0"], quantized_class(module))
    assert found is None if reason is None else found.startswith(reason)


def test_layers_inside_what_reads_their_weights() -> None:
    attention = nn.MultiheadAttention(4, 2)
    layer = attention.out_proj
    plain = nn.Sequential(nn.Linear(4, 4))
    assert why_not_layer(plain, plain[0], ["0"], QLinear) is None
    model = nn.Sequential(attention)
    told = why_not_layer(model, layer, ["0.out_proj"], QLinear)
    assert told == "MultiheadAttention reads its weight without calling it"


def test_what_is_no_layer_of_weights() -> None:
    for module in (nn.ReLU(), nn.LayerNorm(2), nn.BatchNorm2d(2), nn.Sequential()):
        assert not looks_like_a_layer(module)


@pytest.mark.parametrize(
    ("weight", "fmt", "reason"),
    [
        (torch.ones(4, 4), "int8", None),
        (torch.ones(4, 4, dtype=torch.bfloat16), "int8", None),
        (None, "int8", "its weight is computed (weight_norm, pruning, parametrization)"),
        (torch.ones(4, 4, device="meta"), "int8", "its weight holds no data (meta device)"),
        (torch.ones(4, 4).double(), "int8", "its weight is float64; formats take float32, bf"),
        (torch.ones(4, 4), "int8:channel2:fp32", "block 'channel2' needs dimension 2"),
    ],
)
def test_weights(weight: torch.Tensor | None, fmt: str, reason: str | None) -> None:
    found = why_not_weight(weight, "plain", bs.parse(fmt))
    assert found is None if reason is None else found.startswith(reason)


def test_the_layout_decides_which_dimensions_there_are() -> None:
    kernel, fmt = torch.ones(4, 3, 2, 2), bs.parse("int8:channel2:fp32")
    assert why_not_weight(kernel, "plain", fmt) is None
    assert "needs dimension 2" in why_not_weight(kernel, "channels_last", fmt)  # [4, 12]
