# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/export/test_to_program.py: `bert`, `gpt2`."""


def gpt2():
    from transformers import GPT2Config, GPT2Model

    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 50}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=1, use_cache=False)
    return GPT2Model(config).eval()


def bert():
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertModel(BertConfig(**sizes, intermediate_size=64, vocab_size=50)).eval()
