# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions that are scaled: the settings of transformers, and the keys of a GGUF file.

Keys: ggml-org/ggml, docs/gguf.md, "Scaling". Both divide positions by a factor (linear), or
frequencies by a factor that grows from 1 over a range of them (yarn, arXiv:2309.00071). Of yarn's
other numbers only the defaults are written, which are the same in llama.cpp and transformers: 32
and 1 rotations as the ends of the range, and 0.1 ln(factor) + 1 for attention. Llama 3's scaling is
a tensor (`rope_freqs.weight`).
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from blockscale.core.untrusted.names import quoted
from blockscale.export.writers.gguf_files.head import Value

_WAY_OUT = "give the config of the original model (config=, --config DIR)"
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
    found = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if "rope_theta" in config:
        found.setdefault("rope_theta", config["rope_theta"])
    kind = kind_of(found)
    if kind not in _KNOWN:
        raise ValueError(
            f"config.json: rotary positions are scaled by {quoted(kind)}, which cannot be "
            f"written; supported: {', '.join(_KNOWN)}"
        )
    if kind == "yarn":
        for name, usual in _DEFAULTS.items():
            if (value := found.get(name)) not in usual:
                raise ValueError(
                    f"config.json: yarn's {name} is {quoted(str(value))}, and only its "
                    "default can be written"
                )
    return found


def kind_of(settings: Mapping[str, Any]) -> Any:
    """The kind of scaling, under its name of now or its older one."""
    return settings.get("rope_type", settings.get("type", "default"))


def scaling_keys(arch: str, config: Mapping[str, Any]) -> dict[str, Value]:
    """The keys of a file for a model's config.json. Raises ValueError for numbers that are none."""
    settings = rope(config)
    kind = kind_of(settings)
    if kind not in ("linear", "yarn"):
        return {}
    start = f"{arch}.rope.scaling."
    factor = _number(settings.get("factor"), "config.json: the factor of rotary positions")
    found = {f"{start}type": Value("text", kind), f"{start}factor": Value("f32", factor)}
    if kind == "yarn":
        length = settings.get(_ORIGINAL) or config.get("max_position_embeddings")
        length = _number(length, f"config.json: {_ORIGINAL}")
        found[start + _LENGTH] = Value("u32", int(length))
    return found


def scaling_of(arch: str, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings of transformers (but rope_theta) from a file's keys; None if nothing is scaled.

    Raises ValueError for a kind, or for a key, that is not known here.
    """
    start = f"{arch}.rope.scaling."
    told = {key.removeprefix(start): each for key, each in metadata.items() if start in key}
    kind, older = told.pop("type", None), metadata.get(f"{arch}.rope.scale_linear")
    if kind in (None, "none"):
        if older in (None, 1.0):
            return None
        if kind is None:
            factor = _number(older, f"the GGUF file's {arch}.rope.scale_linear")
            return {"rope_type": "linear", "factor": factor}
    if kind not in ("linear", "yarn") or older not in (None, 1.0):
        raise ValueError(
            f"the GGUF file has {start}type = {quoted(str(kind))} and "
            f"{arch}.rope.scale_linear = {quoted(str(older))}, which cannot be translated: "
            f"{_WAY_OUT}"
        )
    told.pop("finetuned", None)  # says how the model was made, not what it computes
    found = {"rope_type": kind, "factor": _number(told.pop("factor", None), f"{start}factor")}
    length = told.pop(_LENGTH, metadata.get(f"{arch}.context_length"))
    if told:
        raise ValueError(
            f"the GGUF file has {start}{quoted(min(told))}, which cannot be translated: {_WAY_OUT}"
        )
    if kind == "yarn":
        found[_ORIGINAL] = int(_number(length, start + _LENGTH))
    return found


def _number(value: Any, what: str) -> float:
    """Raises ValueError for what is no finite number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        raise ValueError(f"{what} is {quoted(str(value))}, expected a number >= 1: {_WAY_OUT}")
    if not isfinite(value):
        raise ValueError(f"{what} is infinite: {_WAY_OUT}")
    return float(value)
