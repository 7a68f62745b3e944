# SPDX-License-Identifier: BSD-3-Clause
"""Biases that are corrected: a layer's mean output is the float layer's again."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.algorithms.gptq import GPTQ


def batches(*shape: int, count: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(shape, generator=generator) + 0.5 for _ in range(count)]


MODELS = {
    "linear": (lambda: nn.Linear(32, 8), (6, 32), (0,)),
    "tokens": (lambda: nn.Linear(32, 8), (2, 5, 32), (0, 1)),
    "convolution": (lambda: nn.Conv2d(8, 6, 3, padding=1), (2, 8, 7, 7), (0, 2, 3)),
    "without a bias": (lambda: nn.Conv2d(8, 6, 3, bias=False), (2, 8, 7, 7), (0, 2, 3)),
    "depthwise": (lambda: nn.Conv1d(8, 8, 3, groups=8), (2, 8, 9), (0, 2)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 6, 2), (2, 8, 5, 5), (0, 2, 3)),
}


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize(
    "recipe", ["int3:channel0:fp32", ("int4:channel0:fp32", "int4:tensor:fp32")]
)
def test_the_mean_of_a_layers_output_is_the_float_layers(case: str, recipe) -> None:
    make, shape, dims = MODELS[case]
    torch.manual_seed(0)
    floats = nn.Sequential(make()).eval()
    data = batches(*shape)
    both = (recipe, None) if isinstance(recipe, str) else recipe
    errors = {}
    for bias in (None, "correct"):
        made = copy.deepcopy(floats)
        ledger = bs.calibrate(made, data, bs.Recipe(*both), bias=bias, progress=False)
        with torch.no_grad():
            lost = torch.cat([floats(x) - made(x) for x in data]).mean(dims)
        errors[bias] = float(lost.abs().max())
    assert errors["correct"] < 2e-7 < 1e-4 < errors[None]
    assert "bias corrected" in next(iter(ledger)).details


def test_padding_does_not_count() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 8)

        def forward(self, x, attention_mask):
            return self.layer(x)

    torch.manual_seed(0)
    floats = Model().eval()
    x, mask = torch.rand(2, 5, 32), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    x[0, 3:] = 50.0
    made = copy.deepcopy(floats)
    batch = {"x": x, "attention_mask": mask}
    bs.calibrate(made, [batch], "int3:channel0:fp32", bias="correct", progress=False)
    lost = (floats(**batch) - made(**batch)).detach()[mask.bool()].mean(0)
    assert float(lost.abs().max()) < 2e-7


def test_what_is_not_corrected_is_told() -> None:
    model = nn.Sequential(nn.Embedding(10, 32), nn.Linear(32, 8, bias=False), nn.Linear(8, 4))
    scale = copy.deepcopy(model)
    ledger = bs.calibrate(scale, [torch.arange(10)], "int4:channel0:fp32", bias="correct",
                          progress=False)  # fmt: skip
    said = {entry.name: entry.details for entry in ledger}
    assert scale[1].bias is None and "no bias to correct" in said["1"]
    assert "bias" not in said["0"] and "bias corrected" in said["2"]
    unseen = nn.ModuleDict({"seen": nn.Linear(32, 8), "other": nn.Linear(32, 8)})
    unseen.forward = lambda x: unseen["seen"](x)  # type: ignore[method-assign]
    before = unseen["other"].bias.detach().clone()
    with pytest.warns(UserWarning, match="saw no data"):
        ledger = bs.calibrate(unseen, batches(2, 32), "int4:channel0:fp32", bias="correct",
                              progress=False)  # fmt: skip
    assert torch.equal(unseen["other"].bias, before)
    noted = {entry.name: " ".join(entry.notes) for entry in ledger}
    assert "bias not corrected" in noted["other"]


def test_a_float_model_that_shares_the_bias_keeps_its_own() -> None:
    model = nn.Sequential(nn.Linear(32, 8))
    bias, before = model[0].bias, model[0].bias.detach().clone()
    bs.calibrate(model, batches(4, 32), "int3:channel0:fp32", bias="correct", progress=False)
    assert torch.equal(bias, before) and not torch.equal(model[0].bias, before)


def test_a_recipe_may_ask_for_it() -> None:
    """As presets of convolutions do; an argument comes before it."""
    x, floats = torch.randn(4, 3, 6, 6), nn.Sequential(nn.Conv2d(3, 8, 3)).eval()
    recipe = bs.Recipe("int3:channel0:fp32", calibration={"bias": "correct"})
    assert bs.Recipe.from_json(recipe.to_json()) == recipe
    biases = {}
    for word in (None, "correct", "keep"):
        made = copy.deepcopy(floats)
        ledger = bs.calibrate(made, [x], recipe, bias=word, progress=False)
        assert ("bias corrected" in ledger["0"].details) == (word != "keep")
        biases[word] = made[0].bias.detach()
    assert torch.equal(biases[None], biases["correct"])
    assert torch.equal(biases["keep"], floats[0].bias.detach())
    assert not torch.equal(biases["keep"], biases["correct"])
    with pytest.raises(ValueError, match="unknown bias 'mean'"):
        wrong = bs.Recipe("int3:channel0:fp32", calibration={"bias": "mean"})
        bs.calibrate(copy.deepcopy(floats), [x], wrong, progress=False)


def test_refusals() -> None:
    def refused(match: str, data=None, **more) -> None:
        model = nn.Sequential(nn.Linear(32, 8))
        with pytest.raises(ValueError, match=match):
            bs.calibrate(model, data or batches(4, 32), "int8", progress=False, **more)
        assert type(model[0]) is nn.Linear

    refused("unknown bias 'mean'; choose from 'correct', 'keep', None", bias="mean")
    refused(r"read only once.*bias='correct' runs", iter(batches(4, 32)), bias="correct")
    refused("source= keeps those of one block", bias="correct", source={})
    refused(
        "gptq would both make up.*sequential=False", bias="correct", weight=GPTQ(asymmetric=True)
    )
    refused("which several processes do not share", bias="correct", group="same")
