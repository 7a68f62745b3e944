# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/cli/test_model_directory.py: `tiny`, `tokenizer`.
"""

import torch


def tiny(path, **settings):
    """A causal model of two small layers, as transformers writes it, without a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, max_position_embeddings=64, **sizes, **heads, **settings)
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def tokenizer(path, **settings):
    """A tokenizer of words without a token for padding, written beside a model."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(("<s>", "</s>", "?", "the", "a", "on", "for", "in"))}
    made = Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, **settings).save_pretrained(path)
    return path
