# SPDX-License-Identifier: BSD-3-Clause
"""Calls of a graph without what torch puts around them.

The code that torch writes for a graph looks each op up (three attributes), each constant (one for
each dot of its name, and nn.Module answers in Python), folds arguments by tree, and passes every
op through the dispatcher, from whose Python kernels ours are called. One row through two layers of
1024 inputs takes half of its time for that (docs/integers.md). So there is a second function beside
it, of the same code: constants are read from the modules' own dictionaries, at every call; ops are
names; ours are called as `Op.run`. It runs where nothing else is listening (ops.op.alone).
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import Any
from weakref import ref

import torch
from torch import Tensor, fx, nn

from blockscale.core.torch_private import OpOverload, global_hooks
from blockscale.ops.op import RUNS, alone, is_compiling

_FOLDED, _UNFOLDED = "fx_pytree.tree_flatten_spec", "pytree.tree_unflatten"
_VALUES = ("device", "slice", "getattr")  # calls in arguments that only make one


class DirectCalls:
    """constants: the graph -> the constants that its code reads
    body: takes arguments as the graph's `forward`, in the place of `self` the graph and these
    """

    def __init__(
        self, constants: Callable[[nn.Module], tuple[Tensor, ...]], body: Callable[..., Any]
    ) -> None:
        self.constants, self.body = constants, body
        self._last: tuple[Any, ...] = ()

    def takes(self, tensors: tuple[Tensor, ...]) -> bool:
        """Whether our kernels take these constants as they are; those of the last call are known
        to be plain tensors."""
        last = self._last
        if len(last) == len(tensors) and all(map(is_, tensors, [each() for each in last])):
            return not (torch.is_grad_enabled() and any(each.requires_grad for each in tensors))
        if not alone(tensors):
            return False
        self._last = tuple(map(ref, tensors))
        return True


def calling(ordinary: Callable[..., Any], source: str, scope: Mapping[str, Any]) -> Any:
    """What calls a graph: as directly as the call allows, else `ordinary`.

    source, scope: torch's code for it, and the names that it reads
    """
    calls: list[DirectCalls | None] = []

    def call(self: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():  # `ordinary` is torch's, which torch.compile does not look into
            return nn.Module.__call__(self, *args, **kwargs)
        if not calls:
            calls.append(direct(self, source, scope))
        result = calls[0]
        if result is None or _has_hooks(self):
            return ordinary(self, *args, **kwargs)
        constants = result.constants(self)
        if not (alone((*args, *kwargs.values())) and result.takes(constants)):
            return ordinary(self, *args, **kwargs)
        return result.body((self, constants), *args, **kwargs)

    # torch.compile takes a function's code for one program, of which it compiles eight kinds: under
    # one code the ninth graph of a process would run as it is
    call.__code__ = call.__code__.replace()
    return call


def _has_hooks(module: nn.Module) -> bool:
    """Whether anything is to be called beside the module."""
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or global_hooks()
    )


def direct(graph: fx.GraphModule, source: str, scope: Mapping[str, Any]) -> DirectCalls | None:
    """The second function of a graph; None for one that calls modules, or anything but torch's ops
    (which may change how ops are dispatched)."""
    function = _function(source)
    if function is None:
        return None
    writer = _SecondWriter(graph, dict(scope))
    try:
        body = [line for line in map(writer.line, function.body) if line is not None]
    except _OrdinaryError:
        return None
    names = ast.Tuple([ast.Name(name, ast.Store()) for name in writer.constants], ast.Store())
    both = ast.Tuple([ast.Name("self", ast.Store()), names], ast.Store())
    function.body = [ast.Assign([both], ast.Name("self", ast.Load())), *body]
    read = ast.Tuple([*writer.constants.values()], ast.Load())
    reads = ast.parse(f"lambda self: {ast.unparse(read)}", mode="eval")
    module = ast.fix_missing_locations(ast.Module([function], []))
    exec(compile(module, f"<{function.name} of a graph, direct>", "exec"), writer.scope)
    return DirectCalls(eval(compile(reads, "<constants>", "eval"), {}), writer.scope[function.name])


class _OrdinaryError(Exception):
    """The graph holds something that is called as torch calls it."""


def _function(source: str) -> ast.FunctionDef | None:
    """The one function of torch's code for a graph."""
    results = [each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)]
    return results[0] if len(results) == 1 else None


class _SecondWriter(ast.NodeTransformer):
    """Turns lines of torch's code into those of the second function.

    constants: {name: what reads it from the graph}; scope: the names that the code reads
    """

    def __init__(self, graph: fx.GraphModule, scope: dict[str, Any]):
        self.graph, self.scope = graph, scope
        self.constants: dict[str, ast.expr] = {}
        self._ops: dict[str, str] = {}

    def line(self, line: ast.stmt) -> ast.stmt | None:
        """One line; None for that of a constant."""
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            path = list(_path(line.value))
            if path[:1] == ["self"]:
                self.constants[line.targets[0].id] = self._constant(path[1:])
                return None
        result: ast.stmt = self.visit(line)
        return result

    def _constant(self, path: list[str]) -> ast.expr:
        """What reads a tensor of the graph: `self._modules['a']._buffers['b']`."""
        owner: nn.Module = self.graph
        text = "self"
        for name in path[:-1]:
            if name not in owner._modules:
                raise _OrdinaryError
            owner = owner.get_submodule(name)
            text += f"._modules[{name!r}]"
        for kind in ("_buffers", "_parameters"):
            if isinstance(getattr(owner, kind).get(path[-1]), Tensor):
                return ast.parse(f"{text}.{kind}[{path[-1]!r}]", mode="eval").body
        raise _OrdinaryError

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """A call of an op, and the folding of what goes in and comes out."""
        name = ".".join(_path(node.func))
        if name == _FOLDED:
            return self._inputs(node)
        if name == _UNFOLDED:
            return self._outputs(node)
        if name in _VALUES:
            return node
        space, _, op = name.removeprefix("torch.ops.").partition(".")
        if not name.startswith("torch.ops.") or space == "higher_order":
            raise _OrdinaryError
        node = self.generic_visit(node)  # type: ignore[assignment]
        return self._op(node, space, op)

    def _op(self, node: ast.Call, space: str, name: str) -> ast.expr:
        value: Any = getattr(torch.ops, space)
        for part in name.split("."):
            value = getattr(value, part)
        if not isinstance(value, OpOverload):
            raise _OrdinaryError
        run = None if node.keywords else RUNS.get(value)
        if run is not None:
            node.args = [_as_taken(each, i, value) for i, each in enumerate(node.args)]
        short = self._ops.setdefault(str(value), f"_op_{len(self._ops)}_of_the_graph")
        key = short if run is not None else f"{short}_named"
        self.scope[key] = value if run is None else run
        node.func = ast.Name(key, ast.Load())
        return node

    def _inputs(self, node: ast.Call) -> ast.expr:
        """(positional ones, {name: value}) as a flat tuple, where all are leaves."""
        whole, spec = node.args[0], self.graph._in_spec
        if not isinstance(whole, ast.Tuple) or len(whole.elts) != 2:
            raise _OrdinaryError
        inputs, keywords = whole.elts
        leaves = all(each.is_leaf() for half in spec.children() for each in half.children())
        if not (isinstance(inputs, ast.List) and isinstance(keywords, ast.Dict) and leaves):
            raise _OrdinaryError
        keys = [key.value for key in keywords.keys if isinstance(key, ast.Constant)]
        by_key = dict(zip(keys, keywords.values, strict=True))
        return ast.Tuple(
            [*inputs.elts, *(by_key[key] for key in spec.child(1).context)], ast.Load()
        )

    def _outputs(self, node: ast.Call) -> ast.expr:
        """What a flat tuple of results is, where that is a tensor or a tuple or list of some."""
        flat, spec = node.args[0], self.graph._out_spec
        assert isinstance(flat, ast.Tuple | ast.List) and spec is not None
        if spec.is_leaf():
            return flat.elts[0]
        if spec.type in (tuple, list) and all(each.is_leaf() for each in spec.children()):
            result = ast.Tuple if spec.type is tuple else ast.List
            return result(flat.elts, ast.Load())
        return node


def _path(node: ast.expr) -> Iterator[str]:
    """The names of `a.b.c`, of which torch writes those that are none as getattr(a, "b")."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield from _path(node.value)
        yield node.attr
    elif isinstance(node, ast.Call) and list(_path(node.func)) == ["getattr"]:
        yield from _path(node.args[0])
        yield ast.literal_eval(node.args[1])


def _as_taken(node: ast.expr, place: int, op: OpOverload) -> ast.expr:
    """An argument as the dispatcher hands it on: a number for a float as a float."""
    kind = str(op._schema.arguments[place].type)
    whole = isinstance(node, ast.Constant | ast.UnaryOp) and kind in ("float", "Optional[float]")
    number = ast.literal_eval(node) if whole else None
    return ast.Constant(float(number)) if type(number) is int else node
