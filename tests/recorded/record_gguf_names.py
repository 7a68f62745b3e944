"""Record what gguf 0.19.0 calls tensors of transformers, and a head that its writer makes.

    pip install --target /tmp/oracles --no-deps gguf==0.19.0
    PYTHONPATH=/tmp/oracles:. python tests/recorded/record_gguf_names.py

Writes gguf_names.json beside this file: {architecture: {name in transformers: name in GGUF}} of the
architectures that are written here, for layer 3 of 9.
"""

import json
import pathlib

HERE = pathlib.Path(__file__).parent
LAYER = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


def main() -> None:
    import gguf  # not needed by the tests

    found: dict[str, dict[str, str]] = {}
    for arch in (gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.QWEN2, gguf.MODEL_ARCH.QWEN3):
        names = gguf.get_tensor_name_map(arch, 9)
        every = ["model.embed_tokens", "model.norm", "lm_head"]
        every += [f"model.layers.3.{part}" for part in LAYER]
        known = {f"{n}.weight": names.get_name(f"{n}.weight", (".weight",)) for n in every}
        found[gguf.MODEL_ARCH_NAMES[arch]] = {n: theirs for n, theirs in known.items() if theirs}
    (HERE / "gguf_names.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
