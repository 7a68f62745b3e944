# SPDX-License-Identifier: BSD-3-Clause
"""SpinQuant: the rotation of a decoder's residual stream, learned."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from blockscale.calibration.algorithms.quarot import QuaRot
from blockscale.calibration.padding import Padding
from blockscale.calibration.residual_stream import ResidualStream
from blockscale.calibration.rotated import logits, logits_of
from blockscale.calibration.rotation_matrices import head_sizes, rotate
from blockscale.core.format import Format
from blockscale.core.pack import from_stored, to_stored
from blockscale.core.recipe import Recipe
from blockscale.layers.apply import plans_for
from blockscale.layers.guards import call
from blockscale.layers.plan import Plan
from blockscale.ops.quantize import fake_quantize

DRIFT = 1e-8  # by which R^T R may differ from the identity
MOMENTUM = 0.9


# The rotation, learned on the model's own loss, with weights and inputs as they will be quantized.


class RotationSettings(NamedTuple):
    """steps; rate: the largest step, falling to 0; batches: how many serve, all to compare by."""

    steps: int
    rate: float
    batches: int


def learn(
    model: nn.Module,
    stream: ResidualStream,
    recipe: Recipe,
    batches: Iterable[Any],
    settings: RotationSettings,
    padding: Padding | None = None,
) -> tuple[Tensor | None, list[str]]:
    """The rotation R [size, size] float64 by which the stream is rotated further, or None.

    SpinQuant (Liu et al. 2024, arXiv 2405.16406, section 3.2): Cayley steps on the loss with fake
    quantized weights and inputs; learned before any weight algorithm, so that rounding is plain.
    We differ: the loss is the Kullback-Leibler divergence from the float model's logits instead of
    the cross entropy of labels, and heads' rotations stay as they are. It is never worse than the
    fixed rotation by that loss over the batches that serve: the best R so far is kept.
    """
    some = [batch for batch, _ in zip(batches, range(settings.batches), strict=False)]
    blank = (padding or Padding()).blank
    targets = [blank(logits(model, batch).detach(), batch) for batch in some]
    quantized = _Quantized(model, stream, recipe)
    rotation = torch.eye(stream.size, dtype=torch.float64, device=targets[0].device)

    def loss(rotation: Tensor, index: int) -> Tensor:
        return divergence(quantized(rotation, some[index]), targets[index])

    def total(rotation: Tensor) -> float:
        with torch.no_grad():
            return sum(float(loss(rotation, index)) for index in range(len(some))) / len(some)

    first = total(rotation)
    best, least = _descend(rotation, loss, total, len(some), stream, settings, first)
    if not least < first:
        return None, [f"{settings.steps} steps found no better rotation than the fixed one"]
    return best, [f"learned in {settings.steps} steps: loss {first:.4g} -> {least:.4g}"]


def _descend(  # noqa: PLR0913 - a loop's state
    rotation: Tensor,
    loss: Callable[[Tensor, int], Tensor],
    total: Callable[[Tensor], float],
    count: int,
    stream: ResidualStream,
    settings: RotationSettings,
    least: float,
) -> tuple[Tensor, float]:
    """The best rotation seen, and its loss; all are measured after each tenth of the steps."""
    best, momentum = rotation, torch.zeros_like(rotation)
    every = max(settings.steps // 10, 1)
    for step in range(settings.steps):
        with torch.enable_grad():
            leaf = rotation.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(leaf, step % count), leaf)
        momentum = MOMENTUM * momentum + gradient
        rate = settings.rate * (1 - step / settings.steps)
        rotation, momentum = cayley(rotation, momentum, rate, keeps_mean=stream.keeps_mean)
        if (step + 1) % every == 0 or step + 1 == settings.steps:
            result = total(rotation)
            if result < least:
                best, least = rotation, result
    return best, least


def cayley(
    rotation: Tensor, gradient: Tensor, rate: float, *, keeps_mean: bool = False
) -> tuple[Tensor, Tensor]:
    """One step down from an orthogonal R, and the gradient without what leaves the manifold.

    Li et al. 2020, arXiv 2002.01113, algorithm 1, with Cayley's transform solved instead of
    iterated: R' = (1 + a Y / 2)^-1 (1 - a Y / 2) R with Y skew; a is at most 1 / |Y|.
    """
    eye = torch.eye(len(rotation), dtype=rotation.dtype, device=rotation.device)
    half = gradient @ rotation.T
    skew = half - half.T
    if keeps_mean:  # turns from the right: what x R keeps is R^T's business, so conjugate
        inner = rotation.T @ skew @ rotation
        inner = inner - inner.mean(0, keepdim=True)
        inner = inner - inner.mean(1, keepdim=True)
        skew = rotation @ inner @ rotation.T
    size = float(torch.linalg.matrix_norm(skew, 1))
    if size == 0:
        return rotation, gradient
    a = min(rate, 1 / size)
    new = torch.linalg.solve(eye + a / 2 * skew, (eye - a / 2 * skew) @ rotation)
    if float((new.T @ new - eye).abs().max()) > DRIFT:
        q, r = torch.linalg.qr(new)
        new = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return new, skew @ rotation / 2


def divergence(tensor: Tensor, target: Tensor) -> Tensor:
    """The mean Kullback-Leibler divergence of logits from the target's [..., classes]; NaN in the
    target is padding."""
    if bool((odd := target.isnan().any(-1)).any()):
        tensor, target = tensor[~odd], target[~odd]
    tensor, target = tensor.float().log_softmax(-1), target.float().log_softmax(-1)
    return (target.exp() * (target - tensor)).sum(-1).mean()


class _Quantized:
    """The model with a stream rotated by R and plainly rounded weights and inputs."""

    def __init__(self, model: nn.Module, stream: ResidualStream, recipe: Recipe):
        self.model, self.stream = model, stream
        self.weights: dict[str, Plan] = {}
        self.inputs: dict[nn.Module, Format] = {}
        for plan in plans_for(model, recipe):
            if isinstance(plan, Plan) and isinstance(plan.module, nn.Linear | nn.Embedding):
                self.weights[f"{plan.name}.weight"] = plan
                if plan.kind.takes_input and plan.scheme.input is not None:
                    self.inputs[plan.module] = plan.scheme.input.choosing
        sizes = head_sizes(stream)
        self.heads = {size: torch.eye(size) for size in sizes}

    def __call__(self, rotation: Tensor, batch: Any) -> Tensor:
        parameters = {}
        for name, tensor in rotate(self.model, self.stream, rotation, self.heads):
            result = tensor.to(self.model.get_parameter(name).dtype)
            plan = self.weights.get(name)
            if plan is not None:
                stored = fake_quantize(to_stored(result, plan.layout), _by_nearest(plan.format))
                result = from_stored(stored, plan.layout, result.shape)
            parameters[name] = result
        for name, plan in self.weights.items():
            if name not in parameters:
                stored = to_stored(plan.parameter.detach(), plan.layout)
                stored = fake_quantize(stored, _by_nearest(plan.format))
                parameters[name] = from_stored(stored, plan.layout, plan.parameter.shape)
        with _inputs(self.inputs):
            return logits_of(call(_Functional(self.model, parameters), batch))


class _Functional(nn.Module):
    """A model called with other parameters."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, Tensor]):
        super().__init__()
        self.model, self.others = model, parameters

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = torch.func.functional_call
        return call(self.model, dict(self.others), args, kwargs, tie_weights=False)


@contextmanager
def _inputs(formats: Mapping[nn.Module, Format]) -> Iterator[None]:
    """Inputs of these modules fake quantized, each with the scales that it chooses itself."""
    handles = []
    try:
        for module, fmt in formats.items():

            def hook(_: nn.Module, args: Any, by: Format = fmt) -> Any:
                return (fake_quantize(args[0], _by_nearest(by)), *args[1:])

            handles.append(module.register_forward_pre_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _by_nearest(fmt: Format) -> Format:
    return fmt.deterministic


# The algorithm.


class SpinQuant(QuaRot):
    """QuaRot with a residual rotation learned by Cayley steps from the fixed one.

    Liu et al. 2024, arXiv 2405.16406, section 3.2; `learn` says where we differ. Like the
    paper's, its result costs nothing at run time.

    steps: steps of the descent, one batch each; rate: the largest step; batches: how many serve

    Raises ValueError for steps or batches under 1 and rates that are not positive.
    """

    name: ClassVar[str] = "spinquant"

    def __init__(
        self,
        steps: float = 100,
        *,
        rate: float = 1.5,
        batches: int = 8,
        seed: int = 0,
        online: bool = False,
    ):
        super().__init__(seed, online=online)
        if steps != int(steps) or steps < 1 or batches < 1 or not rate > 0:
            raise ValueError(
                f"spinquant: steps, rate and batches must be > 0, got {steps}, {rate}, {batches}"
            )
        self.settings = RotationSettings(int(steps), rate, batches)

    def learned(
        self,
        model: nn.Module,
        stream: ResidualStream,
        recipe: Recipe,
        batches: Iterable[Any],
        padding: Padding | None = None,
    ) -> tuple[Tensor | None, list[str]]:
        """The rotation that follows the fixed one, or None where none was better."""
        if iter(batches) is batches:
            raise ValueError(
                "batches can be read only once, and spinquant reads them in every step: pass "
                "a list or a DataLoader"
            )
        return learn(model, stream, recipe, batches, self.settings, padding)
