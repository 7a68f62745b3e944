# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/graph/lowering/integers/test_models.py: `accuracy`, `cnn`, `digits`, ….
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import nn


@cache
def digits():
    """Images [n, 1, 8, 8] and labels: for training, then for tests."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(data.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return x[order[:1200]], y[order[:1200]], x[order[1200:]], y[order[1200:]]


class Residual(nn.Module):
    """A basic block of a ResNet."""

    def __init__(self, c, n, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(c, n, 3, stride, 1, bias=False), nn.BatchNorm2d(n)
        self.c2, self.b2 = nn.Conv2d(n, n, 3, 1, 1, bias=False), nn.BatchNorm2d(n)
        same = c == n and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(c, n, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.skip(x))


def resnet():
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 32, 1)]
    stem = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip


class Block(nn.Module):
    """A block of a ViT."""

    def __init__(self, n):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.qkv, self.out = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x):
        heads = (
            each.unflatten(-1, (4, -1)).transpose(1, 2)
            for each in self.qkv(self.n1(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class ViT(nn.Module):
    """Patches of 2 x 2, two blocks, their mean."""

    def __init__(self, n=48):
        super().__init__()
        self.patch, self.places = nn.Conv2d(1, n, 2, 2), nn.Parameter(torch.randn(1, 16, n) * 0.02)
        self.blocks, self.norm, self.fc = (
            nn.Sequential(Block(n), Block(n)),
            nn.LayerNorm(n),
            nn.Linear(n, 10),
        )

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.places
        return self.fc(self.norm(self.blocks(x)).mean(1))


def fit(model, steps, rate, size):
    """Steps of AdamW with `size` digits each."""
    x, y, *_ = digits()
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    for _ in range(steps):
        some = torch.randint(0, len(y), (size,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[some]), y[some]).backward()
        optimizer.step()


def trained(model, steps):
    torch.manual_seed(0)
    fit(model, steps, 2e-3, 128)
    return model.eval()


@torch.no_grad()
def accuracy(model):
    *_, x, y = digits()
    return 100 * (model(x).argmax(1) == y).float().mean().item()
