# SPDX-License-Identifier: BSD-3-Clause
"""Settings of config.json that change what a model computes, and have no place in GGUF.

llama.cpp has a graph for each architecture, and what it has no key for it computes as it always
does. Such a setting is refused by name here unless it is what llama.cpp computes; a sliding window
that it does not have is stated, and the context ends with the window, within which both compute the
same.
"""

from collections.abc import Mapping
from typing import Any

from blockscale.core.untrusted import TEXT, quote, shown
from blockscale.export.checkpoints.gguf.families import Family
from blockscale.export.writers.gguf_files.file import MetadataValue

# {key: what it is where it changes nothing}; of families whose keys it is, it is none of these
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attn_logit_softcapping": (None,), "final_logit_softcapping": (None,),
    "partial_rotary_factor": (None, 1.0), "rotary_pct": (None, 1.0), "is_causal": (None, True),
    "use_bidirectional_attention": (None, False), "clip_qkv": (None,),
    "attention_multiplier": (None,), "embedding_multiplier": (None, 1.0),
    "residual_multiplier": (None, 1.0), "logits_scaling": (None, 1.0), "logit_scale": (None, 1.0),
    "attention_chunk_size": (None,), "no_rope_layers": (None, []), "use_qk_norm": (None, False),
    "qk_layernorm": (None, False), "alibi": (None, False), "num_experts": (None, 0),
    "num_local_experts": (None, 0), "n_routed_experts": (None, 0), "embedding_scale": (None, 1.0),
    "layernorm_type": (None, "rmsnorm"), "scale_depth": (None,), "scale_emb": (None, 1.0),
    "mtp_num_hidden_layers": (None, 0), "num_nextn_predict_layers": (None, 0),
}  # fmt: skip
# Keys that say nothing of what is computed for a text, or that tensors say, too
_QUIET = frozenset({
    "_attn_implementation", "_name_or_path", "_sliding_window_pattern", "architectures",
    "attention_bias", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "auto_map",
    "bos_token_id", "cache_implementation", "chunk_size_feed_forward",
    "cross_attention_hidden_size", "decoder_start_token_id", "dtype", "embd_pdrop", "eos_token_id",
    "finetuning_task", "head_dim", "id2label", "initializer_range", "is_decoder",
    "is_encoder_decoder", "label2id", "layer_types", "max_window_layers", "mlp_bias", "model_type",
    "n_ctx", "n_embd", "n_head", "n_layer", "original_max_position_embeddings", "output_attentions",
    "output_hidden_states", "output_router_logits", "pad_token_id", "prefix", "pretraining_tp",
    "problem_type", "pruned_heads", "qkv_bias", "quantization_config", "query_pre_attn_scalar",
    "reorder_and_upcast_attn", "resid_pdrop", "return_dict", "rope_interleaved",
    "rope_local_base_freq", "rope_parameters", "rope_scaling", "rope_theta", "router_aux_loss_coef",
    "router_jitter_noise", "sep_token_id", "sliding_window", "sliding_window_pattern",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "task_specific_params", "tie_word_embeddings", "tokenizer_class",
    "torch_dtype", "torchscript", "transformers_version", "unk_token_id", "unsloth_fixed",
    "unsloth_version", "use_cache", "use_sliding_window",
})  # fmt: skip


def check_settings(config: Mapping[str, Any], family: Family) -> list[str]:
    """What has to be said of settings. Raises ValueError for one that llama.cpp does not compute.

    The message names the setting, what it is, and what llama.cpp computes.
    """
    keys = {name for key in family.keys.values() for name in key.names}
    table = {k: v for k, v in _NEUTRAL.items() if k not in keys} | dict(family.fixed)
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if family.arch != "phi3" and "partial_rotary_factor" in rotary:
        config = dict(config) | {"partial_rotary_factor": rotary["partial_rotary_factor"]}
    if family.arch == "phi3":
        table.pop("partial_rotary_factor")
    for key, allowed in table.items():
        value = config.get(key)
        if not any(value == each and type(value) is type(each) for each in allowed):
            _refuse(key, value, f"{_choices(allowed)}", family)
    _check_scale(config, family)
    unknown = sorted(config.keys() - keys - table.keys() - _QUIET)
    if not unknown:
        return []
    more = f" and {len(unknown) - 3} more" * (len(unknown) > 3)
    return [
        f"config.json: {', '.join(map(quote, unknown[:3]))}{more} are unknown and not "
        "written: if they change what the model computes, compare its answers"
    ]


def _choices(allowed: tuple[Any, ...]) -> str:
    lines = [repr(each) for each in allowed if each is not None]
    return " or ".join(lines) or "none"


def _refuse(key: str, value: Any, how: str, family: Family) -> None:
    raise ValueError(
        f"config.json: {key} is {shown(repr(value), TEXT)}, and llama.cpp's architecture "
        f"{family.arch} has no key for it and always computes with {how}: its answers "
        "would differ. Nothing is written"
    )


def _check_scale(config: Mapping[str, Any], family: Family) -> None:
    """Gemma's scale of attention: llama.cpp takes that of the head, or knows the model of 27 B."""
    if family.arch not in ("gemma2", "gemma3"):
        return
    scalar = config.get("query_pre_attn_scalar", 256)
    layers, width = config.get("num_hidden_layers"), config.get("hidden_size", 0)
    heads = max(int(config.get("num_attention_heads", 1)), 1)
    large = layers == {"gemma2": 46, "gemma3": 62}[family.arch]
    expected = width // heads if large else config.get("head_dim", 256)
    if scalar != expected:
        _refuse("query_pre_attn_scalar", scalar, repr(expected), family)


def window_of(config: Mapping[str, Any]) -> int:
    """Tokens that layers with a sliding window see, or 0 where no layer has one."""
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if type(window) is not int or window <= 0 or config.get("use_sliding_window") is False:
        return 0
    if isinstance(kinds, list) and kinds and not any("sliding" in str(each) for each in kinds):
        return 0
    return window


def window_keys(
    config: Mapping[str, Any], family: Family
) -> tuple[dict[str, MetadataValue], list[str]]:
    """Keys that a sliding window needs or changes, and what has to be said of it."""
    arch, window = family.arch, window_of(config)
    if family.window:
        return _pattern(config, family), []
    length = config.get("max_position_embeddings")
    if not window or type(length) is not int or window >= length:
        return {}, []
    return {f"{arch}.context_length": MetadataValue("u32", window)}, [
        f"the model's layers see the last {window} tokens (sliding_window), and llama.cpp's "
        f"architecture {arch} has no window: beyond {window} tokens its results would differ, "
        f"so context_length is {window} and not {length}. Within it both are the same"
    ]


def _pattern(config: Mapping[str, Any], family: Family) -> dict[str, MetadataValue]:
    """Which layers have the window, where it is not every one but the last of each period."""
    kinds, count = config.get("layer_types"), int(config.get("num_hidden_layers", 0))
    if not isinstance(kinds, list):
        period = config.get("sliding_window_pattern", config.get("_sliding_window_pattern"))
        period = period if type(period) is int and period > 0 else family.period
        kinds = ["full_attention" if (i + 1) % period == 0 else "sliding" for i in range(count)]
    slides = [str(each) != "full_attention" for each in kinds]
    usual = [(i + 1) % family.period != 0 for i in range(count)]
    if slides == usual:
        return {}
    key = f"{family.arch}.attention.sliding_window_pattern"
    return {key: MetadataValue("bool", slides)}
