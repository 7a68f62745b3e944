# SPDX-License-Identifier: BSD-3-Clause
"""Static int8 inputs of MiniLM: what each observer leaves of a real model.

`python -m tests.calibration.test_minilm` prints the table of docs/calibration.md.
"""

import copy
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration import observers
from blockscale.demo import minilm
from blockscale.demo.minilm import SENTENCES

SYMMETRIC, ASYMMETRIC, CHANNEL = "int8", "int8:tensor:fp32:asym", "int8:channel-1:fp32"
RANGES = [name for name in observers.names() if name != "mean"]  # means are for binary, ternary
QUICK = (
    "min_max",
    "moving_average",
    "percentile",
    "mse",
)  # of every channel the others take minutes


class MiniLM:
    """Every other sentence is calibrated on, in batches of 8; the rest is measured on."""

    def __init__(self) -> None:
        path = minilm.directory()
        self.model = minilm.build(path)
        shown, self.hidden = SENTENCES[::2], minilm.tokenize(path, SENTENCES[1::2])
        self.batches = [minilm.tokenize(path, shown[i : i + 8]) for i in range(0, len(shown), 8)]
        self.expected = minilm.embed(self.model, self.hidden)

    def measure(self, recipe: Any, observer: Any = "mse", **options: Any) -> Tensor:
        """The cosine of each hidden sentence's embedding with the float model's."""
        model: nn.Module = copy.deepcopy(self.model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # gptq's remarks
            bs.calibrate(model, self.batches, recipe, observer, progress=False, **options)
        return (minilm.embed(model, self.hidden) * self.expected).sum(-1)


@pytest.mark.slow
def test_static_int8_inputs_keep_the_cosine() -> None:
    mini = MiniLM()
    assert mini.measure(bs.Recipe("int8_channel", ASYMMETRIC), "mse").mean() >= 0.99
    assert mini.measure(bs.Recipe("int8_channel", ASYMMETRIC), "min_max").mean() >= 0.99
    plain = mini.measure(bs.Recipe("int8_channel", SYMMETRIC), "min_max").mean()
    best = mini.measure(bs.Recipe("int8_channel", SYMMETRIC), "percentile").mean()
    assert plain < best
    rotated = mini.measure(bs.Recipe("int8_channel", SYMMETRIC), "mse", transform="hadamard")
    assert rotated.mean() >= 0.999


COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    "`int8`": (SYMMETRIC, {}),
    "with `asym`": (ASYMMETRIC, {}),
    "`channel-1`": (CHANNEL, {}),
    "`int8`, smoothquant": (SYMMETRIC, {"transform": "smoothquant"}),
    "with `asym`, smoothquant": (ASYMMETRIC, {"transform": "smoothquant"}),
    "`int8`, hadamard": (SYMMETRIC, {"transform": "hadamard"}),
}


def cell(mini: MiniLM, name: str, fmt: str, options: dict[str, Any]) -> str:
    """Mean and (smallest) cosine."""
    if name not in QUICK and (options or fmt == CHANNEL):
        return ""
    cosines = mini.measure(bs.Recipe("int8_channel", fmt), name, **options)
    return f"{cosines.mean():.4f} ({cosines.min():.4f})"


if __name__ == "__main__":
    torch.set_num_threads(1)
    MINI = MiniLM()
    sys.stdout.write(f"| observer | {' | '.join(COLUMNS)} |\n")
    for name in RANGES:
        cells = [cell(MINI, name, *column) for column in COLUMNS.values()]
        sys.stdout.write(f"| `{name}` | {' | '.join(cells)} |\n")
        sys.stdout.flush()
