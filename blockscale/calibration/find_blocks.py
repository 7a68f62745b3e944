# SPDX-License-Identifier: BSD-3-Clause
"""A model's repeated blocks, found by themselves or by a pattern."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn

from blockscale.calibration.ranks import AgreedError
from blockscale.layers.plan import Plan

# Blocks that do not run while their model does: somebody else says what they give.

# (the block's number, its arguments, its keyword arguments) -> what it gives
Enter = Callable[[int, tuple[Any, ...], dict[str, Any]], Any]


class Stop(BaseException):
    """The model has run far enough. No Exception, so that a model's own code does not catch it."""


class NotWalkableError(AgreedError):
    """Why a chain of blocks cannot be run one block at a time. chain: its name."""

    def __init__(self, chain: str, reason: str):
        super().__init__(reason)
        self.chain = chain

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.chain, str(self))


@contextmanager
def stubs(blocks: Mapping[nn.Module, int], enter: Enter) -> Iterator[None]:
    """Every call of a block is `enter(number, args, kwargs)`, as long as this lasts.

    A block gets a class that derives from its own, so that attributes and isinstance are as they
    were; its hooks are those of the real calls and do not run.
    """
    old = {module: type(module) for module in blocks}
    try:
        for module, number in blocks.items():
            object.__setattr__(module, "__class__", _stub(type(module), number, enter))
        yield
    finally:
        for module, kind in old.items():
            object.__setattr__(module, "__class__", kind)


def _stub(kind: type[nn.Module], number: int, enter: Enter) -> type[nn.Module]:
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        del self
        return enter(number, args, kwargs)

    names = {"__call__": __call__, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), names)


class LayerBlock(NamedTuple):
    """One block: its dotted name, the list that it stands in, and the layers to be quantized."""

    name: str
    chain: str
    module: nn.Module
    plans: tuple[Plan, ...]


def find_blocks(
    model: nn.Module, plans: Sequence[Plan], pattern: str | None = None
) -> list[LayerBlock]:
    """The blocks of a model in its order, none if there are none.

    They are the children of an nn.ModuleList or nn.Sequential, two or more, all of one class and
    each with layers inside that are to be quantized. Of nested lists the outermost counts.
    pattern: of blocks' names, such as "model.layers.*"; a `*` stands for one step of a name.

    A layer that several blocks have is the first one's. Raises ValueError for a pattern that
    matches nothing, or blocks inside of each other.
    """
    names = {plan.name: plan for plan in plans}
    result = _matching(model, pattern) if pattern is not None else _repetitions(model, names)
    blocks, values = [], set()
    for chain, name in result:
        inside = [p for p in plans if p.name not in values and any(_in(n, name) for n in p.names)]
        values |= {plan.name for plan in inside}
        blocks.append(LayerBlock(name, chain, model.get_submodule(name), tuple(inside)))
    return blocks


def _in(name: str, block: str) -> bool:
    return name.startswith(f"{block}.")


def _matching(model: nn.Module, pattern: str) -> list[tuple[str, str]]:
    steps = pattern.split(".")
    results = []
    for name, _ in model.named_modules():
        own = name.split(".")
        if len(own) == len(steps) and all(map(fnmatchcase, own, steps)):
            results.append((name.rpartition(".")[0], name))
    if not results:
        raise ValueError(
            f"blocks={pattern!r} matches no module: write a pattern of full module names, "
            "such as 'model.layers.*'"
        )
    return results


def _repetitions(model: nn.Module, names: dict[str, Plan]) -> list[tuple[str, str]]:
    results: list[tuple[str, str]] = []
    for chain, module in model.named_modules():
        if any(_in(chain, block) or chain == block for _, block in results):
            continue
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2:
            continue
        if "expert" in chain.rpartition(".")[2].lower():
            continue  # they stand side by side: what one gives is no input of the next
        blocks = [f"{chain}.{key}" if chain else key for key, _ in module.named_children()]
        if len(blocks) != len(module) or len({type(each) for each in module}) > 1:
            continue  # a block that stands there twice, or blocks of several kinds
        if all(b not in names and any(_in(name, b) for name in names) for b in blocks):
            results += [(chain, block) for block in blocks]
    return results


def blocks_of(
    model: nn.Module, plans: Sequence[Plan], target: bool | str, *, by_block: bool
) -> list[LayerBlock]:
    """The blocks to be walked. For an algorithm that chooses for blocks (by_block), a model in
    which there are none is one block itself.

    Raises ValueError for a pattern that matches nothing.
    """
    blocks: list[LayerBlock] = []
    if target is not False:
        blocks = find_blocks(model, plans, None if target is True else target)
    if by_block and not blocks:
        blocks = [LayerBlock("", "", model, tuple(plans))]
    return blocks
