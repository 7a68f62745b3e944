# SPDX-License-Identifier: BSD-3-Clause
"""Presets: recipes by name, each with how it is calibrated and the figures that it reached."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from blockscale.core.format import Format
from blockscale.core.parse import display_name, parse
from blockscale.core.scale import PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel
from blockscale.core.untrusted import quote

MEASURED = Path(__file__).with_name("preset_figures.json")  # written by `python -m docs.generate`


@dataclass(frozen=True)
class Calibration:
    """How data chooses what a recipe leaves open: names, as arguments of `bs.calibrate` have them.

    weight: the weight algorithm, transform and observer, and what becomes of biases; None is what
        `bs.calibrate` does by itself

    Raises TypeError for what is no text: a recipe is plain data, an instance is none.
    """

    weight: str | None = None
    transform: str | None = None
    observer: str | None = None
    bias: str | None = None

    def __post_init__(self) -> None:
        for part, name in vars(self).items():
            if name is not None and not isinstance(name, str):
                raise TypeError(
                    f"calibration: {part} must be a name, such as 'gptq', got {name!r}: pass an "
                    "instance to bs.calibrate"
                )

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        return ", ".join(f"{part} {name}" for part, name in self.to_dict().items())

    def to_dict(self) -> dict[str, str]:
        """Plain data that `read_calibration` reads back."""
        parts = ("transform", "weight", "observer", "bias")
        return {part: getattr(self, part) for part in parts if getattr(self, part) is not None}


def read_calibration(calibration: "Calibration | Mapping[str, Any] | None") -> Calibration | None:
    """A Calibration from itself or what `to_dict` gave; None where it says nothing.

    Raises TypeError and ValueError that say what is wrong in it.
    """
    if calibration is None or isinstance(calibration, Calibration):
        return calibration or None
    if not isinstance(calibration, Mapping):
        raise TypeError(
            f"calibration must be an object with weight, transform, observer, bias, got "
            f"{calibration!r}"
        )
    names = [each.name for each in fields(Calibration)]
    if unknown := sorted(set(calibration) - set(names)):
        raise ValueError(
            f"calibration: unknown key {quote(unknown[0])}; choose from {', '.join(names)}"
        )
    return Calibration(**calibration) or None


@dataclass(frozen=True)
class PresetFigures:
    """What a preset reached on one model: means, with standard errors of the loss over sequences.

    family: of models, such as "decoder"; model, text, hardware and date: what was measured, when
    added, error: nats a token of cross entropy above the float model's; kl: nats a token
    agreement: share of positions whose likeliest class is the float model's
    cosine: mean cosine with the float model's embeddings; figures that the family lacks are None
    """

    family: str
    model: str
    text: str
    date: str
    hardware: str = ""
    added: float | None = None
    error: float | None = None
    kl: float | None = None
    agreement: float | None = None
    cosine: float | None = None

    def __str__(self) -> str:
        figures = {
            "loss added": _text_of(self.added, ".4f"), "KL": _text_of(self.kl, ".4f"),
            "agreement": _text_of(self.agreement, ".1%"), "cosine": _text_of(self.cosine, ".4f"),
        }  # fmt: skip
        return ", ".join(f"{name} {figure}" for name, figure in figures.items() if figure)


def _text_of(figure: float | None, how: str) -> str:
    return "" if figure is None else format(figure, how)


@dataclass(frozen=True)
class Preset:
    """A recipe by name, which `bs.preset(name)` gives; or how keys and values are kept, which
    transformers' `generate` takes as `QuantizedCache(model.config, name)`.

    what: one line on what it is for; data: the recipe as `Recipe.to_dict` has it, or what
    QuantizedCache takes; of: "recipe" or "cache"
    """

    name: str
    what: str
    data: Mapping[str, Any] = field(repr=False)
    of: str = "recipe"

    @property
    def calibration(self) -> Calibration | None:
        """How it is calibrated; None where its weights and scales need no data."""
        return read_calibration(self.data.get("calibration"))

    @property
    def formats(self) -> tuple[str, str]:
        """The names of its formats: of weights and inputs, or of keys and values."""
        first, second = ("weight", "input") if self.of == "recipe" else ("keys", "values")
        both = self.data.get(first), self.data.get(second)
        if self.of == "cache":
            both = both[0] or both[1], both[1]
        return tuple(  # type: ignore[return-value]
            "float" if text is None else display_name(str(parse(text))) for text in both
        )

    @property
    def how(self) -> str:
        """In a few words, what is done besides rounding."""
        if self.of == "recipe":
            return str(self.calibration or "rounded")
        rotation = f", keys by {self.data['rotate']}" if self.data.get("rotate") else ""
        return f"window of {self.data['window']} tokens{rotation}"

    @property
    def figures(self) -> tuple[PresetFigures, ...]:
        """What it reached, a family of models each; empty where it was not measured."""
        return tuple(PresetFigures(**each) for each in _figures().get(self.name, ()))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: name, what, its recipe or cache, and figures."""
        figures = [
            {k: v for k, v in vars(each).items() if v not in (None, "")} for each in self.figures
        ]
        return {
            "name": self.name, "what": self.what, self.of: dict(self.data), "figures": figures,
        }  # fmt: skip


def presets() -> dict[str, Preset]:
    """{name: Preset} of all there are, fewer bits first; those of keys and values last."""
    return dict(PRESETS)


def preset_data(name: str) -> dict[str, Any]:
    """The recipe of a preset, as `Recipe.to_dict` has it.

    Raises ValueError, with the names that there are, for another one.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"unknown preset {quote(name)}; choose from {', '.join(PRESETS)}")
    if PRESETS[name].of == "cache":
        raise ValueError(
            f"preset {name!r} is of keys and values, which no recipe holds: generate with "
            f"past_key_values=QuantizedCache(model.config, {name!r}) "
            "(blockscale.integrations.transformers)"
        )
    return {"preset": name, **PRESETS[name].data}


def cache_preset(name: str) -> dict[str, Any]:
    """What QuantizedCache takes by a preset of keys and values; of another name, values alone.

    Raises ValueError for the name of a preset of weights.
    """
    if name not in PRESETS:
        return {"values": name}
    if PRESETS[name].of != "cache":
        caches = ", ".join(each for each, preset in PRESETS.items() if preset.of == "cache")
        raise ValueError(f"preset {name!r} is of weights; those of keys and values are {caches}")
    return dict(PRESETS[name].data)


def own_patterns(name: str | None) -> frozenset[str]:
    """The patterns that stand in a preset, which need not match anything in a given model."""
    data = PRESETS[name].data if name in PRESETS else {}
    return frozenset([*data.get("skip", ()), *data.get("rules", {})])


Pair = tuple[Format, Format | None]


def closest_preset(pairs: Iterable[Pair]) -> str | None:
    """The preset whose calibration was measured to serve such formats best (docs/defaults.md).

    pairs: formats of weights and of their inputs, None for floats; where they are served
        differently, the fewest bits decide
    Returns None where rounding serves as well, nothing was measured, or the weight algorithms of
    presets cannot choose one of the weights.
    """
    formats = list(pairs)
    if not all(_chosen_by_columns(weight) for weight, _ in formats):
        return None
    names = (_closest(*pair) for pair in sorted(formats, key=lambda pair: pair[0].bits))
    return next((name for name in names if name is not None), None)


def _closest(weight: Format, input_format: Format | None) -> str | None:
    if weight.bits > _FEW:
        integers = (
            input_format is not None and weight.element.integer and input_format.element.integer
        )
        powers = input_format is not None and isinstance(
            input_format.scale, PowerOfTwo
        )  # integers throughout
        return "w8a8" if integers and not powers and weight.bits <= _MANY else None
    if input_format is None or input_format.bits > _FEW:  # beside 8 bits the weight loses most
        return "w4a16-nvfp4" if isinstance(weight.scale, TwoLevel | CodeScale) else "w4a16"
    return "w4a4-mxfp4" if isinstance(weight.scale, PowerOfTwo) else "w4a4-nvfp4"


_FEW, _MANY = 4, 8  # bits: most of what presets call w4, and of w8


def _chosen_by_columns(fmt: Format) -> bool:
    """Whether the weight algorithms of presets can choose its codes (`gptq` refuses others)."""
    offset_codes = fmt.offset is not None and fmt.offset.inner is not None
    has_range = fmt.element.uses_range and not fmt.element.learned and fmt.unchosen is None
    return has_range and not offset_codes and fmt.rounding != "stochastic"


@cache
def _figures() -> dict[str, list[dict[str, Any]]]:
    figures: dict[str, list[dict[str, Any]]] = json.loads(MEASURED.read_text())
    return figures


# What there is. Heads and tables stay in float, as in what was measured: those of decoders are
# tied, and in 4 bits those of encoders lose about as much as all other layers. Formats and methods
# are the best of docs/real_models.md; docs/defaults.md says why.

_HEADS = ("*lm_head", "embed_out", "proj_out")
_TABLES = ("*embed_tokens", "*embed_positions", "*embed_in", "*wte", "*wpe", "*word_embeddings",
           "*position_embeddings", "*token_type_embeddings", "shared")  # fmt: skip
_ENDS = (*_HEADS, *_TABLES)
_TOSA = "e2m1:group32:e8m0/tosa"
_INT4 = "int4:group32:fp16"
_FOUR_SIX = "e2m1:group16:e4m3/four_six"
_POW2 = "int8:tensor:pow2/nearest"


def _preset(name: str, what: str, formats: str, *methods: str) -> tuple[str, Preset]:
    """formats: "WEIGHT" or "WEIGHT x INPUT"; methods: "transform=NAME", "weight=NAME", ..."""
    pair = dict(zip(("weight", "input"), formats.split(" x "), strict=False))
    skip = {} if name.startswith("edge-") else {"skip": list(_ENDS)}
    calibration = dict(each.split("=") for each in methods)
    more = {"calibration": calibration} if methods else {}
    return name, Preset(name, what, MappingProxyType({**pair, **skip, **more}))


def _cache(name: str, what: str, values: str, **more: Any) -> tuple[str, Preset]:
    """As QuantizedCache takes them, keys like values."""
    return name, Preset(name, what, MappingProxyType({"values": values, **more}), "cache")


PRESETS = dict(
    [
        _preset("w4a16", "weights in 4 bits: memory, and a few rows at a time",
                _INT4, "transform=awq", "weight=gptq"),
        _preset("w4a16-nvfp4", "NVFP4 weights alone, blocks up to 6 or 4",
                _FOUR_SIX, "transform=awq"),
        _preset("w4a4-mxfp4", "MXFP4 pairs, for hardware that multiplies them",
                f"{_TOSA} x {_TOSA}", "transform=awq", "weight=gptq"),
        _preset("w4a4-nvfp4", "NVFP4 pairs, an outer scale for each token",
                "nvfp4 x nvfp4_token", "transform=smoothquant", "weight=gptq:absmax"),
        _preset("w8a16", "weights in 8 bits, without data",
                "int8_channel"),
        _preset("w8a8", "8-bit integers times 8-bit integers, a scale for each token",
                "int8_channel x int8_token", "transform=smoothquant"),
        _preset("w8a8-static", "8-bit integers under scales that data chose, for convolutions",
                "int8_channel x int8:tensor:fp32:asym", "observer=min_max", "bias=correct"),
        _preset("w8a8-fp8", "FP8 (E4M3) pairs, a scale for each channel and each token",
                "e4m3:channel0:fp32 x e4m3:token:fp32"),
        _preset("w8a8-mxfp8", "MXFP8 pairs",
                "mxfp8 x mxfp8"),
        _preset("edge-int8", "static 8-bit integers under powers of two, nothing but integers from "
                "input to output (bs.qat.to_integer)",
                f"int8:channel0:pow2/nearest x {_POW2}", "observer=min_max", "weight=mse",
                "bias=correct"),
        _cache("kv8", "keys and values in 8 bits: nothing that could be measured is lost",
               "int8:token:fp16", window=32),
        _cache("kv4", "keys and values in 4 bits, keys rotated",
               f"{_INT4}:asym", window=32, rotate="hadamard"),
    ]
)  # fmt: skip
