# SPDX-License-Identifier: BSD-3-Clause
"""What is known of a model's stacked parameters."""

import pytest
import torch
from torch import nn

from blockscale.layers.parameters import Stack, joined_rows, stacks
from tests.layers.experts.families import FAMILIES, build


@pytest.mark.parametrize("kind", list(FAMILIES))
def test_families(kind: str) -> None:
    """The layout of every stack, and the parts of those whose files have gate and up apart."""
    pytest.importorskip("transformers")
    model = build(kind)
    found = {name: each for name, each in stacks(model).items() if "lm_head" not in name}
    _, layout, parts = FAMILIES[kind]
    assert found
    for name, stack in found.items():
        joined = "gate_up" in name or kind == "dbrx"
        served = "gate_up" in name and parts > 1
        expected = Stack(layout, parts if joined else 1, served)
        if name.endswith("mlp.w2"):  # of DBRX
            expected = Stack(f"transposed_stack:{parts}")
        assert stack == expected, name
    every = {n for n, p in model.named_parameters() if p.ndim == 3}
    assert every <= set(found)


def test_of_transformers_within_another_module() -> None:
    """A wrapper, as that of another library, changes nothing."""
    pytest.importorskip("transformers")
    inner = build("mixtral")
    wrapped = nn.ModuleDict({"inner": inner})
    assert {f"inner.{name}": each for name, each in stacks(inner).items()} == stacks(wrapped)
    assert ("experts.gate_up_proj", 1, 2) in joined_rows(wrapped)


def test_other_modules_are_plain_stacks() -> None:
    """Nothing is guessed: a module that says nothing has matrices [n, k], each a whole."""

    class Experts(nn.Module):
        def __init__(self, *, turned: bool):
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.zeros(2, 4, 8))
            self.bias = nn.Parameter(torch.zeros(2, 4))
            self.is_transposed = turned

    model = nn.ModuleList([Experts(turned=False), Experts(turned=True)])
    assert stacks(model) == {
        "0.gate_up_proj": Stack("plain", 1),
        "1.gate_up_proj": Stack("transposed", 1),
    }
    assert joined_rows(model) == []
