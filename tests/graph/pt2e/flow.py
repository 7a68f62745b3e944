# SPDX-License-Identifier: BSD-3-Clause
"""torchao's PT2E flow and the module flow, side by side."""

import copy
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

import blockscale as bs
from blockscale.graph.adoption import adopt
from blockscale.graph.pt2e import pt2e_quantizer
from blockscale.layers.kinds import Conv1D


class Net(nn.Module):
    """A layer of each kind, one of them called twice, and ops without weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(11, 70)
        self.fc = nn.Linear(70, 70)
        self.turned = Conv1D(96, 70)
        self.turned.weight = nn.Parameter(torch.randn(70, 96))
        self.turned.bias = nn.Parameter(torch.randn(96))
        self.conv = nn.Conv2d(4, 6, (2, 3), padding=1, bias=False)
        self.grouped = nn.Conv2d(6, 4, 2, groups=2)
        self.up = nn.ConvTranspose2d(4, 6, 2, groups=2)
        self.last = nn.Linear(96, 5, bias=False)

    def forward(self, tokens: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.table(tokens)
        x = self.fc(torch.relu(self.fc(x))) + x
        x = torch.softmax(self.turned(x), -1)
        y = self.up(torch.relu(self.grouped(self.conv(image))))
        return self.last(x), y


def batches(count: int = 2, rows: int = 3) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [
        (torch.randint(0, 11, (rows, 4)), torch.randn(rows, 4, 5, 6) * (i + 1))
        for i in range(count)
    ]


def exported(model: nn.Module, example: Sequence[Tensor], free: bool = True) -> fx.GraphModule:
    batch = torch.export.Dim("batch", min=2)
    sizes = tuple({0: batch} for _ in example) if free else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.export.export(model, tuple(example), dynamic_shapes=sizes)
    return program.module(check_guards=False)


def through_pt2e(
    model: nn.Module, recipe: object, data: list, observer: str = "min_max"
) -> fx.GraphModule:
    """The graph that convert_pt2e gives."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    prepared = prepare_pt2e(exported(model, data[0]), pt2e_quantizer(recipe, observer=observer))
    for batch in data:
        prepared(*batch)
    return convert_pt2e(prepared)


def through_modules(
    model: nn.Module, recipe: object, data: list, observer: str = "min_max"
) -> nn.Module:
    made = copy.deepcopy(model)
    bs.calibrate(made, data, recipe, observer=observer)
    return made


def adopted(graph: fx.GraphModule) -> fx.GraphModule:
    made = copy.deepcopy(graph)
    adopt(made)
    return made


def targets(graph: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
