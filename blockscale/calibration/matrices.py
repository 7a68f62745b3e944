# SPDX-License-Identifier: BSD-3-Clause
"""A stack of experts while it is calibrated: a layer for each matrix, called by products with it.

The model's own code reads the stack's parameter as ever and gets a `StackView`, which knows what
part of which stack it is. Its products with inputs become calls of layers: whoever watches, learns
for or replaces a layer does the same to an expert.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.torch_private import WithoutTorchFunction


class Matrices:
    """The matrices of one stack, each in one layer or, of joined parts, in several.

    The layers are nn.Linear without bias, whose weights [rows, k] are views of the parameter. They
    become children of the module that has the stack, named "gate_up_proj[3]" for matrix 3 of the
    parameter gate_up_proj, or "gate_up_proj[3][0]" and so on for its parts.

    name: of the parameter in the model
    parameter: [E, n, k], [E, k, n] where `transposed`, or either as one matrix [E * n, k] with
        its count E
    parts: of how many matrices, one below another, each matrix consists
    home: the module that has it; keys: the names of each matrix's layers there
    unseen: what else the model's code did with the stack's floats
    """

    def __init__(self, name: str, home: nn.Module, count: int, parts: int, *, transposed: bool):
        self.name, self.home, self.transposed = name, home, transposed
        own = name.rpartition(".")[2]
        self.parameter: Tensor = home.get_parameter(own).detach()
        whole = self.parameter.reshape(count, -1, self.parameter.shape[-1])
        whole = whole.mT if transposed else whole
        self.outputs = whole.shape[1]
        self.keys: list[list[str]] = []
        self.layers: dict[str, nn.Linear] = {}
        self.unseen: set[str] = set()
        for e, matrix in enumerate(whole):
            keys = [f"{own}[{e}]"] if parts == 1 else [f"{own}[{e}][{p}]" for p in range(parts)]
            for key, rows in zip(keys, matrix.chunk(parts), strict=True):
                layer = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
                layer.weight = nn.Parameter(rows, requires_grad=False)
                layer.of_stack = (self, e)  # type: ignore[assignment]
                self.layers[key] = layer.eval()
            self.keys.append(keys)

    def read(self) -> Tensor:
        """What the model's code gets for the parameter."""
        return StackView.of(self.parameter, self, None, transposed=self.transposed)

    def product(self, e: int, x: Tensor) -> Tensor:
        """x [..., k] -> x @ matrix e [n, k] transposed, by its layers; without rows, of none."""
        if x.numel() == 0:
            return x.new_zeros((*x.shape[:-1], self.outputs))
        ys = [self.home.get_submodule(key)(x) for key in self.keys[e]]
        return ys[0] if len(ys) == 1 else torch.cat(ys, -1)

    def sorted_product(self, x: Tensor, ends: Iterable[int]) -> Tensor:
        """x [rows, k], sorted by matrix; ends: where the rows of each end -> [rows, n].

        Rows behind the last end are zero.
        """
        edges = [0, *ends]
        ys = [self.product(e, x[a:b]) for e, (a, b) in enumerate(pairwise(edges)) if b > a]
        if len(x) > edges[-1] or not ys:
            ys.append(x.new_zeros(len(x) - edges[-1], self.outputs))
        return torch.cat(ys)

    def product_of_each(self, x: Tensor, ids: list[int]) -> Tensor:
        """x [S, rows, k] times matrix ids[i] transposed -> [S, rows, n]: one call for a matrix."""
        ys: dict[int, Tensor] = {}
        for e in sorted(set(ids)):
            some = [i for i, each in enumerate(ids) if each == e]
            ys |= zip(some, self.product(e, x[some]).unbind(), strict=True)
        return torch.stack([ys[i] for i in range(len(ids))]) if ids else x.new_zeros(
            0, x.shape[1], self.outputs
        )  # fmt: skip

    def product_of_all(self, x: Tensor) -> Tensor:
        """x [E, rows, k], a batch for each matrix -> [E, rows, n]. Rows of zeros were not routed to
        it (Llama 4 has every token there, times a score that is 0 for most): they stay zeros."""
        ys = []
        for e, rows in enumerate(x):
            routed = rows.detach().ne(0).any(-1)
            inputs = self.product(e, rows[routed])
            y = inputs.new_zeros(len(rows), self.outputs)
            ys.append(y.index_put((routed.nonzero()[:, 0],), inputs))
        return torch.stack(ys) if ys else x.new_zeros(0, x.shape[1], self.outputs)


_STACKS = "_stacks_that_are_calibrated"  # {parameter: Matrices} of a module, in its own dict


_classes: dict[tuple[type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}  # a program has few


def _reading(kind: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """A class like `kind` whose parameters of these names are read as views of their stacks."""

    if (kind, names) in _classes:
        return _classes[kind, names]

    def read_as(name: str) -> property:
        return property(lambda module: module.__dict__[_STACKS][name].read())

    body: dict[str, Any] = {name: read_as(name) for name in names}
    body |= {each: getattr(kind, each) for each in ("__module__", "__qualname__", "__doc__")}
    return _classes.setdefault((kind, names), type(kind.__name__, (kind,), body))


def read_as_views(module: nn.Module, stacks: Mapping[str, Matrices]) -> None:
    """From now on the module's code reads these parameters, which it has no more, as views."""
    for name in stacks:
        del module._parameters[name]
    module.__dict__[_STACKS] = dict(stacks)
    module.__class__ = _reading(type(module), tuple(stacks))


def read_as_before(module: nn.Module, kind: type[nn.Module]) -> None:
    """The end of that. kind: the class that it had."""
    module.__class__ = kind
    module.__dict__.pop(_STACKS, None)


class StackView(Tensor):
    """The floats of a stack, or of some of its matrices, that know which these are.

    choice: None for the whole stack, the number of one matrix, or numbers [S] of several
    transposed: whether its last dimensions are [k, n], for x @ view, and not [n, k]
    """

    stack: Matrices
    choice: int | Tensor | None
    transposed: bool

    @classmethod
    def of(
        cls, floats: Tensor, stack: Matrices, choice: int | Tensor | None, *, transposed: bool
    ) -> "StackView":
        """A view with these floats."""
        view: StackView = floats.as_subclass(cls)
        view.stack, view.choice, view.transposed = stack, choice, transposed
        return view

    def floats(self) -> Tensor:
        """As an ordinary tensor."""
        return self.as_subclass(Tensor)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Products and views as the stack knows them; everything else with the floats."""
        del types
        kwargs = kwargs or {}
        name = _name(func)
        handler = _HANDLERS.get(name)
        if handler is not None:
            y = handler(*args, **kwargs)
            if y is not NotImplemented:
                return y
        with WithoutTorchFunction():
            y = func(*args, **kwargs)
        if name not in _HARMLESS and isinstance(y, Tensor) and y.is_floating_point():
            for each in (*args, *kwargs.values()):
                if isinstance(each, StackView):
                    each.stack.unseen.add(name)
        return y


_HARMLESS = ("as_subclass", "detach", "requires_grad_", "data.get", "grad.get")


def _name(func: Any) -> str:
    """`matmul` of torch.matmul, Tensor.matmul and an operator; `mT.get` of a property."""
    own = str(getattr(func, "__name__", ""))
    if own == "__get__":
        return f"{func.__self__.__name__}.get"
    return own.partition(".")[0]


# What code does with a stack. Each gives NotImplemented where it is not a product that the stack
# knows, such as one that sums along the outputs of a matrix.


def _linear(x: Any, weight: Any, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, StackView) or weight.transposed or not isinstance(weight.choice, int):
        return NotImplemented
    y = weight.stack.product(weight.choice, x)
    return y if bias is None else y + bias


def _matmul(a: Any, b: Any) -> Any:
    if isinstance(a, StackView):
        if isinstance(b, StackView) or a.transposed:
            return NotImplemented
        if b.ndim == 1:
            return _times(b, a)
        y = _times(b.mT, a)
        return y if y is NotImplemented else y.mT
    return _times(a, b) if b.transposed else NotImplemented


def _times(x: Tensor, view: StackView) -> Any:
    """x [..., k] times what is chosen."""
    choice, stack = view.choice, view.stack
    if isinstance(choice, int):
        return stack.product(choice, x)
    if x.ndim != 3 or view.ndim != 3:
        return NotImplemented
    if choice is None:
        return stack.product_of_all(x) if len(x) == len(stack.keys) else NotImplemented
    return stack.product_of_each(x, choice.tolist())


def _refuse_reverse(a: Any, b: Any) -> Any:
    return _matmul(b, a)


def _grouped(x: Any, weight: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    is_known = isinstance(weight, StackView) and weight.transposed and weight.choice is None
    if not is_known or offs is None or x.ndim != 2 or bias is not None:
        return NotImplemented
    y = weight.stack.sorted_product(x, offs.tolist())
    return y if out_dtype is None else y.to(out_dtype)


def _item(view: Any, index: Any) -> Any:
    if not isinstance(view, StackView) or view.choice is not None or view.ndim != 3:
        return NotImplemented
    if isinstance(index, Tensor) and not index.is_floating_point() and index.dtype != torch.bool:
        if index.ndim == 0:
            index = int(index)
        elif index.ndim == 1:
            return StackView.of(view.floats()[index], view.stack, index, transposed=view.transposed)
    if not isinstance(index, int) or isinstance(index, bool):
        return NotImplemented
    number = range(len(view.stack.keys))[index]
    return StackView.of(view.floats()[index], view.stack, number, transposed=view.transposed)


def _select(view: Any, dim: int, index: int) -> Any:
    return _item(view, index) if dim in (0, -view.ndim) else NotImplemented


def _unbind(view: Any, dim: int = 0) -> Any:
    if dim or view.ndim != 3 or view.choice is not None:
        return NotImplemented
    return tuple(_item(view, e) for e in range(len(view)))


def _iterate(view: Any) -> Any:
    result = _unbind(view)
    return result if result is NotImplemented else iter(result)


def _transpose(view: Any, first: int = -2, second: int = -1) -> Any:
    rank = view.ndim
    if {first % rank, second % rank} != {rank - 2, rank - 1} or _as_rows(view):
        return NotImplemented
    return StackView.of(view.floats().mT, view.stack, view.choice, transposed=not view.transposed)


def _t(view: Any) -> Any:
    return _transpose(view) if view.ndim == 2 else NotImplemented


def _permute(view: Any, *dims: Any) -> Any:
    order = [d % view.ndim for d in (dims[0] if isinstance(dims[0], tuple | list) else dims)]
    usual = [*range(view.ndim - 2), view.ndim - 1, view.ndim - 2]
    return _transpose(view) if order == usual else NotImplemented


def _view(view: Any, *shape: Any) -> Any:
    sizes = shape[0] if isinstance(shape[0], tuple | list) else shape
    if not all(isinstance(size, int) for size in sizes):
        return NotImplemented
    floats = view.floats().reshape(tuple(sizes))
    stack = view.stack
    count = len(stack.keys)
    matrix = (count, stack.parameter.shape[-2] // count, view.shape[-1])
    if floats.shape == view.shape or (_as_rows(view) and tuple(floats.shape) == matrix):
        return StackView.of(floats, stack, view.choice, transposed=view.transposed)
    return NotImplemented


def _same(view: Any, *args: Any, **kwargs: Any) -> Any:
    """`contiguous`, `to`, `float`: the view where it keeps its dtype and its place."""
    del args, kwargs
    return StackView.of(view.floats(), view.stack, view.choice, transposed=view.transposed)


def _as_rows(view: Any) -> bool:
    """Whether it is a whole stack [E * n, k]."""
    return view.choice is None and view.ndim == 2


_HANDLERS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "__matmul__": _matmul,
    "__rmatmul__": _refuse_reverse,
    "grouped_mm": _grouped,
    "_grouped_mm": _grouped,
    "grouped_mm_fallback": _grouped,
    "__getitem__": _item,
    "select": _select,
    "unbind": _unbind,
    "__iter__": _iterate,
    "transpose": _transpose,
    "swapaxes": _transpose,
    "t": _t,
    "T.get": _t,
    "mT.get": _transpose,
    "permute": _permute,
    "view": _view,
    "reshape": _view,
    "detach": _same,
    "contiguous": _same,
    "alias": _same,
}
