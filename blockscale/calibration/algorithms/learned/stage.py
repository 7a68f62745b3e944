# SPDX-License-Identifier: BSD-3-Clause
"""A float block on which learned weights stand in for its own, and quantized inputs for its
layers': what the quantized block will give, with gradients."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from blockscale.calibration.block_calls import BlockCall, BlockTask, first_tensor
from blockscale.calibration.input_stats import seen_by
from blockscale.core.pack import from_stored, of_convolution
from blockscale.layers.assembly import Supplied
from blockscale.layers.plan import Plan
from blockscale.layers.store import QInput


class Stage:
    """A block as its quantized form will compute, except that its weights are given."""

    def __init__(self, task: BlockTask):
        self._task = task
        self._names = {plan.name: _parameter_of(task, plan) for plan in task.plans}
        self._plans = {plan.name: plan for plan in task.plans}
        self._inputs: dict[str, tuple[Tensor, Tensor]] = {}

    def run(self, weights: Mapping[str, Tensor], call: BlockCall) -> Tensor:
        """{plan.name: values of its weight as stored} and a call -> the block's first tensor."""
        arguments = {}
        for name, values in weights.items():
            parameter = self._plans[name].parameter
            tensor = from_stored(values, self._plans[name].layout, tuple(parameter.shape))
            arguments[self._names[name]] = tensor.to(parameter.dtype)
        self._inputs.clear()
        y = functional_call(self._task.module, arguments, call.args, call.kwargs)
        self._inputs.clear()
        return self._first(y)

    def as_it_is(self, call: BlockCall) -> Tensor:
        """What the block gives for a call as it is."""
        with torch.no_grad():
            return self._first(self._task.module(*call.args, **call.kwargs))

    def gives_logits(self, call: BlockCall) -> bool:
        """Whether what it gives for a call has a part of that name."""
        with torch.no_grad():
            return logits_of(self._task.module(*call.args, **call.kwargs)) is not None

    def _first(self, y: Any) -> Tensor:
        first = first_given(y)
        if first is None:
            raise ValueError(
                f"{self._task.name} returns no tensor: signround cannot measure its error"
            )
        return first

    @contextmanager
    def quantizing(self) -> Iterator[None]:
        """As long as this lasts, layers see what Before modules and formats leave of inputs, and
        the block's own parameters have no gradients."""
        handles = []
        learning = [p for p in self._task.module.parameters() if p.requires_grad]
        try:
            for parameter in learning:
                parameter.requires_grad_(False)
            for plan in self._task.plans:
                place = self._task.places[plan.name]
                before = self._input_of(plan, place)
                if before is not None:
                    hook = plan.module.register_forward_pre_hook(before, with_kwargs=True)
                    handles.append(hook)
                if plan.scheme.output is not None:
                    after = _output_of(plan, place)
                    handles.append(plan.module.register_forward_hook(after, prepend=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            for parameter in learning:
                parameter.requires_grad_()

    def _input_of(self, plan: Plan, place: Supplied) -> Any:
        """The hook that prepares a layer's input, or None where it stays as it is."""
        fmt = plan.scheme.input if plan.kind.takes_input else None
        if fmt is None and place.before is None:
            return None
        quantizer = None if fmt is None else place.input or QInput(fmt)
        shared = None if fmt is None or place.before or place.input else str(fmt)

        def prepare(_: nn.Module, args: Any, kwargs: Any) -> Any:
            x = args[0] if args else next(iter(kwargs.values()))
            cached_input = self._inputs.get(shared) if shared else None
            if (
                cached_input is not None and cached_input[0] is x
            ):  # query, key and value have one input
                y = cached_input[1]
            else:
                y = seen_by(plan, x)
                y = y if place.before is None else place.before(y)
                y = y if quantizer is None else quantizer(y)
                y = _channels_back(plan, x, y)
            if shared:
                self._inputs[shared] = x, y
            return ((y, *args[1:]), kwargs) if args else ((), {**kwargs, next(iter(kwargs)): y})

        return prepare


def logits_of(y: Any) -> Tensor | None:
    """What a model gives says of classes, such as next tokens, if it says so."""
    logits = getattr(y, "logits", None)
    return logits if isinstance(logits, Tensor) else None


def first_given(y: Any) -> Tensor | None:
    """The logits of what a model gave, or the first tensor."""
    logits = logits_of(y)
    return first_tensor(y) if logits is None else logits


def _output_of(plan: Plan, place: Supplied) -> Any:
    assert plan.scheme.output is not None
    quantizer = place.output or QInput(plan.scheme.output)

    def finish(_: nn.Module, __: Any, y: Tensor) -> Tensor:
        return _channels_back(plan, y, quantizer(seen_by(plan, y)))

    return finish


def _parameter_of(task: BlockTask, plan: Plan) -> str:
    """The name of a layer's weight in its block. Raises ValueError if it is not there."""
    for name, parameter in task.module.named_parameters():
        if parameter is plan.parameter:
            return name
    raise ValueError(f"{plan.name}: its weight is not in the model block {task.name}")


def _channels_back(plan: Plan, x: Tensor, y: Tensor) -> Tensor:
    """What `seen_by` made of x, or what became of that, as x lies."""
    if not of_convolution(plan.layout):
        return y
    y = y.movedim(-1, 1)
    return y[0] if x.ndim < y.ndim else y
