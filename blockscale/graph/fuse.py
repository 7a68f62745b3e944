"""fuse: ops that dequantize, compute and quantize become one op each."""

from torch import fx

from blockscale.graph import passes
from blockscale.graph.adopt.program import adopted
from blockscale.graph.expand import expand
from blockscale.graph.program import Program
from blockscale.graph.state import state


def fuse(converted: Program) -> fx.GraphModule:
    """A converted graph -> one of fused ops, with the same bits under `bs.use("reference")`.

    converted: what `bs.graph.convert` gave; or a program of torch.export, or another graph module,
        of a model that was quantized or trained before (bs.quantize_, bs.calibrate, bs.convert,
        torchao's convert_pt2e). It stays as it is.

    Raises TypeError for what is no graph, ValueError for a prepared graph.
    """
    graph = adopted(converted, first=passes.FLOAT)
    if state(graph).stage == "prepared":
        raise ValueError("a prepared graph is not fused: bs.graph.convert it first")
    expand(graph)
    changes = passes.apply(graph, passes.FUSE)
    told = state(graph)
    told.stage = "fused"
    told.changes = {**told.changes, **{name: n for name, n in changes.items() if n}}
    return graph
