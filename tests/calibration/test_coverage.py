# SPDX-License-Identifier: BSD-3-Clause
"""Coverage: what each layer sees, counted by hand."""

import json

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.batches import Coverage, DataCounts, coverage


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(10, 4), nn.Conv1d(4, 4, 3, padding=1)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.alias = self.experts[0]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.conv(self.table(ids).movedim(1, -1)).movedim(1, -1)
        x = self.alias(self.experts[0](x))
        return self.experts[1](x[:, :0])  # an expert that is called with no rows


def test_counts() -> None:
    model = Experts()
    found = coverage(model, [torch.zeros(2, 5, dtype=torch.int64), torch.zeros(3, 5).long()])
    assert found.layers == {
        "table": DataCounts(2, 25),
        "conv": DataCounts(2, 25),
        "experts.0": DataCounts(4, 50),
        "experts.1": DataCounts(2, 0),
        "experts.2": DataCounts(0, 0),
    }
    assert found.unseen == ("experts.1", "experts.2")
    assert found.batches == 2
    assert json.loads(json.dumps(found.to_dict()))["layers"]["conv"] == {"calls": 2, "rows": 25}
    lines = str(found).splitlines()
    assert lines[4].split() == ["experts.2", "0", "calls", "0", "rows", "no", "data"]
    assert lines[5] == "5 layers, 2 saw no data in 2 batches"
    with pytest.raises(bs.SkippedError, match=r"strict: 2 of 5 layers saw no data in 2 batches"):
        found.raise_if_unseen()
    assert not any(m._forward_hooks for m in model.modules())


def test_only_what_the_recipe_covers() -> None:
    recipe = bs.Recipe("int8", skip=["experts"])
    found = coverage(Experts(), [torch.zeros(2, 5).long()], recipe)
    assert list(found.layers) == ["table", "conv"]
    found.raise_if_unseen()
    assert str(Coverage()) == "0 layers, 0 saw no data in 0 batches"
