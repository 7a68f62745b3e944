# SPDX-License-Identifier: BSD-3-Clause
"""What llama.cpp calls the keys and tensors of each kind of model, and what it always computes.

Names and keys: ggml-org/llama.cpp, gguf-py/gguf/tensor_mapping.py and constants.py (gguf 0.19.0),
which tests compare with; conversion/*.py and src/models/*.cpp of release b11434.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from blockscale.core.untrusted import quote

NEEDED = object()  # of a key without which there is no model


class ConfigNumber(NamedTuple):
    """A number of config.json: its type in GGUF, its name there (or names, the first is written
    back), and what it is where it is missing; None: the key is left out."""

    kind: str
    names: tuple[str, ...]
    default: Any = NEEDED


@dataclass(frozen=True)
class Family:
    """Models of one model_type of transformers.

    arch: general.architecture; class_name: of transformers, when a file is read back
    keys: {key after the architecture's: Key}; whole, inside: {layer of transformers: layer in GGUF}
        of a model and of each block of it; experts: the same of each expert of a block
    biases: layers in GGUF that may have a bias; prefix, block: what names of layers begin with
    permuted: rows of q and k lie in another order; addend: to the weights of norms
    transposes: layers whose weights are [inputs, outputs] in transformers
    fixed: {key of config.json: what it may be}, since llama.cpp computes that whatever it is; None
        among them stands for a key that is missing, too
    ties: whether the head is the table of embeddings where config.json does not say
    scaled: whether its graph multiplies by the scale of all scales of an NVFP4 weight (measured,
        release v0.5.0: the graphs of others read it and leave it out)
    window: whether llama.cpp has the family's sliding window; period: of layers with and without
    """

    arch: str
    class_name: str
    keys: Mapping[str, ConfigNumber]
    whole: Mapping[str, str]
    inside: Mapping[str, str]
    experts: Mapping[str, str] = field(default_factory=dict)
    experts_in: str = "mlp"
    biases: frozenset[str] = frozenset()
    prefix: str = "model."
    block: str = "model.layers.{}."
    permuted: bool = False
    addend: float = 0.0
    transposes: frozenset[str] = frozenset()
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    ties: bool = False
    scaled: bool = False
    window: bool = False
    period: int = 0


_ATTENTION = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm",
}  # fmt: skip
_GATED = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_LLAMA = _ATTENTION | _GATED | {"post_attention_layernorm": "ffn_norm"}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_ROUTER = {"mlp.gate": "ffn_gate_inp"}
_EXPERTS = {
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
}  # fmt: skip
_SHARED = {
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}  # fmt: skip
_AROUND = {  # four norms a block, as Gemma has since its second version
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_QKV = frozenset({"attn_q", "attn_k", "attn_v"})
_EVERY = _QKV | {"attn_output", "ffn_gate", "ffn_up", "ffn_down"}

_KEYS = {
    "context_length": ConfigNumber("u32", ("max_position_embeddings",)),
    "embedding_length": ConfigNumber("u32", ("hidden_size",)),
    "block_count": ConfigNumber("u32", ("num_hidden_layers",)),
    "feed_forward_length": ConfigNumber("u32", ("intermediate_size",)),
    "attention.head_count": ConfigNumber("u32", ("num_attention_heads",)),
    "attention.head_count_kv": ConfigNumber("u32", ("num_key_value_heads", "num_attention_heads")),
    "attention.layer_norm_rms_epsilon": ConfigNumber("f32", ("rms_norm_eps",), 1e-6),
    "vocab_size": ConfigNumber("u32", ("vocab_size",)),
}
_OF_EXPERTS = {
    "expert_count": ConfigNumber("u32", ("num_experts", "num_local_experts")),
    "expert_used_count": ConfigNumber("u32", ("num_experts_per_tok",)),
    "expert_feed_forward_length": ConfigNumber("u32", ("moe_intermediate_size",)),
}
_GPT2_KEYS = {
    "context_length": ConfigNumber("u32", ("n_positions",), 1024),
    "embedding_length": ConfigNumber("u32", ("n_embd",), 768),
    "block_count": ConfigNumber("u32", ("n_layer",), 12),
    "feed_forward_length": ConfigNumber("u32", ("n_inner", "4 n_embd")),
    "attention.head_count": ConfigNumber("u32", ("n_head",), 12),
    "attention.layer_norm_epsilon": ConfigNumber("f32", ("layer_norm_epsilon",), 1e-5),
    "vocab_size": ConfigNumber("u32", ("vocab_size",), 50257),
}
_SILU = {"hidden_act": ("silu", "swish", None)}
_TANH = {
    "hidden_activation": ("gelu_pytorch_tanh", None),
    "hidden_act": ("gelu_pytorch_tanh", "gelu", None),
    "use_bidirectional_attention": (False, None),
}
_ALL_EXPERTS = {"decoder_sparse_step": (1, None), "mlp_only_layers": ([], None)}
_SCALES = {
    "attention.scale": ConfigNumber("f32", ("attention_multiplier",), 1.0),
    "embedding_scale": ConfigNumber("f32", ("embedding_multiplier",), 1.0),
    "residual_scale": ConfigNumber("f32", ("residual_multiplier",), 1.0),
    "logit_scale": ConfigNumber("f32", ("logits_scaling",), 1.0),
}
_LLAMA_FAMILY = Family(
    "llama", "LlamaForCausalLM", _KEYS, _WHOLE, _LLAMA, biases=_EVERY, permuted=True, fixed=_SILU,
    scaled=True,
)  # fmt: skip

FAMILIES = {  # {model_type of transformers: …}; the first of an architecture is what it is read as
    "llama": _LLAMA_FAMILY,
    "mistral": _LLAMA_FAMILY,
    "qwen2": Family(
        "qwen2", "Qwen2ForCausalLM", _KEYS, _WHOLE, _LLAMA, biases=_QKV | {"output"}, fixed=_SILU,
    ),
    "qwen3": Family(
        "qwen3", "Qwen3ForCausalLM", _KEYS, _WHOLE, _LLAMA | _HEAD_NORMS, biases=_QKV, fixed=_SILU,
        scaled=True,
    ),
    "mixtral": Family(
        "llama", "MixtralForCausalLM",
        _KEYS | {
            "expert_count": ConfigNumber("u32", ("num_local_experts",)),
            "expert_used_count": ConfigNumber("u32", ("num_experts_per_tok",), 2),
        },
        _WHOLE,
        _ATTENTION | {"post_attention_layernorm": "ffn_norm"}
        | {"block_sparse_moe.gate": "ffn_gate_inp"},
        {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"},
        "block_sparse_moe", permuted=True, fixed=_SILU,
    ),
    "qwen2_moe": Family(
        "qwen2moe", "Qwen2MoeForCausalLM",
        _KEYS | _OF_EXPERTS | {
            "expert_shared_feed_forward_length": ConfigNumber(
                "u32", ("shared_expert_intermediate_size",)
            ),
        },
        _WHOLE, _ATTENTION | {"post_attention_layernorm": "ffn_norm"} | _ROUTER | _SHARED,
        _EXPERTS, biases=_QKV,
        fixed=_SILU | _ALL_EXPERTS | {
            "norm_topk_prob": (False, None), "tie_word_embeddings": (False, None),
        },
    ),
    "qwen3_moe": Family(
        "qwen3moe", "Qwen3MoeForCausalLM", _KEYS | _OF_EXPERTS, _WHOLE,
        _ATTENTION | {"post_attention_layernorm": "ffn_norm"} | _ROUTER | _HEAD_NORMS,
        _EXPERTS, biases=_QKV, fixed=_SILU | _ALL_EXPERTS | {"norm_topk_prob": (True,)},
    ),
    "gemma2": Family(
        "gemma2", "Gemma2ForCausalLM",
        _KEYS | {
            "attn_logit_softcapping": ConfigNumber("f32", ("attn_logit_softcapping",)),
            "final_logit_softcapping": ConfigNumber("f32", ("final_logit_softcapping",)),
            "attention.sliding_window": ConfigNumber("u32", ("sliding_window",), 4096),
        },
        _WHOLE, _ATTENTION | _GATED | _AROUND, biases=_QKV, addend=1.0,
        fixed=_TANH | {"tie_word_embeddings": (True, None)}, ties=True, window=True, period=2,
    ),
    "gemma3_text": Family(
        "gemma3", "Gemma3ForCausalLM",
        _KEYS | {
            "final_logit_softcapping": ConfigNumber("f32", ("final_logit_softcapping",), None),
            "attention.sliding_window": ConfigNumber("u32", ("sliding_window",), 4096),
            "rope.freq_base_swa": ConfigNumber("f32", ("rope_local_base_freq",), 10_000.0),
        },
        _WHOLE, _ATTENTION | _GATED | _AROUND | _HEAD_NORMS, biases=_QKV, addend=1.0,
        fixed=_TANH, ties=True, window=True, period=6,
    ),
    "phi3": Family(
        "phi3", "Phi3ForCausalLM", _KEYS, _WHOLE,
        {
            "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
            "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
            "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        },
        fixed=_SILU,
    ),
    "granite": Family(
        "granite", "GraniteForCausalLM", _KEYS | _SCALES, _WHOLE, _LLAMA, biases=_EVERY,
        permuted=True, fixed=_SILU,
    ),
    "gpt2": Family(
        "gpt2", "GPT2LMHeadModel", _GPT2_KEYS,
        {
            "transformer.wte": "token_embd", "transformer.wpe": "position_embd",
            "transformer.ln_f": "output_norm", "lm_head": "output",
        },
        {
            "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
            "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
        },
        biases=frozenset(
            {"attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"}
        ) | {"output_norm"},
        ties=True, prefix="transformer.", block="transformer.h.{}.",
        transposes=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
        fixed={
            "activation_function": ("gelu_new", "gelu_pytorch_tanh", None),
            "scale_attn_weights": (True, None), "add_cross_attention": (False, None),
            "scale_attn_by_inverse_layer_idx": (False, None),
        },
    ),
}  # fmt: skip

# Which tensors llama.cpp's converter writes as F32 whatever the model's are: products with weights
# in 16 bits round their inputs, too, and these decide which expert a token sees
IN_FLOAT32 = ("ffn_gate_inp", "ffn_gate_inp_shexp", "position_embd")


def of_metadata(metadata: Mapping[str, Any]) -> tuple[str, Family]:
    """The model_type and the family of a GGUF file. Raises ValueError likewise."""
    name = metadata.get("general.architecture")
    if name == "llama" and metadata.get("llama.expert_count"):
        return "mixtral", FAMILIES["mixtral"]
    for kind, family in FAMILIES.items():
        if family.arch == name:
            return kind, family
    names = ", ".join(dict.fromkeys(each.arch for each in FAMILIES.values()))
    raise ValueError(
        f"the GGUF file has the architecture {quote(name)}, whose tensor names in "
        f"transformers are not known; known architectures: {names}. With names='keep' "
        "(--names keep), tensors keep their names"
    )
