# SPDX-License-Identifier: BSD-3-Clause
"""What a file holds and the model has not, or differently, is refused, and nothing changes."""

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.support.saved import GONE, Net, bits, quantized, refused, rewrite

OTHER_TENSORS = {
    "head.weight.scale is missing": {"head.weight.scale": GONE},
    "head.weight.outer is missing": {"head.weight.outer": GONE},
    r"head.weight.scale should be torch.uint8 \(64, 4\), but is torch.float32 \(64, 4\)": {
        "head.weight.scale": torch.ones(64, 4)
    },
    "it lacks head.bias": {"head.bias": GONE},
    "it has extra": {"extra": torch.ones(1)},
    r"conv.bias has shape \(6,\), this model's has \(5,\)": {"conv.bias": torch.ones(6)},
    "conv.bias": {"conv.bias": torch.ones(5, dtype=torch.int32)},  # no float, though of its size
    "mask": {"mask": torch.ones(2)},
}


@pytest.mark.parametrize("words", OTHER_TENSORS)
def test_stored_tensors(words: str, path) -> None:
    def change(stored: dict) -> None:
        stored |= OTHER_TENSORS[words]
        for name in [n for n, t in stored.items() if t is GONE]:
            del stored[name]

    rewrite(path, lambda data: None, change)
    refused(path, words)


class Wider(Net):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(65, 64)


def test_another_model(path) -> None:
    without, more = Net(), Net()
    del without.head
    more.another = nn.Linear(2, 2)
    for model, words in (
        (
            Wider(),
            r"head.weight has shape \(64, 64\), this model's has \(64, 65\): build the model",
        ),
        (without, "it has head.weight, which this model does not have"),
        (more, "it lacks another.weight, another.bias"),
        (nn.ReLU(), "it has .*weight, which this model does not have"),
    ):
        refused(path, words, model)
    again = quantized()
    before = bits(again)
    with pytest.raises(
        bs.FileError, match="of this model is quantized already: load the file into the float"
    ):
        bs.load(again, path)
    assert bits(again) == before
