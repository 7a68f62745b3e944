# SPDX-License-Identifier: BSD-3-Clause
"""Whether the routers of a mixture send tokens where they would in float.

A router is a module whose name and weight say so (layers.decisions) and which returns, beside its
scores, the experts that it chose: integers [..., top]. Those that return scores alone, and leave
the choice to the code around them, are not seen.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from blockscale.core.torch_private import pytree
from blockscale.layers.decisions import kept_layer_by_default


@dataclass(frozen=True)
class RouterComparison:
    """One router of the quantized model against that of the float one, over all batches.

    tokens, top: how many it saw, and experts of each
    choices: share of these choices that the float router makes, too, in whatever order
    whole: share of the tokens that go to the same experts
    """

    name: str
    tokens: int
    top: int
    choices: float
    whole: float


class RouterPair:
    """A router in both models, and how often they agreed."""

    def __init__(self, name: str, like: nn.Module, other: nn.Module):
        self.name, self.like, self.other = name, like, other
        self._float_choices: list[Tensor] = []  # what the float one chose in one batch
        self._tokens = self._top = self._same = self._whole = 0

    def hold(self, module: nn.Module, args: Any, output: Any) -> None:
        """A hook of the float router."""
        del module, args
        self._float_choices += _choices(output)

    def meet(self, module: nn.Module, args: Any, output: Any) -> None:
        """A hook of the quantized model's router."""
        del module, args
        for own in _choices(output):
            floats = self._float_choices.pop(0).to(own.device) if self._float_choices else None
            if floats is None or floats.shape != own.shape:
                continue
            same = (own.unsqueeze(-1) == floats.unsqueeze(-2)).any(-1)
            self._top = own.shape[-1]
            self._tokens += own.numel() // self._top
            self._same += int(same.sum())
            self._whole += int(same.all(-1).sum())

    def forget(self) -> None:
        """What has found no counterpart in this batch."""
        self._float_choices.clear()

    def result(self) -> RouterComparison | None:
        """All that was counted; None where it chose nothing that is seen."""
        if not self._tokens:
            return None
        choices = self._same / (self._tokens * self._top)
        return RouterComparison(
            self.name, self._tokens, self._top, choices, self._whole / self._tokens
        )


def _choices(output: Any) -> list[Tensor]:
    """The experts that a router's result names: its last integers."""
    results = [
        each
        for each in pytree.tree_leaves(output)
        if isinstance(each, Tensor) and each.ndim > 1 and _integer(each)
    ]
    return [results[-1].detach().clone()] if results else []


def _integer(x: Tensor) -> bool:
    return not (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype.itemsize < 4)


def routers(model_float: nn.Module, model_quantized: nn.Module) -> list[RouterPair]:
    """The routers that both models have under one name."""
    others = dict(model_quantized.named_modules())
    return [
        RouterPair(name, module, others[name])
        for name, module in model_float.named_modules()
        if name in others and _is_router(name, module)
    ]


def _is_router(name: str, module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return False
    return bool(kept_layer_by_default(f"{name}.weight", tuple(weight.shape)))


@contextmanager
def watch_routers(pairs: Sequence[RouterPair], *, quantized: bool) -> Iterator[None]:
    """As long as this lasts, the routers of one of the models are listened to."""
    with ExitStack() as stack:
        for pair in pairs:
            module, hook = (pair.other, pair.meet) if quantized else (pair.like, pair.hold)
            stack.callback(module.register_forward_hook(hook).remove)
        yield
        for pair in pairs if quantized else ():
            pair.forget()


def router_lines(comparisons: Sequence[RouterComparison]) -> list[str]:
    """A line on all routers, and which one agrees least."""
    if not comparisons:
        return []
    choices = sum(each.tokens * each.top for each in comparisons)
    same = sum(each.choices * each.tokens * each.top for each in comparisons) / choices
    least = min(comparisons, key=lambda each: each.choices)
    return [
        f"routers: {100 * same:.2f} % of the experts that {len(comparisons)} routers choose are "
        f"those of the float model; least {least.name}, {100 * least.choices:.2f} %"
    ]
