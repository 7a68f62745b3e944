# SPDX-License-Identifier: BSD-3-Clause
"""Static scales are what observers choose from all the data that a layer sees."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration import weighing
from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.ranks import Ranks
from blockscale.calibration.session import Session
from blockscale.calibration.weighing import Gram, LastProducts, product_of
from blockscale.layers.plan import plan_layers
from tests.calibration.networks import CHANNEL, STATIC, Net, deep, ids, net, quietly, state_of


def seen(model: Net, batches: list[Any]) -> dict[str, Tensor]:
    """{layer.input or layer.output: all rows it had} by plain hooks, channels last."""
    found: dict[str, list[Tensor]] = {}
    handles = []
    for name, layer in model.named_children():

        def hook(m: Any, x: Any, y: Tensor, name: str = name) -> None:
            for part, value in (("input", x[0]), ("output", y)):
                value = value.movedim(1, -1) if name == "conv" else value
                found.setdefault(f"{name}.{part}", []).append(value.flatten(0, -2))

        handles.append(layer.register_forward_hook(hook))
    with torch.no_grad():
        for batch in batches:
            model.eval()(**batch)
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def test_static_scales_are_those_of_all_the_data() -> None:
    model, batches = net(), deep(ids(4, 1, 7))
    expected = seen(copy.deepcopy(model), batches)
    plain = copy.deepcopy(model)
    ledger = quietly(model, batches, STATIC, "min_max", strict=True)
    for name in ("table", "conv", "twice", "gpt", "dead"):
        layer = model.get_submodule(name)
        y, amax = layer.output.parts[0], expected[f"{name}.output"].abs().amax(0)
        torch.testing.assert_close(y.flatten(), amax / 127, rtol=1e-6, atol=0)
        assert "static output by min_max" in ledger[name].details
        if name == "table":
            assert layer.input is None
            continue
        x, amax = layer.input.parts[0], expected[f"{name}.input"].abs().amax()
        torch.testing.assert_close(x.flatten(), (amax / 127)[None], rtol=1e-6, atol=0)
        assert "static input by min_max" in ledger[name].details
    twin = copy.deepcopy(plain)
    bs.quantize_(twin, "int8_channel")
    for name in ("table", "conv", "twice", "gpt"):  # the codes are those of quantize_
        mine, its = (m.get_submodule(name).weight.codes for m in (model, twin))
        assert torch.equal(mine, its)
    x = batches[0]
    assert (model.eval()(**x) - plain.eval()(**x)).abs().max() < 0.1


def test_asymmetric_and_two_level_scales() -> None:
    for fmt in ("uint8:channel-1:fp32:asym", "e2m1:tensor:e4m3", "int8:tensor:pow2/ceil"):
        model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), torch.rand(9, 8) - 0.2
        quietly(model, [x[:4], x[4:]], bs.Recipe("int8", input=fmt), "min_max")
        found, expected = model[0].input, bs.quantize(x, fmt)
        scale, zero_point, outer = found.parts
        assert torch.equal(scale, expected.qparams.scale)
        assert outer is None or torch.equal(outer, expected.qparams.outer)
        assert zero_point is None or torch.equal(zero_point, expected.zero_point)
        assert torch.equal(found(x), expected.dequantize())


def test_formats_with_other_blocks_stay_dynamic() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    ledger = quietly(model, [torch.randn(3, 8)], bs.Recipe("int8", "mxfp8", "int8_token"))
    assert not model[0].input.static
    assert ledger["0"].details == "dynamic input, dynamic output"
    assert "int8, input mxfp8" in str(ledger)


def test_values_that_are_not_finite_are_counted() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(5, 4)
    x[0, 1], x[2, 2] = torch.nan, torch.inf
    with pytest.warns(UserWarning, match="0: 1 NaN, 1 infinite of 20 input values"):
        quietly(model, [x], bs.Recipe("int8", "int8"), "min_max")
    expected = torch.where(x.isfinite(), x, 0).abs().max() / 127
    torch.testing.assert_close(model[0].input.parts[0].flatten()[0], expected)


def test_nothing_but_nan_leaves_an_input_dynamic() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.warns(UserWarning, match="0: 8 NaN of 8 input values, which were left out"):
        ledger = quietly(model, [torch.full((2, 4), torch.nan)], bs.Recipe("int8", "int8"), "mse")
    assert not model[0].input.static
    assert ledger["0"].details == "dynamic input"


def test_an_observer_that_cannot_choose_names_the_layer() -> None:
    class Undecided(bs.observers.Observer):
        name = "undecided"

        def _choose(self) -> tuple[Tensor, Tensor]:
            raise ValueError("too few")

    model = nn.Sequential(nn.Linear(4, 4))
    before = state_of(model)
    with pytest.raises(ValueError, match="the input of 0: too few"):
        quietly(model, [torch.randn(1, 4)], bs.Recipe("int8", CHANNEL), Undecided)
    assert state_of(model) == before


def test_autocast_and_half_precision_models() -> None:
    class Cast(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    for model in (
        Cast(nn.Linear(8, 8), nn.Linear(8, 8)),
        nn.Sequential(nn.Linear(8, 8)).bfloat16(),
    ):
        x = torch.randn(4, 8, dtype=model[0].weight.dtype)
        quietly(model, [x], bs.Recipe("int8", "int8", "int8"), "min_max", weight="gptq")
        torch.testing.assert_close(
            model[0].input.parts[0].flatten()[0], x.abs().max().float() / 127
        )
        assert model[0].output.static
        assert torch.isfinite(model(x)).all()


# One input of several layers is multiplied once, and never mistaken for another.


class Rows:
    """Rows of an input in pieces, and how often somebody asked for them."""

    def __init__(self, x: Tensor, size: int = 3):
        self.x, self.size, self.asked = x, size, 0

    def __call__(self) -> Iterator[Tensor]:
        self.asked += 1
        yield from self.x.split(self.size)


def sums(last: LastProducts, rows: Rows, alike: object = 0) -> Tensor:
    (found,) = last.of(rows.x, alike, rows)
    assert found.rows == len(rows.x)
    return found.sum


def test_the_same_input_is_multiplied_once() -> None:
    last, rows = LastProducts(), Rows(torch.randn(7, 4))
    first = sums(last, rows)
    torch.testing.assert_close(first.float(), rows.x.T @ rows.x)
    assert sums(last, rows) is first and rows.asked == 1


def test_what_is_another_input_is_multiplied_anew() -> None:
    last, rows = LastProducts(), Rows(torch.randn(7, 4))
    before = sums(last, rows).clone()
    assert sums(last, rows, alike=1) is not None and rows.asked == 2  # other rows of it
    rows.x.mul_(2)  # the same tensor, changed in place
    torch.testing.assert_close(sums(last, rows, alike=1), 4 * before)
    other = Rows(rows.x.clone())
    sums(last, other)
    assert (rows.asked, other.asked) == (3, 1)
    with torch.inference_mode():
        unseen = Rows(torch.randn(3, 4))
        for _ in range(2):
            assert len(list(last.of(unseen.x, 0, unseen))) == 1
    assert unseen.asked == 2  # without a version nobody could tell


def test_it_holds_no_input() -> None:
    last = LastProducts()
    sums(last, Rows(torch.randn(7, 4)))
    assert last._of is not None and last._of() is None
    assert list(last.of(torch.randn(0, 4), 0, list)) == []


class Attention(nn.Module):
    """Query, key and value of one input; the value's is changed in place between."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        return self.q(x) * self.k(x) + self.v(x.mul_(2))


def test_grams_of_layers_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Tensor] = {}

    class Spy:
        name, needs_gram = "spy", True

        def quantize(
            self, weight: Tensor, fmt: bs.Format, gram: Tensor, layer: str
        ) -> tuple[bs.QTensor, list[str]]:
            seen[layer] = gram
            return bs.quantize(weight, fmt), []

    made = []

    def counted(x: Tensor, *strips: Any) -> Gram:
        made.append(x)
        return product_of(x, *strips)

    monkeypatch.setattr(weighing, "product_of", counted)
    batches = [torch.randn(5, 8) for _ in range(2)]
    bs.calibrate(Attention(), batches, "int8_channel", weight=Spy(), progress=False)
    x = torch.cat(batches).double()
    torch.testing.assert_close(seen["q"], x.T @ x / 10)
    assert torch.equal(seen["q"], seen["k"])
    torch.testing.assert_close(seen["v"], 4 * seen["q"])
    assert len(made) == 2 * 2  # of each batch that of query and key, and that of value


def test_transforms_are_dealt_by_what_they_are_tried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a block of Llama's shape, whose codes and gram matrices are dealt in parts, no process
    chooses for much more than a quarter of the weights, and codes are dealt anew after it."""
    monkeypatch.setattr("blockscale.calibration.dealing.ROWS", 32)
    monkeypatch.setattr("blockscale.calibration.weighing._STRIP", 32)
    shapes = {"q": (64, 64), "k": (16, 64), "v": (16, 64), "o": (64, 64), "gate": (224, 64)}
    shapes |= {"up": (224, 64), "down": (64, 224)}
    net = nn.ModuleDict({n: nn.Linear(k, rows, bias=False) for n, (rows, k) in shapes.items()})
    ranks, plans = Ranks(), plan_layers(net, bs.Recipe("int4:group32:fp32"))
    ranks.size = 4
    session = Session(net, plans, None, strict=False, ranks=ranks)
    session.deal(session.layers, GPTQ())
    codes = {name: ranks.chooser(name, 0) for name in shapes}
    session.collect(session.layers, gram=False)
    loads = [0] * 4
    for plan in session.layers:
        loads[ranks.owner(plan.name)] += plan.parameter.numel()
    assert max(loads) < 1.2 * sum(loads) / 4
    session.deal(session.layers, GPTQ())
    assert codes == {name: ranks.chooser(name, 0) for name in shapes}
