# SPDX-License-Identifier: BSD-3-Clause
"""LoRA on quantized models of many architectures: trains, leaves the codes, is saved and loaded."""

from pathlib import Path
from typing import Any

import pytest
import torch

import blockscale as bs
from tests.integrations.peft.networks import NETWORKS, built
from tests.integrations.peft.training import NF4, QUIET, changed, codes_of, lora, same, train

peft = pytest.importorskip("peft")
pytestmark = [
    *QUIET,
    pytest.mark.filterwarnings("ignore:blockscale"),  # what a recipe skips, what a merge loses
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model with .tie_word_embeddings=True:UserWarning"),
]

FAST = ("opt",)
TARGETS = {"mamba": ["in_proj", "x_proj"]}  # peft refuses all-linear there, for out_proj
EVERY = [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in NETWORKS]


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_lora(name: str, tmp_path: Path) -> None:
    targets: Any = TARGETS.get(name, "all-linear")
    of_float = lora(built(name)[0], targets)
    model, inputs = built(name)
    bs.quantize_(model.eval(), NF4)
    with torch.no_grad():
        plain = model(**inputs).loss
    wrapped = lora(model, targets, init_lora_weights=True)
    assert set(wrapped.targeted_module_names) == set(of_float.targeted_module_names)
    with torch.no_grad():
        assert torch.equal(wrapped(**inputs).loss, plain)
    before = codes_of(wrapped)
    losses = train(wrapped, inputs, 6)
    assert losses[-1] < losses[0]
    assert same(codes_of(wrapped), before)
    with torch.no_grad():
        trained = wrapped(**inputs).loss
        wrapped.save_pretrained(tmp_path)
        other = built(name)[0].eval()
        bs.quantize_(other, NF4)
        loaded = peft.PeftModel.from_pretrained(other, tmp_path).eval()
        assert torch.equal(loaded(**inputs).loss, trained)
        wrapped.merge_adapter()
        merged = wrapped(**inputs).loss
        wrapped.unmerge_adapter()
        assert torch.equal(wrapped(**inputs).loss, trained)
        in_float = dict(wrapped.named_parameters())  # which peft unmerges with an error of rounding
        assert set(changed(codes_of(wrapped), before)) <= set(in_float)
        alone = wrapped.merge_and_unload()
        assert torch.equal(alone(**inputs).loss, merged)
        assert merged < plain
