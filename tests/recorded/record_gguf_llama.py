# SPDX-License-Identifier: BSD-3-Clause
"""Make a GGUF file of a small llama with random weights, and record what transformers makes of it.

    pip install --target /tmp/oracles --no-deps gguf==0.19.0
    PYTHONPATH=/tmp/oracles:. python tests/recorded/record_gguf_llama.py

Writes llama.gguf, as llama.cpp's converter names, types and permutes it, and
gguf_llama.safetensors: tokens, and the logits of transformers' own float model of that file
(`from_pretrained(gguf_file=…)`, which dequantizes with the package gguf), and their greedy sequel.
"""

import pathlib

import numpy as np
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
LAYER = {
    "self_attn.q_proj": ("attn_q", "Q8_0"), "self_attn.k_proj": ("attn_k", "Q4_0"),
    "self_attn.v_proj": ("attn_v", "Q5_1"), "self_attn.o_proj": ("attn_output", "Q5_0"),
    "mlp.gate_proj": ("ffn_gate", "Q4_0"), "mlp.up_proj": ("ffn_up", "Q4_1"),
    "mlp.down_proj": ("ffn_down", "Q8_0"), "input_layernorm": ("attn_norm", "F32"),
    "post_attention_layernorm": ("ffn_norm", "F32"),
}  # fmt: skip


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's convert_hf_to_gguf.py does with attn_q and attn_k."""
    size = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, size, -1).swapaxes(1, 2).reshape(weight.shape)


def main() -> None:
    import gguf  # not needed by the tests
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(22)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)
    writer = gguf.GGUFWriter(HERE / "llama.gguf", "llama")
    writer.add_name("small")
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(96)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([chr(33 + i) for i in range(96)])
    writer.add_token_merges([])
    names = {"model.embed_tokens": ("token_embd", "Q8_0"), "lm_head": ("output", "Q5_0")}
    names["model.norm"] = ("output_norm", "F32")
    for i in range(2):
        names |= {f"model.layers.{i}.{n}": (f"blk.{i}.{t}", k) for n, (t, k) in LAYER.items()}
    for name, (place, kind) in names.items():
        weight = model.get_submodule(name).weight.detach().numpy()
        if "attn_q" in place or "attn_k" in place:
            weight = permuted(weight, 4 if "attn_q" in place else 2)
        to = gguf.GGMLQuantizationType[kind]
        data = weight if kind == "F32" else gguf.quantize(np.ascontiguousarray(weight), to)
        writer.add_tensor(f"{place}.weight", data, raw_dtype=None if kind == "F32" else to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs = AutoModelForCausalLM.from_pretrained(HERE, gguf_file="llama.gguf", dtype=torch.float32)
    ids = torch.randint(0, 96, (2, 7))
    with torch.no_grad():
        logits = theirs(ids).logits
        sequel = theirs.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    found = {"ids": ids, "logits": logits, "sequel": sequel}
    weights = {f"w.{n}": theirs.get_submodule(n).weight.detach()[:8].clone() for n in names}
    save_file(found | weights, HERE / "gguf_llama.safetensors", {"gguf": "0.19.0"})


if __name__ == "__main__":
    main()
