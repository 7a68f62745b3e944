# SPDX-License-Identifier: BSD-3-Clause
"""What is measured of a batch, beside torch's own cross_entropy and kl_div."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from blockscale.evaluation import kinds
from blockscale.evaluation.kinds import kind_of, measure


def logits(*shape, seed=0):
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def means(measured):
    return {name: float(s.sum() / w.sum()) for name, (s, w) in measured.parts.items()}


IDS = torch.tensor([[3, 1, 4, 1, 5], [2, 6, 5, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.mark.parametrize("piece", [8, 1 << 23])
def test_next_tokens(monkeypatch, piece):
    """Loss as transformers has it, divergence and agreement as torch has them, padding apart."""
    monkeypatch.setattr(kinds, "_PIECE", piece)
    mine, theirs = logits(2, 5, 16), logits(2, 5, 16, seed=1)
    batch = {"input_ids": IDS, "attention_mask": MASK}
    found = means(measure("next-token", batch, CausalLMOutput(logits=mine), (theirs,)))

    asked = MASK[:, 1:].bool()
    a, b, targets = mine[:, :-1][asked], theirs[:, :-1][asked], IDS[:, 1:][asked]
    assert len(targets) == 6
    assert found["loss"] == pytest.approx(float(F.cross_entropy(a, targets)), rel=1e-6)
    added = F.cross_entropy(a, targets) - F.cross_entropy(b, targets)
    assert found["loss added"] == pytest.approx(float(added), rel=1e-5)
    divergence = F.kl_div(a.log_softmax(-1), b.log_softmax(-1), log_target=True, reduction="sum")
    assert found["kl"] == pytest.approx(float(divergence) / 6, rel=1e-6)
    assert found["accuracy"] == float((a.argmax(-1) == targets).double().mean())
    assert found["top-1 agreement"] == float((a.argmax(-1) == b.argmax(-1)).double().mean())
    both = [
        len(set(x.tolist()) & set(y.tolist())) / 10
        for x, y in zip(a.topk(10).indices, b.topk(10).indices, strict=True)
    ]
    assert found["top-10 agreement"] == pytest.approx(sum(both) / 6)


def test_positions_are_the_means_over_rows():
    mine = logits(2, 5, 16)
    measured = measure("next-token", {"input_ids": IDS}, mine)
    sums, weights = measured.positions["loss"]
    assert weights.tolist() == [2.0] * 4
    at = [F.cross_entropy(mine[:, t], IDS[:, t + 1], reduction="sum") for t in range(4)]
    assert torch.allclose(sums.float(), torch.stack(at))


def test_the_same_logits_agree_and_do_not_diverge():
    mine = logits(2, 5, 16)
    found = means(measure("next-token", IDS, mine, mine.clone()))
    assert (found["kl"], found["loss added"]) == (0.0, 0.0)
    assert (found["top-1 agreement"], found["top-10 agreement"]) == (1.0, 1.0)


def test_impossible_tokens_of_the_reference_diverge_by_nothing():
    """A logit of -inf in the reference: 0 · log 0 is 0, not NaN."""
    theirs = logits(1, 3, 8)
    theirs[..., 5] = -torch.inf
    found = means(measure("next-token", torch.tensor([[0, 1, 2]]), logits(1, 3, 8), theirs))
    assert 0 < found["kl"] < 20


def test_labels_stand_at_their_own_places():
    mine, labels = logits(2, 3, 7), torch.tensor([[1, -100, 3], [-100, -100, 6]])
    found = means(measure("labels", {"labels": labels}, {"logits": mine}))
    expected = F.cross_entropy(mine.flatten(0, 1), labels.flatten())
    assert found["loss"] == pytest.approx(float(expected), rel=1e-6)


def test_classes():
    mine, theirs, labels = logits(9, 5), logits(9, 5, seed=1), torch.arange(9) % 5
    found = means(measure("classes", (torch.zeros(9, 3), labels), mine, theirs))
    assert found["loss"] == pytest.approx(float(F.cross_entropy(mine, labels)), rel=1e-6)
    assert found["accuracy"] == pytest.approx(float((mine.argmax(1) == labels).double().mean()))
    assert found["top-5 agreement"] == 1.0
    without = means(measure("classes", {"x": torch.zeros(9, 3)}, {"logits": mine}, theirs))
    assert "accuracy" not in without and without["kl"] == pytest.approx(found["kl"])


def test_outputs():
    a = logits(4, 3, 2).double()
    b = a + 0.1
    found = means(measure("outputs", None, {"h": b, "n": 3}, {"h": a, "n": 3}))
    assert found["relative error"] == pytest.approx(
        float((a - b).square().sum() / a.square().sum())
    )
    rows = F.cosine_similarity(a.flatten(1), b.flatten(1))
    assert found["cosine"] == pytest.approx(float(rows.mean()))
    zero = torch.zeros(2, 3)
    assert means(measure("outputs", None, zero, zero))["cosine"] == 1.0


class Configured(nn.Module):
    def __init__(self, generates=False, **config):
        super().__init__()
        self.config = type("Config", (), config)
        self.can_generate = lambda: generates


@pytest.mark.parametrize(
    ("model", "batch", "output", "expected"),
    [
        (Configured(generates=True), {"input_ids": IDS}, {"logits": logits(2, 5, 9)}, "next-token"),
        (
            Configured(generates=True, is_encoder_decoder=True),
            {"input_ids": IDS, "labels": IDS},
            {"logits": logits(2, 5, 9)},
            "labels",
        ),
        (Configured(), {"input_ids": IDS}, {"logits": logits(2, 5, 9)}, "outputs"),
        (nn.Linear(2, 2), (torch.zeros(2, 3), torch.zeros(2).long()), logits(2, 5), "classes"),
        (nn.Linear(2, 2), torch.zeros(2, 3), logits(2, 5), "outputs"),
        (nn.Linear(2, 2), (IDS, MASK), logits(2, 5), "outputs"),  # a mask beside tokens is no label
        (Configured(), {"pixel_values": torch.zeros(2)}, {"logits": logits(2, 5)}, "classes"),
        (nn.Linear(2, 2), torch.zeros(2, 3), {"last": logits(2, 5, 3)}, "outputs"),
    ],
)
def test_the_kind_is_found_out(model, batch, output, expected):
    assert kind_of(model, batch, output) == expected


@pytest.mark.parametrize(
    ("kind", "batch", "output", "reference", "words"),
    [
        ("next-token", {"x": 1}, logits(2, 5, 9), None, "needs batches with input_ids"),
        ("next-token", IDS, logits(2, 4, 9), None, r"expected \[B, T, V\] for \[B, T\]"),
        ("next-token", IDS, {"h": 1}, None, "needs logits, found a dict without"),
        ("next-token", IDS, logits(2, 5, 4), None, "labels must be from 0 to 3, or -100 for none"),
        ("next-token", IDS, logits(2, 5, 9), logits(2, 5, 8), "two forms of one model"),
        ("labels", {"input_ids": IDS}, logits(2, 5, 9), None, "needs batches with labels"),
        ("classes", (IDS, torch.zeros(3).long()), logits(2, 5), None, "a label for each of 2 rows"),
        ("outputs", IDS, logits(2, 5), None, "give a reference"),
        ("outputs", IDS, logits(2, 5), logits(2, 4), "two forms of one model"),
        ("outputs", IDS, IDS, IDS, "to compare: have them return one, or pass figures="),
    ],
)
def test_what_does_not_fit_is_refused(kind, batch, output, reference, words):
    with pytest.raises(ValueError, match=words):
        measure(kind, batch, output, reference)
