# SPDX-License-Identifier: BSD-3-Clause
"""A sample given to quantize_: what cannot run is put back object by object, buffers number by
number, and the error says what to skip."""

import copy
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers.model import Snapshot
from blockscale.layers.trial import buffers_kept

X = torch.randn(4, 32)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32)
        self.own = nn.Parameter(torch.randn(32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.fc(x)) @ self.own
        return y


def state_model() -> Model:
    return Model()


def test_a_snapshot_restores_modules_parameters_and_classes() -> None:
    made = state_model()
    layer, own, kind, state = made.fc, made.own, type(made), made.state_dict()
    before = Snapshot(made)
    bs.quantize_(made, "int8")
    made.register_buffer("more", torch.ones(3))
    made.said = "by whoever listens to quantize_"
    assert type(made) is not kind
    before.restore()
    assert (made.fc, type(made)) == (layer, kind)
    assert made.own is own
    assert not hasattr(made, "said")
    assert [*made.state_dict()] == [*state]


@pytest.mark.parametrize("fails", [False, True])
def test_buffers_are_kept_whatever_happens(fails: bool) -> None:
    made = state_model()
    bs.quantize_(made, "int8")
    mean, before = made.norm.running_mean, copy.deepcopy(made.state_dict())
    codes = made.fc.qweight.codes
    try:
        with buffers_kept(made):
            made(torch.randn(4, 32))
            assert not torch.equal(mean, before["norm.running_mean"])
            made.norm.running_mean = torch.full((32,), torch.nan)
            made.norm.num_batches_tracked += 7
            assert made.fc.qweight.codes is codes
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert fails
    assert made.norm.running_mean is mean
    for name, value in before.items():
        assert not isinstance(value, torch.Tensor) or torch.equal(made.state_dict()[name], value)


class Writes(nn.Module):
    """In-place work on a weight that quantized layers refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        self.fc.weight.data.add_(0.0)
        return F.linear(x, self.fc.weight)


class Asks(nn.Module):
    """A forward that wants what only a Parameter has."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.other = nn.Linear(32, 16), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.proj, nn.Linear):
            raise TypeError("the projection is no nn.Linear")
        return self.proj(x)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.randn(32, 32))
        self.fc = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x @ self.q)
        if type(self.q) is not nn.Parameter:
            raise TypeError("q is no Parameter")
        return y


def objects(model: nn.Module) -> list[tuple[Any, ...]]:
    """Every object of a model, by identity, and every number."""
    return [
        (name, id(m), type(m), *(
            (key, id(value), None if value is None else value.detach().clone())
            for each in (m._parameters, m._buffers)
            for key, value in each.items()
        ))
        for name, m in model.named_modules()
    ]  # fmt: skip


def unchanged(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]) -> bool:
    def plain(each: Any) -> Any:
        return [e[:2] if isinstance(e, tuple) else e for e in each]

    numbers = [
        (x[2], y[2])
        for a, b in zip(before, after, strict=True)
        for x, y in zip(a[3:], b[3:], strict=True)
    ]
    return [*map(plain, before)] == [*map(plain, after)] and all(
        x is None or torch.equal(x, y) for x, y in numbers
    )


BROKEN = [
    (Asks, "net (Asks), whose quantized weight is net.proj.weight or net.other.weight: leave it "
           "in float with skip=['net.proj', 'net.other'] in the recipe"),
    (Own, "net (Own), whose quantized weight is net.q or net.fc.weight: leave it in float with "
          "skip=['net.q', 'net.fc'] in the recipe"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "told"), BROKEN)
def test_what_does_not_run_is_put_back(kind: type[nn.Module], told: str) -> None:
    made = nn.Sequential()
    made.add_module("norm", nn.BatchNorm1d(32))
    made.add_module("net", kind())
    before, random = objects(made), torch.get_rng_state()
    with pytest.raises(RuntimeError) as refused:
        bs.quantize_(made, "int8", sample=(X,))
    start = "the quantized model does not run on the sample, and nothing was changed: TypeError: "
    assert str(refused.value).startswith(start)
    assert str(refused.value).endswith(f"; raised in {told}")
    assert isinstance(refused.value.__cause__, TypeError)
    assert unchanged(before, objects(made))
    assert torch.equal(torch.get_rng_state(), random)
    skip = re.findall(r"skip=\[(.*)\]", told)[0].replace("'", "").split(", ")
    ledger = bs.quantize_(made, bs.Recipe("int8", skip=skip), sample=(X,))  # the advice helps
    assert not ledger.quantized


def test_a_write_names_its_weight_too() -> None:
    made = nn.Sequential(Writes())
    with pytest.raises(RuntimeError, match=r"skip=\['0.fc'\] in the recipe$") as refused:
        bs.quantize_(made, "int8", sample=X)
    assert "0.fc.weight" in str(refused.value)
    assert type(made[0].fc) is nn.Linear


def test_a_layer_that_fails_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from blockscale.layers.kinds import QLinear

    def broken(self: Any, x: Tensor) -> Tensor:
        raise ValueError("broken")

    broken.__name__ = "forward"
    broken.__code__ = broken.__code__.replace(co_name="forward")
    monkeypatch.setattr(QLinear, "forward", broken)
    made = nn.Sequential(nn.Linear(32, 16), nn.ReLU())
    told = (
        "the quantized model does not run on the sample, and nothing was changed: ValueError: "
        "broken; raised in 0 (QLinear), whose quantized weight is 0.weight: leave it in float with "
        "skip=['0'] in the recipe"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(told)}$"):
        bs.quantize_(made, "int8", sample=X)


def test_a_sample_that_fits_no_model() -> None:
    made = nn.Sequential(nn.Linear(32, 16))
    told = (
        "the float model fails as well: does the sample match its inputs? As for batches "
        "of bs.calibrate, a tuple holds positional arguments and a mapping holds keyword "
        "arguments"
    )
    with pytest.raises(RuntimeError, match=f"{re.escape(told)}$"):
        bs.quantize_(made, "int8", sample=torch.ones(3, 5))
    assert type(made[0]) is nn.Linear


class Everything(nn.Module):
    """Batch norms in training, dropout, a counter that its forward replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Dropout()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        self.count = self.count + 1
        z: Tensor = self.drop(self.norm(self.fc(x)))
        assert not torch.is_grad_enabled()
        return z if y is None else z + y


@pytest.mark.parametrize("training", [True, False])
def test_a_run_leaves_no_trace(training: bool) -> None:
    torch.manual_seed(3)
    plain = Everything().train(training)
    made = copy.deepcopy(plain)
    bs.quantize_(plain, "mxfp4")
    for sample in (X, (X, X[:, :16]), {"x": X, "y": X[:, :16]}, [X]):
        model = copy.deepcopy(made)
        count, mean = model.count, model.norm.running_mean
        random = torch.get_rng_state()
        bs.quantize_(model, "mxfp4", sample=sample)
        assert torch.equal(torch.get_rng_state(), random)
        assert model.training == model.drop.training == training
        assert model.count is count
        assert model.norm.running_mean is mean
        for name, tensor in plain.state_dict().items():
            if isinstance(tensor, Tensor):
                assert torch.equal(tensor, model.state_dict()[name]), name
