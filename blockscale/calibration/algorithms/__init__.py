# SPDX-License-Identifier: BSD-3-Clause
"""What makes low bits usable: weight algorithms and transforms, one a file.

A weight algorithm chooses the codes of one layer's weight; a transform changes what the layer's
input and weight are before they are quantized. A file here defines one class whose `name` is the
file's name; it has `quantize` (a weight algorithm), `quantize_block` (one that chooses for a whole
block, blockscale.calibration.block_calls) or `prepare` (a transform). Files without such a class
are pieces of the others.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from torch import Tensor, nn

from blockscale.calibration.residual_stream import UnrotatableError
from blockscale.core import import_all
from blockscale.core.format import Format
from blockscale.ops.tensor import QTensor

if TYPE_CHECKING:
    from blockscale.calibration.input_stats import InputStats


class WeightAlgorithm(Protocol):
    """Chooses codes and scales of a layer's weight, better than by its largest magnitude."""

    name: ClassVar[str]

    @property
    def needs_gram(self) -> bool:
        """Whether `quantize` must be given the gram matrix of the layer's inputs."""

    def quantize(
        self, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
    ) -> tuple[QTensor, list[str]]:
        """Weight [n, k] float32 as it is stored -> its codes, and notes for the ledger.

        gram: X^T X / rows [k, k] of the layer's inputs X [rows, k], float32 or float64.
        layer: its name, for errors.
        Raises ValueError for a format it cannot serve, NaN and infinity.
        """


class Transform(Protocol):
    """Changes a layer's input and weight, their product unchanged, so that they quantize better.

    One that says `needs_gram = False` is given statistics without a gram matrix, which would take
    most of the time of gathering them.
    """

    name: ClassVar[str]

    def prepare(
        self,
        weight: Tensor,
        fmt: Format,
        input_fmt: Format | None,
        stats: "InputStats",
        layer: str,
    ) -> tuple[nn.Module | None, list[str]]:
        """Weight [n, k] and what is known of its inputs -> a Before module or None, and notes."""


def weight_names(*, blocks: bool = True) -> tuple[str, ...]:
    """The weight algorithms that there are as files, in order; "absmax" is none of them.

    blocks: those that choose for a whole block, too
    """
    classes = _classes(_WEIGHTS)
    return tuple(sorted(n for n in classes if blocks or not hasattr(classes[n], "quantize_block")))


def transform_names() -> tuple[str, ...]:
    """The transforms that there are, in order."""
    return tuple(sorted(_classes(_TRANSFORMS)))


def weights(
    spec: "str | WeightAlgorithm | None" = "absmax", *, blocks: bool = True
) -> WeightAlgorithm | None:
    """The weight algorithm of a name: "mse", "hqq", "search", "gptq"; "absmax" and None are None.

    spec: a name, "name:setting" (the first argument of its class, e.g. "hqq:0.5"), or an instance.
    "absmax" is what `bs.quantize` does by itself.
    blocks: whether those that choose for a whole block can be used where the name comes from
    Raises ValueError with the list of what there is, and can be used.
    """
    if spec is None or spec == "absmax":
        return None
    names = ("absmax", *weight_names(blocks=blocks))
    return cast("WeightAlgorithm", _find(spec, "weight algorithm", _WEIGHTS, names))


def transforms(spec: "str | Transform | None" = None) -> Transform | None:
    """The transform named "smoothquant", "awq", "hadamard", "quarot" or "spinquant"; None is None.

    spec: a name, "name:setting" (the first argument of its class), or an instance.
    Raises ValueError with the list of what there is.
    """
    if spec is None:
        return None
    return cast("Transform", _find(spec, "transform", _TRANSFORMS, transform_names()))


def rotates(transform: Transform | None) -> bool:
    """Whether a transform rotates a whole model (calibration.rotated), not each layer's input."""
    return hasattr(transform, "learned")


def check_rotatable(transform: Any, why: str) -> None:
    """Raise UnrotatableError, for the reason given, if the transform rotates whole models."""
    if rotates(transform):
        raise UnrotatableError(
            f"transform {transform.name!r} rotates a whole float model, which must be in "
            f"memory and able to run: {why}"
        )


_WEIGHTS, _TRANSFORMS = ("quantize", "quantize_block"), ("prepare",)


@cache
def _classes(methods: tuple[str, ...]) -> dict[str, type[Any]]:
    """{name: class} of this folder's classes that have one of these methods."""
    modules = import_all(__name__, __path__)
    return {
        name: kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
        and kind.__module__ == module.__name__
        and (name := getattr(kind, "name", "")) == module.__name__.rpartition(".")[2]
        and any(callable(getattr(kind, method, None)) for method in methods)
    }


def _find(spec: object, what: str, methods: tuple[str, ...], names: tuple[str, ...]) -> object:
    classes = _classes(methods)
    choices = ", ".join(names)
    if not isinstance(spec, str):
        able = any(callable(getattr(spec, method, None)) for method in methods)
        if isinstance(spec, type) or not able:
            raise ValueError(
                f"{spec!r} is not a {what}: pass an instance, or one of the names {choices}"
            )
        return spec
    name, colon, setting = spec.partition(":")
    if name not in classes:
        raise ValueError(f"unknown {what} {name!r}; choose from {choices}")
    return classes[name](_number(setting)) if colon else classes[name]()


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
