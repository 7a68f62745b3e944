# SPDX-License-Identifier: BSD-3-Clause
"""SentencePiece's models, against SentencePiece itself and llama.cpp's converter."""

import base64
import json
from pathlib import Path

import pytest
import sentencepiece

from blockscale.core.untrusted import FileError
from blockscale.export.writers.gguf_files.model import tokenizer_keys
from blockscale.export.writers.gguf_files.sentencepiece import read_pieces
from tests.support.tokenizers_here import pieces

SPACE = "\u2581"
PREPEND = {"type": "Prepend", "prepend": SPACE}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
BYTES = {f"<0x{i:02X}>": i + 1 for i in range(256)}
MODEL = {
    "type": "BPE", "byte_fallback": True, "unk_token": "<unk>",
    "vocab": {"<unk>": 0} | BYTES | {SPACE: 257, "a": 258, "b": 259, "ab": 260, SPACE + "ab": 261},
    "merges": [["a", "b"], [SPACE, "ab"]],
}  # fmt: skip


def of(folder: Path, size: int, **data: object) -> tuple[dict, str]:
    (folder / "tokenizer.json").write_text(json.dumps(data))
    found, told = tokenizer_keys(folder, size)
    return {k.removeprefix("tokenizer.ggml."): v.value for k, v in found.items()}, told


@pytest.fixture(scope="module")
def bpe() -> bytes:
    return pieces("bpe", byte_fallback=True, user_defined_symbols=[f"{SPACE}<x>"], pad_id=3,
                  normalization_rule_name="identity", remove_extra_whitespaces=False)  # fmt: skip


def expected(oracle: sentencepiece.SentencePieceProcessor) -> tuple[list, list, list]:
    """As `_create_vocab_sentencepiece` (conversion/base.py of llama.cpp b11434) asks it."""
    texts, scores, types = [], [], []
    for i in range(oracle.vocab_size()):
        kinds = [
            oracle.IsUnknown(i),
            oracle.IsControl(i),
            False,
            oracle.IsUnused(i),
            oracle.IsByte(i),
        ]
        texts.append(oracle.IdToPiece(i))
        scores.append(oracle.GetScore(i))
        types.append(2 + kinds.index(True) if any(kinds) else 1)
    return texts, scores, types


def test_a_file_of_pieces(bpe: bytes, tmp_path: Path) -> None:
    """Without tokenizer.json. What the user defined has a type of its own, and plain spaces."""
    (tmp_path / "tokenizer.model").write_bytes(bpe)
    texts, scores, types = expected(sentencepiece.SentencePieceProcessor(model_proto=bpe))
    symbol = texts.index(f"{SPACE}<x>")
    texts[symbol], types[symbol] = " <x>", 4
    found, told = tokenizer_keys(tmp_path, 602)
    values = {k.removeprefix("tokenizer.ggml."): v.value for k, v in found.items()}
    assert values.pop("tokens") == [*texts, "[PAD600]", "[PAD601]"]
    assert values.pop("scores") == [*scores, -10000.0, -10000.0]
    assert values.pop("token_type") == [*types, 5, 5]
    assert values == {
        "model": "llama", "pre": "default", "add_space_prefix": True, "unknown_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "padding_token_id": 3,
    }  # fmt: skip
    assert told == ""


def test_tokens_that_were_added_to_a_file_of_pieces(bpe: bytes, tmp_path: Path) -> None:
    """added_tokens.json and tokenizer_config.json, as conversion/base.py reads them."""
    (tmp_path / "tokenizer.model").write_bytes(bpe)
    (tmp_path / "added_tokens.json").write_text('{"<one>": 600, "<two>": 601}')
    decoder = {"2": {"content": "</s>", "special": True}, "601": {"content": "<|two|>"}}
    config = {"added_tokens_decoder": decoder, "eos_token": "<one>", "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found, _ = tokenizer_keys(tmp_path, 602)
    values = {k.removeprefix("tokenizer.ggml."): v.value for k, v in found.items()}
    assert values["tokens"][600:] == ["<one>", "<|two|>"] and values["token_type"][600:] == [4, 3]
    assert values["scores"][2] == values["scores"][600] == -1000.0
    assert (values["eos_token_id"], values["add_bos_token"]) == (600, False)


@pytest.mark.slow
def test_unigrams(tmp_path: Path) -> None:
    """As conversion/t5.py of llama.cpp b11434 has them; spiece.model is T5's name of the file."""
    data = pieces("unigram", byte_fallback=False, vocab_size=500)
    (tmp_path / "spiece.model").write_bytes(data)
    oracle = sentencepiece.SentencePieceProcessor(model_proto=data)
    texts, scores, types = expected(oracle)
    found, told = tokenizer_keys(tmp_path, 500)
    values = {k.removeprefix("tokenizer.ggml."): v.value for k, v in found.items()}
    assert (values["tokens"], values["scores"], values["token_type"]) == (texts, scores, types)
    assert values["model"] == "t5" and values["remove_extra_whitespaces"] is True and told == ""
    read = read_pieces(tmp_path / "spiece.model")
    assert bytes(values["precompiled_charsmap"]) == read.charsmap and len(read.charsmap) > 100_000


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for data in (b"", b"IQ== 0\nIg== 1\n", b"\x0a\x02\x08\x01"):  # the second is Llama 3's kind
        (tmp_path / "tokenizer.model").write_bytes(data)
        with pytest.raises(
            FileError,
            match=r"is not a SentencePiece model.*tokenizer is tokenizer\.json, remove this file",
        ):
            tokenizer_keys(tmp_path, 8)


def test_models_of_words_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(pieces("word", vocab_size=300))
    found, told = tokenizer_keys(tmp_path, 300)
    assert found["tokenizer.ggml.model"].value == "none" and "words or characters" in told


def test_bpe_of_a_tokenizer_json(tmp_path: Path) -> None:
    normalizer = {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}
    added = [{"id": 0, "content": "<unk>", "special": True},
             {"id": 262, "content": f"{SPACE}x", "special": False}]  # fmt: skip
    found, told = of(tmp_path, 264, model=MODEL, normalizer=normalizer, added_tokens=added)
    assert found["tokens"][256:] == [
        "<0xFF>",
        SPACE,
        "a",
        "b",
        "ab",
        f"{SPACE}ab",
        " x",
        "[PAD263]",
    ]
    assert found["token_type"] == [3, *[6] * 256, 1, 1, 1, 1, 1, 4, 5]
    assert found["scores"][256:] == [0.0, -3.0, -3.0, -3.0, 0.0, -1.0, -1000.0, -10000.0]
    assert (found["model"], found["pre"], found["add_space_prefix"]) == ("llama", "default", True)
    assert (found["add_bos_token"], found["add_eos_token"]) == (False, False)
    assert "llama.cpp uses token 2 ('<0x01>')" in told and ";" not in told


@pytest.mark.parametrize(
    ("pre", "prefix", "says"),
    [
        (None, False, ""),
        ({"type": "Metaspace", "prepend_scheme": "never"}, False, ""),
        ({"type": "Metaspace", "prepend_scheme": "always"}, True, "begins with a space,"),
        (
            {"type": "Metaspace", "prepend_scheme": "first"},
            True,
            "begins with a space and behind special",
        ),
        ({"type": "Metaspace", "add_prefix_space": False}, False, ""),
        ({"type": "Metaspace"}, True, "begins with a space,"),
        ({"type": "Split", "pattern": {"String": " "}}, False, ""),  # Gemma 2's
        ({"type": "Digits", "individual_digits": True}, False, "cuts words (Digits)"),
    ],
)
def test_spaces_before_a_text(pre: dict | None, prefix: bool, says: str, tmp_path: Path) -> None:
    model = MODEL | {"vocab": MODEL["vocab"] | {"</s>": 262}}
    (tmp_path / "config.json").write_text('{"eos_token_id": 262}')
    found, told = of(tmp_path, 263, model=model, normalizer=REPLACE, pre_tokenizer=pre)
    assert found["add_space_prefix"] is prefix
    assert says in told if says else told == ""


def test_what_llama_cpp_does_otherwise_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    more = MODEL["vocab"] | {"abb": 262, "bb": 263}
    model = MODEL | {"vocab": more, "merges": [["a", "b"], ["b", "b"], ["ab", "b"]]}
    _, told = of(tmp_path, 264, model=model, normalizer={"type": "NFKC"})
    assert "does not join 1 pairs of tokens" in told and "(NFKC)" in told  # a + bb
    _, told = of(tmp_path, 4, model={"type": "BPE", "vocab": {SPACE: 0, "a": 1}, "merges": []})
    assert "no byte tokens" in told


def test_scores_of_a_file_with_the_same_pieces(bpe: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(bpe)
    read = read_pieces(tmp_path / "tokenizer.model").pieces
    vocab = {piece.text: i for i, piece in enumerate(read)}
    found, _ = of(tmp_path, 600, model=MODEL | {"vocab": vocab, "merges": []})
    assert found["scores"] == [piece.score for piece in read]
    swapped = vocab | {read[400].text: 401, read[401].text: 400}
    found, _ = of(tmp_path, 600, model=MODEL | {"vocab": swapped, "merges": []})
    assert found["scores"][500] == -1.0  # the order of its merges, of which it has none


def test_unigrams_of_a_tokenizer_json(tmp_path: Path) -> None:
    charsmap = bytes(range(7))
    steps = [
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()},
        {"type": "Strip"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE},
    ]  # fmt: skip
    data = {
        "model": {"type": "Unigram", "unk_id": 1,
                  "vocab": [["</s>", 0], ["<unk>", 0], ["a", -2.5]]},
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Metaspace"},
        "added_tokens": [{"id": i, "content": t, "special": True}
                         for i, t in enumerate(("</s>", "<unk>"))],
    }  # fmt: skip
    found, told = of(tmp_path, 3, **data)
    assert found["tokens"] == ["</s>", "<unk>", "a"] and found["token_type"] == [3, 2, 1]
    assert found["scores"] == [-1000.0, 0.0, -2.5] and found["unknown_token_id"] == 1
    assert bytes(found["precompiled_charsmap"]) == charsmap and found["remove_extra_whitespaces"]
    assert told.startswith("neither its tokenizer")
    words = {
        "type": "Sequence",
        "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace"}],
    }
    data = {"model": data["model"] | {"byte_fallback": True}, "pre_tokenizer": words}
    found, told = of(tmp_path, 3, **data)
    assert found["remove_extra_whitespaces"] and "precompiled_charsmap" not in found
    assert "line breaks and tabs" in told and "become bytes" in told


@pytest.mark.parametrize("vocab", [None, {"a": 0}, [["a"]], [[1, 0.0]], [["a", "b"]]])
def test_damaged_unigrams(vocab: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its vocabulary is not a list of texts and scores"):
        of(tmp_path, 3, model={"type": "Unigram", "vocab": vocab})
