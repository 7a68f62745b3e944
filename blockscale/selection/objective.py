# SPDX-License-Identifier: BSD-3-Clause
"""What counts as damage: how far a model's output moves, the divergence of its predictions, or a
loss of the user's own.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from blockscale.core.torch_private import pytree
from blockscale.core.untrusted import kind_of
from blockscale.layers.guards import call, device_of
from blockscale.selection.candidates import WeightOptions

Output = Callable[[Any, Any], Any]  # (what the model gave, the batch) -> what of it counts
TaskLoss = Callable[[Any, Any], Tensor]  # (what the model gave, the batch) -> a number


class Objective(ABC):
    """Damage of one batch, by what the float model gave and what the quantized one gives.

    name: of the objective; quality: what `quality` is called; larger is better
    """

    name: str
    quality_name: str

    def __init__(self, output: Output | None = None):
        self._output = output

    @property
    def functions(self) -> list[Any]:
        """The caller's own functions, by which one search is told from another."""
        return [each for each in (self._output, getattr(self, "_loss", None)) if each is not None]

    def of(self, output: Any, batch: Any) -> Any:
        """What counts of a model's output: what the caller's function says, else all of it."""
        return output if self._output is None else self._output(output, batch)

    @abstractmethod
    def measure(self, reference: Any, outputs: Any, batch: Any) -> "MeasuredObjective":
        """How far `given` is from `reference`, both as `of` gave them."""

    @abstractmethod
    def probe(self, outputs: Any, batch: Any, generator: torch.Generator) -> Tensor:
        """A number whose squared gradients, on average, are the damage's second derivatives."""


class MeasuredObjective:
    """Sums over batches: damage and quality are means, weighted as they were added."""

    def __init__(self, damage: float = 0.0, quality: float = 0.0, count: float = 0.0):
        self._damage, self._quality, self._count = damage, quality, count

    def __iadd__(self, other: "MeasuredObjective") -> "MeasuredObjective":
        self._damage += other._damage
        self._quality += other._quality
        self._count += other._count
        return self

    @property
    def damage(self) -> float:
        """Of one row, on average."""
        return self._damage / max(self._count, 1)

    @property
    def quality(self) -> float:
        """Likewise."""
        return self._quality / max(self._count, 1)


class Distance(Objective):
    """Squared error of the output, each row [last dimension] relative to its float length.

    A row's damage is |y - y0|² / |y0|²; quality is the mean cosine of rows.
    """

    name, quality_name = "distance", "cosine"

    def measure(self, reference: Any, outputs: Any, batch: Any) -> MeasuredObjective:
        del batch
        total = MeasuredObjective()
        for a, b in zip(float_tensors(reference), float_tensors(outputs), strict=True):
            x, y = (_rows(side).double() for side in (a, b.to(a.device)))
            size = x.square().sum(-1)
            error = (x - y).square().sum(-1) / size.clamp(min=_TINY)
            cosine = (x * y).sum(-1) / (size * y.square().sum(-1)).sqrt().clamp(min=_TINY)
            total += MeasuredObjective(_finite(error), _finite(cosine), x.shape[0])
        return total

    def probe(self, outputs: Any, batch: Any, generator: torch.Generator) -> Tensor:
        del batch
        results = []
        for y in float_tensors(outputs):
            rows = _rows(y).float()
            size = rows.detach().square().sum(-1, keepdim=True).clamp(min=_TINY).sqrt()
            noise = torch.randn(rows.shape, generator=generator).to(rows.device)
            results.append((rows * noise / size).sum())
        return torch.stack(results).sum()


class Divergence(Objective):
    """KL divergence of the predictions softmax(logits), in nats, from the float model's.

    The output is logits [..., classes]; quality is minus the mean divergence.
    """

    name, quality_name = "kl", "-kl"

    def measure(self, reference: Any, outputs: Any, batch: Any) -> MeasuredObjective:
        del batch
        a, b = (_rows(logits(side)).double().log_softmax(-1) for side in (reference, outputs))
        damage = _finite((a.exp() * (a - b.to(a.device))).sum(-1))
        return MeasuredObjective(damage, -damage, a.shape[0])

    def probe(self, outputs: Any, batch: Any, generator: torch.Generator) -> Tensor:
        del batch
        predictions = _rows(logits(outputs)).float().log_softmax(-1)
        sample = torch.multinomial(predictions.detach().exp().cpu(), 1, generator=generator)
        return predictions.gather(-1, sample.to(predictions.device)).sum()


class Loss(Objective):
    """How much a loss of the user's own rises. Quality is minus the loss."""

    name, quality_name = "loss", "-loss"

    def __init__(self, loss: TaskLoss, output: Output | None = None):
        super().__init__(output)
        self._loss = loss

    def measure(self, reference: Any, outputs: Any, batch: Any) -> MeasuredObjective:
        before, after = (float(self._loss(side, batch)) for side in (reference, outputs))
        after = after if math.isfinite(after) else math.inf
        return MeasuredObjective(after - before, -after, 1)

    def probe(self, outputs: Any, batch: Any, generator: torch.Generator) -> Tensor:
        del generator
        return self._loss(outputs, batch)


_TINY = 1e-30


def _rows(y: Tensor) -> Tensor:
    return y.reshape(-1, y.shape[-1]) if y.ndim else y.reshape(1, 1)


def _finite(values: Tensor) -> float:
    """Their sum; infinite damage where one is NaN."""
    total = float(values.sum())
    return math.inf if math.isnan(total) else total


def float_tensors(output: Any) -> list[Tensor]:
    """The tensors of floats in what a model returned. Raises ValueError where there are none."""
    leaves = pytree.tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    results = [each for each in leaves if isinstance(each, Tensor) and each.is_floating_point()]
    if not results:
        raise ValueError(
            f"the model returns no float tensor ({kind_of(output)}): select what to "
            "compare with output=lambda result, batch: …"
        )
    return results


def logits(output: Any) -> Tensor:
    """`logits` of a model's output, or its first tensor of floats."""
    attribute = getattr(output, "logits", None)
    return attribute if isinstance(attribute, Tensor) else float_tensors(output)[0]


def objective(source: str | TaskLoss, output: Output | None = None) -> Objective:
    """The objective of that name, or of that loss. Raises ValueError and TypeError."""
    if callable(source):
        return Loss(source, output)
    kinds: dict[str, Callable[..., Objective]] = {"distance": Distance, "kl": Divergence}
    if source not in kinds:
        raise ValueError(
            f"unknown objective {source!r}; choose from {', '.join(kinds)}, or pass a function "
            "(output, batch) that returns a loss"
        )
    return kinds[source](output)


# How sensitive a model's output is to each element of its weights: mean squared gradients.
#
# Rounding moves a weight by d. To second order the damage grows by ½ dᵀHd, and errors of rounding
# are nearly independent of each other, so that what counts of H is its diagonal. For the distance
# of
# outputs and for KL divergence, H is a Gauss-Newton matrix, whose diagonal is the mean of squared
# gradients of random numbers made of the output (`Objective.probe`). For a loss, those of the loss:
# the empirical Fisher (Kunstner, Balles, Hennig, "Limitations of the empirical Fisher", 2019).

_PROBES = 4  # of each batch


class Curvature:
    """The diagonal for each choice's weight, float32; a copy of the model's size."""

    def __init__(self, model: nn.Module, choices: Sequence[WeightOptions]):
        self._model, self._choices = model, choices
        self.diagonals = [torch.zeros_like(c.parameter, dtype=torch.float32) for c in choices]
        self._names = _names(model, choices)
        self._count = 0

    def add(self, batch: Any, objective: Objective, generator: torch.Generator) -> None:
        """Squared gradients of one batch. Raises ValueError where the model has none."""
        leaves = [c.parameter.detach().requires_grad_() for c in self._choices]
        both = zip(self._names, leaves, strict=True)
        arguments = {name: leaf for names, leaf in both for name in names}
        with torch.enable_grad():
            other = _WithWeights(self._model, arguments)
            output = objective.of(call(other, batch, device_of(self._model)), batch)
            for probe in range(_PROBES):
                number = objective.probe(output, batch, generator)
                if not number.requires_grad:
                    raise ValueError(_FLAT)
                is_kept = probe + 1 < _PROBES
                result = torch.autograd.grad(
                    number, leaves, retain_graph=is_kept, allow_unused=True
                )
                for total, gradient in zip(self.diagonals, result, strict=True):
                    if gradient is not None:
                        total.add_(gradient.detach().float().square())
                self._count += 1

    def damage(self, which: int, rounded: Tensor) -> float:
        """Of weight `which` of the choices, once it is `rounded`."""
        error = rounded.detach().float() - self._choices[which].parameter.detach().float()
        total = (self.diagonals[which] * error.square()).sum(dtype=torch.float64)
        return float(total) / max(self._count, 1)


_FLAT = (
    "the model's output has no gradients, so score='fisher' cannot work: use score='output', which "
    "runs the model once for each layer and candidate, or score='sqnr'"
)


class _WithWeights(nn.Module):
    """The model with other weights, whose own are not touched."""

    def __init__(self, model: nn.Module, weights: dict[str, Tensor]):
        super().__init__()
        self._model_list = [model]  # not as a child: its parameters are not these
        self._weights = weights

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self._model_list[0], self._weights, args, kwargs)


def _names(model: nn.Module, choices: Sequence[WeightOptions]) -> list[list[str]]:
    """All names of each choice's parameter in the model."""
    every: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        every.setdefault(id(parameter), []).append(name)
    return [every[id(choice.parameter)] for choice in choices]
