# SPDX-License-Identifier: BSD-3-Clause
"""Tiny transformers models, from configs: (model, inputs that give a loss)."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf
from torch import Tensor, nn

Built = tuple[nn.Module, dict[str, Any]]
VOCABULARY, WIDTH = 96, 32

_SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 4, "intermediate_size": 64}
_WHOLE = {"max_position_embeddings": 32}


def _tokens(rows: int = 2, length: int = 12) -> Tensor:
    return torch.randint(4, VOCABULARY, (rows, length))


def _text(kind: str, **settings: Any) -> Callable[[], Built]:
    """A language model whose labels are its inputs."""

    def build() -> Built:
        config = getattr(tf, f"{kind}Config")(**settings)
        suffix = "MaskedLM" if hasattr(tf, f"{kind}ForMaskedLM") else "CausalLM"
        suffix = "LMHeadModel" if kind == "GPT2" else suffix
        name = f"{kind}{suffix}" if kind == "GPT2" else f"{kind}For{suffix}"
        ids = _tokens()
        return getattr(tf, name)(config), {"input_ids": ids, "labels": ids}

    return build


def _t5() -> Built:
    config = tf.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    return tf.T5ForConditionalGeneration(config), {"input_ids": _tokens(), "labels": _tokens()}


def _whisper() -> Built:
    config = tf.WhisperConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16, max_target_positions=16,
        decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    features = {"input_features": torch.randn(2, 8, 32), "labels": _tokens()}
    return tf.WhisperForConditionalGeneration(config), features


def _vit() -> Built:
    config = tf.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=2, image_size=16, patch_size=8, num_labels=5, **_HEADS
    )
    images = {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.tensor([0, 1, 2, 3])}
    return tf.ViTForImageClassification(config), images


def _clip() -> Built:
    shape = {"hidden_size": WIDTH, "num_hidden_layers": 1, **_HEADS}
    text = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, **_WHOLE, **shape}
    image = {"image_size": 16, "patch_size": 8, **shape}
    config = tf.CLIPConfig(text_config=text, vision_config=image, projection_dim=16)
    ids = _tokens(4)
    inputs = {"input_ids": ids, "pixel_values": torch.randn(4, 3, 16, 16), "return_loss": True}
    return tf.CLIPModel(config), inputs


def _sequences() -> Built:
    config = tf.RobertaConfig(num_labels=3, **_SIZES, **_HEADS, **_WHOLE)
    labels = torch.tensor([0, 1, 2, 1])
    inputs = {"input_ids": _tokens(4), "labels": labels}
    return tf.RobertaForSequenceClassification(config), inputs


NETWORKS: dict[str, Callable[[], Built]] = {
    "bert": _text("Bert", **_SIZES, **_HEADS, **_WHOLE),
    "bloom": _text("Bloom", vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=2, n_head=4),
    "clip": _clip,
    "deberta_v2": _text("DebertaV2", **_SIZES, **_HEADS, **_WHOLE),
    "distilbert": _text("DistilBert", vocab_size=VOCABULARY, dim=WIDTH, n_layers=2, n_heads=4,
                        hidden_dim=64, **_WHOLE),
    "falcon": _text("Falcon", **_SIZES, num_attention_heads=4),
    "gemma2": _text("Gemma2", **_SIZES, **_HEADS, head_dim=8, num_key_value_heads=2),
    "gpt2": _text("GPT2", vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=32),
    "gpt_neox": _text("GPTNeoX", **_SIZES, **_HEADS, **_WHOLE),
    "llama": _text("Llama", **_SIZES, **_HEADS, num_key_value_heads=2),
    "mamba": _text("Mamba", **_SIZES, state_size=4),
    "mistral": _text("Mistral", **_SIZES, **_HEADS, num_key_value_heads=2),
    "opt": _text("OPT", **_SIZES, num_attention_heads=4, ffn_dim=64, word_embed_proj_dim=WIDTH,
                 **_WHOLE),
    "phi3": _text("Phi3", **_SIZES, **_HEADS, num_key_value_heads=2, pad_token_id=0),
    "qwen2": _text("Qwen2", **_SIZES, **_HEADS, num_key_value_heads=2),
    "roberta": _sequences,
    "t5": _t5,
    "vit": _vit,
    "whisper": _whisper,
}  # fmt: skip


def built(name: str, seed: int = 0) -> Built:
    """The same model, and the same inputs, each time; without dropout, in training mode."""
    torch.manual_seed(seed)
    model, inputs = NETWORKS[name]()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model, inputs
