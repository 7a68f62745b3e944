# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/layers/test_plan.py: `Tied`."""

from torch import nn


class Tied(nn.Module):
    """A table and a layer with one weight, and a layer of their own shape."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(8, 4), nn.Linear(4, 8)
        self.head.weight = self.table.weight
        self.alone = nn.Linear(4, 8, bias=False)
