# SPDX-License-Identifier: BSD-3-Clause
"""Small models for the tests of training."""

import torch
from torch import Tensor, nn


class Conv1D(nn.Module):
    """As transformers' Conv1D, whose weight is [in, out]: the name and module are what count."""

    def __init__(self, nf: int, nx: int):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.randn(nx, nf) / nx**0.5)
        self.bias = nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(
            *x.size()[:-1], self.nf
        )


Conv1D.__module__ = "transformers.pytorch_utils"


class Mixed(nn.Module):
    """Every kind of layer, two of them with batch norms, in a forward that torch.fx can trace."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 24, padding_idx=0)
        self.conv1 = nn.Conv1d(24, 20, 3, padding="same")
        self.norm1 = nn.BatchNorm1d(20, eps=1e-3, momentum=0.2)
        self.conv2 = nn.Conv2d(1, 6, 3, stride=2, bias=False, padding=1, padding_mode="reflect")
        self.norm2 = nn.BatchNorm2d(6)
        self.transposed = Conv1D(18, 48)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(18, 5)

    def forward(self, indices: Tensor) -> Tensor:
        """indices [batch, 16] -> [batch, 10, 5]."""
        x = torch.relu(self.norm1(self.conv1(self.embedding(indices).transpose(1, 2))))
        x = torch.relu(self.norm2(self.conv2(x[:, None])))
        x = self.transposed(x.permute(0, 2, 1, 3).flatten(2))
        return self.last(self.drop(torch.tanh(x)))


def batch(seed: int = 0, size: int = 3) -> Tensor:
    """indices [size, 16]."""
    return torch.randint(0, 11, (size, 16), generator=torch.Generator().manual_seed(seed))


def cnn() -> nn.Sequential:
    """x [batch, 3, 8, 8] -> [batch, 10]."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 10),
    )


def train(model: nn.Module, inputs: list[Tensor], rate: float = 0.05) -> list[float]:
    """One step of SGD for each input; the losses."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), rate)
    losses = []
    for x in inputs:
        optimizer.zero_grad()
        loss = (model(x).float() - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
