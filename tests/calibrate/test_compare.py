"""bs.compare: its figures against numpy's, its two errors, and what it must not do."""

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibrate.compare import compare

X = [torch.randn(6, 32, generator=torch.Generator().manual_seed(i)) for i in range(3)]


def pair(recipe: Any = "int4:group8:fp32", *layers: nn.Module) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(*(layers or (nn.Linear(32, 16), nn.ReLU(inplace=True), nn.Linear(16, 8))))
    other = copy.deepcopy(model)
    bs.quantize_(other, recipe)
    return model, other


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


def test_saturated_underflowed_and_worst() -> None:
    """By hand: a weight of two blocks, an input whose static scale is 1."""
    layer = nn.Linear(8, 1, bias=False)
    layer.weight.data = torch.tensor([[7.0, 0.4, -0.4, 0, 0, 0, 0, 0.0], [0.7] * 4 + [0.7] * 4])[:1]
    layer.weight.data[0, 4:] = torch.tensor([70.0, 3.0, 20.0, 4.9])
    model = nn.Sequential(layer)
    other = copy.deepcopy(model)
    recipe = bs.Recipe("int4:group4:fp32", input="int8")
    bs.quantize_(other, recipe, input_scales={"0": torch.ones(1, 1)})
    x = torch.tensor([[200.0, -300.0, 0.2, 0.0, 1.0, 2.0, 3.5, 4.0]])
    row = compare(model, other, [x])["0"]
    # steps 1 and 10: 0.4, -0.4, 3.0 and 4.9 of seven nonzero weights become 0; none is too large
    assert row.weight.saturated == 0
    assert row.weight.underflowed == pytest.approx(100 * 4 / 7)
    assert [place.index for place in row.weight.worst] == [(0, 1), (0, 0)]
    block = math.sqrt((3.0**2 + 4.9**2) / 4)
    assert row.weight.worst[0].rms_error == pytest.approx(block, rel=1e-6)
    assert row.weight.worst[1].rms_error == pytest.approx(math.sqrt(2 * 0.16 / 4), rel=1e-6)
    # 200 and -300 saturate at 127; of seven nonzero inputs 0.2 becomes 0
    assert row.input.saturated == pytest.approx(100 * 2 / 8)
    assert row.input.underflowed == pytest.approx(100 / 7)
    assert [place.index for place in row.input.worst] == [(1,), (0,), (6,)]
    assert row.input.worst[0].rms_error == 173


def test_partial_blocks_do_not_count_padding() -> None:
    layer = nn.Linear(5, 1, bias=False)
    layer.weight.data = torch.tensor([[7.0, 0, 0, 0, 0.1]])
    model = nn.Sequential(layer)
    other = copy.deepcopy(model)
    bs.quantize_(other, "int4:group4:pow2/floor", strict=True)
    worst = compare(model, other, [torch.randn(2, 5)])["0"].weight.worst
    expected = float((layer.weight.detach() - other[0].dequantize_weight())[0, 4].abs())
    assert [place.index for place in worst] == ([(0, 1)] if expected else [])
    assert [place.rms_error for place in worst] == pytest.approx([expected] * bool(expected))


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


def test_order_table_and_json() -> None:
    model, other = pair(bs.Recipe("int8", rules={"2": {"weight": "int2:group8:fp32"}}))
    found = compare(model, other, X)
    assert [row.name for row in found] == ["2", "0"]  # the worst first
    assert [row.name for row in found.sorted("name")] == ["0", "2"]
    assert [row.name for row in found.sorted("input")] == ["0", "2"]
    with pytest.raises(ValueError, match="no order 'size'; there are isolated, accumulated"):
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


def test_nan_is_counted_and_left_out() -> None:
    model, other = pair("int8", nn.Linear(32, 4))
    model[0].bias.data[1] = torch.nan
    other[0].bias.data = torch.tensor([0, 0, torch.inf, 0])  # and on the other side
    row = compare(model, other, X)["0"]
    assert row.isolated.odd == 36
    model[0].bias.data[2] = torch.inf  # the same infinity on both is no error
    assert compare(model, other, X)["0"].isolated.odd == 18
    assert math.isfinite(row.isolated.sqnr)
    assert row.isolated.sqnr > 20
    assert "0: isolated: 18 elements are NaN or infinite on one side only" in str(
        compare(model, other, X)
    )


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
