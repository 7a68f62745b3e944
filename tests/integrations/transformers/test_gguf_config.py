# SPDX-License-Identifier: BSD-3-Clause
"""What a GGUF file's metadata say of its model, as a config of transformers."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import blockscale as bs
from blockscale.integrations.transformers import from_checkpoint
from blockscale.integrations.transformers.gguf_config import config_of_gguf
from tests.support import tiny

SIZES = {
    "context_length": 64, "embedding_length": 64, "block_count": 2, "feed_forward_length": 128,
    "attention.head_count": 4, "attention.head_count_kv": 2, "rope.freq_base": 5e5,
    "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": 96,
}  # fmt: skip
CLASSES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


class File(dict[str, Any]):
    """As a GGUF file that is open."""

    path = Path("m.gguf")

    def __init__(self, arch: str, more: dict[str, Any] | None = None, **tensors: Tensor):
        names = ("token_embd.weight", "output.weight", "output_norm.weight")
        super().__init__(dict.fromkeys(names, torch.ones(1)) | tensors)
        self.metadata = {
            "general.architecture": arch,
            **{f"{arch}.{k}": v for k, v in SIZES.items()},
        }
        self.metadata |= more or {}


@pytest.mark.parametrize("arch", CLASSES)
def test_each_architecture(arch: str) -> None:
    more = {f"{arch}.attention.key_length": 32, f"{arch}.rope.dimension_count": 32}
    found = config_of_gguf(File(arch, more | {"tokenizer.ggml.eos_token_id": 7}))
    assert type(found) is CLASSES[arch]
    assert (found.hidden_size, found.intermediate_size, found.vocab_size) == (64, 128, 96)
    assert (found.num_hidden_layers, found.max_position_embeddings) == (2, 64)
    assert (found.num_attention_heads, found.num_key_value_heads) == (4, 2)
    assert found.head_dim == 32 and found.rms_norm_eps == 1e-5
    assert found.rope_parameters == {"rope_type": "default", "rope_theta": 5e5}
    assert found.tie_word_embeddings is False
    assert (found.bos_token_id, found.eos_token_id) == (None, 7)


def test_the_size_of_the_vocabulary_is_that_of_the_tokens() -> None:
    file = File("qwen2", {"tokenizer.ggml.tokens": ["a"] * 50})
    del file.metadata["qwen2.vocab_size"], file["output.weight"]
    found = config_of_gguf(file)
    assert found.vocab_size == 50 and found.tie_word_embeddings is True


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_positions_of_llama_3(factor: float) -> None:
    """Frequencies are those that transformers computes, divided as the file says."""
    rope = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": factor, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = LlamaConfig(head_dim=128, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    factors = 5e5 ** (-torch.arange(0, 128, 2) / 128) / scaled
    more = {"llama.attention.key_length": 128}
    file = File("llama", more, **{"rope_freqs.weight": factors})
    found = config_of_gguf(file)
    assert found.rope_parameters == rope
    assert torch.equal(ROPE_INIT_FUNCTIONS["llama3"](found, "cpu")[0], scaled)
    for other in (factors * 1.01, factors[:32], torch.full_like(factors, torch.nan)):
        file["rope_freqs.weight"] = other
        with pytest.raises(bs.FileError, match="scales positions unlike any known Llama 3"):
            config_of_gguf(file)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "scaling.factor is 'None', expected a number"),
        (
            {"llama.rope.scaling.type": "longrope"},
            "scaling.type = 'longrope'.*cannot be translated",
        ),
        ({"llama.rope.scaling.type": "linear"}, "pass the config of the original model"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count = '8'"),
        ({"llama.attention.head_count": 0}, "no number llama.attention.head_count"),
        ({"llama.attention.head_count": 5}, "m.gguf: transformers: "),
        ({"llama.attention.head_count_kv": [2, 1]}, "no number llama.attention.head_count_kv"),
        ({"llama.block_count": 10**9}, "declares 1000000000 layers, and holds 3 tensors"),
        (
            {"general.architecture": "phi9"},
            "architecture 'phi9'.*known architectures: llama, qwen2, qwen3",
        ),
    ],
)
def test_what_is_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(bs.FileError, match=told):
        config_of_gguf(File("llama", more))
    fine = {"llama.rope.scaling.type": "none", "llama.rope.dimension_count": 16}
    assert config_of_gguf(File("llama", fine)).head_dim == 16


def test_positions_scaled_linearly() -> None:
    keys = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    for more in (keys, {"llama.rope.scale_linear": 4.0}):
        found = config_of_gguf(File("llama", more))
        expected = {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}
        assert found.rope_parameters == expected
        scaled, _ = ROPE_INIT_FUNCTIONS["linear"](found, "cpu")
        torch.testing.assert_close(scaled * 4, 5e5 ** (-torch.arange(0, 16, 2) / 16))


def test_positions_scaled_by_yarn() -> None:
    """Frequencies as llama.cpp computes them from the same keys (ggml, `rope_yarn`)."""
    size, base, factor, length = 128, 5e5, 4.0, 64
    keys = {
        "attention.key_length": size, "rope.scaling.type": "yarn", "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": length, "context_length": 256,
    }  # fmt: skip
    found = config_of_gguf(File("llama", {f"llama.{key}": each for key, each in keys.items()}))
    assert found.rope_parameters["original_max_position_embeddings"] == length
    scaled, attention = ROPE_INIT_FUNCTIONS["yarn"](found, "cpu")
    ends = [
        size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1)
    ]
    low, high = max(0, math.floor(ends[0])), min(size - 1, math.ceil(ends[1]))
    for i, frequency in enumerate(scaled.tolist()):
        plain = base ** (-2 * i / size)
        kept = 1 - min(1.0, max(0.0, (i - low) / max(0.001, high - low)))
        assert frequency == pytest.approx(plain / factor * (1 - kept) + plain * kept, rel=1e-5)
    assert attention == pytest.approx(1 + 0.1 * math.log(factor))


def test_factors_and_keys_at_once() -> None:
    keys = {"llama.rope.scale_linear": 2.0}
    with pytest.raises(bs.FileError, match="and keys that scale positions, too"):
        config_of_gguf(File("llama", keys, **{"rope_freqs.weight": torch.ones(8)}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_every_kind_of_model_there_and_back(kind: str, tmp_path: Path) -> None:
    """A float model as a GGUF file, loaded from it, and as a directory again: the same logits."""
    model = tiny.write(tmp_path / "m", kind)
    done = bs.export.convert_checkpoint(tmp_path / "m", tmp_path / "m.gguf", "gguf")
    assert done.lossless and not done.notes
    ids = tiny.tokens(40)
    expected = tiny.logits(model, ids)
    loaded = from_checkpoint(tmp_path / "m.gguf")
    assert type(loaded) is type(model) or kind == "mistral"
    assert torch.equal(tiny.logits(loaded, ids), expected)
    bs.export.convert_checkpoint(tmp_path / "m.gguf", tmp_path / "back", "blockscale")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    assert torch.equal(tiny.logits(again, ids), expected)


@pytest.mark.some(4)
@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "gemma3_text", "phi3", "gpt2"])
def test_a_quantized_model_loads_as_its_directory_does(kind: str, tmp_path: Path) -> None:
    """Stacked experts, fused and turned layers hold the file's codes."""
    tiny.write(tmp_path / "m", kind)
    bs.quantize_directory(tmp_path / "m", tmp_path / "q", "profile:gguf.q8_0")
    bs.export.convert_checkpoint(tmp_path / "q", tmp_path / "q.gguf", "gguf")
    ids = tiny.tokens(40)
    loaded, expected = from_checkpoint(tmp_path / "q.gguf"), from_checkpoint(tmp_path / "q")
    assert torch.equal(tiny.logits(loaded, ids), tiny.logits(expected, ids))
    assert any("Q" in type(each).__name__ for each in loaded.modules())


@pytest.mark.parametrize("kind", ["mixtral", "gemma2", "gpt2"])
def test_the_package_gguf_reads_the_same(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    tiny.write(tmp_path / "m", kind)
    bs.export.convert_checkpoint(tmp_path / "m", tmp_path / "m.gguf", "gguf")
    theirs = {each.name: each for each in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    with bs.checkpoint(tmp_path / "m.gguf") as ours:
        assert set(theirs) == set(ours)
        for name, each in theirs.items():
            assert tuple(reversed(each.shape.tolist())) == tuple(ours[name].shape)
            assert torch.equal(torch.from_numpy(each.data.copy()), ours[name])
