# SPDX-License-Identifier: BSD-3-Clause
"""Integer graphs written by hand: op after op, each result an output."""

import torch
from torch import fx

from blockscale.graph.pickled import State
from blockscale.ops.integer import INTEGER_OPS


def handmade(inputs, calls):
    """A graph of integer inputs {name: tensor} and of calls [(op or torch's op, arguments)].

    An argument that is the name of an input is that input, "@n" the result of call n; tensors
    become buffers.
    """
    root, graph = torch.nn.Module(), fx.Graph()
    names = {name: graph.placeholder(name) for name in inputs}
    for node, x in zip(names.values(), inputs.values(), strict=True):
        node.meta["val"] = x

    def argument(each):
        if isinstance(each, list) and any(isinstance(part, str | torch.Tensor) for part in each):
            return [argument(part) for part in each]
        if isinstance(each, torch.Tensor):
            name = f"t{len(root._buffers)}"
            root.register_buffer(name, each)
            return graph.get_attr(name)
        return names.get(each, each) if isinstance(each, str) else each

    made = []
    for op, args in calls:
        target = INTEGER_OPS[f"integer_{op}"].overload if isinstance(op, str) else op
        node = graph.call_function(target, tuple(argument(each) for each in args))
        names[f"@{len(made)}"] = node
        made.append(node)
    graph.output(tuple(made))
    module = fx.GraphModule(root, graph)
    module.meta["blockscale"] = State("lowered", target="integer")
    return module
