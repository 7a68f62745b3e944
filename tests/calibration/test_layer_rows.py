# SPDX-License-Identifier: BSD-3-Clause
"""The rows of a layer's input are what its stored weight is multiplied with."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.layer_rows import rows_of, seen_by
from blockscale.core.layout import to_stored
from blockscale.layers.plan import plan_layers

CONVS = [
    nn.Conv2d(3, 5, 3, padding=1),
    nn.Conv2d(3, 5, (2, 3), stride=(2, 1), dilation=(1, 2)),
    nn.Conv2d(3, 5, 3, padding="same", padding_mode="reflect"),
    nn.Conv2d(3, 5, 2, padding=1, padding_mode="circular"),
    nn.Conv1d(3, 5, 3, padding=2, stride=2, dilation=2),
    nn.Conv1d(3, 5, 3, padding="same", padding_mode="replicate"),
    nn.Conv3d(3, 5, (2, 3, 1), stride=(1, 2, 2), padding=(1, 0, 1), dilation=(2, 1, 1)),
    nn.Conv3d(3, 5, 3, padding="same", padding_mode="circular"),
]
TRANSPOSED = [
    nn.ConvTranspose1d(3, 5, 3),
    nn.ConvTranspose1d(3, 5, 4, stride=3, padding=2, output_padding=1),
    nn.ConvTranspose2d(3, 5, (3, 2), stride=(2, 1), dilation=(1, 3), padding=(1, 2)),
    nn.ConvTranspose2d(3, 5, 1, stride=2, padding=1, output_padding=1),  # padding beyond the kernel
    nn.ConvTranspose3d(3, 5, (2, 1, 3), stride=2, output_padding=(1, 0, 1)),
]


def image(conv: nn.Module) -> torch.Tensor:
    return torch.randn(2, 3, 7, 9, 5)[(..., *(0,) * (5 - conv.weight.ndim))]


def plan_of(layer: nn.Module):
    [plan] = plan_layers(nn.Sequential(layer), bs.Recipe("int8"))
    return plan


@pytest.mark.parametrize("conv", CONVS, ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_rows_of_a_convolution_give_its_output(conv: nn.Module, batched: bool) -> None:
    """y = rows @ weight.T with the stored weight: torch's own convolution is the oracle."""
    x = image(conv) if batched else image(conv)[0]
    with torch.no_grad():
        y = conv(x)
        rows = torch.cat(list(rows_of(plan_of(conv), x)))
        found = rows @ to_stored(conv.weight, "channels_last").T + conv.bias
        expected = (y if batched else y[None]).movedim(1, -1).flatten(0, -2)
    torch.testing.assert_close(found, expected)
    assert seen_by(plan_of(conv), x).shape[-1] == 3


def test_rows_of_a_linear_are_its_input() -> None:
    x = torch.randn(2, 3, 4, 8, dtype=torch.bfloat16)
    pieces = list(rows_of(plan_of(nn.Linear(8, 2)), x))
    assert [p.dtype for p in pieces] == [torch.float32]
    assert torch.equal(torch.cat(pieces), x.reshape(-1, 8).float())
    assert len(list(rows_of(plan_of(nn.Linear(8, 2)), torch.ones(5000, 8)))) == 2  # bounded pieces


@pytest.mark.parametrize("conv", TRANSPOSED, ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_rows_of_a_transposed_convolution_give_its_output(conv: nn.Module, batched: bool) -> None:
    """Of the size that it has by itself, and of the largest that can be asked for."""
    x, plan = image(conv) if batched else image(conv)[0], plan_of(conv)
    with torch.no_grad():
        usual, dims = conv(x), len(conv.kernel_size)
        parts = zip(usual.shape[-dims:], conv.stride, conv.output_padding, strict=True)
        largest = conv(x, [n + s - 1 - p for n, s, p in parts])
        for y, rows in ((usual, rows_of(plan, x)), (largest, rows_of(plan, x, None, largest))):
            found = torch.cat(list(rows)) @ to_stored(conv.weight, plan.layout).T + conv.bias
            expected = (y if batched else y[None]).movedim(1, -1).flatten(0, -2)
            torch.testing.assert_close(found, expected)
    assert seen_by(plan, x).shape[-1] == 3
    assert seen_by(plan, usual).shape[-1] == 5


def test_what_a_transform_gives_is_what_reaches_the_outputs() -> None:
    """Zeros that a stride leaves stay zeros: they come between after the transform."""
    conv, x = nn.ConvTranspose1d(3, 5, 3, stride=2), torch.randn(2, 3, 4)

    class AddOne(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[-1] == 3
            return x + 1

    for batched in (x, x[0]):
        rows = torch.cat(list(rows_of(plan_of(conv), batched, AddOne())))
        assert torch.equal(rows, torch.cat(list(rows_of(plan_of(conv), batched + 1))))
