# SPDX-License-Identifier: BSD-3-Clause
"""Record what gguf 0.19.0 calls tensors of transformers, and a head that its writer makes.

    pip install --target /tmp/oracles --no-deps gguf==0.19.0
    PYTHONPATH=/tmp/oracles:. python tests/recorded/record_gguf_names.py

Writes gguf_names.json beside this file: {model_type: {name in transformers: name in GGUF}} of the
architectures that are written here, for layer 3 of 9.
"""

import json
import pathlib

HERE = pathlib.Path(__file__).parent
PARTS = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm", "self_attn.qkv_proj",
    "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    "mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj", "mlp.down_proj", "mlp.gate",
    "block_sparse_moe.gate", "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj",
    "mlp.shared_expert.down_proj", "mlp.shared_expert_gate",
)  # fmt: skip
OF_GPT2 = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
ARCHITECTURES = {
    "LLAMA": "llama", "QWEN2": "qwen2", "QWEN3": "qwen3", "QWEN2MOE": "qwen2_moe",
    "QWEN3MOE": "qwen3_moe", "GEMMA2": "gemma2", "GEMMA3": "gemma3_text", "PHI3": "phi3",
    "GRANITE": "granite", "GPT2": "gpt2",
}  # fmt: skip


def main() -> None:
    import gguf  # not needed by the tests

    found: dict[str, dict[str, str]] = {}
    for arch, kind in ARCHITECTURES.items():
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], 9)
        every = ["model.embed_tokens", "model.norm", "lm_head"]
        every += ["transformer.wte", "transformer.wpe", "transformer.ln_f"]
        every += [f"model.layers.3.{part}" for part in PARTS]
        every += [f"transformer.h.3.{part}" for part in OF_GPT2]
        gpt2 = kind == "gpt2"
        every = [n for n in every if n.startswith("transformer.") == gpt2 or n == "lm_head"]
        known = {f"{n}.weight": names.get_name(f"{n}.weight", (".weight",)) for n in every}
        found[kind] = {n: theirs for n, theirs in known.items() if theirs}
    (HERE / "gguf_names.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
