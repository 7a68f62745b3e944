# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/graph/lowering/test_lowering.py: `learned`."""

import torch

import blockscale as bs


def learned():
    model = torch.nn.Sequential(torch.nn.Linear(64, 8)).eval()
    with bs.use("reference"):
        bs.quantize_(model, bs.Recipe("book4:tensor:fp32"))
    return torch.export.export(model, (torch.randn(3, 64),))
