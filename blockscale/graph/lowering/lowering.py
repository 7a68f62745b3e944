# SPDX-License-Identifier: BSD-3-Clause
"""Lowering: choose how each op of a graph runs on one target, and note it in the ledger."""

import warnings
from dataclasses import replace
from types import ModuleType

from torch import fx

from blockscale.core import import_all
from blockscale.core.ledger import SkippedError
from blockscale.graph.adoption.program import as_ours
from blockscale.graph.lowering import target as _targets
from blockscale.graph.lowering.way import Way, set_ways
from blockscale.graph.passes import tidy
from blockscale.graph.pickled import note, state
from blockscale.graph.program import Program


def lower(
    graph: Program, target: str, *, strict: bool = False, measure: bool = False
) -> fx.GraphModule:
    """A graph that runs on `target`; `graph` stays as it was.

    graph: what bs.graph.convert or bs.graph.fuse gave, or a program of a model that was quantized
        before, by others too, which is adopted; layers run fastest where fuse has been
    target: "reference": every op on the reference, whatever `bs.use` says; "cpu", "cuda": our
        kernels; "x86": linear layers in 8 bits by oneDNN, the rest as "cpu"; "inductor": torch's
        own ops alone, for torch.compile (blockscale.graph.lowering.compiled and package)
    strict: raise if anything stays on the reference
    measure: for "cpu", time the ways of each linear layer now, at the sizes that the graph was
        exported with, instead of looking up what was measured on such a processor

    What runs each op, and why, is in `bs.graph.ledger(lowered)` and `bs.graph.ways`.
    Raises TypeError for what is no graph; ValueError for a graph that is prepared or lowered, and
    for a target that is unknown or does not run here; SkippedError, with `strict`, naming the nodes
    that the target cannot run.
    """
    runner = _module(target)
    lowered = as_ours(graph)
    info = state(lowered)
    if info.stage == "prepared":
        raise ValueError("a prepared graph cannot be lowered: call bs.graph.convert first")
    if info.stage == "lowered":
        raise ValueError(
            f"this graph is already lowered to {info.target}: lower the result of "
            "bs.graph.convert or bs.graph.fuse"
        )
    ways: list[Way] = runner.run(lowered, measure=True) if measure else runner.run(lowered)
    if strict:
        _raise_if_left(target, ways)
    _tell(lowered, target, ways)
    info.stage, info.target = "lowered", target
    set_ways(lowered, ways)
    tidy(lowered)
    return lowered


def _tell(graph: fx.GraphModule, target: str, ways: list[Way]) -> None:
    """Note in the ledger how each layer's ops run; warn once of ops that the target cannot run."""
    by_scope: dict[str, list[str]] = {}
    for each in ways:
        by_scope.setdefault(each.scope, []).append(each.text)
        if each.on_reference and target != "reference":
            text = f"{target}: {each.text}"
            note(graph, each.scope or each.node, each.op, text)
    entries = state(graph).ledger.entries
    for i, entry in enumerate(entries):
        if entry.name in by_scope:
            description = f"on {target}: {'; '.join(dict.fromkeys(by_scope[entry.name]))}"
            details = "; ".join(filter(None, [entry.details, description]))
            entries[i] = replace(entry, details=details)
    lines = [f"\n  {each.summary}: {each.why}" for each in ways if each.on_reference]
    if lines and target != "reference":
        text = (
            f"blockscale: {target} cannot run these, which stay on the reference, slow and exact:"
        )
        warnings.warn(text + "".join(dict.fromkeys(lines)), stacklevel=3)


def targets() -> dict[str, str | None]:
    """{target: the reason why it does not run here, or None if it does}."""
    return {name: module.unavailable() for name, module in _modules().items()}


def _modules() -> dict[str, ModuleType]:
    modules = import_all(_targets.__name__, _targets.__path__)
    return {module.__name__.rpartition(".")[2]: module for module in modules}


def _module(target: str) -> ModuleType:
    """The target's module. Raises ValueError for one that is unknown or does not run here."""
    modules, reasons = _modules(), targets()
    if target in modules and reasons[target] is None:
        return modules[target]
    here = ", ".join(name for name, why in reasons.items() if why is None)
    others = [f"\n  {name} does not run here: {why}" for name, why in reasons.items() if why]
    what = f"{target!r} does not run here" if target in modules else f"no target {target!r}"
    raise ValueError(f"{what}; those that can: {here}" + "".join(others))


def _raise_if_left(target: str, ways: list[Way]) -> None:
    lines = [f"\n  {each.summary}: {each.why}" for each in ways if each.on_reference]
    if lines:
        raise SkippedError(
            f"strict: {target} cannot run everything in this graph; nothing was changed."
            + "".join(lines)
            + "\nUse formats that it can run, another target, or strict=False."
        )
