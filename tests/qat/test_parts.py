# SPDX-License-Identifier: BSD-3-Clause
"""Training in formats with offsets, codebooks, flat blocks: what is converted is what trained."""

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.support.layer_formats import FORMATS, REFERENCE

pytestmark = pytest.mark.filterwarnings(REFERENCE)


def prepared(recipe, **settings) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    return bs.prepare_qat(model, recipe, **settings)


@pytest.mark.some(18)
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_step_of_training_and_conversion(fmt: str) -> None:
    model, x = prepared(bs.Recipe(fmt, input="uint8:tensor:fp32:offset")), torch.rand(6, 64) + 2
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    before = model[0].weight.detach().clone()
    model(x).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before, model[0].weight)
    with torch.no_grad():
        expected = model.eval()(x)
    quantized = bs.convert(model)
    assert torch.equal(quantized(x), expected)
    q = bs.quantize(model[0].weight.tensor.dequantize(), "int8")  # a plain tensor function works
    assert q.shape == (32, 64)
    assert float(quantized[0].input.offset) > 1


@pytest.mark.parametrize(
    ("fmt", "why"),
    [
        ("uint4:group32:fp16:offset", "offset is not learned"),
        ("uint4:group64:fp16:asym(fp16)", "zero point, which is not learned"),
        ("int4:group32:fp16:signed", "sign of its scale is not learned"),
    ],
)
def test_scales_that_are_not_learned_say_so(fmt: str, why: str) -> None:
    with pytest.warns(UserWarning, match=f"the scale of its weight is not learned: .*{why}"):
        model = prepared(fmt, learn={"weight": "steps"})
    assert model[0].weight_quantizer.learned is None


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", ["nf4:flat64:fp32", "nf4:group32:fp32", "e2m1:group16:e4m3/inv"])
@pytest.mark.parametrize("domain", ["steps", "thresholds"])
def test_scales_of_new_blocks_and_elements_are_learned(fmt: str, domain: str) -> None:
    model, x = prepared(fmt, learn={"weight": domain}), torch.randn(6, 64)
    model(x).square().mean().backward()
    learned = model[0].weight_quantizer.learned.parameter
    assert bool((learned.grad != 0).any())
    with torch.no_grad():
        expected = model.eval()(x)
    assert torch.equal(bs.convert(model)(x), expected)
