# SPDX-License-Identifier: BSD-3-Clause
"""Tiny models of transformers with random weights, saved as a float checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import nn

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
LLAMA = SIZES | {"intermediate_size": 64, "num_key_value_heads": 1, "pad_token_id": 0}


def llama(**more: Any) -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, **more))


def tied_llama() -> nn.Module:
    return llama(tie_word_embeddings=True)


def qwen2() -> nn.Module:
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**LLAMA))


def gemma3() -> nn.Module:
    return hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**LLAMA, head_dim=16))


def gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64))


def bert() -> nn.Module:
    return hf.BertForMaskedLM(hf.BertConfig(**SIZES, intermediate_size=64))


def t5() -> nn.Module:
    config = hf.T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=64)
    return hf.T5ForConditionalGeneration(config)


def whisper() -> nn.Module:
    config = hf.WhisperConfig(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=64,
        num_mel_bins=8, max_source_positions=16, max_target_positions=16,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration(config)


def vit() -> nn.Module:
    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        image_size=16, patch_size=4,
    )  # fmt: skip
    return hf.ViTForImageClassification(config)


def xlnet() -> nn.Module:
    config = hf.XLNetConfig(vocab_size=64, d_model=32, n_layer=1, n_head=2, d_inner=64)
    return hf.XLNetLMHeadModel(config)


def mixtral() -> nn.Module:
    return hf.MixtralForCausalLM(hf.MixtralConfig(**LLAMA, num_local_experts=4))


def llava() -> nn.Module:
    vision = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "image_size": 16, "patch_size": 8,
        "model_type": "clip_vision_model",
    }  # fmt: skip
    config = hf.LlavaConfig(vision_config=vision, text_config=LLAMA | {"model_type": "llama"},
                            image_token_index=5)  # fmt: skip
    return hf.LlavaForConditionalGeneration(config)


def hubert() -> nn.Module:
    """Its convolution of positions computes its weight, by torch.nn.utils.parametrizations."""
    waves = {
        "conv_dim": [32],
        "conv_kernel": [10],
        "conv_stride": [5],
        "num_feat_extract_layers": 1,
    }
    config = hf.HubertConfig(**SIZES, **waves, intermediate_size=64, num_conv_pos_embeddings=8,
                             num_conv_pos_embedding_groups=2)  # fmt: skip
    return hf.HubertForCTC(config)


def encodec() -> nn.Module:
    """All its convolutions compute their weights."""
    config = hf.EncodecConfig(
        num_filters=4, upsampling_ratios=[4, 2], hidden_size=32, codebook_dim=32, codebook_size=32,
        num_lstm_layers=1, target_bandwidths=[24.0],
    )  # fmt: skip
    return hf.EncodecModel(config)


MODELS: tuple[Callable[[], nn.Module], ...] = (
    llama, tied_llama, qwen2, gemma3, gpt2, bert, t5, whisper, vit, xlnet, mixtral, llava,
    hubert, encodec,
)  # fmt: skip


def saved(make: Callable[[], nn.Module], path: Path, **options: Any) -> type:
    """Write a float model into a directory; returns its class."""
    torch.manual_seed(0)
    model: Any = make()
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 and "norm" not in name:  # biases of zero would hide mistakes
            nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(path, **options)
    return type(model)


def same_bits(a: nn.Module, b: nn.Module) -> None:
    """Raise AssertionError unless both states hold the same, bit for bit."""
    one, two = a.state_dict(), b.state_dict()
    assert sorted(one) == sorted(two)
    for name, value in one.items():
        other = two[name]
        if not isinstance(value, torch.Tensor):
            assert value == other, name
            continue
        assert (value.dtype, value.shape) == (other.dtype, other.shape), name
        assert torch.equal(value.contiguous().view(-1).view(torch.uint8),
                           other.contiguous().view(-1).view(torch.uint8)), name  # fmt: skip
