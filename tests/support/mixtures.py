# SPDX-License-Identifier: BSD-3-Clause
"""Small mixtures of experts, of stacks and of lists, that route alike and have the same weights."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.layers.store import all_held

K, N, EXPERTS = 32, 32, 4


class Mixture(nn.Module):
    """Each token goes to the expert with the largest logit; `order`: of experts, for permuting."""

    def __init__(self, order: Sequence[int] = range(EXPERTS), *, seed: int = 0, bias: float = 0.0):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        up = torch.randn(EXPERTS, N, K, generator=draw) * 0.2
        down = torch.randn(EXPERTS, K, N, generator=draw) * 0.2
        gate = torch.randn(EXPERTS, K, generator=draw)
        self.order = list(order)
        self.router = nn.Linear(K, EXPERTS)
        self.router.weight = nn.Parameter(gate[self.order])
        offset = torch.zeros(EXPERTS)
        offset[-1] = bias  # -1e9: the last expert gets no token
        self.router.bias = nn.Parameter(offset[self.order])
        self.hold(up[self.order], down[self.order])

    def hold(self, up: Tensor, down: Tensor) -> None:
        """As this kind of mixture has them."""
        raise NotImplementedError

    def expert(self, e: int, x: Tensor) -> Tensor:
        """x [rows, K] through expert e."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, K)
        best = self.router(rows).argmax(-1)
        y = torch.zeros_like(rows)
        for e in range(EXPERTS):
            some = (best == e).nonzero()[:, 0]
            if len(some):
                given = self.expert(e, rows[some])
                y = y.to(given.dtype).index_put((some,), given)
        return x + y.reshape(x.shape)


class OfStacks(Mixture):
    """[E, n, k]."""

    def hold(self, up: Tensor, down: Tensor) -> None:
        self.up, self.down = nn.Parameter(up), nn.Parameter(down)

    def expert(self, e: int, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, self.up[e])), self.down[e])


class Turned(Mixture):
    """[E, k, n]."""

    is_transposed = True

    def hold(self, up: Tensor, down: Tensor) -> None:
        self.up = nn.Parameter(up.mT.contiguous())
        self.down = nn.Parameter(down.mT.contiguous())

    def expert(self, e: int, x: Tensor) -> Tensor:
        return F.silu(x @ self.up[e]) @ self.down[e]


class Expert(nn.Module):
    """One of a list."""

    def __init__(self, up: Tensor, down: Tensor):
        super().__init__()
        self.up, self.down = nn.Linear(K, N, bias=False), nn.Linear(N, K, bias=False)
        self.up.weight, self.down.weight = nn.Parameter(up), nn.Parameter(down)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.silu(self.up(x)))
        return y


class OfLists(Mixture):
    """A list of modules."""

    def hold(self, up: Tensor, down: Tensor) -> None:
        self.experts = nn.ModuleList(Expert(u, d) for u, d in zip(up, down, strict=True))

    def expert(self, e: int, x: Tensor) -> Tensor:
        y: Tensor = self.experts[e](x)
        return y


def model(kind: type[Mixture], layers: int = 1, **settings: object) -> nn.Sequential:
    """Mixtures one after another, in evaluation mode."""
    some = [kind(seed=i, **settings) for i in range(layers)]  # type: ignore[arg-type]
    return nn.Sequential(*some).eval()


def batches(count: int = 3, tokens: int = 150) -> list[Tensor]:
    """Inputs whose features are alike, as those of models are."""
    draw = torch.Generator().manual_seed(7)
    mix = torch.randn(K, K, generator=draw)
    return [torch.randn(1, tokens, K, generator=draw) @ mix for _ in range(count)]


def stack_values(quantized: nn.Module, name: str) -> Tensor:
    """[E, n, k] of a stack, or of the same layer of all experts of a list."""
    held = dict(all_held(quantized))
    if name in held:
        values = held[name].dequantize()
        return values.mT if held[name].layout == "transposed" else values
    owner, _, last = name.rpartition(".")
    layers = [quantized.get_submodule(f"{owner}.experts.{e}.{last}") for e in range(EXPERTS)]
    return torch.stack([layer.dequantize_weight() for layer in layers])  # type: ignore[operator]
