# SPDX-License-Identifier: BSD-3-Clause
"""Small transformers with blocks that count their calls, and a block algorithm."""

from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.block_calls import BlockTask
from blockscale.core.pack import to_stored

GROUPS = "int4:group8:fp32"
CALLS: Counter[str] = Counter()


class Attention(nn.Module):
    """Query, key and value side by side, and what comes after them."""

    def __init__(self, width: int):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


class Feed(nn.Module):
    """Two layers."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """One of many; it gives a tuple."""

    def __init__(self, width: int):
        super().__init__()
        self.attention, self.feed = Attention(width), Feed(width)
        self.norm = nn.LayerNorm(width)
        self.number = -1

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> tuple[Tensor, None]:
        CALLS[f"{self.number}"] += 1
        x = x + self.attention(self.norm(x), mask)
        return x + self.feed(x), None


class Decoder(nn.Module):
    """A table, blocks that share one mask, a head."""

    def __init__(self, blocks: int, width: int = 16):
        super().__init__()
        self.table = nn.Embedding(20, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))
        for number, block in enumerate(self.layers):
            block.number = number
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        for layer in self.layers:
            x = layer(x, mask=mask)[0]
        return self.head(self.norm(x))


def decoder(blocks: int, kind: type[Decoder] = Decoder) -> Decoder:
    torch.manual_seed(0)
    CALLS.clear()
    return kind(blocks).eval()


def ids(count: int = 3, length: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(20, (2, length), generator=generator) for _ in range(count)]


class Plain:
    """A block algorithm: plain rounding, and it remembers its tasks."""

    name = "plain"

    def __init__(self, *, needs_gram: bool = True, notes: bool = False):
        self.needs_gram, self.notes = needs_gram, notes
        self.tasks: list[dict[str, Any]] = []

    def quantize_block(self, task: BlockTask) -> dict[str, Any]:
        with torch.no_grad():
            gave = [task.module(*call.args, **call.kwargs) for call in task.calls]
        self.tasks.append(
            {
                "name": task.name,
                "plans": [plan.name for plan in task.plans],
                "inputs": [call.args[0] for call in task.calls],
                "gave": [y[0] if isinstance(y, tuple) else y for y in gave],
                "targets": list(task.targets),
                "grams": dict(task.grams),
                "seed": task.seed,
            }
        )
        made = {}
        for plan in task.plans:
            stored = to_stored(plan.parameter.detach(), plan.layout)
            made[plan.name] = (
                bs.quantize(stored, plan.format),
                [f"noted of {plan.name}"] * self.notes,
            )
        return made


class Gram:
    """A weight algorithm that wants to know the inputs, and rounds plainly."""

    name, needs_gram = "gram", True

    def quantize(self, weight: Tensor, fmt: bs.Format, gram: Any, layer: str) -> Any:
        assert gram is not None or layer == "table", layer
        return bs.quantize(weight, fmt), []


def same_state(a: nn.Module, b: nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
