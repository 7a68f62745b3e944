"""Lowering: how the ops of a graph run on one target, chosen node by node and said in the ledger."""

import copy
from dataclasses import replace
from types import ModuleType

from torch import fx

from blockscale.core.discover import import_all
from blockscale.core.ledger import SkippedError
from blockscale.graph.lower import targets as _targets
from blockscale.graph.lower.way import Way, set_ways
from blockscale.graph.state import note, set_state, state


def lower(
    graph: fx.GraphModule, target: str, *, strict: bool = False, measure: bool = False
) -> fx.GraphModule:
    """A graph that runs on `target`; `graph` stays as it was.

    target: "reference": every op on the reference, whatever `bs.use` says; "cpu", "cuda": our
        kernels; "x86": products in 8 bits by oneDNN, the rest as "cpu"; "inductor": torch's own ops
        alone, for torch.compile and AOTInductor (blockscale.graph.lower.inductor_options)
    strict: raise if anything stays on the reference

    What runs each op, and why, is in `bs.graph.ledger(lowered)` and `bs.graph.lower.ways(lowered)`.
    Raises ValueError for a graph that no step of ours made or that was lowered before, and for an
    unknown target or one that does not run here; SkippedError, with `strict`, naming the nodes that
    the target cannot run.
    """
    made = _module(target)
    before = state(graph)
    if before.stage == "lowered":
        raise ValueError(
            f"this graph is lowered to {before.target} already: lower the graph that "
            f"bs.graph.convert or bs.graph.fuse gave"
        )
    lowered = copy.deepcopy(graph)
    ledger = copy.deepcopy(before.ledger)
    set_state(lowered, replace(before, stage="lowered", target=target, ledger=ledger))
    found: list[Way] = made.run(lowered, **({"measure": True} if measure else {}))
    if strict:
        _raise_if_left(target, found)
    for each in found:
        note(lowered, each.scope or each.node, each.op, f"{target}: {each.text}")
    set_ways(lowered, found)
    lowered.graph.lint()
    lowered.recompile()
    return lowered


def targets() -> dict[str, str | None]:
    """{target: the reason why it does not run here, or None if it does}."""
    return {name: module.unavailable() for name, module in _modules().items()}


def _modules() -> dict[str, ModuleType]:
    found = import_all(_targets.__name__, _targets.__path__)
    return {module.__name__.rpartition(".")[2]: module for module in found}


def _module(target: str) -> ModuleType:
    """The target's module. Raises ValueError for one that is not there or does not run here."""
    modules = _modules()
    reason = modules[target].unavailable() if target in modules else None
    if target in modules and reason is None:
        return modules[target]
    here = [name for name, why in targets().items() if why is None]
    others = [f"\n  {name} does not run here: {why}" for name, why in targets().items() if why]
    found = f"cannot lower to {target!r}: {reason}" if reason else f"no target {target!r}"
    raise ValueError(f"{found}; those that run here: {', '.join(here)}" + "".join(others))


def _raise_if_left(target: str, found: list[Way]) -> None:
    left = [f"\n  {each.told}: {each.why}" for each in found if each.left]
    if left:
        raise SkippedError(
            f"strict: {target} cannot run everything in this graph; nothing was changed."
            + "".join(left)
            + "\nUse formats that it takes, another target, or strict=False."
        )
