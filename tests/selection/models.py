# SPDX-License-Identifier: BSD-3-Clause
"""Small models to search."""

import torch
from torch import nn

CANDIDATES = ("int2:group16:fp16", "int4:group16:fp16", "int8:group16:fp16")


def mlp() -> nn.Sequential:
    """Three layers of different sizes and importance."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 8)
    )
    with torch.no_grad():
        model[0].weight.mul_(torch.logspace(0, 1, 16))
    return model.eval()


def batches() -> list[tuple[torch.Tensor]]:
    """Two batches of the MLP's inputs."""
    torch.manual_seed(4)
    return [(torch.randn(5, 16),), (torch.randn(3, 16),)]


class Tied(nn.Module):
    """A table that is the output's weight as well, and a parameter of no layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(24, 16)
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.table.weight
        self.loose = nn.Parameter(torch.randn(16, 16))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.table(ids)) @ self.loose)
