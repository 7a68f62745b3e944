# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/export/to_executorch/test_integers.py: `converted`.
"""

import torch
from torch import nn

import blockscale as bs
from blockscale.graph.program import import_graph


def converted(recipe, *layers, x=None):
    torch.manual_seed(0)
    model = nn.Sequential(*layers).eval() if layers else nn.Sequential(nn.Linear(64, 32)).eval()
    x = torch.randn(4, 64) if x is None else x
    graph = bs.graph.prepare(torch.export.export(model, (x,)), recipe, observer="min_max")
    bs.calibrate(graph, [(x,)], progress=False)
    return import_graph(bs.graph.convert(graph)), x
