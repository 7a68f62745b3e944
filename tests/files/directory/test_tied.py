# SPDX-License-Identifier: BSD-3-Clause
"""Tied weights: a directory, a model in memory and from_pretrained decide alike, for one reason."""

import ast
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file, save_model
from torch import nn

import blockscale as bs
from blockscale.core.ledger import Ledger
from blockscale.files.directory.tied import is_table, ties_of
from blockscale.files.header import tensor_of
from tests.support.file_models import write_model
from tests.support.transformers_models import (
    SIZES,
    bert,
    gemma3,
    gpt2,
    same_bits,
    t5,
    tied_llama,
    whisper,
)

WORDS = {"vocab_size": 64}


def roberta() -> nn.Module:
    return hf.RobertaForMaskedLM(hf.RobertaConfig(**SIZES, intermediate_size=64))


def bloom() -> nn.Module:
    return hf.BloomForCausalLM(hf.BloomConfig(**WORDS, hidden_size=32, n_layer=1, n_head=2))


def opt() -> nn.Module:
    config = hf.OPTConfig(
        **WORDS, hidden_size=32, num_hidden_layers=1, ffn_dim=64, num_attention_heads=2,
        max_position_embeddings=64, word_embed_proj_dim=32,
    )  # fmt: skip
    return hf.OPTForCausalLM(config)


def bart() -> nn.Module:
    layers = {f"{side}_{what}": n for side in ("encoder", "decoder")
              for what, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 64))}  # fmt: skip
    config = hf.BartConfig(**WORDS, d_model=32, max_position_embeddings=64, **layers)
    return hf.BartForConditionalGeneration(config)


def distilbert() -> nn.Module:
    config = hf.DistilBertConfig(**WORDS, dim=32, n_layers=1, n_heads=2, hidden_dim=64)
    return hf.DistilBertForMaskedLM(config)


def electra() -> nn.Module:
    config = hf.ElectraConfig(**SIZES, intermediate_size=64, embedding_size=32)
    return hf.ElectraForMaskedLM(config)


HEADS: dict[Callable[[], nn.Module], tuple[str, str]] = {
    tied_llama: ("model.embed_tokens", "lm_head"),
    gpt2: ("transformer.wte", "lm_head"),
    t5: ("shared", "lm_head"),
    bert: ("bert.embeddings.word_embeddings", "cls.predictions.decoder"),
    gemma3: ("model.embed_tokens", "lm_head"),
    whisper: ("model.decoder.embed_tokens", "proj_out"),
    roberta: ("roberta.embeddings.word_embeddings", "lm_head.decoder"),
    bloom: ("transformer.word_embeddings", "lm_head"),
    opt: ("model.decoder.embed_tokens", "lm_head"),
    bart: ("model.shared", "lm_head"),
    distilbert: ("distilbert.embeddings.word_embeddings", "vocab_projector"),
    electra: ("electra.embeddings.word_embeddings", "generator_lm_head"),
}


def three_ways(make: Callable[[], nn.Module], recipe: bs.Recipe, tmp_path: Path) -> Iterator[Any]:
    """(the ledger, the model) of `quantize_`, the directory and `from_pretrained`."""
    from blockscale.integrations.transformers import BlockscaleConfig

    torch.manual_seed(0)
    model: Any = make().eval()
    model.save_pretrained(tmp_path / "float")
    kind: Any = type(model)
    folder = tmp_path / "quantized"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it names what is skipped
        yield bs.quantize_(model, recipe), model
        ledger = bs.quantize_directory(tmp_path / "float", folder, recipe)
        yield ledger, kind.from_pretrained(folder)
        config = BlockscaleConfig(recipe)
        found = kind.from_pretrained(tmp_path / "float", quantization_config=config)
        yield found.hf_quantizer.ledger, found


def entry(ledger: Ledger, layer: str) -> tuple[str, str]:
    """(status, reason) of a layer, which a directory has under its weight's name."""
    [each] = [e for e in ledger if e.name in (layer, f"{layer}.weight")]
    return each.status, each.reason


@pytest.mark.some(32)
@pytest.mark.parametrize("make", HEADS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("how", ["skip", "rule"])
def test_three_ways_keep_both_in_float(
    make: Callable[[], nn.Module], how: str, tmp_path: Path
) -> None:
    table, head = HEADS[make]
    recipe = bs.Recipe("int8_channel", skip=[head])
    if how == "rule":
        recipe = bs.Recipe("int8_channel", rules={head: "int8:tensor:fp32"})
    ways = list(three_ways(make, recipe, tmp_path))
    (ours, model), *others = ways
    names = {each.name for each in ours.quantized}
    for ledger, other in others:
        assert {each.name.removesuffix(".weight") for each in ledger.quantized} == names
        assert entry(ledger, table) == entry(ours, table)
        assert not ledger.unmatched and not ours.unmatched
        same_bits(other, model)
    status, reason = entry(ours, table)
    assert status == "skipped" and f"{head}, which cannot share its codes" in reason


@pytest.mark.some(8)
@pytest.mark.parametrize("make", HEADS, ids=lambda make: make.__name__)
def test_one_format_is_shared_and_the_head_s_input_is_quantized(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    """The directory holds one table, and says what the head's input is quantized in."""
    ways = three_ways(make, bs.Recipe("int8_channel", "int8_token"), tmp_path)
    (_, model), *others = list(ways)
    head = model.get_submodule(HEADS[make][1])
    assert str(head.input.format) == "int8:token:fp32"
    for _, other in others:
        assert str(other.get_submodule(HEADS[make][1]).input.format) == "int8:token:fp32"
        same_bits(other, model)


def of(*names: str) -> dict[str, Any]:
    return {name: tensor_of(torch.float32, (64, 32)) for name in names}


@pytest.mark.parametrize(
    ("kind", "names", "more", "expected"),
    [
        ("LlamaForCausalLM", ["model.embed_tokens.weight"], {}, "lm_head.weight"),
        ("LlamaForCausalLM", ["model.embed_tokens.weight", "lm_head.weight"], {}, None),
        ("LlamaForCausalLM", ["model.embed_tokens.weight"], {"tie_word_embeddings": False}, None),
        ("LlamaForSequenceClassification", ["model.embed_tokens.weight"], {}, None),
        ("LlamaModel", ["embed_tokens.weight"], {}, None),
        ("SomethingForCausalLM", ["fc.weight"], {}, None),
    ],
)
def test_what_names_and_class_say(
    kind: str, names: list[str], more: dict[str, Any], expected: str | None
) -> None:
    found = ties_of({"architectures": [kind]} | more, of(*names))
    assert found == ({} if expected is None else {names[0]: (expected,)})


def test_a_directory_without_a_config() -> None:
    assert ties_of(None, of("model.embed_tokens.weight")) == {}
    assert is_table("model.shared.weight") and not is_table("lm_head.weight")


def test_ties_that_the_file_itself_names(tmp_path: Path) -> None:
    """safetensors.torch.save_model says which names stand for which tensor."""
    model = nn.ModuleDict({"a": nn.Linear(32, 64, bias=False), "b": nn.Linear(32, 64, bias=False)})
    model["b"].weight = model["a"].weight
    write_model(tmp_path / "float", {"a.weight": model["a"].weight.detach()})
    save_model(model, str(tmp_path / "float" / "model.safetensors"))
    recipe = bs.Recipe("int8_channel", skip=["b"], rules={"c": "int8"})
    with pytest.raises(ValueError, match="its weight is tied to b, which cannot share its codes"):
        bs.quantize_directory(tmp_path / "float", tmp_path / "out", recipe)


def test_both_sides_in_the_files_are_decided_each_by_itself(tmp_path: Path) -> None:
    """They are two tensors there, and need not be equal."""
    tied_llama().save_pretrained(tmp_path / "float")
    [file] = (tmp_path / "float").glob("*.safetensors")
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, file, {"format": "pt"})
    recipe = bs.Recipe("int8_channel", skip=["lm_head"])
    ledger = bs.quantize_directory(tmp_path / "float", tmp_path / "out", recipe)
    assert entry(ledger, "model.embed_tokens")[0] == "quantized"
    assert entry(ledger, "lm_head")[0] == "kept"


# What `ties_of` does not know: ties of other than words' embeddings, and heads of parts of a model
_OTHERS = {
    "Blip", "Blt", "Csm", "DiffusionGemma", "FSMT", "GraniteSpeech5", "Luke", "NeoMME",
    "OpenAIGPTDoubleHeads", "Pix2StructText", "Pop2Piano", "ProphetNet", "SeamlessM4T",
    "SpeechT5", "T5Gemma2Model", "Udop", "VisualBertForRegion",
}  # fmt: skip


@pytest.mark.slow
def test_transformers_ties_the_same() -> None:
    """Every class of transformers that says what is tied, read from its source."""
    count = 0
    for path in sorted((Path(hf.__file__).parent / "models").glob("*/modeling_*.py")):
        for kind, pairs in _said(path):
            if kind.startswith(tuple(_OTHERS)):
                continue
            [table] = {to for to in pairs.values() if to not in pairs}
            found = ties_of({"architectures": [kind]}, of(table))
            assert set(pairs) <= set(found.get(table, ())), kind
            heads = {name for name in found[table] if not is_table(name)}
            assert heads <= set(pairs), kind
            count += 1
    assert count > 300


def _said(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """(class, {weight: the one that it is tied to}) of a source file."""
    for kind in ast.parse(path.read_text()).body:
        for line in kind.body if isinstance(kind, ast.ClassDef) else ():
            if (
                isinstance(line, ast.Assign)
                and ast.unparse(line.targets[0]) == "_tied_weights_keys"
            ):
                said = ast.literal_eval(line.value) or {}
                pairs = {a: b.removesuffix("$") for a, b in said.items() if a.endswith("weight")}
                plain = {a: b for a, b in pairs.items() if "\\" not in a}
                if plain:
                    yield kind.name, plain
