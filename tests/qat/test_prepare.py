# SPDX-License-Identifier: BSD-3-Clause
"""Preparing changes classes and nothing else; what is refused is refused before any change."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.qat.layers import QATLayer
from tests.support.qat_models import Mixed, batch, cnn


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
    assert "tied to a layer that cannot be trained so" in str(told[0].message)
    assert type(model["b"]) is nn.Linear
    assert isinstance(model["c"], QATLayer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: bs.prepare_qat(nn.Linear(2, 2), "int8"), "wrap it"),
        (lambda m: bs.prepare_qat(bs.prepare_qat(m, "int8"), "int8"), "already prepared"),
        (lambda m: bs.prepare_qat(m, "int8", learn="lsq"), "one of steps, thresholds"),
        (lambda m: bs.prepare_qat(m, "int8", learn={"inputs": "steps"}), "no part 'inputs'"),
        (lambda m: bs.prepare_qat(m, bs.Recipe("int8", "int8"), observer="best"), "0: no observer"),
        (lambda m: bs.prepare_qat(m, "int8", fuse="yes"), "fuse is 'auto'"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "9")]), "expected names"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "7")]), "no pair that can be folded"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "4")]), "has 16 features"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "1"), ("0", "1")]), "another pair has"),
        (
            lambda m: bs.prepare_qat(m, bs.Recipe("int8", skip=["0"]), fuse=[("0", "1")]),
            "the convolution is not quantized",
        ),
        (bs.convert, "nothing is prepared"),
        (bs.qat.ledger, "has no ledger"),
        (bs.qat.freeze, "nothing is prepared"),
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
    with pytest.raises(ValueError, match="no observer"):
        bs.prepare_qat(model, bs.Recipe("int8", "int8"), observer="best")
    assert [type(m) for m in model] == [type(m) for m in cnn()]
