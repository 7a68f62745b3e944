# SPDX-License-Identifier: BSD-3-Clause
"""A real model: the searched recipe against uniform formats, on sentences that it has not seen."""

import copy

import pytest
import torch
import torch.nn.functional as F

import blockscale as bs
from blockscale.demo import minilm
from blockscale.demo.minilm import SENTENCES

FOUR_BITS = ("int4", "uint4", "nf4", "log4", "mxfp4", "nvfp4", "e2m1:group32:e8m0/tosa")


def pooled(output, batch):
    mask = batch["attention_mask"][..., None]
    return F.normalize((output.last_hidden_state * mask).sum(1) / mask.sum(1), dim=-1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_four_and_a_half_bits():
    path = minilm.directory()
    model = minilm.build(path)
    own, held = (minilm.tokenize(path, SENTENCES[i::2]) for i in (0, 1))
    advice = bs.recommend(model, 4.5, batches=[own], holdout=[held], output=pooled, progress=False)
    expected = minilm.embed(model, held)

    def cosine(recipe):
        bs.quantize_(changed := copy.deepcopy(model), recipe, strict=True)
        return float((minilm.embed(changed, held) * expected).sum(-1).mean())

    found = cosine(advice.recipe)
    assert advice.foretold.quality == pytest.approx(found, abs=1e-6)
    assert advice.search.point.bits <= 4.5
    assert found > max(cosine(each) for each in FOUR_BITS)
    changed = copy.deepcopy(model)
    assert bs.quantize_(changed, advice.recipe).bytes_after == advice.foretold.bytes
    assert torch.equal(expected, minilm.embed(model, held))  # the model is as it was
