# SPDX-License-Identifier: BSD-3-Clause
"""Blocks that are built when they are done: parameters of no layer as well."""

import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.walk.settle import streamed
from tests.calibration.walk.networks import Gram, same_state


class Block(nn.Module):
    """A layer, and a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.matrix = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) @ self.matrix


def test_matrices_of_no_layer_are_quantized_too() -> None:
    torch.manual_seed(0)
    loaded = nn.Sequential(*(Block() for _ in range(3)))
    state = {name: tensor.clone() for name, tensor in loaded.state_dict().items()}
    with torch.device("meta"):
        model = nn.Sequential(*(Block() for _ in range(3)))
    batches = [torch.randn(4, 16)]
    recipe = bs.Recipe("int4:group8:fp32", rules={"*.matrix": "int8_channel"})
    calibrate(loaded, batches, recipe, weight=Gram(), progress=False)
    calibrate(model, batches, recipe, weight=Gram(), progress=False, source=state)
    assert same_state(loaded, model)
    assert "0.matrix.codes" in model.state_dict()
    assert torch.equal(loaded(batches[0]), model(batches[0]))


def test_without_a_source_nobody_settles() -> None:
    with streamed(nn.Linear(2, 2), None, None) as settler:
        assert settler is None
