# SPDX-License-Identifier: BSD-3-Clause
"""The formats of one layer, and how a recipe's texts become them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles import profile
from blockscale.core.profiles.knobs import Profile

FormatLike = str | Format | None
WeightLike = str | Format | Profile | None
BiasFormat = Format | SumInteger
BiasLike = str | Format | SumInteger | None
PARTS = ("weight", "input", "output", "bias")
Rule = str | Format | Profile | Mapping[str, "BiasLike | Profile | bool"] | None


@dataclass(frozen=True)
class Scheme:
    """The formats of one layer; None leaves that tensor in float.

    profile: how the codes of its weight are chosen, whose format `weight` then is; None: by the
        contract, or by what an algorithm makes of it
    since: why this profile stands in the place of the recipe's; empty where it is the recipe's
    """

    weight: Format | None = None
    input: Format | None = None
    output: Format | None = None
    bias: BiasFormat | None = None
    profile: Profile | None = None
    since: str = ""

    def __bool__(self) -> bool:
        return any((self.weight, self.input, self.output, self.bias))

    @property
    def formats(self) -> dict[str, Any]:
        """{"weight": its format, ...} of every part."""
        return {part: getattr(self, part) for part in PARTS}

    @property
    def spellings(self) -> dict[str, str | None]:
        """{"weight": its text, ...} of every part; a weight's may name a profile."""
        data = {part: None if fmt is None else str(fmt) for part, fmt in self.formats.items()}
        return data if self.profile is None else data | {"weight": profile_spelling(self.profile)}

    @property
    def note(self) -> str:
        """What the ledger says of how the codes of its weight are chosen; perhaps empty."""
        if self.profile is None:
            return ""
        text = f"weight by profile {self.profile} {self.profile.version}".rstrip()
        return f"{text}: {self.since}" if self.since else text

    def of_weight(self, dtype: torch.dtype, shape: Sequence[int]) -> "Scheme":
        """The same for a weight of this dtype, in which some producers store scales, and of this
        shape as it is stored, for whose rows some have another type."""
        if self.profile is None:
            return self
        choice, since = for_rows(self.profile, shape), self.since
        if choice is not self.profile:
            multiple = self.profile.multiple
            since = f"rows of {shape[-1]} do not divide into blocks of {multiple} ({self.profile})"
        return replace(self, weight=choice.result(dtype), profile=choice, since=since)


def for_rows(profile: Profile, shape: Sequence[int]) -> Profile:
    """The profile that its producer takes for a tensor of this shape: itself, or another where rows
    are no whole blocks of it, and are of the other."""
    if not profile.fallback or not shape or shape[-1] % profile.multiple == 0:
        return profile
    other = read_profile(f"{PREFIX}{profile.fallback}@{profile.version}")
    return profile if shape[-1] % other.multiple else other


def read_parts(data: Mapping[str, object], before: Scheme) -> Scheme:
    """`before` with some of "weight", "input", "output" and "bias" replaced.

    Raises ValueError for texts that do not parse, and profiles where only formats can be.
    """
    for part, text in data.items():
        value: Any
        if part != "weight":
            _refuse_profile(part, text)
            value = {part: _read(part, text)}
            before = replace(before, **value)
        elif isinstance(text, Profile) or names_profile(text):
            profile = text if isinstance(text, Profile) else read_profile(str(text))
            profile_spelling(profile)  # raises where no text can name it
            before = replace(before, weight=profile.format, profile=profile)
        else:
            value = _read(part, text)
            before = replace(before, weight=value, profile=None)
    return before


def _refuse_profile(part: str, text: object) -> None:
    if isinstance(text, Profile) or names_profile(text):
        name = profile_spelling(text) if isinstance(text, Profile) else str(text).strip()
        raise ValueError(
            f"{part}: {name!r}: profiles are only for weights, and {part} takes a format: "
            f"write the format without {PREFIX!r}, or use the profile for weight"
        )


def read_rule(pattern: str, rule: object, default: Scheme) -> Scheme:
    """What a rule of a recipe gives the layers that `pattern` covers.

    Raises TypeError and ValueError as `read_parts`, and for rules of another kind.
    """
    if rule is None:
        return Scheme()
    if isinstance(rule, Scheme):
        return rule
    if isinstance(rule, str | Format | Profile):
        rule = {"weight": rule}
    if not isinstance(rule, Mapping):
        raise TypeError(f"rule {pattern!r} must be a format, an object or null, got {rule!r}")
    if unknown := sorted(set(rule) - set(PARTS)):
        raise ValueError(
            f"rule {pattern!r}: unknown key {unknown[0]!r}; choose from {', '.join(PARTS)}"
        )
    try:
        return read_parts(rule, default)
    except (ValueError, TypeError) as error:
        raise type(error)(f"rule {pattern!r}: {error}") from None


def read_bias(text: str | Format | SumInteger) -> BiasFormat:
    """`int32:sums`, `int32` for short, or any format, which has a scale of its own.

    Raises ValueError that says what there is, TypeError for no text.
    """
    if isinstance(text, SumInteger):
        return text
    if isinstance(text, str):
        match = re.fullmatch(r"int([1-9][0-9]{0,8}):sums", text.strip())
        if match or text.strip() == "int32":
            return SumInteger(int(match[1]) if match else 32)
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(
            f"bias: {error}; a bias can also be 'int32', short for 'int32:sums' (integers in "
            "steps of input scale times weight scale)"
        ) from None


def _read(part: str, text: object) -> BiasFormat | None:
    """The format of a "weight", "input", "output" or "bias"."""
    if text is None:
        return None
    return read_bias(text) if part == "bias" else parse(text)  # type: ignore[arg-type]


# A profile as a recipe spells it: `profile:gptq.int4@0.7.1:group64`, with version and block.


PREFIX = "profile:"


def names_profile(text: object) -> bool:
    """Whether a recipe's text for a weight spells a profile, and not a format."""
    return isinstance(text, str) and text.strip().startswith(PREFIX)


def read_profile(text: str) -> Profile:
    """`profile:NAME`, with `@VERSION` for another than the newest, and `:BLOCK` for another block.

    Raises ValueError for names, versions and blocks that there are not, with those that there are.
    """
    plain, colon, block = text.strip().removeprefix(PREFIX).partition(":")
    name, at, version = plain.partition("@")
    if at and not version:
        raise ValueError(f"{text.strip()!r} has no version after '@': leave it out, or name one")
    return profile(f"{name}{colon}{block}", version if at else None)


def profile_spelling(profile: Profile) -> str:
    """What `read_profile` reads back, with the version.

    Raises ValueError for a profile that is not found by its name, which no text can stand for.
    """
    plain, colon, block = str(profile).partition(":")
    text = f"{PREFIX}{plain}{f'@{profile.version}' if profile.version else ''}{colon}{block}"
    try:
        own = read_profile(text)
    except ValueError:
        own = None
    if own != profile:
        raise ValueError(
            f"bs.profile does not know the profile {profile}, so a recipe cannot name it: "
            "quantize the weights with bs.quantize and pass them as `weights` of bs.quantize_"
        )
    return text
