"""Convolutions with channels last, plain and transposed, in groups, as torch and as the layers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.layout import grouped_layout, to_stored
from blockscale.core.operand import Value
from blockscale.ops.fused import FUSED
from tests.ops.fused.cases import Case, check, coded, every
from tests.ops.samples import bits


def stored(shape: list[int], transposed: bool, groups: int) -> tuple[int, int]:
    """The shape of the stored weight, which is a matrix."""
    layout = grouped_layout(groups) if transposed else "channels_last"
    return tuple(to_stored(torch.empty(shape), layout).shape)


def plain(
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


def case(shape: list[int], size: tuple[int, ...], *, groups: int = 1, **more: object) -> Case:
    """A convolution of [2, *size, channels]."""
    rank, transposed = len(shape) - 2, bool(more.get("transposed", False))
    channels = shape[0] if transposed else shape[1] * groups
    settings = {
        "shape": shape, "groups": groups,
        "stride": [2] + [1] * (rank - 1), "padding": [1] * rank, "dilation": [1] * rank, **more,
    }  # fmt: skip
    weight = stored(shape, transposed, groups)
    after = F.relu if more.get("activation") == "relu" else None
    return Case(((2, *size, channels), weight), plain, settings, after=after, rows=False)


CASES = [
    case([6, 4, 3], (9,)),
    case([6, 4, 3, 3], (7, 6), bias=torch.linspace(-1, 1, 6)),
    case([6, 2, 3, 3], (7, 6), groups=2, activation="relu"),
    case([6, 1, 3, 3], (7, 6), groups=6, dilation=[2, 1]),
    case([5, 3, 2, 3, 2], (4, 5, 4)),
    case([4, 6, 3], (5,), transposed=True),
    case([4, 6, 3, 3], (5, 4), transposed=True, output_padding=[1, 0]),
    case([6, 2, 3, 3], (5, 4), transposed=True, groups=2, bias=torch.linspace(-1, 1, 4)),
    case([4, 3, 2, 2, 2], (3, 3, 3), transposed=True),
]


@pytest.mark.some(3)
@every(CASES)
def test_conv(case: Case, dtype: torch.dtype) -> None:
    check("conv", case, dtype)


LAYERS = [
    nn.Conv1d(8, 6, 3, padding=1),
    nn.Conv2d(8, 6, 3, stride=2, padding=1, groups=2),
    nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
    nn.Conv3d(4, 6, 2),
    nn.ConvTranspose1d(8, 6, 3),
    nn.ConvTranspose2d(8, 6, 3, stride=2, output_padding=1, groups=2),
    nn.ConvTranspose3d(4, 6, 2, bias=False),
]


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
