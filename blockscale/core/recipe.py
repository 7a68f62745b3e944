# SPDX-License-Identifier: BSD-3-Clause
"""Which layer gets which format: a recipe is plain data, to and from JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from blockscale.core import rules as patterns
from blockscale.core.format import Format
from blockscale.core.joined_weights import Fused, read_fused
from blockscale.core.presets import (
    PRESETS,
    Calibration,
    own_patterns,
    preset_data,
    read_calibration,
)
from blockscale.core.profiles.knobs import Profile
from blockscale.core.rules import OpScheme, names_op
from blockscale.core.rules import matches as matches
from blockscale.core.untrusted import kind_of, parse_json, read_json
from blockscale.core.weight_scheme import (
    PARTS,
    BiasLike,
    FormatLike,
    Rule,
    WeightLike,
    read_parts,
    read_rule,
)
from blockscale.core.weight_scheme import BiasFormat as BiasFormat
from blockscale.core.weight_scheme import Scheme as Scheme
from blockscale.core.weight_scheme import read_bias as read_bias

_ROUNDED = (
    "there is no data, so weights are rounded plainly and scales are dynamic. Call "
    "bs.calibrate(model, batches, recipe), or `blockscale quantize --calibrate TEXT`"
)


@dataclass(frozen=True, init=False)
class Recipe:
    """Formats for weights, inputs, outputs and biases, with exceptions by name.

    weight, input, output: a Format or its name or spelling; None leaves those tensors in float.
        A weight may also be a Profile, or its spelling `profile:gguf.q8_0@0.19.0` (the version and
        a block after `:` may be left out): its codes are then chosen as that producer does.
        An input or output is quantized when the layer runs: its scale is chosen from the tensor at
        hand (dynamic), unless a scale was given to quantize_ (static).
    rules: {pattern: what its layers get}. A spelling is the weight's format; a mapping with some of
        "weight", "input", "output", "bias" changes those and keeps the rest; None leaves the layers
        in float. The first pattern that matches decides.
    profile: the Profile that `weight` names, if it does; it need not be given.
    skip: patterns of layers to leave in float; they are looked at before the rules.
    fused: which layers share an outer scale, in formats of two levels (nvfp4), because servers join
        them to one that keeps a single one: True, those that are known (query, key and value; gate
        and up; w1 and w3: core.joined_weights.KNOWN); a list, these and, for each of its patterns,
        the layers of one parent that it matches; False, none.
    bias: "int32", or "intB:sums" with B bits, for integers that integer hardware adds to a layer's
        sums: in steps of input times weight, so the input needs a static scale of the block
        `tensor` and both need integers (docs/numerics.md, 7.1). "int32" is short for "int32:sums".
        Any other name or spelling is a format with a scale of its own, as for a weight ("int16"
        too: the integers of 16 bits in steps of the sums are "int16:sums"). None leaves biases in
        float; layers without a bias need nothing.
    calibration: how `bs.calibrate` chooses weights and scales where its arguments do not say: a
        Calibration, or a mapping with some of "weight", "transform", "observer" and "bias". Where
        there is no data (`quantize_`, directories, `from_pretrained`) weights are rounded instead,
        and the ledger says so.
    preset: the name of the preset that it was made of (`bs.preset`), a name and no more here.

    A pattern is a shell-style glob (`*`, `?`, `[...]`) on the layer's dotted name, or a regular
    expression after `re:`, matched in bounded time and without references to groups
    (docs/limits.md). It also covers everything below the names it matches. For what becomes
    of a bias, a pattern may name it as well: `skip=["lm_head.bias"]`. Ops without weights get
    formats, in graphs, by rules that name an op: `op:softmax`, `op:add@encoder.*` (core.rules).

    Raises ValueError for formats that do not parse, for unknown keys and unknown profiles.
    """

    weight: Format | None = None
    input: Format | None = None
    output: Format | None = None
    rules: Mapping[str, Scheme | OpScheme] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    bias: BiasFormat | None = None
    profile: Profile | None = None
    fused: Fused = True
    calibration: Calibration | None = None
    preset: str | None = None

    def __init__(  # noqa: PLR0913 - one argument a part
        self,
        weight: WeightLike = None,
        input: FormatLike = None,  # noqa: A002 - the public name (DESIGN, section 4)
        output: FormatLike = None,
        rules: Mapping[str, Rule] | None = None,
        skip: Sequence[str] = (),
        bias: BiasLike = None,
        profile: Profile | None = None,
        fused: bool | Sequence[str] = True,
        calibration: Calibration | Mapping[str, Any] | None = None,
        preset: str | None = None,
    ):
        arguments = {"weight": weight, "input": input, "output": output, "bias": bias}
        default = read_parts(arguments, Scheme())
        if profile is not None:
            default = _with_profile(default, profile)
        if isinstance(skip, str):
            raise TypeError(f"skip must be a list of patterns: write [{skip!r}]")
        if not isinstance(skip, list | tuple) or not all(isinstance(p, str) for p in skip):
            raise TypeError(f"skip must be a list of patterns, such as ['lm_head'], got {skip!r}")
        if not isinstance(rules or {}, Mapping):
            raise TypeError(f"rules must map patterns to formats, got {rules!r}")
        groups = read_fused(fused)
        method = None if calibration is None else read_calibration(calibration)
        if preset is not None and not isinstance(preset, str):
            raise TypeError(f"preset must be a name, got {preset!r}")
        for pattern in (*(rules or {}), *skip):
            patterns.check(pattern)
        read = {
            p: patterns.read_scheme(p, rule) if names_op(p) else read_rule(p, rule, default)
            for p, rule in (rules or {}).items()
        }
        frozen = MappingProxyType(read)
        more: dict[str, Any] = {"rules": frozen, "skip": tuple(skip), "fused": groups}
        more |= {"calibration": method, "preset": preset}
        for name, value in (vars(default) | more).items():
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        parts = (self.default, tuple(self.rules.items()), self.skip, self.fused)
        return hash((*parts, self.calibration, self.preset))

    def __reduce__(self) -> tuple[Any, ...]:
        if any(self.profiles()):  # a producer's functions are found again by their profile's name
            return Recipe.from_dict, (self.to_dict(),)
        parts = (self.weight, self.input, self.output, dict(self.rules), self.skip, self.bias)
        return Recipe, (*parts, None, self.fused, self.calibration, self.preset)

    @cached_property
    def layer_rules(self) -> dict[str, Scheme]:
        """The rules whose patterns name layers."""
        return {p: each for p, each in self.rules.items() if isinstance(each, Scheme)}

    @property
    def op_rules(self) -> dict[str, OpScheme]:
        """The rules whose patterns name ops."""
        return {p: each for p, each in self.rules.items() if isinstance(each, OpScheme)}

    @cached_property
    def default(self) -> Scheme:
        """What a layer gets that no pattern matches."""
        return Scheme(self.weight, self.input, self.output, self.bias, self.profile)

    def profiles(self) -> Iterator[tuple[str, Profile]]:
        """(what has it: "its weight" or "rule 'PATTERN'", the profile), in the order of rules."""
        if self.profile is not None:
            yield "its weight", self.profile
        for pattern, scheme in self.layer_rules.items():
            if scheme.profile is not None:
                yield f"rule {pattern!r}", scheme.profile

    def refuse_profiles(self, why: str) -> "Recipe":
        """The recipe as it is. Raises ValueError that names the first profile, and says `why`."""
        for place, profile in self.profiles():
            raise ValueError(f"the recipe: {place} has the profile {profile}: {why}")
        return self

    def decide(self, name: str) -> tuple[Scheme, str | None]:
        """The scheme of layer `name`, empty to leave it in float, and the pattern that decided."""
        for pattern in self.skip:
            if matches(pattern, name):
                return Scheme(), pattern
        for pattern, scheme in self.layer_rules.items():
            if matches(pattern, name):
                return scheme, pattern
        return self.default, None

    def decide_op(self, op: str, place: str) -> tuple[OpScheme, str | None]:
        """The scheme of an op, empty without a rule, and the pattern that decided.

        op: what it computes, such as `softmax`; place: the module whose forward computes it.
        """
        for pattern in (*filter(names_op, self.skip), *self.op_rules):
            if patterns.covers_op(pattern, op, place):
                return self.op_rules.get(pattern, OpScheme()), pattern
        return OpScheme(), None

    def bias_of(self, name: str) -> BiasFormat | None:
        """The format of layer `name`'s bias: patterns may name the layer, or the bias itself."""
        return self.decide(f"{name}.bias")[0].bias

    @property
    def has_biases(self) -> bool:
        """Whether any layer's bias could get a format."""
        return any(scheme.bias for scheme in (self.default, *self.layer_rules.values()))

    def unmatched(self, names: Iterable[str]) -> tuple[str, ...]:
        """The patterns that match none of these names of layers; those for ops match none.

        What stands in its preset is not named: it is for any model.
        """
        names = list(names)
        patterns = own_patterns(self.preset) if self.preset else ()
        every = (*self.skip, *self.rules, *(self.fused if isinstance(self.fused, tuple) else ()))
        own = tuple(p for p in every if p not in patterns)
        return tuple(p for p in own if not any(matches(p, name) for name in names))

    def uncalibrated(self, instead: str = _ROUNDED) -> tuple["Recipe", tuple[str, ...]]:
        """The same formats where nothing is calibrated; and a sentence for the ledger, if that is
        less than the recipe asks for.

        instead: what is done in the place of calibration, and what to do
        """
        if self.calibration is None:
            return self, ()
        who = "the recipe" if self.preset is None else f"preset {self.preset}"
        note = f"{who} asks for a calibration ({self.calibration}) that did not happen: {instead}"
        return replace(self, calibration=None), (note,)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        rules = {
            p: patterns.scheme_data(each)
            if isinstance(each, OpScheme)
            else self._spell(each) or None
            for p, each in self.rules.items()
        }
        extra = {"rules": rules, "skip": list(self.skip)}
        default = {part: text for part, text in self._spell(self.default).items() if text}
        data = default | {key: value for key, value in extra.items() if value}
        if self.preset is not None:
            data = {"preset": self.preset} | data
        if self.calibration is not None:
            data |= {"calibration": self.calibration.to_dict()}
        if self.fused is True:  # release 0.1.0 knows no such key, and can read it then
            return data
        return data | {"fused": list(self.fused) if self.fused else False}

    def _spell(self, scheme: Scheme) -> dict[str, str | None]:
        """{"weight": spelling, ...} of every part: a rule reads back whatever the default is."""
        if not scheme:
            return {}
        data = scheme.spellings
        if not self.has_biases:  # release 0.1.0 knows no such key, and can read it then
            del data["bias"]
        return data

    def to_json(self) -> str:
        """The recipe as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Recipe":
        """The recipe that `data` describes, as of `to_dict`. Raises ValueError for unknown keys.

        {"preset": NAME} without a format is what the preset is today; "skip" and "rules" come
        before its own. With formats it is those, and NAME says where they came from.
        """
        names = {*PARTS, "rules", "skip", "fused", "calibration", "preset"}
        if not isinstance(data, Mapping):
            raise ValueError(f"a recipe must be a JSON object, found {kind_of(data)}")
        if unknown := sorted(set(data) - names):
            raise ValueError(
                f"unknown recipe key {unknown[0]!r}; choose from {', '.join(sorted(names))}"
            )
        if "preset" in data and not set(data) & set(PARTS):
            data = _of_preset(data)
        return cls(**data)

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        """The recipe in JSON text. Raises ValueError where it is not one."""
        return cls.from_dict(parse_json(text, "the recipe"))

    @classmethod
    def read(cls, source: "str | Path | Format | Profile | Mapping[str, Any] | Recipe") -> "Recipe":
        """The Recipe of `source`: itself; a preset's name; a Format, Profile, name or spelling
        (weights only); JSON, or its file.

        Raises TypeError for anything else, ValueError for what does not parse.
        """
        if isinstance(source, Recipe):
            return source
        if isinstance(source, Format | Profile):
            return cls(weight=source)
        if isinstance(source, Mapping):
            return cls.from_dict(source)
        if not isinstance(source, str | Path):
            kind = kind_of(source)
            raise TypeError(f"expected a Recipe, a format, a mapping or a JSON file, found {kind}")
        text = str(source).strip()
        if text.startswith("{"):
            return cls.from_json(text)
        if text.endswith(".json"):
            if not Path(text).exists():
                raise ValueError(f"the recipe file {text!r} does not exist")
            return cls.from_dict(read_json(text))
        return _of_name(text)


def _of_name(text: str) -> Recipe:
    """A preset by its name, or the recipe of a weight's format."""
    if text in PRESETS:
        return preset(text)
    try:
        return Recipe(weight=text)
    except ValueError as error:
        if ":" in text:
            raise
        raise ValueError(f"{error}; presets are {', '.join(PRESETS)}") from None


def preset(
    name: str, *, skip: Sequence[str] = (), rules: Mapping[str, Rule] | None = None
) -> Recipe:
    """A recipe by name, with the calibration that it was measured with (docs/defaults.md).

    name: one of `bs.presets()`, such as "w4a16" or "w4a4-nvfp4"
    skip: patterns of layers to leave in float, besides the preset's own (heads of decoders)
    rules: as in Recipe; they come before the preset's own

    Raises ValueError, with the names that there are, for another name; and as Recipe.
    """
    if isinstance(skip, str):
        raise TypeError(f"skip must be a list of patterns: write [{skip!r}]")
    return Recipe.from_dict({"preset": name, "skip": list(skip), "rules": rules or {}})


def _of_preset(data: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's data that names a preset, with all that the preset stands for."""
    whole = preset_data(data["preset"])
    skip, own = data.get("skip") or (), whole.get("skip", ())
    if isinstance(skip, list | tuple):
        skip = [*skip, *(pattern for pattern in own if pattern not in skip)]
    rules = data.get("rules") or {}
    if isinstance(rules, Mapping):
        rules = {**rules, **{p: r for p, r in whole.get("rules", {}).items() if p not in rules}}
    return {**whole, **data, "skip": skip, "rules": rules}


def _with_profile(default: Scheme, profile: Profile) -> Scheme:
    """The default with a profile, whose format its weight has."""
    result = read_parts({"weight": profile}, default)
    if default.weight not in (None, result.weight):
        raise ValueError(
            f"the format of profile {profile} is {result.weight}, and weight is "
            f"{default.weight}: pass only one of the two, or profile=None"
        )
    return result
