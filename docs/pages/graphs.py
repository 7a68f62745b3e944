# SPDX-License-Identifier: BSD-3-Clause
"""The graphs of docs/graph.md: layers before and after each step and pass."""

import re

import torch

import blockscale as bs
from blockscale.graph import passes
from blockscale.graph.program import import_graph
from docs.pages import DOCS

DRAWN = re.compile(r"(?P<head><!-- drawn: (?P<name>\w+) -->\n\n```text\n).*?(?=```\n)", re.DOTALL)


def graph() -> str:
    """docs/graph.md with the graphs of today."""
    drawn = drawings()
    return DRAWN.sub(
        lambda found: found["head"] + drawn[found["name"]], (DOCS / "graph.md").read_text()
    )


def drawings() -> dict[str, str]:
    """The graphs of docs/graph.md: two linear layers and a GELU, after each step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    x, rows = torch.randn(4, 64), torch.export.Dim("rows")
    program = torch.export.export(model.eval(), (x,), dynamic_shapes=({0: rows},))
    prepared = bs.graph.prepare(program, bs.Recipe("int8_channel", "uint8:tensor:fp32:asym"))
    prepared(x)
    converted = bs.graph.convert(prepared)
    graphs = {"prepared": prepared, "converted": converted, "fused": bs.graph.fuse(converted)}
    drawn = {name: bs.graph.draw(g) for name, g in graphs.items()} | {"passes": by_pass()}
    return {name: re.sub(r"\bs\d+\b", "rows", text) for name, text in drawn.items()}


class Block(torch.nn.Module):
    """Two readers of one tensor, a residual and a norm: what passes have something to do with."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.norm, self.out = torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, 32] -> [rows, 8]."""
        return self.out(torch.nn.functional.relu(self.norm(self.q(x) * self.k(x) + x)))


def by_pass() -> str:
    """A converted Block, and what each pass that changes something makes of it."""
    torch.manual_seed(0)
    x, rows = torch.randn(4, 32), torch.export.Dim("rows")
    program = torch.export.export(Block().eval(), (x,), dynamic_shapes=({0: rows},))
    prepared = bs.graph.prepare(program, bs.Recipe("int8_channel", "int8:tensor:fp32"))
    prepared(x)
    graph = import_graph(bs.graph.convert(prepared))
    text = f"converted\n{bs.graph.draw(graph)}"
    for each in passes.FUSE:
        if count := each.run(graph):
            passes.tidy(graph)
            name = each.__name__.rpartition(".")[2]
            text += f"\nafter {name} ({count})\n{bs.graph.draw(graph)}"
    return text
