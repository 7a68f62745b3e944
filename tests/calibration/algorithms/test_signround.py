# SPDX-License-Identifier: BSD-3-Clause
"""Learned rounding as an algorithm: through bs.calibrate, never worse, refusing by name."""

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.algorithms import signround
from blockscale.calibration.algorithms.learned.loop import error_over
from blockscale.calibration.algorithms.learned.samples import Samples
from blockscale.calibration.algorithms.learned.stage import Stage
from blockscale.calibration.algorithms.mse import MSE
from blockscale.calibration.algorithms.signround import SignRound
from blockscale.calibration.block_calls import BlockTask
from blockscale.ops.tensor import QTensor
from tests.calibration.algorithms.learned.tasks import FORMATS, Net, task_of, weights_of


def error_of(task: BlockTask, codes: dict[str, QTensor]) -> float:
    stage = Stage(task)
    samples = Samples(task.calls, task.targets, stage.as_it_is)
    with stage.quantizing():
        values = {name: q.dequantize() for name, q in codes.items()}
        return error_over(stage, values, samples, samples.rows)


def plain(task: BlockTask, kind: str) -> dict[str, QTensor]:
    fmt = task.plans[0].format
    return {
        name: bs.quantize(w, fmt) if kind == "absmax" else MSE().quantize(w, fmt, None, name)[0]
        for name, w in weights_of(task).items()
    }


def chosen(
    task: BlockTask, steps: int = 30, **settings: float | str
) -> tuple[dict[str, QTensor], set[str]]:
    found = SignRound(steps, positions=48, **settings).quantize_block(task)  # type: ignore[arg-type]
    notes = {note for _, told in found.values() for note in told}
    return {name: q for name, (q, _) in found.items()}, notes


@pytest.mark.some(8)
@pytest.mark.filterwarnings("ignore:no cpu kernel")
@pytest.mark.parametrize("text", FORMATS)
def test_every_format_gets_no_worse_than_plain_rounding(text: str) -> None:
    task = task_of(text)
    before = weights_of(task)
    codes, _ = chosen(task, 4, start="absmax")
    assert all(str(q.format) == str(task.plans[0].format) for q in codes.values())
    worst = min(
        error_of(task, plain(task, kind))
        for kind in ("absmax", "mse")
        if "book" not in text or kind == "absmax"
    )
    assert error_of(task, codes) <= worst
    assert all(torch.equal(w, before[name]) for name, w in weights_of(task).items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight", "inputs", "rate", "part"),
    [("int3:group8:fp32", "mxfp8", 0.5, 0.8), ("mxfp4", None, 0.1, 0.8)],
)
def test_it_gains_much_where_there_is_much_to_gain(
    weight: str, inputs: str | None, rate: float, part: float
) -> None:
    task = task_of(bs.Recipe(weight=weight, input=inputs))
    codes, notes = chosen(task, 60, start="mse", rate=rate)
    assert error_of(task, codes) < part * error_of(task, plain(task, "mse"))
    assert not notes


def test_what_is_worse_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the descent leaves nonsense."""

    def nonsense(stage: Stage, weights: dict[str, object], *rest: object) -> None:
        for weight in weights.values():
            weight._offsets.copy_(torch.rand_like(weight._offsets) - 0.5)  # type: ignore[attr-defined]
            weight.refresh()  # type: ignore[attr-defined]

    monkeypatch.setattr(signround, "learn", nonsense)
    task = task_of("int4:group8:fp32")
    codes, notes = chosen(task, start="mse")
    best = plain(task, "mse")
    assert all(torch.equal(q.packed, best[name].packed) for name, q in codes.items())
    assert notes == {"learned rounding did not lower the error of block: weights by mse"}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.layers = nn.ModuleList(Net() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)[0]
        return x


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.filterwarnings("ignore:(?s).*first. not in a model block")
@pytest.mark.parametrize("settings", [{}, {"input": "mxfp8"}, {"input": "int8:tensor:fp32"}])
@pytest.mark.parametrize("transform", [None, "hadamard:8"])
def test_through_calibrate(settings: dict[str, str], transform: str | None) -> None:
    torch.manual_seed(0)
    model = Model().eval()
    batches = [torch.randn(2, 12, 16) for _ in range(6)]
    with torch.no_grad():
        expected = torch.cat([model(x) for x in batches])

    def error(weight: object) -> float:
        torch.manual_seed(0)
        copy = Model().eval()
        recipe = bs.Recipe(weight="int3:group8:fp32", **settings)
        ledger = bs.calibrate(
            copy, batches, recipe, weight=weight, transform=transform, progress=False
        )  # type: ignore[arg-type]
        if weight is not None:
            assert "weight by signround" in str(ledger)
        with torch.no_grad():
            return float((torch.cat([copy(x) for x in batches]) - expected).square().mean())

    assert error(SignRound(40, positions=72, rate=0.25)) < 0.6 * error(None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("int4:group8:fp32:stochastic", "rounds stochastically"),
        ("int4:group8:e8m0/given", "must be supplied"),
        ("int4:group8:fp32:offset(int8:tensor:fp32)", "share the scale of their offsets"),
    ],
)
def test_refusals_name_the_layer_before_anything_begins(
    text: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signround, "start_of", None)  # nothing has begun
    with pytest.raises(ValueError, match=rf"block\.up: .*{why}"):
        SignRound(1).quantize_block(task_of(text))


def test_nan_in_the_last_weight_is_seen_before_the_first_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = task_of("int4:group8:fp32")
    with torch.no_grad():
        task.module.down.weight[0, 0] = torch.nan
    monkeypatch.setattr(signround, "start_of", None)
    with pytest.raises(ValueError, match=r"block\.down: 1 of 384 weights are NaN"):
        SignRound(1).quantize_block(task)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"steps": 0}, (
        "steps must be an integer >="
)), ({"steps": 2.5}, "steps must be an integer >="),
        ({"start": "hqq"}, "gptq, search, mse, absmax"), ({"rate": 0.0}, "rate must be above 0"),
        ({"factors": -1.0}, "factors >= 0"), ({"positions": 0}, "positions must be >= 1"),
        ({"patience": -1}, "patience >= 0"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=f"signround: .*{why}"):
        SignRound(**settings)  # type: ignore[arg-type]


def test_a_block_without_calls_is_rounded_by_its_start() -> None:
    task = task_of("int4:group8:fp32", rows=())
    codes, _ = chosen(task, start="mse")
    best = plain(task, "mse")
    assert all(torch.equal(q.packed, best[name].packed) for name, q in codes.items())


def test_a_layer_in_no_block_says_so() -> None:
    weight = torch.randn(4, 16)
    q, notes = SignRound().quantize(weight, bs.parse("int4:group8:fp32"), None, "head")
    assert torch.equal(q.packed, MSE().quantize(weight, q.format, None, "head")[0].packed)
    assert notes == ["not in a model block: its rounding was not learned"]


@pytest.mark.parametrize("option", [{"inside": 0.5}, {"inside": 0}, {"rising": 1.0}])
def test_margins_that_cannot_be(option: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="inside above 0 and below 1/2"):
        SignRound(**option)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", [{"whole": -1}, {"whole": 1.5}, {"whole_rate": 0}])
def test_settings_of_the_whole_model_that_cannot_be(option: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"whole must be an integer >= 0 \(steps\)"):
        SignRound(**option)  # type: ignore[arg-type]
