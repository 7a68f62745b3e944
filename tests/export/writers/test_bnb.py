# SPDX-License-Identifier: BSD-3-Clause
"""bitsandbytes: what 0.50.2 stored has the same bytes again, and JSON that says the same."""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.quantizers.quantizers_utils import should_convert_module

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.export.writers import PlannedTensor, writer_of
from tests.export.checkpoints.layouts.recorded import cases
from tests.export.writers.again import same_bytes, written_again

CASES = [c for c in cases("bitsandbytes") if c[:3] in ("nf4", "fp4") and "odd" not in c]


@pytest.mark.parametrize("case", [c for c in CASES if "kept" not in c])
def test_the_same_bytes(case: str, tmp_path: Path) -> None:
    made = written_again("bitsandbytes", case, "bnb", tmp_path)
    state = f"a.weight.quant_state.bitsandbytes__{case[:3]}"
    same_bytes("bitsandbytes", case, made, (state,))
    told, theirs = (
        json.loads(bytes(each[state].tolist())) for each in (made, cases("bitsandbytes")[case][0])
    )
    assert {**theirs, "dtype": "float32"} == {k: v for k, v in told.items() if k in theirs}
    assert set(told) == set(theirs)


def test_what_it_does_not_hold() -> None:
    writer = writer_of("bnb")
    assert "bitsandbytes supports nf4 and fp4" in str(
        writer.holds(parse("iq4_nl:group64:fp32"), (8, 64))
    )
    assert "elements" in str(writer.holds(parse("nf4:group32:fp32"), (8, 64)))
    assert "scales must be float32" in str(writer.holds(parse("nf4:group64:fp16"), (8, 64)))
    assert "whole bytes" in str(writer.holds(parse("nf4:flat64:fp32"), (64, 3)))
    planned = [
        PlannedTensor("a.weight", (8, 64), parse(f"{n}:group64:fp32")) for n in ("nf4", "fp4")
    ]
    assert "its type" in str(writer.together(planned))
    settings = writer.config(planned[:1], {"torch_dtype": "bfloat16"})["quantization_config"]
    assert settings["bnb_4bit_compute_dtype"] == "bfloat16"
    assert settings["bnb_4bit_quant_type"] == "nf4" and not settings["bnb_4bit_use_double_quant"]


@pytest.mark.parametrize(
    ("fmt", "to", "key"),
    [
        ("nf4:flat64:fp32", "bnb", "llm_int8_skip_modules"),
        ("e4m3:tile128x128:fp32", "fp8", "modules_to_not_convert"),
        ("uint4:group64:fp16:asym", "awq", "modules_to_not_convert"),
        ("int4:group64:fp16", "compressed-tensors", "ignore"),
    ],
)
def test_the_head_of_a_tied_model_is_left_alone(
    fmt: str, to: str, key: str, tmp_path: Path
) -> None:
    """Its readers make a head although none is stored; transformers asks `should_convert_module`
    which modules they replace. bitsandbytes' Linear4bit over a table in float raises in forward."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "float")
    recipe = bs.Recipe(fmt, skip=["model.embed_tokens"])
    bs.quantize_directory(tmp_path / "float", tmp_path / "ours", recipe)
    bs.export.convert_checkpoint(tmp_path / "ours", tmp_path / "out", to)
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    linear = [n for n, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    replaced = [n for n in linear if should_convert_module(n, settings[key])]
    assert replaced == [n for n in linear if n != "lm_head"] and len(replaced) == 7
