# SPDX-License-Identifier: BSD-3-Clause
"""A reference that is kept in a file: the same figures without the model."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import blockscale as bs
from blockscale.core.untrusted import FileError
from blockscale.evaluation.stored import StoredReference
from tests.support.evaluated import batches, llama, quantized_copy


@pytest.fixture(scope="module")
def models():
    model = llama()
    return model, quantized_copy(model, "int4:group32:fp16")


def plain(found):
    return {k: (v.mean, v.error, v.sequences, v.weight) for k, v in found.figures.items()}


@pytest.mark.parametrize("mask", [False, True])
def test_whole_logits_give_every_figure_of_the_model_itself(models, tmp_path, mask):
    model, quantized = models
    data = [each | ({"attention_mask": masked(each)} if mask else {}) for each in batches()]
    alone = bs.evaluate(model, data, store=tmp_path / "r.safetensors")
    assert plain(alone) == plain(bs.evaluate(model, data))
    found = bs.evaluate(quantized, reversed(data), tmp_path / "r.safetensors")
    beside = bs.evaluate(quantized, reversed(data), model)
    assert plain(found) == plain(beside) and found.positions == beside.positions
    tensors = load_file(tmp_path / "r.safetensors")  # which others read, too
    with torch.no_grad():
        assert torch.equal(tensors["1.logits"], model(**data[1]).logits)


def masked(batch):
    mask = torch.ones_like(batch["input_ids"])
    mask[0, -3:] = 0
    return mask


@pytest.mark.slow
def test_the_likeliest_give_all_but_kl_which_they_bound(models, tmp_path):
    model, quantized = models
    beside = plain(bs.evaluate(quantized, batches(), model))
    kls = []
    for top in (10, 40, 98, 500):
        bs.evaluate(model, batches(), store=tmp_path / "r.safetensors", top=top)
        found = plain(bs.evaluate(quantized, batches(), tmp_path / "r.safetensors"))
        kls.append(found.pop("kl")[0])
        for name, figure in found.items():
            assert figure == pytest.approx(beside[name], rel=1e-6, abs=1e-9), name
    assert kls[0] > 0 and all(less < more + 1e-9 for less, more in pairwise(kls))
    assert kls[-2] == pytest.approx(beside["kl"][0], abs=3e-7)  # 98 of 99 are all
    assert kls[-1] == pytest.approx(beside["kl"][0], abs=3e-7)


def test_the_bound_of_kl_is_that_of_a_coarser_distribution(models, tmp_path):
    """By the definition, in float64, of one batch."""
    model, quantized = models
    (data,) = batches(1)
    bs.evaluate(model, [data], store=tmp_path / "r.safetensors", top=12)
    found = bs.evaluate(quantized, [data], tmp_path / "r.safetensors")["kl"].mean
    with torch.no_grad():
        p, q = (m(**data).logits[:, :-1].flatten(0, 1).double().softmax(-1) for m in models)
    total = 0.0
    for mine, other in zip(p, q, strict=True):
        best = mine.topk(12).indices
        pairs = [*zip(mine[best].tolist(), other[best].tolist(), strict=True)]
        pairs.append((1 - sum(a for a, _ in pairs), 1 - sum(b for _, b in pairs)))
        total += sum(a * math.log(a / b) for a, b in pairs)
    assert found == pytest.approx(total / len(p), abs=3e-7)


def test_classifiers_too(tmp_path):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 20)).eval()
    changed = quantized_copy(model, "int4:group8:fp16")
    data = [(torch.randn(6, 8), torch.randint(0, 20, (6,))) for _ in range(3)]
    for top in (None, 20):
        bs.evaluate(model, data, kind="classes", store=tmp_path / "r.safetensors", top=top)
        found = bs.evaluate(changed, data, tmp_path / "r.safetensors", kind="classes")
        beside = bs.evaluate(changed, data, model, kind="classes")
        for name, figure in plain(found).items():
            assert figure == pytest.approx(plain(beside)[name], rel=1e-4, abs=1e-7), (name, top)


def test_it_is_written_whole_and_small(models, tmp_path):
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.config, self.left = models[0], models[0].config, 2

        def forward(self, **batch):
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("out of memory")
            return self.model(**batch)

    with pytest.raises(RuntimeError, match="out of memory"):
        bs.evaluate(Failing(), batches(), kind="next-token", store=tmp_path / "r.safetensors")
    assert list(tmp_path.iterdir()) == []
    bs.evaluate(models[0], batches(9), store=tmp_path / "r.safetensors", top=10)
    size = (tmp_path / "r.safetensors").stat().st_size
    assert size < 9 * (2 * 16 * (10 * 8 + 8) + 512) + 1024
    with safe_open(tmp_path / "r.safetensors", "pt") as file:
        assert len(file.keys()) == 36


def test_a_stopped_run_beside_a_file_goes_on_and_not_beside_another(models, tmp_path):
    model, quantized = models
    files = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for file, top in zip(files, (None, 20), strict=True):
        bs.evaluate(model, batches(), store=file, top=top)
    state = tmp_path / "state.jsonl"
    first = bs.evaluate(quantized, batches(), files[0], resume=state)
    again = bs.evaluate(quantized, batches(), StoredReference.open(files[0]), resume=state)
    assert plain(first) == plain(again)
    with pytest.raises(ValueError, match="no journal of this evaluation"):
        bs.evaluate(quantized, batches(), files[1], resume=state)


def test_mistakes_say_what_to_do(models, tmp_path):
    model, quantized = models
    file = tmp_path / "r.safetensors"
    bs.evaluate(model, batches(), store=file)
    other = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(2)}, other)
    bad = tmp_path / "bad.safetensors"
    with safe_open(file, "pt") as stored:
        save_file({"0.logits": torch.zeros(2)}, bad, metadata=stored.metadata())
    assert StoredReference.is_one(file) and not StoredReference.is_one(other)
    cases = [
        (lambda: bs.evaluate(quantized, batches(2, 3), file), "made of 3 other batches: give the"),
        (lambda: bs.evaluate(quantized, batches(), other), "holds no reference of an evaluation"),
        (lambda: bs.evaluate(quantized, batches(), bad), "description and its tensors do not fit"),
        (lambda: bs.evaluate(quantized, batches(), tmp_path / "no.safetensors"), "no.safetensors"),
        (lambda: bs.evaluate(quantized, batches(), file, layers=True), "layers=True runs the ref"),
        (lambda: bs.evaluate(quantized, batches(), file, figures=dict), "figures= runs the refer"),
        (lambda: bs.evaluate(model, batches(), file, store=other), "leave the reference out"),
        (lambda: bs.evaluate(model, batches(), store=other, resume=other), "leave resume and fig"),
        (lambda: bs.evaluate(model, batches(), store=other, top=9), "must be >= 10, got 9"),
        (lambda: bs.evaluate(model, batches(), top=20), "name the file, store="),
        (lambda: bs.evaluate(model, batches(), store=tmp_path), "is a directory"),
        (
            lambda: bs.evaluate(nn.Flatten(), [torch.zeros(2, 3, 4, 5)], store=other),
            "only logits can be stored",
        ),
        (
            lambda: bs.evaluate(llama_of(40), batches(), file),
            r"the model's logits are \(2, 15, 40\)|logits are \(2, 16, 40\)",
        ),
    ]
    for call, words in cases:
        with pytest.raises((ValueError, FileError), match=words):
            call()


def llama_of(words):
    model = copy.deepcopy(llama())
    model.lm_head = nn.Linear(32, words, bias=False)
    return model
