# SPDX-License-Identifier: BSD-3-Clause
"""Which stored tensors become which tensors of a transformers model, by transformers' own mapping.

transformers 5 renames, stacks, joins and cuts the tensors of a hub's directory while it loads them
(transformers/conversion_mapping.py, core_model_loading.py). Here the same mapping, asked for one
model, gives a list of `Move`s; nothing is imported unless the model is one of transformers.
"""

import re
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Move:
    """Some stored tensors that become one tensor of the model or several.

    sources: {transformers' pattern: the stored names that it matched, in order}
    first: the model's name of what they become, of several the first
    converter: a transformers WeightConverter that makes it of them; None: it has only a new name
    """

    sources: Mapping[str, tuple[str, ...]]
    first: str
    converter: Any = None

    @property
    def names(self) -> list[str]:
        """The stored names."""
        return [name for names in self.sources.values() for name in names]

    def converted(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """{the model's name: tensor}, made of {stored name: tensor} as transformers would."""
        if self.converter is None:
            return {self.first: tensors[self.names[0]]}
        converter = deepcopy(self.converter)
        for pattern, names in self.sources.items():
            converter.collected_tensors[pattern] = [tensors[name] for name in names]
        result = converter.convert(self.first, model=model, config=model.config)
        return {name: each[0] if isinstance(each, list) else each for name, each in result.items()}


@dataclass(frozen=True)
class Moves:
    """All moves of a stored model, and the stored names that the model has no place for.

    unexpected_names: they keep their names, and are an error
    ignorable: they are the model's to ignore, and why
    """

    moves: tuple[Move, ...]
    unexpected_names: tuple[str, ...]
    ignorable: Mapping[str, str]


def left_to_model(model: Any) -> set[str]:
    """Names of a transformers model's tensors that a directory need not hold: the model makes them.

    They are sinusoidal tables and the like, where they are not on "meta".
    """
    patterns = getattr(model, "_keys_to_ignore_on_load_missing", None) or ()
    return {
        name
        for name, tensor in model.state_dict().items()
        if tensor.device.type != "meta" and any(re.search(p, name) for p in patterns)
    }


def of_transformers(model: nn.Module) -> bool:
    """Whether it is a transformers model, whose names and pieces may have changed."""
    return any(
        each.__module__ == "transformers.modeling_utils" and each.__name__ == "PreTrainedModel"
        for each in type(model).__mro__
    )


def moves_of(model: Any, stored: Mapping[str, Sequence[int]]) -> Moves:
    """What becomes of the stored tensors {name: shape} in a transformers model."""
    from transformers.core_model_loading import dot_natural_key

    places = _Places(model)
    groups: dict[str, tuple[dict[str, list[str]], Any]] = {}
    strays, ignorable = [], {}
    for name in sorted(stored, key=dot_natural_key):
        new, pattern = places.of(name)
        if new not in places.names:
            if why := places.why_ignored(name):
                ignorable[name] = why
            else:
                strays.append(name)
            continue
        converter = None if pattern is None else places.converter(pattern)
        sources = groups.setdefault(new, ({}, converter))[0]
        sources.setdefault(pattern or name, []).append(name)
    moves = []
    for new, (sources, converter) in groups.items():
        shapes = [tuple(stored[name]) for each in sources.values() for name in each]
        without_check = places.without_check(converter, new, shapes)
        moves.append(
            Move({pattern: tuple(each) for pattern, each in sources.items()}, new, without_check)
        )
    ignorable |= {name: _HEAD for name in strays if places.cut_prefix and places.beside(name)}
    return Moves(tuple(moves), tuple(name for name in strays if name not in ignorable), ignorable)


_HEAD = "it belongs to a head, which this base model does not have"


class _Places:
    """The names of one model, and how transformers finds them."""

    def __init__(self, model: Any):
        from transformers import conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        state = model.state_dict()
        self.names = {*state, *dict(model.named_buffers())}
        self._model, self._prefix = model, model.base_model_prefix
        own = getattr(model, "_checkpoint_conversion_mapping", None) or None
        mapping = conversion_mapping.get_model_conversion_mapping(model, key_mapping=own)
        self._renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
        self._converters = [each for each in mapping if isinstance(each, WeightConverter)]
        self._state = dict(model.named_buffers()) | state
        self.cut_prefix = False

    def of(self, name: str) -> tuple[str, str | None]:
        """The model's name for a stored one, and the pattern of the converter it goes through."""
        from transformers.core_model_loading import rename_source_key

        rest = self._prefix, self._state
        new, pattern = rename_source_key(name, self._renamings, self._converters, *rest)
        if new not in self.names and name in self.names:
            new, pattern = rename_source_key(name, [], [], *rest)
        inside = f"{self._prefix}."
        self.cut_prefix |= (
            new in self.names and name.startswith(inside) and f"{inside}{new}" == name
        )
        return new, pattern

    def converter(self, pattern: str) -> Any:
        """The converter that has this pattern among its sources; of several, as there, the last."""
        return {p: each for each in self._converters for p in each.source_patterns}[pattern]

    def without_check(self, converter: Any, new: str, shapes: list[tuple[int, ...]]) -> Any:
        """A converter without the question whether its tensor lies transposed; None if it does not.

        shapes: of the stored tensors; new: the model's name of what they become
        """
        if converter is None:
            return None
        as_it_is = shapes == [tuple(self._state[new].shape)]
        operations = []
        for each in map(copy, converter.operations):
            if getattr(each, "check_dims", False):
                if as_it_is:
                    continue
                each.check_dims = False
            operations.append(each)
        patterns = converter.source_patterns, converter.target_patterns
        return converter.copy(*patterns, operations=operations) if operations else None

    def beside(self, name: str) -> bool:
        """Whether a stored tensor lies outside of the base model in the file."""
        return not name.startswith(f"{self._prefix}.")

    def why_ignored(self, name: str) -> str:
        """Why the model does not ask for a stored tensor, if it says so itself; else empty."""
        patterns = getattr(self._model, "_keys_to_ignore_on_load_unexpected", None) or ()
        is_listed = any(re.search(pattern, name) for pattern in patterns)
        return "its class does not load it" if is_listed else ""
