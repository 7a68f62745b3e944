# SPDX-License-Identifier: BSD-3-Clause
"""Experts that saw few tokens: their statistics are filled up with those of all experts together.

Of n tokens where m are asked for, an expert's matrix is H = (n H_e + (m - n) H_all) / m: H_e of its
own tokens, H_all of the tokens of all experts of its layer, each by its number. Nothing is chosen
from no data, and an expert with m tokens or more has its own statistics alone.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.input_stats import unheard
from blockscale.calibration.observer import Observer
from blockscale.calibration.weighing import GramCollector
from blockscale.core.pack import stored_shape
from blockscale.layers.plan import Plan

# a list of experts, the number of one, and which of its layers it is
_LISTED = re.compile(r"(.*experts?[^.]*)\.(\d+)\.(.+)", re.IGNORECASE)


def place_of(plan: Plan) -> tuple[str, int] | None:
    """The set of experts that a layer belongs to, and the number of its expert; None for others.

    A set is a stack, a part of all its matrices, or the same layer of all experts of a list.
    """
    of_stack = getattr(plan.module, "of_stack", None)
    if of_stack is not None:
        matrices, number = of_stack
        part = plan.name.rpartition("[")[2] if len(matrices.keys[number]) > 1 else ""
        return f"{matrices.name}[{part}", number
    match = _LISTED.fullmatch(plan.name)
    return None if match is None else (f"{match[1]}.*.{match[3]}", int(match[2]))


def sets_of(plans: Sequence[Plan]) -> dict[str, dict[int, Plan]]:
    """{set of experts: {number: the layer}}."""
    sets: dict[str, dict[int, Plan]] = {}
    for plan in plans:
        place = place_of(plan)
        if place is not None:
            sets.setdefault(place[0], {})[place[1]] = plan
    return sets


class Mixing:
    """Statistics of experts, those of few tokens mixed with all experts'.

    minimum: tokens that an expert's own statistics need; 0 mixes nothing
    every: whether all experts see all tokens (`all_tokens`)
    own: {layer that was filled up: how many tokens of its own it saw}
    sets: {layer: the set of experts whose statistics may fill it up}
    """

    def __init__(self, plans: Sequence[Plan] = (), minimum: int = 0, *, every: bool = False):
        self.minimum, self.every = minimum, every
        self.own: dict[str, int] = {}
        self._sets = sets_of(plans) if minimum > 0 else {}
        self.sets = {p.name: name for name, some in self._sets.items() for p in some.values()}
        self._others: dict[str, GramCollector] = {}

    def others(self, plans: Sequence[Plan]) -> Iterator[tuple[Plan, GramCollector]]:
        """The experts beside these, which are looked at too, and what gathers for all of a set."""
        names = {plan.name for plan in plans}
        self._others = {}
        for name in dict.fromkeys(self.sets[n] for n in names if n in self.sets):
            for plan in self._sets[name].values():
                if plan.name not in names:
                    k = stored_shape(plan.parameter.shape, plan.layout)[-1]
                    into = GramCollector(k, plan.parameter.device)
                    yield plan, self._others.setdefault(name, into)

    def mixed(self, collectors: Mapping[str, GramCollector]) -> dict[str, Tensor]:
        """X^T X / rows [k, k] float64 of each layer that saw rows, or is filled up with others'."""
        wholes: dict[str, GramCollector] = {}
        grams: dict[str, Tensor] = {}
        for name, own in collectors.items():
            part_of = self.sets.get(name)
            if part_of is not None and own.rows < self.minimum:
                if part_of not in wholes:
                    wholes[part_of] = self._whole(part_of, collectors)
                if wholes[part_of].rows:
                    grams[name] = self._fill(own, wholes[part_of])
                    self.own[name] = own.rows
            elif own.rows:
                grams[name] = own.result()
        return grams

    def _whole(self, name: str, collectors: Mapping[str, GramCollector]) -> GramCollector:
        """The sums of all experts of a set, in an order that does not depend on their numbers."""
        some = [collectors[p.name] for p in self._sets[name].values() if p.name in collectors]
        some += [self._others[name]] if name in self._others else []
        some.sort(key=lambda each: (each.rows, *_fingerprint(each.sum)))
        whole = GramCollector(len(some[0].sum), some[0].sum.device)
        for each in some:
            whole.sum += each.sum
            whole.rows += each.rows
        return whole

    def _fill(self, own: GramCollector, whole: GramCollector) -> Tensor:
        more = (self.minimum - own.rows) / whole.rows
        return (own.sum + more * whole.sum) / self.minimum

    def drifts(self, drifts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of inputs from those of the float model: the tokens that fill up have none."""
        shares = {name: self.own[name] / self.minimum for name in drifts if name in self.own}
        return {name: drift * shares.get(name, 1.0) for name, drift in drifts.items()}

    def observer(
        self, plan: Plan, part: str, observers: Sequence[tuple[Plan, str, Observer]]
    ) -> Observer:
        """Who has seen enough for a scale: the observer of this layer, or all of its set in one."""
        alike = [o for p, its, o in observers if p is plan and its == part]
        name, features = self.sets.get(plan.name), plan.features(part)
        if name is None or int(alike[0].samples) >= self.minimum * features:
            return alike[0]
        others = [
            o for p, its, o in observers
            if self.sets.get(p.name) == name and its == part and int(o.samples)
        ]  # fmt: skip
        if not others or (len(others) == 1 and others[0] is alike[0]):
            return alike[0]
        whole = copy.deepcopy(others[0])
        for each in others[1:]:
            whole.merge_(each)
        self.own[plan.name] = int(alike[0].samples) // features
        return whole


def _fingerprint(matrix: Tensor) -> tuple[float, ...]:
    """Numbers that tell one expert's sums from another's."""
    ends = torch.stack([matrix.diagonal().sum(), matrix[0].sum(), matrix[:, -1].sum()])
    return tuple(ends.tolist())


# Which tokens of an expert are the same in the float model and in the quantized one.

_PIECE = 1024  # rows whose distances from all others are held at one time


def match_rows(x: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Rows x [a, k] and `expected` [b, k] of two models -> those of the same tokens, side by side.

    Routers of two models send a few tokens elsewhere, so that calls of one expert differ in rows.
    Two rows are of one token if each is the other's nearest, and nearer than the second is to 0;
    they come in the order of x. Rows with NaN match none.
    """
    a, b = x.reshape(-1, x.shape[-1]), expected.reshape(-1, expected.shape[-1])
    if not len(a) or not len(b):
        return a[:0], b[:0]
    wide = b.double()
    nearest = torch.empty(len(a), dtype=torch.int64, device=a.device)
    best = torch.full((len(b),), torch.inf, dtype=torch.float64, device=a.device)
    back = torch.full((len(b),), -1, dtype=torch.int64, device=a.device)
    apart = torch.empty(len(a), dtype=torch.float64, device=a.device)
    for first in range(0, len(a), _PIECE):
        piece = a[first : first + _PIECE].double()
        far = torch.cdist(piece, wide).nan_to_num(nan=torch.inf)
        apart[first : first + _PIECE], nearest[first : first + _PIECE] = far.min(1)
        least, who = far.min(0)
        closer = least < best
        best, back = torch.where(closer, least, best), torch.where(closer, who + first, back)
    each = torch.arange(len(a), device=a.device)
    same = (back[nearest] == each) & (apart < wide.norm(dim=1)[nearest])
    return a[same], b[nearest[same]]


# All tokens to all experts while a model is calibrated: `experts="all"` of bs.calibrate.
#
# After each call of a mixture, its experts are called once more, each with every token of the call;
# what they give then is not used. Statistics see that second call alone, so that every expert
# learns from as many tokens, and what the router chose does not matter.

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
def all_tokens(model: nn.Module, plans: Sequence[Plan], algorithm: object) -> Iterator[None]:
    """As long as this lasts, the layers of experts among these see every token of their mixture.

    Raises ValueError for an algorithm that learns from a block's own calls, and, in a call of the
    model, for experts that cannot be called so.
    """
    if plans:
        check_statistics(algorithm)
    with ExitStack() as stack:
        for module, (layers, call) in _mixtures(model, plans).items():
            _listen(stack, module, layers, call)
        yield


Call = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]


def _mixtures(
    model: nn.Module, plans: Sequence[Plan]
) -> dict[nn.Module, tuple[list[nn.Module], Call]]:
    """{a module whose calls are looked at: its experts' layers, and how all are called}."""
    mixtures: dict[nn.Module, tuple[list[nn.Module], Call]] = {}
    lists: dict[str, dict[int, None]] = {}
    for plan in plans:
        of_stack = getattr(plan.module, "of_stack", None)
        if of_stack is not None:
            matrices, _ = of_stack
            name = matrices.name.rpartition(".")[0]
            call = _calling_stack(name, len(matrices.keys))
            mixtures.setdefault(matrices.home, ([], call))[0].append(plan.module)
        elif match := _LISTED.fullmatch(plan.name):
            lists.setdefault(match[1], {})[int(match[2])] = None
            owner = model.get_submodule(match[1].rpartition(".")[0])
            call = _calling_list(model, match[1], lists[match[1]])
            mixtures.setdefault(owner, ([], call))[0].append(plan.module)
    return mixtures


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
        inputs = [*args, *kwargs.values()]
        at = [i for i, each in enumerate(inputs) if _numbers(each)]
        if len(at) != 1:
            raise ValueError(_cannot(name, "it is not told which experts each row goes to"))
        index = inputs[at[0]]
        weights = [
            i for i, each in enumerate(inputs)
            if isinstance(each, Tensor) and each.shape == index.shape and each.is_floating_point()
        ]  # fmt: skip
        if len(weights) != 1:
            raise ValueError(_cannot(name, "the weights of its rows' experts are not among them"))
        every = torch.arange(count, device=index.device, dtype=index.dtype)
        inputs[at[0]] = every.expand(len(index), count).contiguous()
        inputs[weights[0]] = torch.ones_like(inputs[weights[0]][:1, :1]).repeat(len(index), count)
        by_name = dict(zip(kwargs, inputs[len(args) :], strict=True))
        module.forward(*inputs[: len(args)], **by_name)

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
                why = f"expert {number} does not take its mixture's rows ({error})"
                raise ValueError(_cannot(name, why)) from error

    return call


def _cannot(name: str, why: str) -> str:
    return f"experts='all': the experts {name} cannot be sent all tokens: {why}: {_INSTEAD}"
