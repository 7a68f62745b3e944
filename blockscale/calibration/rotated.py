# SPDX-License-Identifier: BSD-3-Clause
"""A decoder whose residual stream is rotated, or the decoder as it was."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from blockscale.calibration.batches import call, inference
from blockscale.calibration.block_calls import first_tensor
from blockscale.calibration.padding import Padding
from blockscale.calibration.ranks import ALONE, Ranks
from blockscale.calibration.residual_stream import ResidualStream, UnrotatableError, stream_of
from blockscale.calibration.rotation_matrices import head_sizes, orthogonal, rotate
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import kind_of

# relative root mean square that the outputs may move by, which rounding explains: to the dtype,
# and in float64 to the float32 that norms of transformers compute in
LIMITS = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class Rotation(Protocol):
    """What `bs.calibrate` asks of a transform that rotates a whole model."""

    name: str
    seed: int
    rest: Any  # the transform of each layer that follows, or None

    def learned(
        self,
        model: nn.Module,
        stream: ResidualStream,
        recipe: Recipe,
        batches: Iterable[Any],
        padding: Padding,
    ) -> tuple[Tensor | None, list[str]]:
        """A rotation that follows the fixed one, which is folded already; and what was done."""


@dataclass
class Rotated:
    """What was rotated. transform: what is left for each layer; batches: as they were given."""

    transform: Any
    batches: Iterable[Any]
    rotations: dict[str, str] = field(default_factory=dict)  # parameter -> what was done to it

    def with_details(self, ledger: Ledger) -> Ledger:
        """The ledger with a word on each layer and parameter that was rotated."""
        return replace(ledger, entries=[self._with_note(entry) for entry in ledger.entries])

    def _with_note(self, entry: Entry) -> Entry:
        own = (entry.name, f"{entry.name}.weight", f"{entry.name}.gate_up_proj")
        how = next((self.rotations[name] for name in own if name in self.rotations), "")
        return replace(entry, details=", ".join(filter(None, [how, entry.details])))


@contextmanager
def rotated(
    model: nn.Module,
    transform: Any,
    recipe: Recipe,
    batches: Iterable[Any],
    padding: str | bool | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[Rotated]:
    """The model with its residual stream rotated, by a transform that `rotates` models.

    What the model gives stays what it was, which is checked on the first batch. If that, or what
    this is around, raises, then every parameter is what it was, to the bit. Raises ValueError for a
    model whose stream cannot be rotated, with the reason.
    """
    batch, batches = _first(batches)
    with _restoring(model), torch.no_grad():
        try:
            with inference(model):
                how = _rotate(
                    model, transform, recipe, batch, batches, Padding(padding, model), ranks
                )
        except UnrotatableError as error:
            raise UnrotatableError(
                f"transform {transform.name!r} cannot rotate this model, which was left as it was: "
                f"{error}. transform='hadamard' rotates each layer's input by itself"
            ) from error
        with torch.enable_grad():
            yield Rotated(transform.rest, batches, how)


def _first(batches: Iterable[Any]) -> tuple[Any, Iterable[Any]]:
    """The first batch, and all of them, also where they can be read only once."""
    if isinstance(batches, Mapping | Tensor | str | bytes) or not isinstance(batches, Iterable):
        raise TypeError(f"batches is an iterable of batches, found {kind_of(batches)}")
    iterator = iter(batches)
    try:
        batch = next(iterator)
    except StopIteration:
        raise ValueError("batches is empty: calibration needs at least one batch") from None
    return batch, chain([batch], iterator) if iterator is batches else batches


def _rotate(  # noqa: PLR0913 - the model and what is to be known of it
    model: nn.Module,
    transform: Rotation,
    recipe: Recipe,
    batch: Any,
    batches: Iterable[Any],
    padding: Padding,
    ranks: Ranks,
) -> dict[str, str]:
    """Each process of a group rotates its model, and checks that on its own first batch; the first
    of them learns, from the batches of all."""
    entries: list[Any] = []
    ranks.together(lambda: entries.extend((stream_of(model, batch), logits(model, batch))))
    stream, expected = entries
    rotation = orthogonal(stream.size, transform.seed, keeps_mean=stream.keeps_mean)
    heads = {size: orthogonal(size, transform.seed + 1) for size in head_sizes(stream)}
    names = dict.fromkeys(name for name, _ in rotate(model, stream, rotation, heads))
    old = {name: model.get_parameter(name) for name in names}

    def turn(rotation: Tensor) -> None:
        assign(model, rotate(model, stream, rotation, heads))
        _check(model, batch, expected)

    ranks.together(lambda: turn(rotation))
    every = _all_of(batches, ranks)
    more, notes = ranks.by_first(lambda: transform.learned(model, stream, recipe, every, padding))
    if more is not None:
        put_back(model, old)
        best = rotation @ more.to(rotation)
        ranks.together(lambda: turn(best))
    how = "; ".join([f"{transform.name}: the residual stream is rotated", *notes])
    data = {use.parameter: how for use in stream.uses}
    for parameter, note in stream.notes.items():
        data[parameter] = "; ".join([data.get(parameter, transform.name), note])
    if stream.tied:
        _untie(model)
        data[f"{stream.head}.weight"] += "; no longer tied to the token embedding"
    return data


def _all_of(batches: Iterable[Any], ranks: Ranks) -> Iterable[Any]:
    """The batches of all processes, in the order of their numbers."""
    if ranks.alone:
        return batches
    lists = ranks.together(lambda: list(batches))
    none = object()
    rounds = zip_longest(*lists, fillvalue=none)
    return [batch for one in rounds for batch in one if batch is not none]


def logits(model: nn.Module, batch: Any) -> Tensor:
    """What the model gives for a batch: the first tensor of it."""
    return logits_of(call(model, batch))


def logits_of(value: Any) -> Tensor:
    """`logits` of what a model gave, or its first tensor."""
    result = first_tensor(getattr(value, "logits", value))
    if result is None:
        raise UnrotatableError(f"it returns {kind_of(value)}, not logits")
    return result


def assign(model: nn.Module, members: Iterable[tuple[str, Tensor]]) -> None:
    """New parameters in the places of those of these names, in their dtypes."""
    new = {}
    for name, tensor in members:
        old = model.get_parameter(name)
        new[name] = nn.Parameter(tensor.to(old.device, old.dtype), old.requires_grad)
    put_back(model, new)


def put_back(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """These parameters in the places of their names."""
    for name, parameter in parameters.items():
        owner, _, own = name.rpartition(".")
        model.get_submodule(owner)._parameters[own] = parameter


def _check(model: nn.Module, batch: Any, expected: Tensor) -> None:
    """Raise UnrotatableError if the model gives something else than it did."""
    got, dtype = logits(model, batch).to(torch.float64), expected.dtype
    dtype = min((p.dtype for p in model.parameters() if p.dtype in LIMITS), key=_digits)
    expected = expected.to(torch.float64)
    off = float((got - expected).square().mean().sqrt() / expected.square().mean().sqrt())
    if not off <= LIMITS[dtype]:
        raise UnrotatableError(
            f"its outputs would change by {off:.3g} of their size (at most {LIMITS[dtype]:g} "
            f"in {str(dtype).removeprefix('torch.')})"
        )


def _digits(dtype: torch.dtype) -> float:
    return -torch.finfo(dtype).eps


@contextmanager
def _restoring(model: nn.Module) -> Iterator[None]:
    """Left by an exception, parameters and what says that they are tied are as before."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    config = getattr(model, "config", None)
    tied = getattr(config, "tie_word_embeddings", None)
    keys = getattr(model, "all_tied_weights_keys", None)
    try:
        yield
    except BaseException:
        put_back(model, parameters)
        if tied is not None:
            config.tie_word_embeddings = tied  # type: ignore[union-attr]
        if keys is not None:
            model.all_tied_weights_keys = keys
        raise


def _untie(model: nn.Module) -> None:
    """Say where transformers looks that the head has a weight of its own from now on."""
    if getattr(getattr(model, "config", None), "tie_word_embeddings", None):
        model.config.tie_word_embeddings = False  # type: ignore[union-attr]
    if hasattr(model, "all_tied_weights_keys"):
        model.all_tied_weights_keys = {}  # type: ignore[assignment]
