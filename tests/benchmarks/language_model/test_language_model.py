# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark from end to end, tiny: text to a model, to cells, to what the page is made of."""

import json
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
from transformers import LlamaForCausalLM

from benchmarks.language_model import corpus, evaluate, gather, model, peers, settings, train
from benchmarks.language_model.settings import Setting

TINY = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of a few hundred small files, two of them equal, some not for reading."""
    folder = tmp_path_factory.mktemp("text")
    for i in range(300):
        body = "".join(f"def f{i}_{j}(x):\n    return x + {i * j}\n" for j in range(12))
        (folder / f"a{i:03}.py").write_text(body)
    (folder / "again.py").write_bytes((folder / "a000.py").read_bytes())
    (folder / "data.txt").write_text("1" * 5000)
    (folder / "binary.md").write_bytes(b"\xff\xfe" * 50 + b"\n" * 200)
    (folder / "code.c").write_text("int x;\n" * 100)
    return folder


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    """A tiny model that learned in 80 steps, in a folder."""
    torch.manual_seed(0)
    found = corpus.read([text], 10)
    tokenizer = corpus.train_tokenizer(found.texts["train"], 300, 1)
    stream = corpus.encode(tokenizer, found.texts["train"])
    network = LlamaForCausalLM(model.config(**TINY))
    trainer = train.Trainer(stream, 8, 32, compiled=False)
    held = corpus.windows(stream, 16, 32, seed=1)
    before = train.held_loss(network, held)
    log = trainer.train(network, trainer.step_of(network), 0, count=80)
    with torch.no_grad():
        for each in network.parameters():
            each.copy_(each.to(torch.bfloat16))
    log |= {"before": before, "after": train.held_loss(network, held)}
    folder = tmp_path_factory.mktemp("models") / "lm0"
    tokens = {"train": held, "held": held[:8], "held2": held[8:]}
    train.save(network, tokens, tokenizer, log, folder)
    return folder


@pytest.fixture(scope="module")
def loaded(trained):
    return model.load(trained)


def test_each_content_is_in_one_part_once(text):
    found = corpus.read([text], 10)
    every = [each for texts in found.texts.values() for each in texts]
    assert len(every) == len(set(every)) == 300
    assert all(found.texts[part] for part in ("train", "calibration", "held", "held2"))
    assert corpus.read([text], 10) == found
    assert 100 <= sum(map(len, corpus.read([text], 0.05).texts.values())) < 200
    with pytest.raises(ValueError, match="expected 6400 tokens"):
        corpus.windows(torch.arange(100), 100, 64, seed=0)


@pytest.mark.slow
def test_training_lowers_the_loss_and_what_is_saved_is_loaded(trained, loaded):
    log = json.loads((trained / "log.json").read_text())
    assert log["after"] < 0.7 * log["before"]
    assert train.held_loss(loaded.model, loaded.train) == pytest.approx(log["after"], abs=1e-6)
    assert loaded.held.dtype == torch.int64 and loaded.held.shape == (8, 32)
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight


@pytest.mark.slow
def test_the_float_model_adds_nothing(loaded):
    scores = evaluate.score(loaded.model, loaded.held)
    assert scores.losses.mean().item() == pytest.approx(
        train.held_loss(loaded.model, loaded.held), abs=1e-5
    )
    told = evaluate.compared(scores, scores)
    assert (told["added"], told["error"], told["agreement"]) == (0, 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight", "algorithm", "given", "bits"),
    [("int8_channel", "absmax", None, None), ("int4:group32:fp16", "mse", None, 4.5),
     ("mxfp4", "absmax", "mxfp4", 4.25), ("int8:group32:fp32", "absmax", "int8", 9.0)],
)  # fmt: skip
def test_a_cell_of_ours(loaded, weight, algorithm, given, bits):
    cell = evaluate.measure(Setting("blockscale", weight, algorithm, given), loaded, {})
    assert bits is None or cell["bits"] == bits  # counted from the bytes
    assert cell["held"]["added"] != 0 and abs(cell["held"]["added"]) < 1
    assert cell["held"]["float_perplexity"] > 1 and set(cell) >= {"held2", "seconds"}


def test_a_cell_with_a_quantized_cache(loaded):
    setting = Setting("blockscale", "float", "", cache="int4:group16:fp16")
    assert setting.name == "blockscale: float cache int4:group16:fp16"
    cell = evaluate.measure(setting, loaded, {})
    assert (
        cell["bits"] == 5.0 and cell["held"]["added"] == 0
    )  # one step of 32 tokens: read in float
    longer = torch.cat([loaded.held, loaded.held.flip(0)], dim=1)
    known = evaluate.score(loaded.model, longer)
    steps = evaluate.score(loaded.model, longer, "int16:token:fp32")
    torch.testing.assert_close(steps.losses, known.losses, rtol=1e-4, atol=1e-4)
    worse = evaluate.score(loaded.model, longer, "int2:group16:fp32")
    assert (worse.losses - known.losses).abs().max() > 10 * (
        steps.losses - known.losses
    ).abs().max()


@pytest.mark.slow
def test_lines_are_continued_and_gathered(trained, tmp_path, monkeypatch, capsys):
    out = tmp_path / "cells.jsonl"
    command = ["evaluate", "--models", str(trained.parent), "--output", str(out), "--seeds", "0",
               "--device", "cpu", "--no-held2",
               "--only", "blockscale: mxfp[48] absmax"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", command)
    evaluate.main()
    first = out.read_text()
    assert len(evaluate.read(out)) == 2
    evaluate.main()
    assert out.read_text() == first
    told = gather.gathered(evaluate.read(out) * 2)
    assert len(told["machines"]) == 1 and list(told["rows"]) == [
        "blockscale: mxfp4 absmax", "blockscale: mxfp8 absmax",
    ]  # fmt: skip
    assert told["rows"]["blockscale: mxfp4 absmax"]["seeds"].keys() == {"0"}
    capsys.readouterr()


def test_a_peer_that_is_missing_is_named(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "__path__", [])  # as where its package is not installed
    monkeypatch.delitem(sys.modules, "benchmarks.language_model.peers.gguf", raising=False)
    command = ["evaluate", "--models", str(trained.parent), "--seeds", "0", "--device", "cpu",
               "--output", str(tmp_path / "x.jsonl"), "--only", "gguf: Q4_K plain"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", command)
    evaluate.main()
    assert "gguf: Q4_K plain: ModuleNotFoundError" in capsys.readouterr().out
    assert not (tmp_path / "x.jsonl").exists()


def test_names_are_keys():
    names = [each.name for each in (*settings.ours(), *settings.peers())]
    assert len(names) == len(set(names)) > 200


def test_torchao_dequantizes(loaded):
    pytest.importorskip("torchao")
    cell = evaluate.measure(Setting("torchao", "int4 group32", "affine"), loaded, {})
    assert cell["bits"] == 5.0 and 0 < abs(cell["held"]["added"]) < 1


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_ggml_writes_the_codes_of_the_python_package(kind):
    quants = pytest.importorskip("gguf.quants")
    pytest.importorskip("pywhispercpp")
    from gguf import GGMLQuantizationType

    from benchmarks.language_model.peers import gguf

    weight = torch.randn(8, 96, generator=torch.Generator().manual_seed(0)).numpy()
    weight[0, :32] = 0
    of_type = GGMLQuantizationType[kind]
    ours = gguf.codes(weight, of_type, None)
    theirs = quants.quantize(weight, of_type)
    assert np.array_equal(quants.dequantize(ours, of_type), quants.dequantize(theirs, of_type))


def test_rows_are_joined_to_a_block_of_256():
    quants = pytest.importorskip("gguf.quants")
    pytest.importorskip("pywhispercpp")
    from gguf import GGMLQuantizationType

    from benchmarks.language_model.peers import gguf

    weight = torch.randn(4, 384, generator=torch.Generator().manual_seed(0)).numpy()
    kind = GGMLQuantizationType.Q4_K
    blocks = gguf.codes(weight, kind, None)
    assert blocks.shape == (2, 3 * 144)
    back = quants.dequantize(blocks, kind).reshape(weight.shape)
    assert np.abs(back - weight).max() < 0.3
    with pytest.raises(ValueError, match="3 rows of 384"):
        gguf.codes(weight[:3], kind, None)
