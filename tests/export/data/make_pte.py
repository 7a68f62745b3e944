# SPDX-License-Identifier: BSD-3-Clause
"""Writes int8.pte and planted.pte beside this file: python -m tests.export.data.make_pte

Both are of one model of two linear layers [64, 64]; int8.pte has both in int8, with inputs per
token, planted.pte leaves the first one in float.
"""

from pathlib import Path

import torch
from torch import nn

import blockscale as bs

FOLDER = Path(__file__).parent


def graph(skip: tuple[str, ...] = ()) -> torch.fx.GraphModule:
    """The converted graph, with a ledger."""
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval(),
        torch.ones(4, 64),
    )
    program = torch.export.export(model, (x,))
    prepared = bs.graph.prepare(program, bs.Recipe("int8_channel", "int8_token", skip=skip))
    bs.calibrate(prepared, [(x,)], progress=False)
    return bs.graph.convert(prepared)


if __name__ == "__main__":
    bs.export.executorch(graph(), FOLDER / "int8.pte", overwrite=True)
    bs.export.executorch(graph(("0",)), FOLDER / "planted.pte", overwrite=True)
