# SPDX-License-Identifier: BSD-3-Clause
"""convert: a prepared graph becomes one that quantizes, with packed codes for its weights."""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from blockscale.calibration.calibrate import with_notes
from blockscale.calibration.choose import choose_weights_from
from blockscale.calibration.session import Session
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.untrusted import kind_of
from blockscale.graph import passes
from blockscale.graph.edges import Edge
from blockscale.graph.expand import expand
from blockscale.graph.nodes import source_line
from blockscale.graph.pickled import set_state, state
from blockscale.graph.preparation import Prepared, edges_of, preparation, replace_ops
from blockscale.graph.program import import_graph, same, traced, written_out
from blockscale.layers.apply import apply
from blockscale.layers.layer import QLayer
from blockscale.qat.conversion import convert as convert_trained
from blockscale.qat.layers import QATLayer
from blockscale.qat.prepare import ledger as trained_ledger

if TYPE_CHECKING:
    from collections.abc import Sequence


def convert(prepared: Prepared) -> fx.GraphModule:
    """A prepared graph that has seen data -> a graph of quantize, dequantize and float ops.

    Weights are packed codes with their scales, in buffers that are named as in our files
    (`encoder.fc.weight.codes`); static scales are buffers, too (`encoder.fc.input.scale`). Under
    `bs.use("reference")` it gives the bits of the module flow (`bs.calibrate`, `bs.convert`).
    The prepared graph stays as it is. `bs.graph.ledger` says what became of everything.

    Raises TypeError for what `prepare` did not give; ValueError that names every static scale for
    which nothing was seen.
    """
    if not isinstance(prepared, Prepared):
        raise TypeError(f"expected the result of bs.graph.prepare, found {kind_of(prepared)}")
    model, ledger = _trained(prepared) if preparation(prepared).qat else _calibrated(prepared)
    with _SettledEdges(model), torch.no_grad():
        result = written_out(model) or import_graph(traced(model))
    stage = state(prepared)
    edges = _edge_entries(prepared, stage.ledger)
    info = Ledger([*ledger.entries, *edges], stage.ledger.unmatched, notes=ledger.notes)
    set_state(result, replace(stage, stage="converted", ledger=info))
    passes.apply(result, (passes.clean,))
    expand(result)
    result.eval()
    # prepare has named what is skipped and what matches nothing
    Ledger([entry for entry in info.quantized if entry.notes], notes=info.notes).warn()
    return result


def _calibrated(prepared: Prepared) -> tuple[fx.GraphModule, Ledger]:
    """The graph with quantized layers, from what was learned."""
    own = preparation(prepared)
    session = own.session or _from_watching(prepared)
    _refuse_unseen(prepared, session)
    model = _same_layers(prepared)
    recipe = replace_ops(state(prepared).recipe)  # type: ignore[arg-type]
    strict = own.strict
    ledger = apply(model, own.plans, recipe, session.places, strict=strict, parameters=False)
    for module in model.modules():
        if isinstance(module, QLayer):
            _without_hooks(module)
    return model, with_notes(ledger, session)


def _from_watching(prepared: Prepared) -> Session:
    """The session of the batches that were run through the graph; it goes on watching."""
    own = preparation(prepared)
    watching = own.watching
    assert watching is not None
    if own.methods.transform is not None:
        raise ValueError(
            f"the transform {own.methods.transform.name!r} needs more than one pass over the "
            "batches: call bs.calibrate(prepared, batches) before bs.graph.convert"
        )
    session = Session(prepared, own.plans, None, strict=own.strict)
    session.use_observers(watching.observers)
    stats = session.results_of(watching.collectors)
    grams = {name: each.gram for name, each in stats.items() if each.gram is not None}
    choose_weights_from(session, own.methods.algorithm, grams)
    return session


def _refuse_unseen(prepared: Prepared, session: Session) -> None:
    """Raise ValueError that names every static scale for which no data was seen."""
    lines = []
    for plan in session.layers:
        for part in ("input", "output"):
            fmt = getattr(plan.scheme, part)
            takes = part == "output" or plan.kind.takes_input
            static = fmt is not None and takes and fmt.block.static
            if static and getattr(session.places[plan.name], part) is None:
                lines.append(f"the {part} of {plan.name} in {fmt}{_line_of(prepared, plan.name)}")
    lines += [f"{edge.where} in {edge.format}" for edge in edges_of(prepared) if not edge.ready]
    if lines:
        raise ValueError(
            "static scales have seen no data:"
            + "".join(f"\n  {line}" for line in lines)
            + "\nRun batches through the prepared graph that reach them, or "
            "bs.calibrate(prepared, batches), or use a format with dynamic scales "
            "(token, group)."
        )


def _line_of(graph: fx.GraphModule, layer: str) -> str:
    for node in graph.graph.nodes:
        if node.op == "call_module" and node.target == layer and source_line(node):
            return f" ({source_line(node)})"
    return ""


def _same_layers(prepared: Prepared) -> fx.GraphModule:
    """A graph over the same layers, which can be given others."""
    model = same(prepared)
    set_state(model, state(prepared))
    return model.eval()


def _without_hooks(module: nn.Module) -> None:
    """Hooks of its own, and so none: those of the float layer look at batches."""
    fresh = nn.Module()
    for name in vars(fresh):
        if name.endswith("_hooks") or "_hooks_" in name:
            object.__setattr__(module, name, getattr(fresh, name))


def _trained(prepared: Prepared) -> tuple[fx.GraphModule, Ledger]:
    """The trained graph with quantized layers."""
    unready = [edge for edge in edges_of(prepared) if not edge.ready]
    if unready:
        raise ValueError(
            "static scales have seen no data: "
            + "; ".join(f"{edge.where} in {edge.format}" for edge in unready)
            + ": run batches in training mode"
        )
    model = _same_layers(prepared)
    memo: dict[int, Any] = {}  # a convolution and the batch norm folded into it stay together
    for node in model.graph.find_nodes(op="call_module"):
        name = str(node.target)
        model.set_submodule(name, copy.deepcopy(model.get_submodule(name), memo))
    model._qat_ledger = trained_ledger(prepared)  # type: ignore[assignment]
    if any(isinstance(module, QATLayer) for module in model.modules()):  # not ops alone
        convert_trained(model)
    return model, trained_ledger(model)


class _SettledEdges:
    """Edges quantize inside, and are as they were afterwards."""

    def __init__(self, model: fx.GraphModule):
        self.edges = edges_of(model)

    def __enter__(self) -> None:
        self.before = [(edge.is_settled, edge.quantizing) for edge in self.edges]
        for edge in self.edges:
            edge.settle()
            edge.quantizing = True

    def __exit__(self, *error: object) -> None:
        for edge, (settled, quantizing) in zip(self.edges, self.before, strict=True):
            edge.is_settled, edge.quantizing = settled, quantizing


def _edge_entries(prepared: Prepared, ledger: Ledger) -> list[Entry]:
    """The entries of ops that rules covered, with what their edges saw."""
    notes: dict[str, Sequence[str]] = {}
    for name, module in prepared.named_modules():
        if isinstance(module, Edge) and module.notes():
            owner = name.rpartition(".")[0]
            notes[owner] = (*notes.get(owner, ()), *module.notes())
    return [
        replace(entry, notes=(*entry.notes, *notes.get(entry.name, ())))
        for entry in ledger
        if entry.kind.startswith("op ")
    ]
