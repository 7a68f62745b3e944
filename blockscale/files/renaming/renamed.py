"""A stored model as the model that it is loaded into calls and cuts its tensors."""

import warnings
from dataclasses import replace

from torch import nn

from blockscale.files.renaming.moves import Move, Moves, left_to_model, moves_of, of_transformers
from blockscale.files.renaming.view import View
from blockscale.files.stored_model import StoredModel


def renamed(model: nn.Module, source: StoredModel) -> StoredModel:
    """`source` as `model` names and cuts its tensors: itself, where that is how they are stored.

    Only transformers models have other names, by transformers' own mapping. Codes and scales stay
    as they are; pieces whose codes cannot be kept are dequantized, with a warning that names them.

    Raises FileError if a part of a piece is missing or odd, or pieces do not fit together.
    """
    if not of_transformers(model):
        return source
    shapes: dict[str, tuple[int, ...]] = {}
    shapes |= {name: info.shape for name, info in source.metadata.tensors.items()}
    shapes |= {name: source.kinds[name][1] for name in source.plain()}
    aliases = source.metadata.aliases
    shapes |= {name: shapes[to] for name, to in aliases.items() if to in shapes}
    state = model.state_dict()
    absent = frozenset(left_to_model(model) - set(shapes))
    if all(name in state for name in shapes):
        return replace(source, absent=absent)
    try:
        moves = moves_of(model, shapes)
    except ImportError:  # a transformers that renames nothing while it loads
        return replace(source, absent=absent)
    view = View(model, source, {name: tensor.shape for name, tensor in state.items()})
    for move in moves.moves:
        view.add(move)
    for name in moves.unplaced:
        view.add(Move({name: (name,)}, name))
    _warn(view, moves)
    return replace(view.finish(), absent=absent - set(view.targets))


def _warn(view: View, moves: Moves) -> None:
    told: list[str] = []
    if view.dense:
        told.append(
            f"dequantized, because their codes cannot be joined as the model has them: "
            f"{_some(view.dense)}"
        )
    if view.lost:
        told.append(f"the formats of their input and output are not applied: {_some(view.lost)}")
    for why in dict.fromkeys(moves.ignored.values()):
        names = [name for name in moves.ignored if moves.ignored[name] == why]
        told.append(f"left out, because {why}: {_some(names)}")
    if told:
        warnings.warn(f"blockscale: {'; '.join(told)}", stacklevel=4)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
