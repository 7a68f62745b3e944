# SPDX-License-Identifier: BSD-3-Clause
"""The main job on a real model: a directory in, a directory out, and back into a model."""

import copy

import pytest
import torch

import blockscale as bs
from blockscale.demo import minilm
from blockscale.demo.minilm import SENTENCES
from blockscale.files.directory.quantize_directory import quantize_directory

RECIPES = {
    # recipe: the smallest cosine of a sentence's embedding to float that we promise
    "int8_channel": (bs.Recipe("int8_channel"), 0.999),
    "int8 input": (bs.Recipe("int8_channel", input="int8_token"), 0.99),
    "nvfp4": (bs.Recipe("nvfp4", skip=["pooler"]), 0.95),
    "mixed": (bs.Recipe("mxfp4", rules={"embeddings": "mxint8", "*.dense": "bfp8"}), 0.97),
}


@pytest.fixture(scope="module")
def real():
    path = minilm.directory()
    model = minilm.build(path)
    tokens = minilm.tokenize(path, SENTENCES[:16])
    return path, model, tokens, minilm.embed(model, tokens)


SLOW = ("int8 input", "nvfp4")


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in RECIPES]
)
def test_directory_and_model_agree(real, tmp_path, name):
    """Streaming a directory and quantizing a model in memory are two ways to the same bits."""
    path, model, tokens, expected = real
    recipe, cosine = RECIPES[name]
    ledger = quantize_directory(path, tmp_path / "out", recipe)
    assert not ledger.skipped
    loaded = bs.load(minilm.build(path, weights=False), tmp_path / "out")
    inplace = copy.deepcopy(model)
    bs.quantize_(inplace, recipe, strict=True)
    found = minilm.embed(loaded, tokens)
    assert torch.equal(found, minilm.embed(inplace, tokens))
    ours, theirs = loaded.state_dict(), inplace.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert (found * expected).sum(-1).min() > cosine
