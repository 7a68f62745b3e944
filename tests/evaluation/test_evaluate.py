# SPDX-License-Identifier: BSD-3-Clause
"""bs.evaluate: models that nobody here wrote, transformers' own loss, a kill, what is refused."""

import math

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

import blockscale as bs
from blockscale.evaluation.journal import JournalError
from blockscale.evaluation.tasks import character_errors
from tests.support.evaluated import batches, llama, quantized_copy


@pytest.fixture(scope="module")
def models():
    model = llama()
    return model, quantized_copy(model, "int4:group32:fp16")


def plain(found):
    """Figures without NaN, which is not equal to itself."""
    return {k: (v.mean, v.sequences, v.weight) for k, v in found.figures.items()}


def test_the_loss_is_transformers_own():
    model = llama()
    found = bs.evaluate(model, batches())
    with torch.no_grad():
        losses = [float(model(**b, labels=b["input_ids"]).loss) for b in batches()]
    assert found.kind == "next-token"
    assert found["loss"].mean == pytest.approx(sum(losses) / 3, rel=1e-6)
    assert found["perplexity"].mean == pytest.approx(math.exp(sum(losses) / 3), rel=1e-5)
    assert found["loss"].sequences == 6 and found["loss"].weight == 6 * 15
    assert len(found.positions["loss"]) == 15
    assert sum(found.positions["loss"]) / 15 == pytest.approx(found["loss"].mean, rel=1e-9)


@pytest.mark.slow
def test_a_quantized_model_beside_the_float_one(models):
    model, quantized = models
    found = bs.evaluate(quantized, batches(), model, layers=True)
    alone, float_alone = bs.evaluate(quantized, batches()), bs.evaluate(model, batches())
    assert found["loss"] == alone["loss"]
    added = found["loss"].mean - float_alone["loss"].mean
    assert found["loss added"].mean == pytest.approx(added, abs=1e-9)
    assert found["loss added"].error < found["loss"].error  # of the rows' own differences
    assert 0 < found["kl"].mean < 1
    compared = bs.compare(model, quantized, batches())
    assert found.layers.to_dict() == compared.to_dict()


def test_the_size_of_batches_changes_no_figure(models):
    model, quantized = models
    one = [{"input_ids": row[None]} for b in batches() for row in b["input_ids"]]
    a, b = (bs.evaluate(quantized, each, model) for each in (batches(), one))
    for name in a.figures:
        assert a[name].mean == pytest.approx(b[name].mean, rel=1e-6, abs=1e-6)
        assert a[name].error == pytest.approx(b[name].error, rel=1e-5, abs=1e-6)


def test_padding_counts_as_nothing():
    model = llama()
    short = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3).long()}
    padded = {
        "input_ids": torch.tensor([[5, 6, 7, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0, 0]]),
    }
    a, b = bs.evaluate(model, [short]), bs.evaluate(model, [padded])
    assert a["loss"].mean == pytest.approx(b["loss"].mean, rel=1e-6)
    assert a["loss"].weight == b["loss"].weight == 2


def test_both_models_are_as_they_were(models):
    model, quantized = models
    quantized.train()
    bs.evaluate(quantized, batches(1), model)
    assert quantized.training and not model.training
    quantized.eval()


class Killed(BaseException):
    pass


def test_a_run_that_was_killed_goes_on(models, tmp_path):
    model, quantized = models
    path, whole = tmp_path / "j.jsonl", bs.evaluate(quantized, batches(4), model)

    def until(count):
        for index, batch in enumerate(batches(4)):
            if index == count:
                raise Killed
            yield batch

    for count in (1, 3):
        with pytest.raises(Killed):
            bs.evaluate(quantized, until(count), model, resume=path)
        assert len(path.read_text().splitlines()) == 1 + count
    calls = []
    handle = quantized.register_forward_hook(lambda *_: calls.append(1))
    found = bs.evaluate(quantized, batches(4), model, resume=path)
    handle.remove()
    assert len(calls) == 1
    assert plain(found) == plain(whole) and found.positions == whole.positions
    again = bs.evaluate(quantized, batches(4), model, resume=path)  # nothing is left to measure
    assert (again.kind, plain(again)) == (
        whole.kind,
        plain(whole),
    ) and "perplexity" in again.figures
    with pytest.raises(JournalError, match="another batch 0"):
        bs.evaluate(quantized, batches(4)[::-1], model, resume=path)
    with pytest.raises(JournalError, match="no journal of this evaluation"):
        bs.evaluate(quantized, batches(4), resume=path)


def test_an_encoder_is_compared_by_its_outputs():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64,
    )  # fmt: skip
    model = BertModel(config).eval()
    quantized = quantized_copy(model, "int8_channel")
    found = bs.evaluate(quantized, batches(), model)
    assert found.kind == "outputs" and found["cosine"].mean > 0.999
    with pytest.raises(ValueError, match="give a reference") as caught:
        bs.evaluate(quantized, batches())
    assert caught.value.__notes__ == ["at batch 0"]


def test_a_classifier_has_pairs_of_inputs_and_labels():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    pairs = [(torch.randn(8, 3, 4), torch.randint(0, 5, (8,))) for _ in range(3)]
    found = bs.evaluate(model, pairs)
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).double().mean() for x, y in pairs]
    assert found.kind == "classes"
    assert found["accuracy"].mean == pytest.approx(float(sum(right) / 3))


def test_figures_of_ones_own():
    """Texts that a model writes, against what should be there."""

    class Writer(nn.Module):
        def __init__(self, text):
            super().__init__()
            self.text = text

        def forward(self, x):
            return [self.text] * len(x)

    def figures(model, batch):
        x, expected = batch
        return {"cer": character_errors(model(x), expected), "length": [3.0] * len(x)}

    data = [(torch.zeros(2), ["abc", "abd"])]
    found = bs.evaluate(Writer("abd"), data, Writer("abc"), figures=figures)
    assert found["cer"].mean == pytest.approx(1 / 6)
    assert found["cer of reference"].mean == pytest.approx(1 / 6)
    assert found["cer added"].mean == 0 and found["length"].mean == 3
    with pytest.raises(TypeError, match=r"gives \{name: values\}, it gave NoneType"):
        bs.evaluate(Writer("a"), data, figures=lambda model, batch: None)
    with pytest.raises(ValueError, match="give the same names"):
        bs.evaluate(Writer("a"), data, Writer("b"), figures=lambda model, _: {model.text: [1.0]})


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"kind": "tokens"}, ValueError, "unknown kind 'tokens'; choose from next-token, labels"),
        ({"layers": True}, ValueError, "give the float model"),
        ({"model": 3}, TypeError, "bs.evaluate"),
        ({"batches": []}, ValueError, "batches is empty"),
        ({"batches": torch.zeros(2, 3)}, TypeError, "an iterable of batches"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes, error, words):
    arguments = {"model": llama(), "batches": batches(1)} | changes
    with pytest.raises(error, match=words):
        bs.evaluate(arguments.pop("model"), arguments.pop("batches"), **arguments)


def test_layers_and_resume_exclude_each_other(models, tmp_path):
    model, quantized = models
    with pytest.raises(ValueError, match="leave resume out"):
        bs.evaluate(quantized, batches(1), model, layers=True, resume=tmp_path / "j")
    assert list(tmp_path.iterdir()) == []
