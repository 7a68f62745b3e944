# SPDX-License-Identifier: BSD-3-Clause
"""Programs that others quantized, on their way into any step of ours: adopted before all else.

Every step that takes a program from elsewhere begins here, so that weights are codes whatever comes
next: fusing, lowering, a file.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from blockscale.core.ledger import Ledger
from blockscale.graph import passes
from blockscale.graph.adoption import adopt
from blockscale.graph.adoption.observed import is_foreign
from blockscale.graph.constants import is_constant
from blockscale.graph.ledgers import of_nodes
from blockscale.graph.nodes import calls, ours
from blockscale.graph.pickled import State, set_state, state
from blockscale.graph.program import Program, import_graph


def as_ours(
    program: Program, *, first: Sequence[passes.Pass] = (), warn: bool = False
) -> fx.GraphModule:
    """`import_graph`, and what quantizes is ours: a program from elsewhere is adopted.

    first: passes that a program from elsewhere goes through before
    warn: say in one warning which nodes no format has the bits of; the ledger says it in any case
    Raises TypeError for what is no program, ValueError for graphs of layers, not of ops.
    """
    graph = import_graph(program)
    stage = state(graph)
    if stage.stage != "imported":
        return graph
    _refuse_layers(graph)
    if first or quantized_elsewhere(graph):
        passes.apply(graph, first or (passes.clean,))
        adopt(graph)
    results = [entry for entry in stage.ledger if entry.kind == "node"]
    ledger = Ledger([*of_nodes(graph).entries, *results])
    set_state(graph, replace(stage, stage="converted", ledger=ledger))
    if warn and results:
        lines = "".join(f"\n  {entry.name}: {entry.reason}" for entry in results)
        warnings.warn(
            "blockscale: these quantized nodes have no equal format here; weights that they "
            f"dequantize become floats in the result:{lines}",
            stacklevel=4,
        )
    return graph


def quantized_elsewhere(graph: fx.GraphModule) -> bool:
    """Whether there is something to adopt: nodes of others, or constants that nodes quantize."""
    return any(is_foreign(node) or _of_constant(node) for node in graph.graph.nodes)


def is_graph_of_ops(module: object) -> bool:
    """Whether it is a graph of torch's ops, as torch.export and convert_pt2e give it, or one of
    ours; not one that calls layers, as torch.fx traces it."""
    if not isinstance(module, fx.GraphModule):
        return False
    inputs = module.graph.find_nodes(op="placeholder")
    is_graph = isinstance(module.meta.get("blockscale"), State) or all(
        "val" in n.meta for n in inputs
    )
    return is_graph and not any(map(_is_layer, module.graph.nodes))


def _is_layer(node: fx.Node) -> bool:
    checks = str(node.target) == "_guards_fn"
    return node.op == "call_method" or (node.op == "call_module" and not checks)


def _of_constant(node: fx.Node) -> bool:
    quantizes = calls(node, ours.quantize, ours.choose_quantize)
    return quantizes and all(is_constant(each) for each in node.all_input_nodes)


def _refuse_layers(graph: fx.GraphModule) -> None:
    """Raise ValueError for a graph that calls layers or methods, which no step looks into."""
    odd = next(filter(_is_layer, graph.graph.nodes), None)
    if odd is not None:
        raise ValueError(
            f"expected a graph of torch's own ops, found {odd.format_node()}: for the result "
            "of torch.ao's prepare_fx, prepare_qat_fx or convert_to_reference_fx use "
            "bs.graph.from_quantize_fx(model, example); export other models with "
            "torch.export.export(model.eval(), example)"
        )
