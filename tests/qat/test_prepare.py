# SPDX-License-Identifier: BSD-3-Clause
"""Preparing changes classes and nothing else; what is refused is refused before any change."""

import copy

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.qat.layers import QATLayer
from blockscale.qat.prepare import NORMS
from tests.support.qat_models import Mixed, batch, cnn


@pytest.mark.slow
def test_nothing_of_the_model_but_its_class_changes():
    model = Mixed()
    plain = (int, float, str, bool, tuple, type(None))

    def settings():
        return {
            (name, key): value
            for name, module in model.named_modules()
            for key, value in vars(module).items()
            if isinstance(value, plain) and not key.startswith("_norm") and "quantiz" not in name
        }

    calls = []
    model.last.register_forward_hook(lambda *_: calls.append("hook"))
    model.embedding.weight.requires_grad_(False)
    model.drop.eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before, objects = settings(), dict(model.named_modules())
    parameters = dict(model.named_parameters())
    names = set(model.state_dict())
    bs.prepare_qat(model, bs.Recipe("int8", "int8"))
    after = settings()
    assert {k: after[k] for k in before} == before
    assert all(dict(model.named_modules())[name] is module for name, module in objects.items())
    found = dict(model.named_parameters())
    assert all(found[name] is parameter for name, parameter in parameters.items())
    assert names <= set(model.state_dict())
    weight = model.last.weight.clone()
    model(batch()).square().mean().backward()
    optimizer.step()
    assert calls == ["hook"]
    assert not torch.equal(weight, model.last.weight)
    bs.convert(model)
    model(batch())
    assert calls == ["hook", "hook"]
    assert model.drop.p == 0.25
    assert not model.drop.training


def test_skips_are_said_once_and_strict_raises_before_any_change():
    model = nn.Sequential(nn.Linear(8, 8), nn.Bilinear(32, 32, 2))
    with pytest.raises(bs.SkippedError, match="Bilinear uses it directly"):
        bs.prepare_qat(model, "int8", strict=True)
    assert type(model[0]) is nn.Linear
    with pytest.warns(UserWarning, match="Bilinear uses it directly") as told:
        bs.prepare_qat(model, "int8")
    assert len(told) == 1
    ledger = bs.qat.ledger(model)
    assert [e.status for e in ledger if e.name in ("0", "1.weight")] == ["quantized", "skipped"]
    bs.convert(model)
    assert bs.qat.ledger(model)["0"].bytes_after == 8 * 8 + 4 + 8 * 4


def test_sparse_embeddings_are_skipped_with_what_is_tied_to_them():
    model = nn.ModuleDict(
        {"a": nn.Embedding(4, 8, sparse=True), "b": nn.Linear(8, 4), "c": nn.Linear(8, 8)}
    )
    model["b"].weight = model["a"].weight
    with pytest.warns(UserWarning, match="sparse gradients") as told:
        bs.prepare_qat(model, "int8")
    assert "tied to a layer that cannot be trained with" in str(told[0].message)
    assert type(model["b"]) is nn.Linear
    assert isinstance(model["c"], QATLayer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: bs.prepare_qat(nn.Linear(2, 2), "int8"), "wrap it"),
        (lambda m: bs.prepare_qat(bs.prepare_qat(m, "int8"), "int8"), "already prepared"),
        (lambda m: bs.prepare_qat(m, "int8", learn="lsq"), "one of steps, thresholds"),
        (lambda m: bs.prepare_qat(m, "int8", learn={"inputs": "steps"}), "unknown part 'inputs'"),
        (
            lambda m: bs.prepare_qat(m, bs.Recipe("int8", "int8"), observer="best"),
            "0: unknown observer",
        ),
        (lambda m: bs.prepare_qat(m, "int8", fuse="yes"), "fuse must be 'auto'"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "9")]), "expected names"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "7")]), "cannot be folded"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "4")]), "has 16 features"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "1"), ("0", "1")]), "another pair"),
        (
            lambda m: bs.prepare_qat(m, bs.Recipe("int8", skip=["0"]), fuse=[("0", "1")]),
            "the convolution is not quantized",
        ),
        (bs.convert, "nothing in this model is prepared"),
        (bs.qat.ledger, "has no ledger"),
        (bs.qat.freeze, "nothing in this model is prepared"),
        (lambda m: bs.convert(nn.Sequential(bs.prepare_qat(m, "int8"))), "inside or around it"),
        (
            lambda m: bs.convert(bs.prepare_qat(m, "int8").append(copy.deepcopy(m[7]))),
            "8 is not in the model's ledger",
        ),
        (
            lambda m: bs.convert(bs.prepare_qat(m, bs.Recipe("int8", "int8"))),
            "0: int8:tensor:fp32: this scale is static and has seen no data",
        ),
        (
            lambda m: bs.prepare_qat(m, bs.Recipe("int8", "int8"), learn="steps").eval()(
                torch.ones(1, 3, 8, 8)
            ),
            "has seen no data",
        ),
    ],
)
def test_errors(call, message):
    model = cnn()
    with pytest.raises(ValueError, match=message):
        call(model)


def test_a_failed_prepare_changes_nothing():
    model = cnn()
    with pytest.raises(ValueError, match="unknown observer"):
        bs.prepare_qat(model, bs.Recipe("int8", "int8"), observer="best")
    assert [type(m) for m in model] == [type(m) for m in cnn()]


# Which batch norm follows which convolution.

FINE = "int16:channel0:fp32"  # so fine that what remains is the arithmetic of folding


class Residual(nn.Module):
    """Two convolutions, of which one also feeds something else than its batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        return self.norm1(y) + y + self.norm2(self.conv2(x))


def prepared(model: nn.Module, fmt: str = FINE, **settings) -> nn.Module:
    return bs.prepare_qat(model, fmt, **settings)


def folded(model: nn.Module) -> list[str]:
    return [e.name for e in bs.qat.ledger(model) if "folded in" in e.reason]


def test_what_follows_what():
    assert folded(prepared(cnn())) == ["0", "3"]
    assert folded(prepared(Mixed())) == ["conv1", "conv2"]
    assert folded(prepared(Residual())) == ["conv2"]
    assert folded(prepared(cnn(), fuse=None)) == []
    assert folded(prepared(cnn(), fuse=[("3", "4")])) == ["3"]


def test_a_model_that_cannot_be_traced():
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = cnn()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) if x.sum() > 0 else self.body(-x)

    with pytest.warns(UserWarning, match="torch.fx cannot trace the model"):
        model = prepared(Branching())
    assert folded(model) == ["body.0", "body.3"]
    model = Branching()
    norm = nn.BatchNorm2d(3)
    model.body = nn.Sequential(nn.Conv2d(3, 3, 1), norm, nn.Conv2d(3, 3, 1), norm)
    with pytest.warns(UserWarning, match="torch.fx cannot trace the model"):
        assert folded(prepared(model)) == []


def test_a_pair_that_is_no_neighbour():
    """Called once, but not one after the other; and called twice."""
    conv, norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    assert folded(prepared(nn.Sequential(conv, nn.ReLU(), norm))) == []
    conv, norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    assert folded(prepared(nn.Sequential(conv, norm, nn.ReLU(), conv, norm))) == []
    assert folded(prepared(nn.Sequential(nn.Conv2d(3, 3, 1), norm, nn.Conv2d(3, 3, 1), norm))) == []


@pytest.mark.parametrize("kind", NORMS, ids=lambda kind: kind.__name__)
def test_every_kind_of_convolution_with_the_norm_of_its_rank(kind: type[nn.Module]) -> None:
    norms = dict.fromkeys(NORMS.values())
    for norm in norms:
        model = nn.Sequential(kind(4, 6, 3), norm(6))
        assert folded(prepared(model)) == (["0"] if norm is NORMS[kind] else [])
    with pytest.raises(ValueError, match="cannot be folded"):
        other = next(norm for norm in norms if norm is not NORMS[kind])
        prepared(nn.Sequential(kind(4, 6, 3), other(6)), fuse=[("0", "1")])


def test_what_cannot_be_folded_stays():
    model = cnn()
    model[1] = nn.BatchNorm2d(8, track_running_stats=False)
    model[3].register_forward_hook(lambda *_: None)
    assert folded(prepared(model)) == []
