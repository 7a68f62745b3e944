# SPDX-License-Identifier: BSD-3-Clause
"""What each operation between quantized layers is on integers: one rule a file, found by itself.

A file defines

    rule(builder, node, module)  adds the steps that do on integers what `node` does, and returns
                                 their value. `module` is what the node calls, or None for a
                                 function or method. Raises NotIntegerError, which names the node.
    APPLIES_TO                   classes of modules, functions, and names of methods
    AS_MODULE                    {function or name of a method: the module that does the same, made
                                 of the call's further arguments}; not needed where there is none
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import fx, nn

from blockscale.core.discover import import_all
from blockscale.graph.integer.builder import Builder, Value

Rule = Callable[[Builder, fx.Node, Any], Value]


@cache
def rules() -> dict[Any, Rule]:
    """{class of modules, function or name of a method: its rule}."""
    return {what: file.rule for file in import_all(__name__, __path__) for what in file.APPLIES_TO}


@cache
def _modules_for_calls() -> dict[Any, Callable[..., nn.Module]]:
    """{function or name of a method: what makes the module that does the same}."""
    calls: dict[Any, Callable[..., nn.Module]] = {}
    for file in import_all(__name__, __path__):
        calls |= getattr(file, "AS_MODULE", {})
    return calls


def as_module(node: fx.Node) -> nn.Module | None:
    """The module that does what a call of a function or method does, None if there is none."""
    make = _modules_for_calls().get(node.target)
    if make is None:
        return None
    settings = {name: value for name, value in node.kwargs.items() if name != "input"}
    return make(*node.args[1:], **settings)


def rule_for(what: Any) -> Rule | None:
    """The rule of a class of modules, a function or a name of a method, None if there is none."""
    return rules().get(what)
