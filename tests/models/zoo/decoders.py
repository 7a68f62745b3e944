# SPDX-License-Identifier: BSD-3-Clause
"""Language models of transformers without experts: from GPT-2 to Qwen 3."""

from tests.models.zoo.hub import LLAMA, SMALL, hub
from tests.models.zoo.inputs import WORDS

_GPT = {"vocab_size": WORDS, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
_HEADS = LLAMA | {"head_dim": 16}

hub("gpt2", "GPT2LMHeadModel", "GPT2Config", _GPT)
hub(
    "gpt_neo",
    "GPTNeoForCausalLM",
    "GPTNeoConfig",
    {
        "vocab_size": WORDS,
        "max_position_embeddings": 64,
        "hidden_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 8,
    },
)
hub("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig")
hub("gptj", "GPTJForCausalLM", "GPTJConfig", _GPT | {"rotary_dim": 8})
hub(
    "opt",
    "OPTForCausalLM",
    "OPTConfig",
    SMALL | {"ffn_dim": 128, "word_embed_proj_dim": 32, "do_layer_norm_before": True},
)
hub("bloom", "BloomForCausalLM", "BloomConfig", {**_GPT, "hidden_size": 64})
hub("falcon", "FalconForCausalLM", "FalconConfig", SMALL | {"new_decoder_architecture": False})
hub("mpt", "MptForCausalLM", "MptConfig", {"vocab_size": WORDS, "d_model": 64, "n_heads": 4,
                                             "n_layers": 2, "max_seq_len": 64})  # fmt: skip
hub("llama", "LlamaForCausalLM", "LlamaConfig", LLAMA)
hub("mistral", "MistralForCausalLM", "MistralConfig", LLAMA | {"sliding_window": 8})
hub("qwen2", "Qwen2ForCausalLM", "Qwen2Config", LLAMA)
hub("qwen3", "Qwen3ForCausalLM", "Qwen3Config", _HEADS)
hub("gemma2", "Gemma2ForCausalLM", "Gemma2Config", _HEADS)
hub("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", _HEADS | {"sliding_window": 8})
hub("phi", "PhiForCausalLM", "PhiConfig", LLAMA)
hub("phi3", "Phi3ForCausalLM", "Phi3Config", LLAMA)
hub("olmo2", "Olmo2ForCausalLM", "Olmo2Config", LLAMA)
hub("granite", "GraniteForCausalLM", "GraniteConfig", LLAMA)
hub("cohere", "CohereForCausalLM", "CohereConfig", LLAMA)
hub("stablelm", "StableLmForCausalLM", "StableLmConfig", LLAMA)
hub("starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config", LLAMA)
hub("smollm3", "SmolLM3ForCausalLM", "SmolLM3Config", LLAMA)
