# SPDX-License-Identifier: BSD-3-Clause
"""A model's quantized stacks in the pieces that its checkpoints have: each expert's matrices.

transformers joins them when it loads a model (renaming_moves.py). Its own operations, turned back
and run on numbers of rows, say which rows of codes and scales belong to which piece, as
renaming_carry.py has it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.joined_weights import of_matrix
from blockscale.core.parse import parse
from blockscale.files.metadata import TensorInfo
from blockscale.files.renaming_carry import carry
from blockscale.files.renaming_moves import Move, of_transformers
from blockscale.ops.tensor import QTensor, from_parts


class SavingConversions(list[Any]):
    """The conversions by which transformers saves a model, some of `whole`: those by which it was
    loaded, which hold for all else."""

    def __init__(self, conversions: Iterable[Any], whole: Iterable[Any]):
        super().__init__(conversions)
        self.whole = list(whole)


def conversions_of(model: Any) -> list[Any]:
    """What transformers does with the tensors of a checkpoint when it loads this model.

    Those that it did when it loaded it; of a model made from its config, those that its kind has,
    without the prefixes that a checkpoint may have or not.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange

    conversions = getattr(model, "_weight_conversions", None)
    if conversions is not None:
        return list(getattr(conversions, "whole", conversions))
    mapping = get_model_conversion_mapping(model, add_legacy=False)
    return [each for each in mapping if not isinstance(each, PrefixChange)]


class Back:
    """The way from a model's tensors to those of its checkpoints; of other models they are one."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._renamings: list[Any] = []
        self._converters: list[Any] = []
        if of_transformers(model):
            from transformers.core_model_loading import WeightConverter

            back = [each.reverse_transform() for each in reversed(conversions_of(model))]
            self._converters = [each for each in back if isinstance(each, WeightConverter)]
            self._renamings = [each for each in back if not isinstance(each, WeightConverter)]

    def name(self, name: str) -> str:
        """The name in checkpoints of a tensor that is the same there."""
        if self._converters and self._converter(name) is not None:
            return name
        return self._new_name(name)

    def quantized(
        self, name: str, info: TensorInfo, parts: Mapping[str, Tensor]
    ) -> dict[str, QTensor]:
        """{name in checkpoints: a piece} of a quantized tensor with these parts (codes, scale, …).

        Empty where checkpoints have it in one piece, and where codes and scales of pieces cannot be
        told apart: one scale for several.
        """
        move = self._move(name)
        if move is None:
            return {}
        meta = {name: torch.empty(info.shape, device="meta")}
        shapes = {new: piece.shape for new, piece in move.converted(self._model, meta).items()}
        moved_tensors = carry(self._model, move, {name: info}, shapes)
        tensors = {}
        for new, each in (moved_tensors or {}).items():
            fmt = of_matrix(parse(each.info.format), each.info.shape)
            own_parts = {part: each.part(part, {name: parts[part]}) for part in each.parts}
            tensors[self._new_name(new)] = from_parts(fmt, each.info.shape[-1], own_parts)
        return tensors

    def plain(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """{name in checkpoints: a piece} of a tensor that is not quantized."""
        move = self._move(name)
        if move is None:
            return {self.name(name): tensor}
        tensors = move.converted(self._model, {name: tensor})
        return {self._new_name(new): piece for new, piece in tensors.items()}

    def _move(self, name: str) -> Move | None:
        """What takes one tensor of the model apart; None where checkpoints have it as it is, or as
        a part of another."""
        match = self._converter(name)
        if match is None or len(match[2].source_patterns) > 1:
            return None
        new, pattern, converter = match
        return Move({pattern: (name,)}, new, converter)

    def _converter(self, name: str) -> tuple[str, str, Any] | None:
        """The name by a converter, the pattern that matched, and the converter."""
        for each in self._converters:
            new, pattern = each.rename_source_key(name)
            if pattern is not None:
                checks = any(getattr(op, "check_dims", False) for op in each.operations)
                return None if checks else (new, pattern, each)
        return None

    def _new_name(self, name: str) -> str:
        for each in self._renamings:
            name, _ = each.rename_source_key(name)
        return name
