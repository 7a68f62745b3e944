# SPDX-License-Identifier: BSD-3-Clause
"""Biases that make up for what quantizing does to a layer's mean output.

Rounded weights and inputs change the mean of a layer's output, which all layers behind it then see.
The mean of that error over the calibration data, a number for each output channel, goes into the
layer's bias and costs nothing afterwards (Nagel et al. 2019, arXiv 1906.04721, sections 4.2 and
appendix D). Here every layer has the inputs that the quantized model gives it, in one pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.batches import Batches, inference
from blockscale.calibration.input_stats import Callback, watch
from blockscale.calibration.padding import Padding
from blockscale.calibration.session import Session
from blockscale.core.pack import of_convolution
from blockscale.core.work import Progress
from blockscale.layers.guards import Group
from blockscale.layers.layer import QLayer
from blockscale.layers.plan import Plan

CORRECT, KEEP = "correct", "keep"
_WHY = "bias='correct' runs the quantized model once more"


def correctable(batches: Any, source: object, group: Group, algorithm: object) -> bool:
    """True; raises ValueError where biases cannot be corrected. Nothing is changed yet.

    algorithm: of weights, None where its layers see the inputs of the float model alone
    """
    if source is not None:
        raise ValueError(
            "bias='correct' compares each layer with its float weights, and source= keeps those of "
            "one block at a time: load the weights first, or pass bias='keep'"
        )
    if group is not None:
        raise ValueError(
            "bias='correct' adds up means in the order of the batches, which several processes do "
            "not share: calibrate in one process, or pass bias='keep'"
        )
    if getattr(algorithm, "needs_drift", False):
        name = getattr(algorithm, "name", "the weight algorithm")
        raise ValueError(
            f"bias='correct' and {name} would both make up for the layers before: pass "
            "sequential=False, or bias='keep'"
        )
    Batches(batches, 2, _WHY, Progress())  # refuses what can be read only once
    return True


def correct_biases(
    model: nn.Module, session: Session, batches: Any, padding: str | bool | None
) -> None:
    """Change the biases of a model that has just been quantized; the session's details and notes
    say of which layers, and why not of others."""
    results = [error for plan in session.layers for error in _error(model, plan, session)]
    if not results:
        return
    masks = Padding(padding, model)
    callbacks: dict[nn.Module, Callback] = {
        error.layer: masks.without(error.plan, error, []) for error in results
    }
    with inference(model), watch(callbacks):
        Batches(batches, 1, _WHY, Progress()).run(model, masks)
    for error in results:
        mean = error.mean()
        if mean is None:
            session.notes[error.plan.name].append(
                "bias not corrected: it saw no data, or NaN or infinity"
            )
            continue
        own = error.layer.bias
        like = error.layer.weight if own is None else own
        rest = torch.zeros_like(mean) if own is None else own.detach().to(torch.float64)
        parameter = nn.Parameter((rest + mean).to(like.dtype), own is None or own.requires_grad)
        error.layer.register_parameter("bias", parameter)
        session.details[error.plan.name].append("bias corrected")


def _error(model: nn.Module, plan: Plan, session: Session) -> Iterator["_Error"]:
    """What is to be found of a layer; nothing where there is no bias to correct."""
    try:
        layer = model.get_submodule(plan.name)
    except AttributeError:  # an expert of a stack
        layer = None
    if not isinstance(layer, QLayer) or not layer.takes_input:
        return
    convolution = of_convolution(plan.layout)
    if layer.bias is None and not convolution:
        session.details[plan.name].append("no bias to correct")
    elif layer.bias is not None and not isinstance(layer.bias, nn.Parameter):
        session.details[plan.name].append("bias not corrected: it holds codes")
    else:
        dim = 1 - layer.weight.ndim if convolution else -1
        yield _Error(plan, layer, dim)


@dataclass(eq=False)
class _Error:
    """The mean of what a quantized layer's output lacks, [its channels]; called with each input
    and output, as `watch` calls.

    dim: of the channels in the output
    """

    plan: Plan
    layer: QLayer
    dim: int
    total: Tensor | None = None
    rows: int = 0

    def __call__(self, x: Tensor, y: Any) -> None:
        target = self.plan.module.forward(x)  # not its hooks, which are a user's
        error = (target.to(torch.float64) - y.to(torch.float64)).movedim(self.dim, -1)
        error = error.reshape(-1, error.shape[-1])
        total = error.sum(0)
        self.total = total if self.total is None else self.total + total
        self.rows += len(error)

    def mean(self) -> Tensor | None:
        """[channels] float64; None where there is none."""
        if self.total is None or not self.rows or not bool(self.total.isfinite().all()):
            return None
        return self.total / self.rows
