# SPDX-License-Identifier: BSD-3-Clause
"""What one may rely on when calling quantize_; test_models.py has the models."""

import copy
import math
import re

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.parse import CATALOG
from tests.support.layer_models import (
    CHANNELS,
    IDS,
    bits,
    quantized,
    small,
    unchanged,
)

BAD_SCALE = bs.choose_qparams(torch.ones(2, 16), "nvfp4")[0]


@pytest.mark.some(3)
@pytest.mark.parametrize("name", CATALOG)
def test_codes_are_those_of_quantize(name: str) -> None:
    torch.manual_seed(0)
    plain, model = small(), quantized(name)
    matrices = {"0": plain[0].weight, "1": plain[1].weight, "8": plain[8].weight}
    matrices["5"] = plain[5].weight.movedim(1, -1).flatten(1)  # blocks run over channels
    for layer, matrix in matrices.items():
        q = bs.quantize(matrix, name)
        found = model.get_submodule(layer).weight
        stored = [q.packed, q.qparams.scale, q.zero_point, q.qparams.outer]
        assert bits(enumerate([found.codes, *found.parts])) == bits(enumerate(stored))
        assert found.nbytes == q.nbytes
    assert model(IDS).shape == (3, 3)


def test_strict_changes_nothing() -> None:
    for extra, words in (
        (nn.Linear(4, 4, device="meta"), "its weight holds no data"),
        (nn.Linear(4, 4).double(), "its weight is float64"),
        (nn.Embedding(4, 4, max_norm=1.0), "its max_norm changes the weight at every call"),
    ):
        model = small().append(extra)
        before = unchanged(model)
        with pytest.raises(bs.SkippedError, match=words):
            bs.quantize_(model, "int8", strict=True)
        assert unchanged(model) == before
        assert bs.quantize_(model, bs.Recipe("int8", skip=["9"]), strict=True)["1"].weight
    with pytest.raises(bs.SkippedError, match=r"needs dimension 2[^$]*'nothing' matches nothing"):
        bs.quantize_(small(), bs.Recipe("int8:channel2:fp32", skip=["nothing"]), strict=True)


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        (
            {"1": torch.ones(1, 1), "8": torch.ones(3, 3)},
            "the stored scale must be float32 of shape",
        ),
        ({"1": torch.ones(1, 1), "8": torch.ones(1, 1).half()}, "the stored scale must be float32"),
        ({"1": (torch.ones(1, 1), torch.zeros(1, 1).int())}, "has no zero_point"),
        ({"1": 0.5}, "its scale must be a Tensor, found a float"),
        ({"9": torch.ones(1, 1)}, "input_scales names '9'"),
        ({"0": torch.ones(1, 1)}, "'0'"),  # an embedding: its input is indices
        ({"5": BAD_SCALE}, "its scale must be a Tensor, found QTensor"),
        ({"8": torch.ones(1, 7)}, r"512|shape"),  # the layer has 512 channels
    ],
)
def test_scales_that_do_not_fit_change_nothing(scales, words: str) -> None:
    model, recipe = small(), bs.Recipe("int8", "int8", rules={"8": {"input": CHANNELS}})
    before = unchanged(model)
    with pytest.raises(ValueError, match=words):
        bs.quantize_(model, recipe, input_scales=scales)
    assert unchanged(model) == before


def test_the_warning_is_one_and_points_here() -> None:
    model = small().extend([nn.Linear(4, 4).double(), nn.Embedding(4, 4, max_norm=1.0)])
    with pytest.warns(UserWarning) as caught:
        bs.quantize_(model, bs.Recipe("int8", skip=["lm_head"]))
    assert [w.filename for w in caught] == [__file__]
    for words in (
        "9: skipped, its weight is float64",
        "10: skipped",
        "pattern 'lm_head' of the recipe matches",
    ):
        assert words in str(caught[0].message)


def test_odd_weights_are_noted_and_stay_what_they_are() -> None:
    model = nn.Sequential(*[nn.Linear(8, 2, bias=False) for _ in range(5)])
    weights = [torch.zeros(2, 8), torch.full((2, 8), -0.0), torch.full((2, 8), 1e-45)]
    weights += [torch.tensor([[torch.nan] * 8, [1.0] * 8]), torch.full((2, 8), -3e38)]
    for layer, weight in zip(model, weights, strict=True):
        layer.weight.data = weight.clone()
    for name in ("mxfp4", "int8_channel", "nvfp4", "int4:group3:fp16"):
        twin = copy.deepcopy(model)
        with pytest.warns(UserWarning, match="3: 8 of 16 weights are NaN or infinite") as caught:
            ledger = bs.quantize_(twin, name)
        assert len(caught) == 1
        found = {str(i): layer.dequantize_weight() for i, layer in enumerate(twin)}
        assert bits(found) == bits(
            {str(i): bs.fake_quantize(w, name) for i, w in enumerate(weights)}
        )
        assert ledger["0"].notes == ()


def test_seeds_of_weights() -> None:
    """One seed repeats a run, and does not repeat the same noise in every layer."""

    def run(seed: int) -> list[Tensor]:
        layers = [nn.Linear(16, 16) for _ in range(2)]
        layers[1].weight.data = layers[0].weight.data = torch.linspace(-1, 1, 256).view(16, 16)
        model = quantized("int4:token:fp32:stochastic", nn.Sequential(*layers), seed=seed)
        return [layer.weight.codes for layer in model]

    first, again, other = run(3), run(3), run(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(*first)


@pytest.mark.slow
def test_compile_and_export_of_a_model() -> None:
    recipe = bs.Recipe("nvfp4", "mxfp8", "int8", rules={"8": {"input": "int8", "output": "uint4"}})
    model = quantized(recipe, input_scales={"8": torch.full((1, 1), 0.1)}).eval()
    with torch.no_grad():
        batch = torch.export.Dim("batch", min=2, max=9)
        program = torch.export.export(model, (IDS,), dynamic_shapes=({0: batch},))
        torch._dynamo.reset()
        for run in (program.module(), torch.compile(model, fullgraph=True, backend="aot_eager")):
            assert all(torch.equal(run(ids), model(ids)) for ids in (IDS, IDS[:2]))


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32))
    with torch.no_grad():
        made[0].weight[0, :2], made[0].weight[5, 5] = math.nan, math.inf
        made[2].bias[3] = -math.inf
    return made


TOLD = (
    "strict: not everything the recipe covers can be quantized; nothing was changed.\n"
    "  0 (Linear): 3 of 512 weights are NaN or infinite\n"
    "  2 (Linear): 1 of 32 biases are NaN or infinite\n"
    "Name them in the recipe's skip list, or call with strict=False."
)


def same(a: nn.Module, b: nn.Module) -> bool:
    states = a.state_dict(), b.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0))
        for x, y in zip(states[0].values(), states[1].values(), strict=True)
    )


def test_strict_refuses_them_everywhere() -> None:
    for way in (
        lambda m: bs.quantize_(m, "int8", strict=True),
        lambda m: bs.calibrate(m, [torch.randn(4, 32)], "int8", strict=True, progress=False),
        lambda m: bs.prepare_qat(m, "int8", strict=True),
    ):
        made = model()
        before = copy.deepcopy(made)
        with pytest.raises(bs.SkippedError, match=f"^{re.escape(TOLD)}$"):
            way(made)
        assert same(made, before)
        assert type(made[0]) is nn.Linear


def test_what_is_skipped_does_not_count() -> None:
    ledger = bs.quantize_(model(), bs.Recipe("int8", skip=["0", "2"]), strict=True)
    assert not ledger.quantized


def test_without_strict_it_is_a_note_and_a_warning() -> None:
    with pytest.warns(UserWarning, match="0: 3 of 512 weights are NaN or infinite"):
        ledger = bs.quantize_(model(), "int8")
    assert ledger["0"].notes[0] == "3 of 512 weights are NaN or infinite"


def test_a_float_weight_whose_codes_are_supplied_says_nothing() -> None:
    made = model()
    made[2].bias.data.zero_()
    q = bs.quantize(torch.randn(16, 32), "int8")
    with pytest.warns(UserWarning, match="0: 3 of 512 weights are NaN or infinite"):
        ledger = bs.quantize_(made, "int8", weights={"0": q}, strict=True)
    assert len(ledger.quantized) == 2


def test_parameters_of_no_layer() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Parameter(torch.full((32, 32), math.nan))

    told = "  q (parameter of Own): 1024 of 1024 weights are NaN or infinite\n"
    with pytest.raises(bs.SkippedError, match=re.escape(told)):
        bs.quantize_(Own(), "int8", strict=True)


def test_a_calibration_that_does_not_happen_is_told_once_or_refused() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8))
    plain = copy.deepcopy(model)
    with pytest.raises(bs.SkippedError, match="strict: preset w8a8 asks for a calibration"):
        bs.quantize_(model, "w8a8", strict=True)
    assert not [m for m in model.modules() if type(m).__name__ == "QLinear"]
    with pytest.warns(UserWarning, match="preset w8a8 asks for a calibration") as caught:
        ledger = bs.quantize_(model, "w8a8")
    assert len(caught) == 1
    assert ledger.notes == bs.preset("w8a8").uncalibrated()[1]
    assert str(ledger).count("that did not happen") == 1
    assert ledger.to_dict()["notes"] == list(ledger.notes)
    bs.quantize_(plain, bs.Recipe("int8_channel", "int8_token"))
    x = torch.randn(4, 32)
    assert torch.equal(model(x), plain(x))
    assert "notes" not in bs.quantize_(nn.Sequential(nn.Linear(8, 8)), "w8a16").to_dict()
