# SPDX-License-Identifier: BSD-3-Clause
"""What bs.compare gives: an order, a table, plain data."""

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.comparison import compare
from tests.calibration.pairs import X, pair


def test_order_table_and_json() -> None:
    model, other = pair(bs.Recipe("int8", rules={"2": {"weight": "int2:group8:fp32"}}))
    found = compare(model, other, X)
    assert [row.name for row in found] == ["2", "0"]  # the worst first
    assert [row.name for row in found.sorted("name")] == ["0", "2"]
    assert [row.name for row in found.sorted("input")] == ["0", "2"]
    with pytest.raises(ValueError, match="unknown order 'size'; choose from isolated, accumulated"):
        found.sorted("size")
    with pytest.raises(KeyError):
        found["1"]
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines] == ["layer", "2", "0", "model"]
    assert f"{found['2'].isolated.sqnr:.2f}" in lines[1]
    data = json.loads(found.to_json())
    assert data["layers"][0]["name"] == "2"
    assert data["layers"][0]["input"] is None
    assert data["layers"][0]["weight"]["worst"][0]["index"] == list(
        found["2"].weight.worst[0].index
    )
    assert len(found) == 2
    zeros = nn.Sequential(nn.Linear(32, 4, bias=False))
    zeros[0].weight.data.zero_()
    same = copy.deepcopy(zeros)
    bs.quantize_(same, "int8")
    equal = compare(zeros, same, X)
    assert (equal["0"].weight.sqnr, equal["0"].weight.cosine) == (math.inf, 1.0)
    assert json.loads(equal.to_json())["output"]["sqnr"] is None


# bs.compare: every figure again by numpy, on models small enough to hold.


def figures(a: Any, b: Any) -> tuple[float, float, float]:
    """SQNR, max error and cosine by numpy in float64."""
    a, b = (np.asarray(side.detach().float(), np.float64).ravel() for side in (a, b))
    sqnr = 10 * math.log10((a**2).sum() / ((a - b) ** 2).sum())
    return sqnr, abs(a - b).max(), a @ b / math.sqrt((a @ a) * (b @ b))


def near(found: Any, a: Tensor, b: Tensor) -> None:
    expected = figures(a, b)
    assert (found.sqnr, found.max_error, found.cosine) == pytest.approx(expected, rel=1e-6)
    assert found.elements == a.numel()


def test_figures_of_weights_inputs_and_outputs() -> None:
    model, other = pair(bs.Recipe("int4:group8:fp32", input="int8_token"))
    found, x = compare(model, other, X), torch.cat(X)
    for name in ("0", "2"):
        layer, qlayer, row = model.get_submodule(name), other.get_submodule(name), found[name]
        near(row.weight, layer.weight, qlayer.dequantize_weight())
        with torch.no_grad():
            given = x if name == "0" else torch.relu(model[0](x))
            near(row.input, given, bs.fake_quantize(given, "int8_token"))
            near(row.isolated, layer(given), qlayer(given))
            broken = x if name == "0" else torch.relu(other[0](x))
            near(row.accumulated, layer(given), qlayer(broken))
            near(found.output, model(x), other(x))
        assert (row.calls, row.unpaired) == (3, 0)
        assert row.formats == "int4:group8:fp32, input int8:token:fp32"
    assert found.batches == 3
    assert found["0"].isolated.sqnr == pytest.approx(found["0"].accumulated.sqnr, rel=1e-9)
    assert found["2"].isolated.sqnr > found["2"].accumulated.sqnr + 1


def test_the_result_does_not_depend_on_the_budget() -> None:
    model, other = pair(bs.Recipe("int4:group8:fp32", input="int8_token"))
    whole = compare(model, other, X)
    assert compare(model, other, X, budget=1).to_json() == whole.to_json()
    assert compare(model, other, iter(X)).to_json() == whole.to_json()  # read once


def test_convolutions_tables_and_transforms() -> None:
    conv = nn.Conv2d(4, 6, 3, padding="same", padding_mode="reflect")
    model, other = pair(bs.Recipe("int4:group4:fp32", "mxint8", "mxint8"), conv, nn.Flatten(1))
    images = torch.randn(2, 4, 5, 5)
    row = compare(model, other, [images])["0"]
    near(row.input, images.movedim(1, -1), bs.fake_quantize(images.movedim(1, -1), "mxint8"))
    near(row.accumulated, model[0](images), other[0](images))
    model, other = pair("int4:group4:fp32", nn.Embedding(9, 8))
    row = compare(model, other, [torch.arange(9)])["0"]
    assert row.input is None
    near(row.isolated, model[0].weight, other[0].dequantize_weight())


def test_a_transformed_weight_is_compared_in_its_own_blocks() -> None:
    from blockscale.layers.before import Scale

    model = nn.Sequential(nn.Linear(32, 16))
    other = copy.deepcopy(model)
    factor = torch.full((32,), 4.0)
    bs.quantize_(other, bs.Recipe("int4:group8:fp32", "int8_token"), before={"0": Scale(factor)})
    row, x = compare(model, other, X)["0"], torch.cat(X)
    near(row.weight, model[0].weight / 4, other[0].weight.tensor.dequantize())
    near(row.input, 4 * x, bs.fake_quantize(4 * x, "int8_token"))


class Routed(nn.Module):
    """Calls `b` only for some inputs, and `a` twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.never = (nn.Linear(32, 32) for _ in range(3))
        self.late = 0.0

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.a(self.a(x))
        rows = y[:, 0] > self.late
        return {"y": self.b(y[rows]).sum() if bool(rows.any()) else y.sum(), "rows": rows}


def test_calls_without_a_counterpart_are_told() -> None:
    torch.manual_seed(0)
    model = Routed()
    other = copy.deepcopy(model)
    bs.quantize_(other, "int8_channel")
    other.late = 1e9  # it never takes the branch
    found = compare(model, other, X)
    assert (found["a"].calls, found["a"].unpaired) == (6, 0)
    assert found["b"].calls == found["b"].unpaired == 3
    assert found["b"].accumulated is None
    assert found["b"].isolated.sqnr > 20
    assert found["never"].isolated is None
    text = str(found)
    assert "never: was not called" in text
    assert "b: 3 of 3 calls have no counterpart in the quantized model" in text
    other.late = 0.1  # other rows take it: other shapes
    assert compare(model, other, X)["b"].unpaired > 0


def test_models_that_cannot_be_compared() -> None:
    model, other = pair()
    with pytest.raises(ValueError, match="no quantized layer: quantize it first"):
        compare(model, model, X)
    with pytest.raises(ValueError, match="'0' has no counterpart with a weight of shape"):
        compare(nn.Sequential(nn.Linear(4, 4)), other, X)
    with pytest.raises(ValueError, match="copy made before quantizing"):
        compare(other, other, X)
    with pytest.raises(ValueError, match="batches is empty"):
        compare(model, other, [])


def test_it_leaves_both_models_alone() -> None:
    model, other = pair("int8", nn.Linear(32, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    model.train()
    other[1].train()
    modes = [m.training for each in (model, other) for m in each.modules()]
    before = {n: t.clone() for n, t in model.state_dict().items()}
    compare(model, other, X)
    with pytest.raises(RuntimeError):
        compare(model, other, [torch.randn(3, 31)])
    assert [m.training for each in (model, other) for m in each.modules()] == modes
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert not any(m._forward_hooks for each in (model, other) for m in each.modules())


def test_two_quantized_models_compare() -> None:
    model, other = pair("int8")
    third = copy.deepcopy(model)
    bs.quantize_(third, "int4")
    row = compare(other, third, X)["0"]
    near(row.weight, other[0].dequantize_weight(), third[0].dequantize_weight())


HIDING = {  # NaN, infinity and -infinity that come out finite
    "int8_token": (2, 3), "int8:tensor:fp32": (2, 3), "nf4:group8:fp32": (2, 3),
    "uint8:token:fp32:asym": (2, 3), "fp8": (0, 3), "mxfp8": (0, 0), "nvfp4": (0, 0),
    "int4:group8:e8m0": (0, 0),
}  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", HIDING)
def test_what_a_format_hides_is_counted(fmt: str) -> None:
    x = torch.cat(X)
    x[0, :2], x[3, 1:3], x[5, 9] = math.nan, math.inf, -math.inf
    nans, infinities = HIDING[fmt]
    left = bs.fake_quantize(x, fmt).isfinite()
    assert (int(left[x.isnan()].sum()), int(left[x.isinf()].sum())) == (nans, infinities)
    model, other = pair(bs.Recipe("int8:channel0:fp32", input=fmt), nn.Linear(32, 16))
    row = compare(model, other, x.split(6))["0"].input
    assert (row.hidden_nans, row.hidden_infinities) == (nans, infinities)
    text = str(compare(model, other, x.split(6)))
    told = f"0: input: {nans} NaN and {infinities} infinite elements came out finite: the format "
    assert (f"{told}of the input has no code for them" in text) == (nans + infinities > 0)
    rest = row.odd - nans - infinities
    assert (f"0: input: {rest} elements are NaN or infinite on one side only" in text) == (rest > 0)
    assert (rest > 0) == (fmt in ("mxfp8", "nvfp4", "int4:group8:e8m0"))


@pytest.mark.filterwarnings("ignore:blockscale")
def test_weights_that_a_format_makes_finite_are_counted() -> None:
    model = nn.Sequential(nn.Linear(32, 16))
    with torch.no_grad():
        model[0].weight[0, 0], model[0].weight[3, 4:7] = math.nan, math.inf
    other = copy.deepcopy(model)
    bs.quantize_(other, "int8")
    found = compare(model, other, X)
    assert (found["0"].weight.hidden_nans, found["0"].weight.hidden_infinities) == (1, 3)
    told = "0: weight: 1 NaN and 3 infinite elements came out finite: the format of the weight has"
    assert told in str(found)
    assert found.to_dict()["layers"][0]["weight"]["hidden_infinities"] == 3


def test_a_model_of_quantized_stacks_alone() -> None:
    """Experts are no layers to compare; what the model gives is compared all the same."""
    from tests.support.mixtures import OfStacks, batches
    from tests.support.mixtures import model as mixture

    floats, quantized = mixture(OfStacks), mixture(OfStacks)
    bs.quantize_(quantized, bs.Recipe(rules={"*.up": "mxfp4", "*.down": "mxfp4"}))
    found = bs.compare(floats, quantized, batches(1))
    assert found.layers == ()
    assert 5 < found.output.sqnr < 40
