# SPDX-License-Identifier: BSD-3-Clause
"""Rotated models give what they gave, and refused ones are what they were."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration import algorithms, calibrate
from blockscale.calibration import rotated as under_test
from blockscale.calibration.algorithms import rotates
from blockscale.calibration.algorithms.quarot import QuaRot
from blockscale.calibration.residual_stream import UnrotatableError, stream_of
from blockscale.calibration.rotated import rotated
from tests.support.rotation_models import DECODERS, REFUSED, batches, decoder

RECIPE = bs.Recipe("int8_channel", input="int8_token", skip=["*head", "*embed*"])


def output(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**batch).logits


def state(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.named_parameters(remove_duplicate=False)}


def exact_norms(model: nn.Module) -> None:
    """transformers' RMSNorms compute in float32: here in float64, so that nothing hides."""

    def norm(module: Any, x: Tensor) -> Tensor:
        gain = module.weight + 1 if "Gemma" in type(module).__name__ else module.weight
        eps = getattr(module, "variance_epsilon", None) or module.eps
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * gain

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = norm.__get__(module)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", DECODERS)
def test_nothing_changes_but_the_weights(name: str) -> None:
    exact = name != "mixtral"  # whose experts know no float64
    model = decoder(name, torch.float64 if exact else torch.float32)
    if exact:
        exact_norms(model)
    data = batches()
    expected, before = output(model, data[1]), state(model)
    with rotated(model, QuaRot(1), RECIPE, data) as turned:
        pass
    off = (output(model, data[1]) - expected).abs().max() / expected.abs().max()
    # float64 throughout, but for rotary embeddings, which are the same in both
    assert off <= (1e-11 if exact else 1e-5)
    changed = {k for k, v in state(model).items() if not torch.equal(v, before[k])}
    assert set(turned.rotations) <= changed
    head = model.get_output_embeddings()
    assert head.weight is not model.get_input_embeddings().weight
    assert model.config.tie_word_embeddings is False
    now = output(model, data[1])
    model.tie_weights()
    assert torch.equal(output(model, data[1]), now)
    assert head.weight is not model.get_input_embeddings().weight


@pytest.mark.parametrize("name", REFUSED)
def test_refused_models_are_as_they_were(name: str) -> None:
    model = decoder(name)
    before = state(model)
    with pytest.raises(UnrotatableError, match="was left as it was"):
        bs.calibrate(model, batches(), RECIPE, transform="quarot", progress=False)
    assert all(torch.equal(v, before[k]) for k, v in state(model).items())


def test_a_wrong_fold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: one writer is not rotated."""
    model = decoder("llama")
    found = stream_of(model, batches()[0])
    found.uses = [use for use in found.uses if "down_proj.weight" not in use.parameter]
    monkeypatch.setattr(under_test, "stream_of", lambda *_: found)
    before = dict(model.named_parameters(remove_duplicate=False))
    with pytest.raises(ValueError, match="would change"):
        bs.calibrate(model, batches(), RECIPE, transform="quarot", progress=False)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[k] is v for k, v in before.items())


def test_what_raises_later_takes_the_rotation_back() -> None:
    model = decoder("llama", torch.float32)
    before = dict(model.named_parameters(remove_duplicate=False))
    bad = [*batches(1), {"input_ids": torch.tensor([[1000]])}]
    with pytest.raises(IndexError):
        bs.calibrate(model, bad, RECIPE, transform="quarot", progress=False)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[k] is v for k, v in before.items()) and before.keys() == after.keys()
    assert model.config.tie_word_embeddings is True


def test_calibrate_says_what_was_rotated_and_reads_an_iterator_once() -> None:
    model = decoder("llama", torch.float32)
    expected = output(model, batches()[0])
    ledger = bs.calibrate(model, iter(batches()), RECIPE, transform="quarot", progress=False)
    quantized = ledger.quantized
    assert len(quantized) == 14
    assert all("the residual stream is rotated" in entry.details for entry in quantized)
    assert "no longer tied" in ledger["lm_head"].details
    off = output(model, batches()[0]) - expected
    assert off.square().mean().sqrt() < 0.1 * expected.square().mean().sqrt()
    assert all(module.before is None for module in model.modules() if hasattr(module, "before"))


@pytest.mark.parametrize(
    ("name", "fused", "output"),
    [
        ("phi3", "qkv_proj", "model.layers.1.self_attn.o_proj"),
        ("gpt2", "c_attn", "transformer.h.1.attn.c_proj"),
        ("neox", "query_key_value", "gpt_neox.layers.1.attention.dense"),
    ],
)
def test_the_ledger_says_where_values_are_not_rotated(name: str, fused: str, output: str) -> None:
    model = decoder(name, torch.float32)
    ledger = bs.calibrate(model, batches(), "int8_channel", transform="quarot", progress=False)
    told = {entry.name: entry.details for entry in ledger if "values of heads" in entry.details}
    assert len(told) == 2 and "the residual stream is rotated" in told[output]
    assert (
        f"{output.rpartition('.')[0]}.{fused} computes together with queries and keys"
        in told[output]
    )


def test_no_such_note_where_values_are_rotated() -> None:
    model = decoder("llama", torch.float32)
    ledger = bs.calibrate(model, batches(), RECIPE, transform="quarot", progress=False)
    assert not any("values of heads" in entry.details for entry in ledger)


@pytest.mark.parametrize("transform", ["quarot", "spinquant"])
def test_streamed_weights_are_refused_before_anything_is_read(transform: str) -> None:
    with torch.device("meta"):
        model = decoder("mistral", torch.float32)

    def read(name: str) -> Tensor:
        raise AssertionError(name)

    with pytest.raises(ValueError, match=f"{transform!r} rotates .* source="):
        bs.calibrate(
            model, iter([]), RECIPE, transform=transform, progress=False, source=read
        )  # fmt: skip
    assert all(parameter.is_meta for parameter in model.parameters())


def test_others_rotate_no_model() -> None:
    model, data = decoder("llama").float(), batches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "rotated", None)  # a call would raise TypeError
        bs.calibrate(model, data, RECIPE, transform="hadamard", progress=False)
    every = {name: algorithms.transforms(name) for name in algorithms.transform_names()}
    assert [name for name in every if rotates(every[name])] == ["quarot", "spinquant"]
