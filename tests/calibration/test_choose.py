# SPDX-License-Identifier: BSD-3-Clause
"""What algorithms are given while bs.calibrate chooses: grams, statistics, sequence, groups."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.choose import (
    choose_weights_from,
    groups,
    side_by_side,
    statistics_bytes,
)
from blockscale.calibration.input_stats import InputStatsCollector
from blockscale.calibration.session import Session
from blockscale.core.work import Progress
from blockscale.layers.before import Scale
from blockscale.layers.plan import plan_layers
from tests.calibration.walk.networks import decoder

X = [torch.randn(6, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]


class Spy:
    """Plain rounding that remembers what it was given."""

    name, needs_gram = "spy", True

    def __init__(self) -> None:
        self.grams: dict[str, Any] = {}
        self.weights: dict[str, Tensor] = {}

    def quantize(self, weight: Tensor, fmt: bs.Format, gram: Any, layer: str) -> Any:
        self.grams[layer], self.weights[layer] = gram, weight
        return bs.quantize(weight, fmt), ["noted"]


class Doubler:
    """A transform that doubles the inputs and remembers the statistics."""

    name = "doubler"

    def __init__(self) -> None:
        self.stats: dict[str, Any] = {}

    def prepare(
        self, weight: Tensor, fmt: bs.Format, input_fmt: Any, stats: Any, layer: str
    ) -> Any:
        self.stats[layer] = stats
        factor = torch.full((weight.shape[-1] // stats.places,), 2.0)
        return Scale(factor), ["doubled"]


def two() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))


def run(model: nn.Module, recipe: Any, **options: Any) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ledger = calibrate(model, X, recipe, "min_max", progress=False, **options)
    return ledger, "".join(str(w.message) for w in caught)


def gram(x: Tensor) -> Tensor:
    return x.double().T @ x.double() / len(x)


@pytest.mark.parametrize("sequential", [True, False])
def test_later_layers_see_what_quantized_ones_leave(sequential: bool) -> None:
    model, spy, x = two(), Spy(), torch.cat(X)
    first = model[0]
    _, told = run(model, "int4:group4:fp32", weight=spy, sequential=sequential)
    with torch.no_grad():
        weight = bs.fake_quantize(first.weight, "int4:group4:fp32") if sequential else first.weight
        hidden = x @ weight.T + first.bias
    torch.testing.assert_close(spy.grams["0"], gram(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(spy.grams["1"], gram(hidden), rtol=1e-5, atol=1e-6)
    assert "0: noted" in told


def test_weights_only_are_quantized_in_sequence() -> None:
    """Inputs stay float while weights are chosen, and ranges are the float model's."""
    model, spy, x = two(), Spy(), torch.cat(X)
    first = model[0]
    run(model, bs.Recipe("int4:group4:fp32", "int2:tensor:fp32", "int2:tensor:fp32"), weight=spy)
    with torch.no_grad():
        rough = x @ bs.fake_quantize(first.weight, "int4:group4:fp32").T + first.bias
        exact = first(x)
    torch.testing.assert_close(spy.grams["1"], gram(rough), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model[1].input.parts[0].flatten()[0], exact.abs().max())


@pytest.mark.parametrize("blocks", [None, False])
def test_statistics_without_a_gram_matrix(blocks: Any) -> None:
    """A transform that says that it needs none is given none; all else is the same."""
    found = []
    for needed in (True, False):
        doubler = Doubler()
        doubler.needs_gram = needed  # type: ignore[attr-defined]
        draw = torch.Generator().manual_seed(1)
        batches = [torch.randint(20, (2, 6), generator=draw) for _ in range(2)]
        calibrate(decoder(2), batches, "int4:group8:fp32", progress=False, transform=doubler,
                  blocks=blocks)  # fmt: skip
        found.append(doubler.stats)
    assert found[0].keys() == found[1].keys() and len(found[0]) > 4
    for name, stats in found[0].items():
        assert stats.gram is not None and found[1][name].gram is None
        assert torch.equal(stats.sample, found[1][name].sample)
        assert torch.equal(stats.mean_abs, found[1][name].mean_abs)


@pytest.mark.parametrize("fmt", ["nvfp4", "int4:group16:fp32", "uint4:group16:fp16:asym"])
def test_parts_of_a_weight_share_its_outer_scale(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is chosen in parts is what is chosen for the whole, where nothing is added up over
    columns: bits, sizes and ledger."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(32, 23, bias=False)), [torch.randn(40, 32)]
    with torch.no_grad():
        net[0].weight[20:] *= 9  # the outer scale is of the last part
    found = []
    for rows in (1024, 9):
        monkeypatch.setattr("blockscale.calibration.dealing.ROWS", rows)
        model = copy.deepcopy(net)
        ledger = calibrate(model, x, fmt, progress=False, weight="mse")
        found.append((*model.state_dict().values(), ledger.to_dict()))
    whole, parts = found
    for one, other in zip(whole[:-1], parts[:-1], strict=True):
        assert not isinstance(one, Tensor) or torch.equal(one, other)
    assert whole[-1] == parts[-1] and len(whole) > 2


def test_what_is_said_of_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that gains nothing is rounded to nearest, and the ledger says how many rows it has."""
    monkeypatch.setattr("blockscale.calibration.dealing.ROWS", 9)

    class Noting(Spy):
        by_rows = True

        def quantize(self, weight: Tensor, *more: Any) -> Any:
            q, _ = super().quantize(weight, *more)
            return q, ["said of all", f"said of {len(weight)}"]

    net = nn.Sequential(nn.Linear(8, 23, bias=False))
    ledger, _ = run(net, "int4:group8:fp32", weight=Noting())
    assert ledger["0"].notes == (
        "said of all",
        "said of 7 (7 of 23 rows)",
        "said of 8 (16 of 23 rows)",
    )


def test_a_transform_comes_before_all_else() -> None:
    model, spy, doubler, x = two(), Spy(), Doubler(), torch.cat(X)
    weight = model[0].weight.detach()
    ledger, _ = run(
        model,
        bs.Recipe("int8:group4:pow2/floor", "int8"),
        weight=spy,
        transform=doubler,
        strict=True,
    )
    torch.testing.assert_close(doubler.stats["0"].gram, gram(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(spy.grams["0"], gram(2 * x), rtol=1e-5, atol=1e-6)
    assert torch.equal(spy.weights["0"], weight / 2)
    torch.testing.assert_close(model[0].input.parts[0].flatten()[0], 2 * x.abs().max() / 127)
    assert torch.equal(model[0].before.factor, torch.full((8,), 2.0))
    assert ledger["0"].details == "doubler: doubled, static input by min_max, weight by spy"
    plain = two()
    bs.quantize_(plain, "int8:group4:pow2/floor")  # powers of two: the same weight, doubled
    assert torch.equal(plain[0].dequantize_weight(), model[0].dequantize_weight())


def test_a_convolution_is_transformed_by_channel() -> None:
    model, doubler = nn.Sequential(nn.Conv1d(8, 4, 3, padding=1)), Doubler()
    plain, x = model[0], torch.randn(2, 8, 5)
    calibrate(model, [x], "int16", transform=doubler, progress=False)
    stats = doubler.stats["0"]
    assert (stats.places, tuple(stats.amax.shape), stats.rows) == (3, (24,), 10)
    assert (model(x) - plain(x)).abs().max() < 1e-3


def test_tables_and_groups_have_no_gram() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.conv = nn.Embedding(9, 8), nn.Conv1d(8, 8, 3, groups=2)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.table(x.abs().long().clamp(max=8)).movedim(1, -1))

    spy, doubler = Spy(), Doubler()
    ledger, told = run(Net(), bs.Recipe("int8", "int8"), weight=spy, transform=doubler)
    assert spy.grams == {"table": None, "conv": None}
    assert not doubler.stats
    assert "table" not in told  # a table has no input: that is nothing to warn of
    assert "conv: noted" in told
    assert ledger["conv"].details.startswith("doubler: not transformed, its convolution has groups")
    assert ledger["table"].details == "weight by spy, noted"


def test_layers_without_data_have_no_gram() -> None:
    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x)

    spy, doubler = Spy(), Doubler()
    _, told = run(Dead(), "int8", weight=spy, transform=doubler)
    assert spy.grams["b"] is None
    assert list(doubler.stats) == ["a"]
    assert "b: saw no data in 3 batches" in told


def test_rows_with_nan_are_left_out_and_told() -> None:
    model, spy = nn.Sequential(nn.Linear(8, 8)), Spy()
    x = [X[0], torch.where(torch.arange(6)[:, None] == 2, torch.nan, X[1])]
    with pytest.warns(UserWarning, match="0: 1 rows of its input hold a NaN or an infinity"):
        calibrate(model, x, "int8", weight=spy, progress=False)
    kept = torch.cat([x[0], x[1][[0, 1, 3, 4, 5]]])
    torch.testing.assert_close(spy.grams["0"], gram(kept), rtol=1e-5, atol=1e-6)


def test_groups_keep_to_the_budget_and_to_parents() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
            self.mlp = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    model = nn.Sequential(nn.Linear(8, 8), Block(), Block())
    plans = plan_layers(model, bs.Recipe("int8"))
    names = [plan.name for plan in plans]

    def found(budget: float, place: Any = lambda _: None) -> list[list[str]]:
        parts = groups(plans, statistics_bytes, budget, place)
        return [[plan.name for plan in part] for part in parts]

    assert found(1e12) == [names]
    assert found(1) == [[name] for name in names]
    assert found(2 * InputStatsCollector.nbytes(8))[0] == names[:2]
    attention = [[f"{i}.query", f"{i}.key", f"{i}.value"] for i in (1, 2)]
    in_place = found(1e12, side_by_side(model))
    assert in_place[:5] == [["0"], attention[0], ["1.mlp.0"], ["1.mlp.1"], attention[1]]


def test_observers_keep_to_the_budget() -> None:
    """Histograms of every channel: a pass for each group that fits; the scales are the same."""
    recipe, scales = bs.Recipe("int8", "int8:channel-1:fp32"), []
    for budget, passes in ((1e9, 1), (1, 2)):
        model, told = two(), Counter()
        calibrate(model, X, recipe, "percentile", progress=told, budget=budget)
        assert told.count == passes * len(X)
        scales.append([layer.input.parts[0] for layer in model])
    assert all(torch.equal(a, b) for a, b in zip(*scales, strict=True))
    with pytest.raises(ValueError, match="2 passes are needed"):
        calibrate(two(), iter(X), recipe, "percentile", budget=1)


class Counter(Progress):
    count = 0

    def advance(self) -> None:
        self.count += 1


def test_what_was_calibrated_is_saved_and_loaded(tmp_path: Any) -> None:
    recipe = bs.Recipe("nvfp4", "int8:tensor:fp32:asym", "int8:channel-1:fp32")
    model = two()
    run(model, recipe, transform=Doubler(), weight="gptq")
    bs.save(model, tmp_path / "m.safetensors")
    loaded = bs.load(two(), tmp_path / "m.safetensors")
    for x in X:
        assert torch.equal(loaded(x), model(x))
    assert loaded[0].output.static
    assert loaded[0].before is not None


def test_an_algorithm_for_blocks_without_blocks_is_noted() -> None:
    """Of a graph, say: nothing is learned, and a note warns of what a walk tells as a detail."""

    class Blocks:
        name, needs_gram = "blocks", False

    model = two()
    session = Session(model, plan_layers(model, bs.Recipe("int8")), None, strict=False)
    choose_weights_from(session, Blocks(), {})  # type: ignore[arg-type]
    note = "plain rounding: it is in no block that blocks processes"
    assert session.notes == {"0": [note], "1": [note]}
    assert session.details == {"0": [], "1": []}
