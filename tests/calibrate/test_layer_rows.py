"""The rows of a layer's input are what its stored weight is multiplied with."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibrate.layer_rows import rows_of, seen_by
from blockscale.core.layout import to_stored
from blockscale.layers.plan import plan_layers

CONVS = [
    nn.Conv2d(3, 5, 3, padding=1),
    nn.Conv2d(3, 5, (2, 3), stride=(2, 1), dilation=(1, 2)),
    nn.Conv2d(3, 5, 3, padding="same", padding_mode="reflect"),
    nn.Conv2d(3, 5, 2, padding=1, padding_mode="circular"),
    nn.Conv1d(3, 5, 3, padding=2, stride=2, dilation=2),
    nn.Conv1d(3, 5, 3, padding="same", padding_mode="replicate"),
]


def plan_of(layer: nn.Module):
    [plan] = plan_layers(nn.Sequential(layer), bs.Recipe("int8"))
    return plan


@pytest.mark.parametrize("conv", CONVS, ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_rows_of_a_convolution_give_its_output(conv: nn.Module, batched: bool) -> None:
    """y = rows @ weight.T with the stored weight: torch's own convolution is the oracle."""
    x = torch.randn(2, 3, 7, 9)[..., 0] if isinstance(conv, nn.Conv1d) else torch.randn(2, 3, 7, 9)
    x = x if batched else x[0]
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
