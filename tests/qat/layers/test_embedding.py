# SPDX-License-Identifier: BSD-3-Clause
"""Embeddings in training."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs


@pytest.mark.parametrize("by_frequency", [False, True])
def test_an_embedding_has_the_gradients_of_the_float_one(by_frequency):
    float_model = nn.Sequential(
        nn.Embedding(6, 8, padding_idx=2, scale_grad_by_freq=by_frequency), nn.Linear(8, 2)
    )
    model = copy.deepcopy(float_model)
    bs.prepare_qat(model, bs.Recipe(rules={"0": "int8:token:fp32"}, skip=["1"]))
    indices, gradient = torch.tensor([[1, 2, 1], [2, 5, 1]]), torch.randn(2, 3, 2)
    for each in (float_model, model):
        each(indices).backward(gradient)
    found, wanted = (m[0].weight.grad for m in (model, float_model))
    assert torch.equal(found, wanted)
    assert torch.equal(found[2], torch.zeros(8))
