# SPDX-License-Identifier: BSD-3-Clause
"""All tokens to all experts while a model is calibrated: `experts="all"` of bs.calibrate.

After each call of a mixture, its experts are called once more, each with every token of the call;
what they give then is not used. Statistics see that second call alone, so that every expert learns
from as many tokens, and what the router chose does not matter.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.input_stats import unheard
from blockscale.calibration.mixing import LISTED
from blockscale.layers.plan import Plan

ALL = "all"
TOLD = "all tokens were sent to all experts while they were calibrated"

_INSTEAD = "leave experts='all' out; those of few tokens are filled up then (experts=128)"


def check_statistics(algorithm: object) -> None:
    """Raise ValueError for an algorithm that learns from a block's own calls."""
    if callable(getattr(algorithm, "quantize_block", None)):
        raise ValueError(
            f"experts='all': {getattr(algorithm, 'name', algorithm)} learns from what blocks give, "
            f"to which an expert's other tokens add nothing: {_INSTEAD}"
        )


@contextmanager
def all_tokens(model: nn.Module, plans: Sequence[Plan]) -> Iterator[None]:
    """As long as this lasts, the layers of experts among these see every token of their mixture.

    Raises ValueError, in a call of the model, for experts that cannot be called so.
    """
    with ExitStack() as stack:
        for module, (layers, call) in _mixtures(model, plans).items():
            _listen(stack, module, layers, call)
        yield


Call = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]


def _mixtures(
    model: nn.Module, plans: Sequence[Plan]
) -> dict[nn.Module, tuple[list[nn.Module], Call]]:
    """{a module whose calls are looked at: its experts' layers, and how all are called}."""
    found: dict[nn.Module, tuple[list[nn.Module], Call]] = {}
    lists: dict[str, dict[int, None]] = {}
    for plan in plans:
        of_stack = getattr(plan.module, "of_stack", None)
        if of_stack is not None:
            matrices, _ = of_stack
            name = matrices.name.rpartition(".")[0]
            call = _calling_stack(name, len(matrices.keys))
            found.setdefault(matrices.home, ([], call))[0].append(plan.module)
        elif listed := LISTED.fullmatch(plan.name):
            lists.setdefault(listed[1], {})[int(listed[2])] = None
            owner = model.get_submodule(listed[1].rpartition(".")[0])
            call = _calling_list(model, listed[1], lists[listed[1]])
            found.setdefault(owner, ([], call))[0].append(plan.module)
    return found


def _listen(stack: ExitStack, module: nn.Module, layers: list[nn.Module], call: Call) -> None:
    quiet: list[Any] = []

    def before(*_: Any) -> None:
        end()  # of a call that raised something
        muting = unheard(layers)
        muting.__enter__()
        quiet.append(muting)

    def after(own: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any) -> None:
        del y
        quiet.pop().__exit__(None, None, None)
        call(own, args, kwargs)

    def end() -> None:
        while quiet:
            quiet.pop().__exit__(None, None, None)

    stack.callback(end)
    stack.callback(module.register_forward_pre_hook(before).remove)
    stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)


def _calling_stack(name: str, count: int) -> Call:
    """A module of stacks that is told of each row which experts it goes to, and by what weights."""

    def call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [*args, *kwargs.values()]
        chosen = [i for i, each in enumerate(given) if _numbers(each)]
        if len(chosen) != 1:
            raise ValueError(_cannot(name, "it is not told which experts each row goes to"))
        index = given[chosen[0]]
        weights = [
            i for i, each in enumerate(given)
            if isinstance(each, Tensor) and each.shape == index.shape and each.is_floating_point()
        ]  # fmt: skip
        if len(weights) != 1:
            raise ValueError(_cannot(name, "the weights of its rows' experts are not among them"))
        every = torch.arange(count, device=index.device, dtype=index.dtype)
        given[chosen[0]] = every.expand(len(index), count).contiguous()
        given[weights[0]] = torch.ones_like(given[weights[0]][:1, :1]).repeat(len(index), count)
        known = dict(zip(kwargs, given[len(args) :], strict=True))
        module.forward(*given[: len(args)], **known)

    return call


def _numbers(x: Any) -> bool:
    """Whether it says of each row [rows, top] which experts it goes to."""
    return isinstance(x, Tensor) and x.ndim == 2 and x.dtype in (torch.int32, torch.int64)


def _calling_list(model: nn.Module, name: str, numbers: dict[int, None]) -> Call:
    """A module with a list of experts, which are called with rows of what it is given."""

    def call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del module
        x = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise ValueError(_cannot(name, "what their mixture is given first are no features"))
        rows = x.reshape(-1, x.shape[-1])
        for number in numbers:
            try:
                model.get_submodule(f"{name}.{number}")(rows)
            except (TypeError, RuntimeError, ValueError) as error:
                told = f"expert {number} does not take its mixture's rows ({error})"
                raise ValueError(_cannot(name, told)) from error

    return call


def _cannot(name: str, why: str) -> str:
    return f"experts='all': the experts {name} cannot be sent all tokens: {why}: {_INSTEAD}"
