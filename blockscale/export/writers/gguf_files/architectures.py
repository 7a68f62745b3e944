"""Models that llama.cpp has an architecture for: its names of tensors and keys, and transformers'.

Names: ggml-org/llama.cpp, gguf-py/gguf/tensor_mapping.py and constants.py (gguf 0.19.0), which
tests compare with. Only architectures whose tensors are stored as transformers has them, but for
the order of rows: converters add to norms of others, or join and split tensors.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from blockscale.core.untrusted.names import quoted
from blockscale.export.writers.gguf_files.head import Value
from blockscale.export.writers.gguf_files.positions import rope, scaling_keys, scaling_of


class Architecture(NamedTuple):
    """name: general.architecture; permuted: whether rows of q and k lie in another order there."""

    name: str
    permuted: bool


_KNOWN = {  # {model_type of transformers: …}
    "llama": Architecture("llama", True),
    "mistral": Architecture("llama", True),
    "qwen2": Architecture("qwen2", False),
    "qwen3": Architecture("qwen3", False),
}
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_IN_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
_LAYER = re.compile(r"model\.layers\.(\d{1,6})\.(.+)")
_BLOCK = re.compile(r"blk\.(\d{1,6})\.(.+)")
# {key after the architecture's: (its type, key of config.json)}
_KEYS = {
    "context_length": ("u32", "max_position_embeddings"),
    "embedding_length": ("u32", "hidden_size"),
    "block_count": ("u32", "num_hidden_layers"),
    "feed_forward_length": ("u32", "intermediate_size"),
    "attention.head_count": ("u32", "num_attention_heads"),
    "attention.head_count_kv": ("u32", "num_key_value_heads"),
    "attention.layer_norm_rms_epsilon": ("f32", "rms_norm_eps"),
    "vocab_size": ("u32", "vocab_size"),
}
_DEFAULTS = {"rms_norm_eps": 1e-6}


def of_config(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a model of transformers. Raises ValueError for one that is not known."""
    kind = config.get("model_type")
    if kind not in _KNOWN:
        raise ValueError(
            f"config.json has the model_type {quoted(kind)}, whose names in GGUF are not known "
            f"here; known are {', '.join(_KNOWN)}. With names='keep' (--names keep), tensors keep "
            f"their names, which llama.cpp will not know"
        )
    return _KNOWN[kind]


def of_metadata(metadata: Mapping[str, Any]) -> Architecture:
    """The architecture of a GGUF file. Raises ValueError likewise."""
    name = metadata.get("general.architecture")
    for known in _KNOWN.values():
        if known.name == name:
            return known
    names = ", ".join(dict.fromkeys(each.name for each in _KNOWN.values()))
    raise ValueError(
        f"the GGUF file is of the architecture {quoted(name)}, whose names in transformers are "
        f"not known here; known are {names}. With names='keep' (--names keep), tensors keep their "
        f"names"
    )


def to_gguf(name: str) -> str | None:
    """A name of transformers -> that in GGUF, or None."""
    return _renamed(name, _LAYER, "blk.{}.", _IN_LAYER, _WHOLE)


def from_gguf(name: str) -> str | None:
    """A name in GGUF -> that of transformers, or None."""
    layers = {theirs: ours for ours, theirs in _IN_LAYER.items()}
    whole = {theirs: ours for ours, theirs in _WHOLE.items()}
    return _renamed(name, _BLOCK, "model.layers.{}.", layers, whole)


def _renamed(
    name: str, numbered: re.Pattern[str], prefix: str, inside: dict[str, str], whole: dict[str, str]
) -> str | None:
    found = numbered.fullmatch(name)
    rest = name if found is None else found[2]
    layer, _, last = rest.rpartition(".")
    table = whole if found is None else inside
    if layer not in table or last not in ("weight", "bias"):
        return None
    return (prefix.format(int(found[1])) if found else "") + f"{table[layer]}.{last}"


def heads(name: str, config: Mapping[str, Any]) -> int:
    """How many heads the rows of q or k of this name (transformers') are of; 0 for others."""
    layer = name.rpartition(".")[0]
    if layer.endswith("self_attn.q_proj"):
        return int(config["num_attention_heads"])
    if layer.endswith("self_attn.k_proj"):
        return int(config.get("num_key_value_heads") or config["num_attention_heads"])
    return 0


def keys(config: Mapping[str, Any]) -> dict[str, Value]:
    """A GGUF file's metadata from config.json. Raises ValueError for a setting that it lacks."""
    arch = of_config(config).name
    found = {"general.architecture": Value("text", arch)}
    more = {"num_key_value_heads": config.get("num_attention_heads")} | _DEFAULTS
    for key, (kind, ours) in _KEYS.items():
        value = config.get(ours, more.get(ours))
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < 2**32 or (kind == "u32" and int(value) != value):
            raise ValueError(f"config.json: {ours} is {quoted(value)}, expected a number")
        found[f"{arch}.{key}"] = Value(kind, int(value) if kind == "u32" else float(value))
    head = _head_size(config)
    found[f"{arch}.rope.dimension_count"] = Value("u32", head)
    if config.get("head_dim") is not None:
        found[f"{arch}.attention.key_length"] = Value("u32", head)
        found[f"{arch}.attention.value_length"] = Value("u32", head)
    found[f"{arch}.rope.freq_base"] = Value("f32", float(rope(config).get("rope_theta", 10_000.0)))
    return found | scaling_keys(arch, config)


def _head_size(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def config_of(metadata: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """config.json of transformers from a GGUF file's metadata and its tensors' names there.

    Raises ValueError for an architecture that is not known, for a key that is missing, and for
    positions that are scaled in other ways than `scaling_of` knows, or of a part of a head.
    """
    arch = of_metadata(metadata).name
    found: dict[str, Any] = {
        "architectures": [_CLASSES[arch]],
        "model_type": arch,
        "tie_word_embeddings": "output.weight" not in set(names),
    }
    tokens = metadata.get("tokenizer.ggml.tokens")
    for key, (_, ours) in _KEYS.items():
        value = metadata.get(f"{arch}.{key}")
        if value is None and key == "vocab_size" and isinstance(tokens, list):
            value = len(tokens)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"the GGUF file has no number {arch}.{key}, which config.json needs")
        found[ours] = value
    if isinstance(size := metadata.get(f"{arch}.attention.key_length"), int):
        found["head_dim"] = size
    theta = metadata.get(f"{arch}.rope.freq_base", 10_000.0)
    found["rope_theta"] = float(theta)
    if (scaling := scaling_of(arch, metadata)) is not None:
        found["rope_scaling"] = scaling
    _check_positions(arch, metadata, _head_size(found))
    for key in ("bos", "eos"):
        if isinstance(token := metadata.get(f"tokenizer.ggml.{key}_token_id"), int):
            found[f"{key}_token_id"] = token
    return found


def _check_positions(arch: str, metadata: Mapping[str, Any], head: int) -> None:
    """Raise ValueError where positions are those of a part of a head."""
    value = metadata.get(f"{arch}.rope.dimension_count")
    if value not in (None, head):
        raise ValueError(
            f"the GGUF file has {arch}.rope.dimension_count = {quoted(str(value))}, which is not "
            f"translated: give the config of the original model (config=, --config DIR)"
        )
