# SPDX-License-Identifier: BSD-3-Clause
"""Encoders with decoders, of transformers: what reads one text or sound and writes another."""

import torch

from tests.models.registry import Inputs
from tests.models.zoo.hub import hub
from tests.models.zoo.inputs import WORDS, pair

_T5 = {"vocab_size": WORDS, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
_BART = {
    "vocab_size": WORDS,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}


def heard() -> Inputs:
    """A spectrum of 80 bands, and what was written of it so far."""
    spectrum = torch.randn(2, 80, 32)
    return {"input_features": spectrum, "decoder_input_ids": torch.randint(4, WORDS, (2, 5))}


hub("t5", "T5ForConditionalGeneration", "T5Config", _T5, pair)
hub("mt5", "MT5ForConditionalGeneration", "MT5Config",
    _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, pair)  # fmt: skip
hub("bart", "BartForConditionalGeneration", "BartConfig", _BART, pair)
hub("marian", "MarianMTModel", "MarianConfig", _BART, pair)
hub("m2m_100", "M2M100ForConditionalGeneration", "M2M100Config", _BART, pair)
hub("whisper", "WhisperForConditionalGeneration", "WhisperConfig", _BART | {
    "max_source_positions": 16, "max_target_positions": 64, "num_mel_bins": 80,
    "suppress_tokens": None, "begin_suppress_tokens": None,
}, heard)  # fmt: skip
hub("switch_transformers", "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig",
    _T5 | {"num_experts": 4, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1,
           "num_sparse_decoder_layers": 1}, pair)  # fmt: skip
