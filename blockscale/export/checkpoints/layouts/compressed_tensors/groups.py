# SPDX-License-Identifier: BSD-3-Clause
"""Which group of a compressed-tensors configuration a module is of, and what it says of weights."""

from collections.abc import Mapping
from typing import Any

from blockscale.core.untrusted_patterns import full_match
from blockscale.files.metadata import FileError

Arguments = Mapping[str, Any]  # of a group's weights: num_bits, group_size, strategy, …


def groups_of(config: Mapping[str, Any], of: str = "weights") -> list[tuple[list[str], Arguments]]:
    """(targets, what is said of weights, or of `of`) of each group. Raises FileError for other
    JSON."""
    found = config.get("config_groups", {})
    if not isinstance(found, dict):
        raise FileError("config_groups of the quantization_config is not a JSON object")
    groups = []
    for name, group in found.items():
        weights = group.get(of) if isinstance(group, dict) else None
        targets = group.get("targets") if isinstance(group, dict) else None
        if not isinstance(targets, list) or not isinstance(weights or {}, dict):
            raise FileError(f"group {name!r} of the quantization_config has no targets or weights")
        groups.append(([each for each in targets if isinstance(each, str)], weights or {}))
    return groups


def arguments(module: str, groups: list[tuple[list[str], Arguments]]) -> list[Arguments]:
    """What groups say of a module's weight: those that name it first, then by class of module.

    Several may: which of them it is of, its tensors decide.
    """
    named = [weights for targets, weights in groups if any(_names(t, module) for t in targets)]
    by_class = [w for targets, w in groups if any(_is_class(t) for t in targets)]
    return named + [each for each in by_class if all(each is not other for other in named)]


def _names(target: str, module: str) -> bool:
    if not target.startswith("re:"):
        return target == module
    try:
        return full_match(f"(?:{target[3:]}).*", module)  # re.match: a beginning is enough
    except ValueError as error:
        raise FileError(f"a target of the quantization_config: {error}") from None


def _is_class(target: str) -> bool:
    return not target.startswith("re:") and "." not in target


def number(arguments: list[Arguments], key: str) -> list[int]:
    """The whole numbers that groups give for a key."""
    return [value for each in arguments if type(value := each.get(key)) is int]
