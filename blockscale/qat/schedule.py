# SPDX-License-Identifier: BSD-3-Clause
"""When observers observe, when quantization begins, when batch norms are frozen."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from blockscale.qat.layers import QATLayer


def layers(model: nn.Module) -> Iterator[tuple[str, QATLayer]]:
    """The layers that `bs.prepare_qat` prepared, with their names. Raises ValueError for none."""
    pairs = [(n, m) for n, m in model.named_modules() if isinstance(m, QATLayer)]
    if not pairs:
        raise ValueError(
            "nothing in this model is prepared for training: call bs.prepare_qat(model, "
            "recipe) first"
        )
    yield from pairs


def edges(model: nn.Module) -> Iterator[Any]:
    """What else is switched: modules that observe and quantize what passes between ops."""
    for module in model.modules():
        if not isinstance(module, QATLayer) and hasattr(module, "observing"):
            yield module


def switch(
    model: nn.Module,
    *,
    observe: bool | None = None,
    quantize: bool | None = None,
    freeze_norms: bool | None = None,
) -> None:
    """Turn parts of fake quantization on or off in every prepared layer, and on the edges of a
    prepared graph; None leaves one alone.

    observe: whether observers observe, in training.
    quantize: whether values are quantized; without it the model is the float model.
    freeze_norms: whether batch norms that are folded in use their running statistics in training.
    Raises ValueError if nothing is prepared.
    """
    for part in (*dict(layers(model)).values(), *edges(model)):
        for name, value in {
            "observing": observe,
            "quantizing": quantize,
            "norm_frozen": freeze_norms,
        }.items():
            if value is not None and hasattr(part, name):
                setattr(part, name, bool(value))


def freeze(model: nn.Module) -> None:
    """Fix everything but weights of `model`: observers, batch norms and learned scales stay."""
    switch(model, observe=False, freeze_norms=True)
    for _, layer in layers(model):
        for quantizer in layer.quantizers():
            if quantizer is not None and quantizer.learned is not None:
                quantizer.learned.requires_grad_(False)


def synchronize(model: nn.Module, group: Any = None) -> None:
    """Let the observers of all processes agree, once, before a model is saved or converted; and
    where learned scales of inputs and outputs began, once they have.

    Each process of DistributedDataParallel or FSDP sees its own part of a batch; group: those of
    torch.distributed that agree (None: all).
    """
    for _, layer in layers(model):
        for quantizer in (layer.input_quantizer, layer.output_quantizer):
            if quantizer is not None:
                quantizer.synchronize(group)
    for edge in edges(model):
        if edge.observer is not None:
            edge.observer.all_reduce_(group)


class Schedule:
    """Switches at given steps; call `step()` after each of the optimizer's, as a learning rate's.

    observe_until: observers observe during the steps before this one; None: always.
    quantize_from: the first step that quantizes; before, the model trains in float.
    freeze_bn_at: the first step that uses the running statistics of batch norms that are folded in
        (Krishnamoorthi 2018, section 3.2.2); None: never.

    The switches are in the model's state_dict; the number of steps is in the schedule's own.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        observe_until: int | None = None,
        quantize_from: int = 0,
        freeze_bn_at: int | None = None,
    ):
        self.model = model
        self.observe_until, self.quantize_from = observe_until, quantize_from
        self.freeze_bn_at = freeze_bn_at
        self.steps = 0
        self._apply()

    def step(self) -> None:
        """One step of training is done."""
        self.steps += 1
        self._apply()

    def _apply(self) -> None:
        until, at = self.observe_until, self.freeze_bn_at
        switch(
            self.model,
            observe=until is None or self.steps < until,
            quantize=self.steps >= self.quantize_from,
            freeze_norms=at is not None and self.steps >= at,
        )

    def state_dict(self) -> dict[str, int]:
        """What `load_state_dict` takes."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where the schedule of `state` stopped, and switch the model accordingly."""
        self.steps = int(state["steps"])
        self._apply()
