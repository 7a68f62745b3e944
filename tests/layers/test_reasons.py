# SPDX-License-Identifier: BSD-3-Clause
"""Why a layer cannot be quantized."""

import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import blockscale as bs
from blockscale.core.integer_scales import why_no_integers, why_no_sums, why_no_weights
from blockscale.layers.decisions import (
    looks_like_a_layer,
    read_by_parent,
    why_not_bias,
    why_not_layer,
    why_not_weight,
)
from blockscale.layers.kinds import QLinear, quantized_class


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


class Upsampling(nn.ConvTranspose3d):
    """Another one."""


class Named(nn.Linear):
    """One with an attribute that every quantized layer has."""

    def prepare_input(self) -> None: ...


QCONFIG = torch.ao.quantization.get_default_qat_qconfig()


def replaced_forward() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.forward = lambda x: x
    return layer


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Linear(2, 2), None),
        (Sub(2, 2), None),
        (
            Named(2, 2),
            "Named is a subclass with attributes that quantized layers need",
        ),
        (parametrizations.orthogonal(nn.Linear(2, 2)), "its weight is computed (weight_norm,"),
        (torch.ao.nn.qat.Linear(2, 2, qconfig=QCONFIG), "Linear has no quantized form"),
        (nn.ConvTranspose1d(2, 2, 2), None),
        (Upsampling(2, 2, 2), None),
        (nn.LazyConvTranspose2d(2, 2), "it is lazy and its weight holds no data"),
        (nn.LazyLinear(2), "it is lazy and its weight holds no data: run the model once first"),
        (replaced_forward(), "its forward was replaced on the instance"),
        (nn.Embedding(2, 2, max_norm=1.0), "its max_norm changes the weight at every call"),
    ],
)
def test_layers(module: nn.Module, reason: str | None) -> None:
    assert looks_like_a_layer(module)
    found = why_not_layer(module, quantized_class(module))
    assert found is None if reason is None else found.startswith(reason)


def test_layers_inside_what_reads_their_weights() -> None:
    attention = nn.MultiheadAttention(4, 2)
    layer = attention.out_proj
    plain = nn.Sequential(nn.Linear(4, 4))
    assert why_not_layer(layer, QLinear) is None
    assert read_by_parent(plain, ["0"]) == ""
    assert read_by_parent(nn.Sequential(attention), ["0.out_proj"]) == "MultiheadAttention"


def test_what_is_no_layer_of_weights() -> None:
    others = (nn.Bilinear(2, 2, 2), nn.LSTM(2, 2), nn.GRUCell(2, 2))  # of parameters, not of layers
    for module in (nn.ReLU(), nn.LayerNorm(2), nn.BatchNorm2d(2), nn.Sequential(), *others):
        assert not looks_like_a_layer(module)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (torch.ones(4, 4), ""),
        (torch.ones(4, 4, dtype=torch.bfloat16), ""),
        (None, "its weight is computed (weight_norm, pruning, parametrization)"),
        (torch.ones(4, 4, device="meta"), "its weight holds no data (meta device)"),
        (torch.ones(4, 4).double(), "its weight is float64; only float32, bf"),
        (torch.ones(4, 4).to_sparse(), "its weight is sparse (sparse_coo): make it dense"),
    ],
)
def test_weights(weight: torch.Tensor | None, reason: str) -> None:
    found = why_not_weight(weight)
    assert found.startswith(reason) if reason else not found


@pytest.mark.parametrize(
    ("taken", "weight", "words"),
    [
        ("int8", "int8_channel", None),
        ("uint8", "int4:tensor:fp16", None),  # zero points are the sums' business
        ("int16:tensor:pow2/nearest", "ternary", None),
        ("int8", "binary", None),
        ("int8", "int4:group12:fp32", None),  # one group is the whole row
        ("int8", "uint4:channel0:(uint8:tensor:fp32):asym", None),
        (
            None,
            "int8",
            "its input has no format, so its sums have no step: set one like 'int8:tensor:fp32'",
        ),
        ("fp8", "int8", "its input is e4m3:tensor:fp32, whose codes are not integers"),
        (
            "int8",
            "mxfp4",
            "its weight is e2m1:group32:e8m0/floor, whose codes are n",
        ),
        (
            "int8",
            "uint4:channel0:fp32:asym(fp16)",
            "whose zero points of type fp16 are not integers",
        ),
        (
            "int8:tensor:fp32:offset",
            "int8",
            "its input is .*, whose offsets are not whole steps: use 'asy",
        ),
        ("int8", "iq4_nl:channel0:fp32", "whose codes are n"),
        ("int8", "int8:flat12:fp32", "use the block 'channel0' or 'tensor'"),
        ("int8", "int8:channel0:fp16:signed", None),
        ("int8", "log4", None),
        ("int8", "log2:tensor:fp32", None),
        ("int8", "apot5:channel0:fp32", None),
        ("int8", "log8f3:channel0:fp32", "its weight is log8f3.* nor powers of two: use integers"),
        (
            "log4:tensor:fp32",
            "int8",
            "its input is log4:tensor:fp32, whose codes are not integers",
        ),
        (
            "int8_token",
            "int8",
            r"input is int8:token:fp32, the sum of one output .* use the block 'tensor'",
        ),
        ("int8:channel-1:fp32", "int8", "use the block 'tensor'"),
        ("int8", "int4:group4:fp32", r"weight is int4:group4:fp32, .* 'channel0' or 'tensor'"),
        ("int8", "int8:channel1:fp32", "use the block 'channel0' or 'tensor'"),
    ],
)
def test_which_sums_have_steps(taken: str | None, weight: str, words: str | None) -> None:
    reason = why_no_sums(taken and bs.parse(taken), bs.parse(weight), (5, 12))
    if words is None:
        assert reason is None
    else:
        assert reason is not None

        assert re.search(words, reason), reason


def test_biases() -> None:
    """A format that is given and not chosen cannot be chosen for a bias either."""
    scheme = bs.Recipe("int8", bias="int8:tensor:pow2/given").default
    assert "its scale pow2/given must be supplied" in why_not_bias(torch.ones(3), scheme, (3, 4))
    assert why_not_bias(None, scheme, (3, 4)) == ""
    plain = bs.Recipe("int8", bias="int8").default
    assert why_not_bias(torch.ones(3), plain, (3, 4)) == ""
    assert "float64" in why_not_bias(torch.ones(3).double(), plain, (3, 4))
    assert why_no_integers(bs.parse("uint4:group32:fp32:asym")) is None
    assert why_no_weights(bs.parse("log8:group32:fp32")) is None
    assert "of type fp16" in str(why_no_weights(bs.parse("uint4:channel0:fp32:asym(fp16)")))
