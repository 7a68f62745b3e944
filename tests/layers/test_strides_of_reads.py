# SPDX-License-Identifier: BSD-3-Clause
"""What is read of a quantized weight lies in memory as it says, so that views of views work."""

import pytest
import torch
from torch import nn

import blockscale as bs

VIEWS = {
    "t": lambda w: w.t(),
    "permute": lambda w: w.view(8, 4, 64).permute(2, 0, 1),
    "columns": lambda w: w[:, ::2],
    "rows": lambda w: w[2:5],
    "column": lambda w: w.t()[3],
    "einsum": lambda w: torch.einsum("ih,hnd->ind", torch.ones(3, 32), w.view(32, 4, 16)),
    "kernel": lambda w: w.view(32, 64, 1).squeeze(-1).unsqueeze(0),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_those_of_the_floats(name):
    model = nn.Sequential(nn.Linear(64, 32))
    bs.quantize_(model, "mxfp4")
    found, expected = VIEWS[name](model[0].weight), VIEWS[name](model[0].weight.dequantize())
    assert torch.equal(torch.as_tensor(found.reshape(-1)) + 0, expected.reshape(-1))
    assert torch.equal(found.contiguous().view(-1) + 0, expected.contiguous().view(-1))
