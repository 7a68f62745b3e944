# SPDX-License-Identifier: BSD-3-Clause
"""MiniLM with four-bit weights: what each weight algorithm leaves of a real model.

`python -m tests.calibration.algorithms.test_minilm_weights` prints the table of docs/algorithms.md.
"""

import copy
import random
import re
import sys
import warnings
from pydoc_data.topics import topics  # the Python reference: English that every Python has

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.demo import minilm
from blockscale.demo.minilm import SENTENCES

SYMMETRIC, ASYMMETRIC = "int4:group32:fp32", "uint4:group32:fp32:asym"
ALGORITHMS = ("absmax", "mse", "mse:gram", "hqq", "gptq:absmax", "gptq")


def reference_sentences(count: int) -> list[str]:
    """Sentences of the Python language reference, always the same."""
    text = " ".join(" ".join(topics.values()).split())
    found = [s for s in re.split(r"(?<=[.?!]) ", text) if 30 < len(s) < 200 and s[0].isupper()]
    return random.Random(0).sample(found, count)


class MiniLM:
    """Calibrated on half the demonstration's sentences and 104 others, measured on the rest."""

    def __init__(self) -> None:
        path = minilm.directory()
        self.model = minilm.build(path)
        shown = [*SENTENCES[::2], *reference_sentences(104)]
        self.batches = [minilm.tokenize(path, shown[i::8]) for i in range(8)]
        self.hidden = minilm.tokenize(path, SENTENCES[1::2])
        self.expected = minilm.embed(self.model, self.hidden)

    def measure(self, fmt: str, weight: str) -> Tensor:
        """The cosine of each hidden sentence's embedding with the float model's.

        Word embeddings stay in float.
        """
        model = copy.deepcopy(self.model)
        recipe = bs.Recipe(fmt, skip=["embeddings"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # two of the pooler's inputs are always 0
            bs.calibrate(model, self.batches, recipe, weight=weight, progress=False)
        return (minilm.embed(model, self.hidden) * self.expected).sum(-1)


@pytest.mark.slow
def test_four_bits_keep_the_cosine() -> None:
    mini = MiniLM()
    found = {w: mini.measure(SYMMETRIC, w).mean() for w in ("absmax", "mse", "hqq", "gptq")}
    assert found["absmax"] < found["hqq"] and found["absmax"] < found["mse"] < found["gptq"]
    assert found["gptq"] >= 0.98
    assert mini.measure(ASYMMETRIC, "gptq").mean() >= 0.985


def main() -> None:
    torch.set_num_threads(1)
    mini = MiniLM()
    for weight in sys.argv[1:] or ALGORITHMS:
        cells = []
        for fmt in (SYMMETRIC, ASYMMETRIC):
            cosine = mini.measure(fmt, weight)
            cells.append(f"{cosine.mean():.4f} ({cosine.min():.4f})")
        print(f'| `"{weight}"` | ' + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
