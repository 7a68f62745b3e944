# SPDX-License-Identifier: BSD-3-Clause
"""Rows alone and inside batches, for every backend: `bs.use(batch_invariant=True)`."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

import blockscale as bs

# weights and inputs of the presets, and of every way that kernels multiply
PAIRS = (
    ("int8_channel", "int8_token"),
    ("int4:group32:fp32", None),
    ("uint4:group32:fp32:asym", None),
    ("uint4:group32:fp16:offset", None),
    ("nvfp4", "nvfp4_token"),
    ("nvfp4_token", "nvfp4_token"),
    ("mxfp4", "mxfp4"),
    ("mxfp8", "mxfp8"),
    ("e4m3:channel0:fp32", "e4m3:token:fp32"),
    ("bfp8", "bfp8"),
    ("mxint8", "mxint8"),
    ("int8_channel", "uint8:token:fp32:asym"),
    ("nf4", None),
    ("mxfp6", None),
    ("int16:token:fp32", None),
)
BATCHES = (2, 7, 64, 512)


def layer(weight: str, input: str | None, n: int = 48, k: int = 192) -> nn.Module:
    """A quantized linear layer with a bias, on the CPU."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(k, n))
    bs.quantize_(model, bs.Recipe(weight, input=input))
    return model.eval()


def rows(count: int = 512, k: int = 192) -> Tensor:
    """Rows of sizes that differ by much, some of them too large for quick ways, one of zeros."""
    x = torch.randn(count, k, generator=torch.Generator().manual_seed(1))
    x[1] *= 2.0**64
    x[3] *= 2.0**22
    x[4] = 0
    return x


def differing(run: nn.Module, x: Tensor, some: Iterable[int]) -> list[tuple[int, int]]:
    """(row, batch) where a row's result inside of a batch is not the one that it has alone."""
    with torch.no_grad():
        alone = {i: run(x[i : i + 1]) for i in some}
        found = []
        for batch in BATCHES:
            inside = run(x[:batch])
            found += [
                (i, batch)
                for i, one in alone.items()
                if i < batch and not torch.equal(one, inside[i : i + 1])
            ]
            if batch > 7:  # as the last one of a batch, not the first ones
                shifted = run(x[-batch:])
                last = len(x) - 1
                if last in alone and not torch.equal(alone[last], shifted[-1:]):
                    found.append((last, batch))
    return found
