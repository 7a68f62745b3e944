# SPDX-License-Identifier: BSD-3-Clause
"""A small block and its calls, as learned rounding is given them."""

import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.block_calls import BlockCall, BlockTask
from blockscale.layers.assembly import Supplied
from blockscale.layers.plan import Plan, plan_layers

FORMATS = [
    "int4:group8:fp32", "int4:tensor:fp32", "int3:channel0:fp16", "int2:group8:bf16:full",
    "uint4:group8:fp32:asym", "uint3:group8:fp16:asym(fp16)", "int4:group8:fp32:offset(fp16)",
    "int4:group8:fp32:signed", "int4:group8:fp32:half:recip", "mxfp4", "nvfp4",
    "e2m1:group8:pow2/ceil", "e2m1:group8:(e4m3:group4@0:fp32)", "e3m2:group5:fp32",
    "uint4:group8:e4m3:asym", "int4:group5@0:fp32", "int4:tile4x8:fp32", "int4:flat12:fp32",
    "int4:flat64@0:fp32", "nf4:group8:fp32", "fp4:group8:fp32", "log4:group8:fp32",
    "apot4:group8:fp32", "ternary:group8:fp32", "binary:group8:fp32", "book3:group8:fp32",
    "int4:group8:pow2/nearest:asym", "int4:group8:fp32:toward_zero", "int12:group8:fp32",
]  # fmt: skip


class Net(nn.Module):
    """Two linear layers with a residual, as [rows, places, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, str]:
        y = x + self.down(self.up(x).relu())
        return (y if mask is None else y * mask), "and what is no tensor"


def task_of(
    recipe: str | bs.Recipe, rows: tuple[int, ...] = (2, 2, 2, 2), places: int = 12, seed: int = 0
) -> BlockTask:
    """A task of calls with so many rows each, whose inputs are correlated."""
    torch.manual_seed(seed)
    holder = nn.Module()
    holder.block = Net().eval()
    plans = [p for p in plan_layers(holder, bs.Recipe.read(recipe)) if isinstance(p, Plan)]
    mixing = torch.randn(16, 16) * torch.logspace(0, -1, 16)
    calls = [BlockCall((torch.randn(n, places, 16) @ mixing,), {}) for n in rows]
    with torch.no_grad():
        targets = [holder.block(*call.args)[0] for call in calls]
    places_of = {plan.name: Supplied() for plan in plans}
    return BlockTask("block", holder.block, plans, places_of, calls, targets)


def weights_of(task: BlockTask) -> dict[str, Tensor]:
    return {plan.name: plan.parameter.detach().clone() for plan in task.plans}
