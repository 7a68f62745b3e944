# SPDX-License-Identifier: BSD-3-Clause
"""Models that llama.cpp has an architecture for: a file's keys from config.json, and back."""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from blockscale.core.untrusted import quote
from blockscale.export.checkpoints.gguf.families import (
    FAMILIES,
    NEEDED,
    ConfigNumber,
    Family,
    of_metadata,
)
from blockscale.export.writers.gguf_files.file import MetadataValue
from blockscale.export.writers.gguf_files.settings import check_settings, window_keys

# Rotary positions that are scaled: the settings of transformers, and the keys of a GGUF file.
#
# Keys: ggml-org/ggml, docs/gguf.md, "Scaling". Both divide positions by a factor (linear), or
# frequencies by a factor that grows from 1 over a range of them (yarn, arXiv:2309.00071). Of yarn's
# other numbers only the defaults are written, which are the same in llama.cpp and transformers: 32
# and 1 rotations as the ends of the range, and 0.1 ln(factor) + 1 for attention. Llama 3's scaling
# is
# a tensor (`rope_freqs.weight`).

_WAY_OUT = "pass the config of the original model (config=, --config DIR)"
_KNOWN = ("default", "llama3", "linear", "yarn")
_ORIGINAL = "original_max_position_embeddings"
_LENGTH = "original_context_length"
# what transformers takes where a setting of yarn is not there
_DEFAULTS = {
    "beta_fast": (None, 32), "beta_slow": (None, 1), "attention_factor": (None,),
    "mscale": (None,), "mscale_all_dim": (None,), "truncate": (None, True),
}  # fmt: skip


def rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of rotary positions, wherever the version of transformers puts them.

    Raises ValueError for a scaling that no file here has keys for.
    """
    by_name = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if "rope_theta" in config:
        by_name.setdefault("rope_theta", config["rope_theta"])
    kind = kind_of(by_name)
    if kind not in _KNOWN:
        raise ValueError(
            f"config.json: rotary positions are scaled by {quote(kind)}, which cannot be "
            f"written; supported: {', '.join(_KNOWN)}"
        )
    if kind == "yarn":
        for name, usual in _DEFAULTS.items():
            if (value := by_name.get(name)) not in usual:
                raise ValueError(
                    f"config.json: yarn's {name} is {quote(str(value))}, and only its "
                    "default can be written"
                )
    return by_name


def kind_of(settings: Mapping[str, Any]) -> Any:
    """The kind of scaling, under its name of now or its older one."""
    return settings.get("rope_type", settings.get("type", "default"))


def scaling_keys(arch: str, config: Mapping[str, Any]) -> dict[str, MetadataValue]:
    """The keys of a file for a model's config.json. Raises ValueError for numbers that are none."""
    settings = rope(config)
    kind = kind_of(settings)
    if kind not in ("linear", "yarn"):
        return {}
    start = f"{arch}.rope.scaling."
    factor = _positions_number(
        settings.get("factor"), "config.json: the factor of rotary positions"
    )
    data = {
        f"{start}type": MetadataValue("text", kind),
        f"{start}factor": MetadataValue("f32", factor),
    }
    if kind == "yarn":
        length = settings.get(_ORIGINAL) or config.get("max_position_embeddings")
        length = _positions_number(length, f"config.json: {_ORIGINAL}")
        data[start + _LENGTH] = MetadataValue("u32", int(length))
    return data


def scaling_of(arch: str, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings of transformers (but rope_theta) from a file's keys; None if nothing is scaled.

    Raises ValueError for a kind, or for a key, that is not known here.
    """
    start = f"{arch}.rope.scaling."
    data = {key.removeprefix(start): each for key, each in metadata.items() if start in key}
    kind, older = data.pop("type", None), metadata.get(f"{arch}.rope.scale_linear")
    if kind in (None, "none"):
        if older in (None, 1.0):
            return None
        if kind is None:
            factor = _positions_number(older, f"the GGUF file's {arch}.rope.scale_linear")
            return {"rope_type": "linear", "factor": factor}
    if kind not in ("linear", "yarn") or older not in (None, 1.0):
        raise ValueError(
            f"the GGUF file has {start}type = {quote(str(kind))} and "
            f"{arch}.rope.scale_linear = {quote(str(older))}, which cannot be translated: "
            f"{_WAY_OUT}"
        )
    data.pop("finetuned", None)  # says how the model was made, not what it computes
    by_name = {
        "rope_type": kind,
        "factor": _positions_number(data.pop("factor", None), f"{start}factor"),
    }
    length = data.pop(_LENGTH, metadata.get(f"{arch}.context_length"))
    if data:
        raise ValueError(
            f"the GGUF file has {start}{quote(min(data))}, which cannot be translated: {_WAY_OUT}"
        )
    if kind == "yarn":
        by_name[_ORIGINAL] = int(_positions_number(length, start + _LENGTH))
    return by_name


def _positions_number(value: Any, what: str) -> float:
    """Raises ValueError for what is no finite number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        raise ValueError(f"{what} is {quote(str(value))}, expected a number >= 1: {_WAY_OUT}")
    if not isfinite(value):
        raise ValueError(f"{what} is infinite: {_WAY_OUT}")
    return float(value)


def of_config(config: Mapping[str, Any]) -> Family:
    """The family of a model of transformers. Raises ValueError for one that is not known."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(
            f"config.json has the model_type {quote(kind)}, whose tensor names in GGUF are "
            f"not known; known model types: {', '.join(FAMILIES)}. With names='keep' (--names "
            "keep), tensors keep their names, which llama.cpp will not know"
        )
    return FAMILIES[str(kind)]


def keys(config: Mapping[str, Any]) -> tuple[dict[str, MetadataValue], list[str]]:
    """A GGUF file's metadata from config.json, and what has to be said of what has no place there.

    Raises ValueError for a setting that it lacks, or that llama.cpp would not compute.
    """
    family = of_config(config)
    config = _flat(config, family)
    notes = check_settings(config, family)
    data = {"general.architecture": MetadataValue("text", family.arch)}
    for key, what in family.keys.items():
        value = _number(config, what)
        if value is not None:
            data[f"{family.arch}.{key}"] = MetadataValue(what.kind, value)
    if family.arch != "gpt2":
        data |= _position_keys(config, family)
    more, info = window_keys(config, family)
    return data | more, [*info, *notes]


def _flat(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Gemma 3's two kinds of positions as older files tell of them. Raises ValueError for scaled
    ones of layers with a window."""
    config = dict(config)
    both = config.get("rope_parameters")
    if family.arch != "gemma3" or not isinstance(both, dict) or "full_attention" not in both:
        return config
    local = dict(both.get("sliding_attention") or {})
    if local.get("rope_type", "default") != "default":
        raise ValueError(
            f"config.json: rotary positions of layers with a sliding window are scaled by "
            f"{quote(local['rope_type'])}, for which a GGUF file of {family.arch} has no keys"
        )
    config["rope_parameters"] = both["full_attention"]
    config["rope_local_base_freq"] = local.get("rope_theta", 10_000.0)
    return config


def _number(config: Mapping[str, Any], key: ConfigNumber) -> int | float | None:
    """The number of a key. Raises ValueError for what is none."""
    ours = next((name for name in key.names if config.get(name) is not None), key.names[0])
    if "4 n_embd" in key.names and config.get(ours) is None:
        return 4 * int(config.get("n_embd", 768))
    value = config.get(ours)
    if value is None and key.default is not NEEDED:
        value = key.default
        if value is None:
            return None
    whole = key.kind == "u32"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"config.json: {ours} is {quote(value)}, expected a number")
    if not 0 <= value < 2**32 or (whole and int(value) != value):
        raise ValueError(f"config.json: {ours} is {quote(value)}, expected a number")
    return int(value) if whole else float(value)


def _position_keys(config: Mapping[str, Any], family: Family) -> dict[str, MetadataValue]:
    arch, head = family.arch, _head_size(config)
    settings = rope(config)
    part = settings.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
    data = {f"{arch}.rope.dimension_count": MetadataValue("u32", int(head * float(part)))}
    if config.get("head_dim") is not None:
        data[f"{arch}.attention.key_length"] = MetadataValue("u32", head)
        data[f"{arch}.attention.value_length"] = MetadataValue("u32", head)
    usual = 1e6 if arch == "gemma3" else 10_000.0
    data[f"{arch}.rope.freq_base"] = MetadataValue("f32", float(settings.get("rope_theta", usual)))
    return data | scaling_keys(arch, config)


def _head_size(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def config_of(metadata: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """config.json of transformers from a GGUF file's metadata and its tensors' names there.

    Raises ValueError for an architecture that is not known, for a key that is missing, and for
    positions that are scaled in other ways than `scaling_of` knows, or of a part of a head.
    """
    kind, family = of_metadata(metadata)
    arch, names = family.arch, set(names)
    data: dict[str, Any] = {
        "architectures": [family.class_name],
        "model_type": kind,
        "tie_word_embeddings": "output.weight" not in names,
    }
    for key, what in family.keys.items():
        value = metadata.get(f"{arch}.{key}")
        if value is None and key == "vocab_size":
            tokens = metadata.get("tokenizer.ggml.tokens")
            value = len(tokens) if isinstance(tokens, list) else None
        if value is None and what.default is not NEEDED:
            value = what.default
            if value is None:
                continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"the GGUF file has no number {arch}.{key}, which config.json needs")
        data[what.names[0]] = value
    if arch != "gpt2":
        _positions(data, metadata, family)
    data |= _implicit(data, metadata, names, kind)
    for key, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if isinstance(token := metadata.get(f"tokenizer.ggml.{theirs}_token_id"), int):
            data[f"{key}_token_id"] = token
    if kind == "phi3":  # whose class has a default beyond small vocabularies
        data.setdefault("pad_token_id", None)
    return data


def _positions(data: dict[str, Any], metadata: Mapping[str, Any], family: Family) -> None:
    arch = family.arch
    if isinstance(size := metadata.get(f"{arch}.attention.key_length"), int):
        data["head_dim"] = size
    usual = 1e6 if arch == "gemma3" else 10_000.0
    data["rope_theta"] = float(metadata.get(f"{arch}.rope.freq_base", usual))
    if (scaling := scaling_of(arch, metadata)) is not None:
        data["rope_scaling"] = scaling
    part = metadata.get(f"{arch}.rope.dimension_count")
    head = _head_size(data)
    if arch == "phi3" and isinstance(part, int) and 0 < part < head:
        data["partial_rotary_factor"] = part / head
    elif part not in (None, head):
        raise ValueError(
            f"the GGUF file has {arch}.rope.dimension_count = {quote(str(part))}, which "
            "cannot be translated: pass the config of the original model (config=, --config "
            "DIR)"
        )


def _implicit(
    data: Mapping[str, Any], metadata: Mapping[str, Any], names: set[str], kind: str
) -> dict[str, Any]:
    """Settings that the architecture means, or that tensors tell."""
    if kind == "qwen3_moe":
        return {"norm_topk_prob": True}
    if kind == "qwen2_moe":
        return {"norm_topk_prob": False}
    if kind in ("gemma2", "gemma3_text"):
        more: dict[str, Any] = {"query_pre_attn_scalar": _head_size(data)}
        large = {"gemma2": 46, "gemma3_text": 62}[kind]
        if data["num_hidden_layers"] == large:
            more["query_pre_attn_scalar"] = data["hidden_size"] // data["num_attention_heads"]
        slides = metadata.get(f"{FAMILIES[kind].arch}.attention.sliding_window_pattern")
        if isinstance(slides, list):
            kinds = ["sliding_attention" if each else "full_attention" for each in slides]
            more["layer_types"] = kinds
        return more
    more = {}
    if kind in ("llama", "qwen3", "granite", "qwen3_moe") and "blk.0.attn_q.bias" in names:
        more["attention_bias"] = True
    if kind in ("llama", "granite") and "blk.0.ffn_up.bias" in names:
        more["mlp_bias"] = True
    return more
