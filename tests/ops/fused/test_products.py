# SPDX-License-Identifier: BSD-3-Clause
"""Products, attention and rows of tables against the plain composition and the layers."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Value
from blockscale.core.pack import grouped_layout, to_stored
from blockscale.kernels.numbers import ACTIVATIONS
from blockscale.ops.fused import FUSED, products
from tests.support.fused_cases import Case, check, coded, decoded, every
from tests.support.op_samples import bits


def stored(shape: list[int], transposed: bool, groups: int) -> tuple[int, int]:
    """The shape of the stored weight, which is a matrix."""
    layout = grouped_layout(groups) if transposed else "channels_last"
    return tuple(to_stored(torch.empty(shape), layout).shape)


def plain_conv(
    x: Tensor,
    weight: Tensor,
    *,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int = 1,
    bias: Tensor | None = None,
    transposed: bool = False,
    output_padding: list[int] | None = None,
    activation: str = "",
) -> Tensor:
    """Weights are taken apart by hand, group by group."""
    size, inner = len(shape) - 2, x.movedim(-1, 1)
    name = f"conv{'_transpose' * transposed}{size}d"
    kernel, outputs = shape[2:], weight.shape[0] // groups
    parts = []
    for group in range(groups):
        rows = weight[group * outputs : (group + 1) * outputs]
        part = rows.reshape(outputs, *kernel, -1).movedim(-1, 0 if transposed else 1)
        parts.append(part)
    dense = torch.cat(parts)
    if not transposed:  # strides are part of what torch's choice of an algorithm depends on
        dense = weight.reshape(shape[0], *kernel, shape[1]).movedim(-1, 1)
    more = {"output_padding": output_padding or [0] * size} if transposed else {}
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    y = getattr(F, name)(inner, dense, None if bias is None else bias.float(), **settings, **more)
    return y.movedim(1, -1)


def conv_case(shape: list[int], size: tuple[int, ...], *, groups: int = 1, **more: object) -> Case:
    """A convolution of [2, *size, channels]."""
    rank, transposed = len(shape) - 2, bool(more.get("transposed", False))
    channels = shape[0] if transposed else shape[1] * groups
    settings = {
        "shape": shape, "groups": groups,
        "stride": [2] + [1] * (rank - 1), "padding": [1] * rank, "dilation": [1] * rank, **more,
    }  # fmt: skip
    weight = stored(shape, transposed, groups)
    after = F.relu if more.get("activation") == "relu" else None
    return Case(((2, *size, channels), weight), plain_conv, settings, after=after, rows=False)


LAYERS = [
    nn.Conv1d(8, 6, 3, padding=1),
    nn.Conv2d(8, 6, 3, stride=2, padding=1, groups=2),
    nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
    nn.Conv3d(4, 6, 2),
    nn.ConvTranspose1d(8, 6, 3),
    nn.ConvTranspose2d(8, 6, 3, stride=2, output_padding=1, groups=2),
    nn.ConvTranspose3d(4, 6, 2, bias=False),
]


INDICES = torch.tensor([[3, 0, 7], [7, 7, 1]])
MODES = ("sum", "mean", "max")
BAGS = {"indices": torch.tensor([3, 0, 7, 7, 7, 1]), "offsets": torch.tensor([0, 2, 2])}


def plain_bag(
    weight: Tensor, *, indices: Tensor, offsets: Tensor, mode: int = 0, **more: Any
) -> Tensor:
    weights = more.get("per_sample_weights")
    if weights is not None:
        more["per_sample_weights"] = weights.float()
    return F.embedding_bag(indices, weight, offsets, mode=MODES[mode], **more)


def weighted_bag(dtype: torch.dtype) -> dict[str, Any]:
    return BAGS | {"per_sample_weights": torch.linspace(0.5, 2, 6, dtype=dtype)}


LINEAR = ((4, 36), (20, 36))
TORCH = {
    "relu": F.relu, "relu6": F.relu6, "gelu": F.gelu, "silu": F.silu, "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "": lambda x: x,
}  # fmt: skip


def biased(dtype: torch.dtype) -> dict[str, Tensor]:
    return {"bias": torch.linspace(-2, 2, 20, dtype=dtype)}


def plain_linear(
    x: Tensor, weight: Tensor, *, bias: Tensor | None = None, activation: str = ""
) -> Tensor:
    return F.linear(x, weight, None if bias is None else bias.float())


HEADS = ((2, 3, 5, 20), (2, 3, 7, 20), (2, 3, 7, 12))
SQUARE = ((2, 2, 6, 20),) * 3


def plain_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.float()
    more: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, **more)


def added_mask(dtype: torch.dtype) -> dict[str, Tensor]:
    return {"mask": torch.linspace(-3, 0, 7, dtype=dtype).expand(5, 7)}


CASES: dict[str, list[Case]] = {
    "addmm": [
        Case(((20,), (4, 36), (36, 20)), torch.addmm, rows=False),
        Case(((4, 20), (4, 36), (36, 20)), torch.addmm, {"beta": 0.5, "alpha": -2.0}, rows=False),
    ],
    "baddbmm": [
        Case(((3, 4, 20), (3, 4, 36), (3, 36, 20)), torch.baddbmm),
        Case(((3, 4, 20), (3, 4, 36), (3, 36, 20)), torch.baddbmm, {"beta": 0.5, "alpha": -2.0}),
    ],
    "bmm": [
        Case(((3, 4, 36), (3, 36, 20)), torch.bmm),
    ],
    "conv": [
        conv_case([6, 4, 3], (9,)),
        conv_case([6, 4, 3, 3], (7, 6), bias=torch.linspace(-1, 1, 6)),
        conv_case([6, 2, 3, 3], (7, 6), groups=2, activation="relu"),
        conv_case([6, 1, 3, 3], (7, 6), groups=6, dilation=[2, 1]),
        conv_case([5, 3, 2, 3, 2], (4, 5, 4)),
        conv_case([4, 6, 3], (5,), transposed=True),
        conv_case([4, 6, 3, 3], (5, 4), transposed=True, output_padding=[1, 0]),
        conv_case([6, 2, 3, 3], (5, 4), transposed=True, groups=2, bias=torch.linspace(-1, 1, 4)),
        conv_case([4, 3, 2, 2, 2], (3, 3, 3), transposed=True),
    ],
    "embedding": [
        Case(
            ((9, 36),),
            lambda weight, *, indices: F.embedding(indices, weight),
            {"indices": INDICES},
            rows=False,
        ),
        Case(
            ((9, 20),),
            lambda weight, *, indices: F.embedding(indices, weight),
            {"indices": torch.tensor(4)},
            rows=False,
        ),
    ],
    "embedding_bag": [
        *[Case(((9, 36),), plain_bag, BAGS | {"mode": mode}, rows=False) for mode in range(3)],
        Case(((9, 36),), plain_bag, weighted_bag, rows=False),
        Case(
            ((9, 36),),
            plain_bag,
            BAGS
            | {"include_last_offset": True, "padding_idx": 7, "offsets": torch.tensor([0, 2, 6])},
            rows=False,
        ),
    ],
    "linear": [
        Case(LINEAR, plain_linear, rows=False),
        Case(((2, 3, 36), (20, 36)), plain_linear, biased, rows=False),
        *[
            Case(LINEAR, plain_linear, {"activation": name}, after=run, rows=False, name=name)
            for name, run in TORCH.items()
        ],
    ],
    "matmul": [
        Case(((4, 36), (36, 20)), torch.matmul, rows=False),
        Case(((2, 3, 4, 36), (3, 36, 20)), torch.matmul, rows=False),
        Case(((36,), (36,)), torch.matmul, rows=False, name="vectors"),
    ],
    "sdpa": [
        Case(HEADS, plain_sdpa),
        Case(
            HEADS, plain_sdpa, {"mask": torch.arange(7).expand(5, 7) < 5, "scale": 0.5}, name="seen"
        ),
        Case(HEADS, plain_sdpa, added_mask, name="added"),
        Case(SQUARE, plain_sdpa, {"causal": True}, name="causal"),
        Case(
            ((2, 4, 5, 20), (2, 2, 5, 20), (2, 2, 5, 20)),
            plain_sdpa,
            {"enable_gqa": True},
            name="shared",
        ),
    ],
}


LONG = {name: CASES[name] for name in ("conv", "linear")}


@every({name: cases for name, cases in CASES.items() if name not in LONG}, 12)
def test_the_composition(name: str, case: Case, dtype: torch.dtype) -> None:
    check(name, case, dtype)


@pytest.mark.slow
@pytest.mark.some(12)
@every(LONG)
def test_the_composition_of_many_cases(name: str, case: Case, dtype: torch.dtype) -> None:
    check(name, case, dtype)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("fmt", ["int8_channel", "mxfp8"])
def test_as_the_layers_compute(layer: nn.Module, fmt: str) -> None:
    model = nn.Sequential(layer)
    shape, transposed = list(layer.weight.shape), "Transpose" in type(layer).__name__
    x = torch.randn(2, layer.in_channels, *[6] * (len(shape) - 2))
    model = copy.deepcopy(model)
    bs.quantize_(model, bs.Recipe(fmt, "mxfp8"))
    weight = model[0].weight
    size = weight.tensor.shape[-1]
    settings = {
        "shape": shape, "stride": [*layer.stride], "padding": [*layer.padding],
        "dilation": [*layer.dilation], "groups": layer.groups, "transposed": transposed,
        "output_padding": [*layer.output_padding],
    }  # fmt: skip
    given = Value(weight.codes, weight.scale, None, None, str(weight.tensor.format), size)
    with bs.use("reference"):
        wanted = model(x)
        last = coded(x.movedim(1, -1), "mxfp8")
        (found,) = FUSED["conv"](last, given, bias=model[0].bias, **settings)
    if transposed:  # torch sums by strides, which layers take from x; codes lie with channels last
        torch.testing.assert_close(found.movedim(-1, 1), wanted, rtol=0, atol=1e-5)
    else:
        assert bits(found.movedim(-1, 1)) == bits(wanted)


def test_only_rows_are_dequantized(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    rows_of = products.rows_of
    watched = SimpleNamespace(run=lambda *args: asked.append(args) or rows_of.run(*args))
    monkeypatch.setattr(products, "rows_of", watched)
    FUSED["embedding"](coded(torch.randn(9, 36), "mxfp8"), indices=INDICES)
    FUSED["embedding"](Value(torch.randn(9, 36)), indices=INDICES)
    assert len(asked) == 1


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
    with pytest.raises(ValueError, match="unknown activation 'swish'; choose from '', 'relu'"):
        FUSED["linear"](x, weight, activation="swish")


def test_widens_its_floats_and_stays_float32_under_autocast() -> None:
    x, weight = torch.randn(4, 36), coded(torch.randn(20, 36), "int8:channel0:fp32")
    wanted = F.linear(x, decoded(weight, torch.float32))
    with torch.autocast("cpu", torch.bfloat16), bs.use("reference"):
        found = FUSED["linear"](Value(x), weight, y=UNQUANTIZED)
    assert bits(found) == bits(wanted)
