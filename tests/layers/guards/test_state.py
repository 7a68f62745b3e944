# SPDX-License-Identifier: BSD-3-Clause
"""A model is put back object by object, its buffers number by number."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.guards.state import Snapshot, buffers_kept


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32)
        self.own = nn.Parameter(torch.randn(32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.fc(x)) @ self.own
        return y


def model() -> Model:
    return Model()


def test_a_snapshot_restores_modules_parameters_and_classes() -> None:
    made = model()
    layer, own, kind, state = made.fc, made.own, type(made), made.state_dict()
    before = Snapshot(made)
    bs.quantize_(made, "int8")
    made.register_buffer("more", torch.ones(3))
    made.said = "by whoever listens to quantize_"
    assert type(made) is not kind
    before.restore()
    assert (made.fc, type(made)) == (layer, kind)
    assert made.own is own
    assert not hasattr(made, "said")
    assert [*made.state_dict()] == [*state]


@pytest.mark.parametrize("fails", [False, True])
def test_buffers_are_kept_whatever_happens(fails: bool) -> None:
    made = model()
    bs.quantize_(made, "int8")
    mean, before = made.norm.running_mean, copy.deepcopy(made.state_dict())
    codes = made.fc.qweight.codes
    try:
        with buffers_kept(made):
            made(torch.randn(4, 32))
            assert not torch.equal(mean, before["norm.running_mean"])
            made.norm.running_mean = torch.full((32,), torch.nan)
            made.norm.num_batches_tracked += 7
            assert made.fc.qweight.codes is codes
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert fails
    assert made.norm.running_mean is mean
    for name, value in before.items():
        assert not isinstance(value, torch.Tensor) or torch.equal(made.state_dict()[name], value)
