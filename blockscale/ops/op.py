# SPDX-License-Identifier: BSD-3-Clause
"""Define an op once. Its pure-PyTorch reference is its meaning and, with nothing added, the
fallback where no kernel fits, the shape rule for torch.compile and torch.export (unless it has one
of its own), and the oracle of its tests.

The only user of torch.library. `Library.define` + `impl` costs 1.6 µs a call over the plain
function, `custom_op` 6.5 µs (a CPU, torch 2.13), and quantized layers are called often.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor, nn

from blockscale.core.operand import Operand
from blockscale.core.torch_private import (
    FakeTensor,
    disable_modes,
    dispatch_keys,
    dispatch_modes,
    forward_level,
    function_modes,
    innermost_transform,
    profiler_on,
    tracing_state,
)
from blockscale.kernels.registry import UNORDERED, batch_invariant, find, run_reference
from blockscale.ops.batch_rows import check_rows
from blockscale.ops.batching import batching_rule
from blockscale.ops.operand import Signature, signature

# Which calls need torch's dispatcher: it takes 5 µs, half of a call on a small tensor.


_TENSORS = frozenset((Tensor, nn.Parameter))
_VALUES = frozenset((type(None), str, int, float, bool, torch.dtype))
is_compiling = torch.compiler.is_compiling
_plain: set[int] = set()  # dispatch keys that were seen to be those of plain tensors, or fewer


def alone(args: tuple[Any, ...]) -> bool:
    """Whether the dispatcher would only pass the call on: no graph, gradient, mode or profiler.

    It takes 5 µs for that, half of a call on a small tensor.
    """
    if (
        is_compiling()
        or dispatch_modes()
        or innermost_transform()
        or function_modes()
        or profiler_on()
        or tracing_state()
        or forward_level() >= 0
    ):
        return False
    grad = torch.is_grad_enabled()
    for arg in args:
        kind = type(arg)
        if kind in _VALUES:
            continue
        if kind not in _TENSORS:
            if kind is list and (
                _VALUES.issuperset(map(type, arg))  # sizes, mostly
                or all(_asks_nothing(each, grad) for each in arg)
            ):
                continue
            return False
        if dispatch_keys(arg).raw_repr() not in _plain and not _is_plain(arg):
            return False
        if grad and arg.requires_grad:
            return False
    return True


def _asks_nothing(arg: Any, grad: bool) -> bool:
    """As `alone` says of one argument."""
    if type(arg) in _VALUES:
        return True
    return type(arg) in _TENSORS and _is_plain(arg) and not (grad and arg.requires_grad)


def is_plain_call(keys: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call that came to autograd with these dispatch keys only has to be passed on."""
    raw = keys.raw_repr()
    if raw not in _plain:
        first = args[0][0] if isinstance(args[0], list) else args[0]
        if any(raw & ~plain == 0 for plain in _plain_keys(first.device.type)):
            _plain.add(raw)  # nothing that plain tensors have not
        else:
            return False
    if forward_level() >= 0:
        return False
    if torch.is_grad_enabled():
        for arg in args:
            if isinstance(arg, Tensor):
                if arg.requires_grad:
                    return False
            elif type(arg) is list and any(getattr(e, "requires_grad", False) for e in arg):
                return False
    return True


def _is_plain(tensor: Tensor) -> bool:
    """Whether it has memory of its own and nothing is put off: strided, not negated, not 0."""
    keys = dispatch_keys(tensor).raw_repr()
    if keys not in _plain_keys(tensor.device.type):
        return False
    _plain.add(keys)
    return True


@cache
def _plain_keys(device: str) -> frozenset[int]:
    """The dispatch keys of such tensors, inside and outside of inference mode."""
    if device == "meta":
        return frozenset()
    names = set()
    for inference in (False, True):
        # without modes: under that of fake tensors, what torch makes here is no plain tensor
        with disable_modes(), torch.inference_mode(inference):
            names.add(dispatch_keys(torch.empty(0, device=device)).raw_repr())
    return frozenset(names)


LIBRARY: Any = torch.library.Library("blockscale", "DEF")  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Op:
    """A registered op: callable as its reference is, with operands; it runs as a torch op.

    signature: what the torch op takes in the place of operands
    defaults: of the op's own arguments
    flatten: makes the torch op's arguments of the op's own
    overload: the torch op
    run: the kernel or, where there is none, the reference
    ulps: how far a kernel may be from the reference because float sums are reordered
    (docs/numerics.md, section 7); 0 means equal bits.
    """

    name: str
    reference: Callable[..., Any]
    signature: Signature
    defaults: tuple[Any, ...]
    flatten: Callable[..., tuple[Any, ...]]
    overload: Any
    ulps: int
    run: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """Call the torch op, or what it would end in, where nothing else is listening."""
        defaults = self.defaults
        if len(args) < len(defaults):
            args += defaults[len(args) :]
        flat = self.flatten(*args)
        return self.run(*args) if alone(flat) else self.overload(*flat)

    def by_kernel(self, *args: Any) -> Any:
        """The same by a kernel; None where none takes these arguments, all of which are given."""
        spellings, device = self.signature.spellings(*args), args[0].device.type
        kernel = find(self.name, spellings, device, args, composite=True)
        if kernel is None:
            return None
        flat = self.flatten(*args)
        return kernel.run(*args) if alone(flat) else self.overload(*flat)


OPS: dict[str, Op] = {}
# torch op -> what runs its flat arguments without the dispatcher, where dispatch.alone says so
RUNS: dict[Any, Callable[..., Any]] = {}


def op(
    *,
    ulps: int = 0,
    shape: Callable[..., Any] | None = None,
    size_of: Callable[..., int] | None = None,
    composed: bool = False,
    rows: str = "",
) -> Callable[[Callable[..., Any]], Op]:
    """Make the decorated reference the torch op `blockscale::<its name>`.

    The first tensor among its arguments is on the device where it runs. It may take operands
    (blockscale.core.operand), which the torch op takes apart, and formats as `fmt: str`.

    shape: what stands in for the reference where only shapes count, if the reference would ask
        symbolic sizes questions that a graph with dynamic shapes must leave open (padding does).
    size_of: gives the size of an Operand that the torch op takes without it, from the torch op's
        arguments of these names.
    composed: nothing is warned of where it has no kernel (kernels.registry.find).
    rows: of an op that sums floats, how it gives each row the same bits in any batch
        (ops.batch_rows): "ordered" by itself, "images" one at a time; "" where it cannot
    """

    def define(reference: Callable[..., Any]) -> Op:
        name = reference.__name__
        takes = signature(reference, size_of)
        returns = get_type_hints(reference)["return"]
        run = _runner(name, reference, takes, composed)
        if rows:
            run = _in_order(name, run, images=rows == "images")
        whole, empty = takes.accepting(reference), shape and takes.accepting(shape)
        OPS[name] = register(
            name, whole, takes, returns, run, shape=empty, ulps=ulps, ordered=bool(rows)
        )
        return OPS[name]

    return define


def register(
    name: str,
    reference: Callable[..., Any],
    takes: Signature,
    returns: Any,
    run: Callable[..., Any],
    *,
    shape: Callable[..., Any] | None = None,
    ulps: int = 0,
    ordered: bool = False,
) -> Op:
    """Make `run` the torch op `blockscale::<name>` of this signature, which returns `returns`.

    ordered: its float sums keep their order where that is asked for (ops.batch_rows)
    """
    if ulps and not ordered:
        UNORDERED.add(name)

    def run_flat(*flat: Any) -> Any:
        _check_dense(name, flat[0])
        return run(*takes.bind(*flat))

    LIBRARY.define(name + takes.schema(returns), tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, run_flat, "CompositeExplicitAutograd")
    fake = _on_one_device(name, takes, shape or reference)
    torch.library.register_fake(f"blockscale::{name}", fake, lib=LIBRARY)
    rule = batching_rule(name, takes.names, lambda: overload)
    torch.library.register_vmap(f"blockscale::{name}", rule, lib=LIBRARY)
    overload = getattr(torch.ops.blockscale, name).default
    RUNS[overload] = run if takes.plain else lambda *flat: run(*takes.bind(*flat))
    return Op(name, reference, takes, takes.defaults, takes.flatten, overload, ulps, run)


def _check_dense(name: str, first: Any) -> None:
    """Raise TypeError for a sparse tensor; what needs no dispatcher has none (`alone`)."""
    for each in first if isinstance(first, list) else (first,):
        if each.layout is not torch.strided:
            kind = str(each.layout).removeprefix("torch.")
            raise TypeError(
                f"blockscale::{name}: expected a dense tensor, found a {kind} tensor of shape "
                f"{tuple(each.shape)}: pass x.to_dense()"
            )


def _runner(
    name: str,
    reference: Callable[..., Any],
    takes: Signature,
    composed: bool,
) -> Callable[..., Any]:
    """What runs the kernel of the op's arguments or, where there is none, the reference."""
    spellings, fits, fitted = takes.spellings, takes.fits, takes.fitted
    operand_first = next(iter(get_type_hints(reference).values())) is Operand

    def run(*args: Any) -> Any:
        if not fits(*args):
            args = fitted(*args)
        first = args[0].codes if operand_first else args[0]
        device = first.device.type
        kernel = find(name, spellings(*args), device, args, composite=composed)
        return run_reference(reference, device, args) if kernel is None else kernel.run(*args)

    return run


def _on_one_device(name: str, takes: Signature, shape: Callable[..., Any]) -> Callable[..., Any]:
    """The shape rule, but not for a mixture of meta tensors and others: torch takes it for meta,
    and would return memory that nobody wrote."""

    def checked(*flat: Any, **named: Any) -> Any:
        flat += tuple(named[name] for name in takes.names[len(flat) :] if name in named)
        devices = {each.device.type for each in _flat(flat) if isinstance(each, Tensor)}
        if "meta" in devices and len(devices) > 1:
            raise ValueError(
                f"blockscale::{name}: its tensors are on several devices, "
                f"{', '.join(sorted(devices))}: move them to one"
            )
        return remembered(flat, lambda: shape(*takes.bind(*flat)))

    remembered = _remembering()
    return checked


_LARGEST = 1024  # calls of one op that are remembered


def _remembering() -> Callable[[tuple[Any, ...], Callable[[], Any]], Any]:
    """A shape rule's results by what it was asked, for fake tensors of fixed sizes: a reference
    stands for its shapes in as many ops of torch as it has, and layers that repeat ask the same."""
    answers: dict[Any, Any] = {}

    def remembered(flat: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        key = _asked(flat)
        if key is None:
            return run()
        if key not in answers:
            result = run()
            answer = _asked(result)
            if answer is None:  # a size that only data tell
                return result
            if len(answers) >= _LARGEST:
                answers.clear()
            answers[key] = answer
        return _empty(answers[key], next(each for each in _flat(flat) if isinstance(each, Tensor)))

    return remembered


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Arguments, and those of lists among them."""
    return (e for each in arguments for e in (each if isinstance(each, list) else [each]))


def _asked(value: Any) -> Any:
    """What a shape rule sees of its arguments, or gives, as a key; None where that is more than
    fixed sizes of fake tensors, texts and numbers."""
    if isinstance(value, FakeTensor):
        if value.layout is not torch.strided or not all(type(n) is int for n in value.shape):
            return None
        return _Empty(tuple(value.shape), value.stride(), value.dtype, value.device)
    if isinstance(value, tuple | list):
        each = tuple(_asked(one) for one in value)
        return None if None in each else (type(value), each)
    if value is None or isinstance(value, str | bool | int | float | torch.dtype | torch.device):
        return type(value), value
    return None


class _Empty(NamedTuple):
    """A fake tensor that is remembered."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def _empty(item: Any, like: Tensor) -> Any:
    """What `_asked` was told, anew, of the mode that `like` is of."""
    if isinstance(item, _Empty):
        return like.new_empty_strided(item.shape, item.stride, dtype=item.dtype, device=item.device)
    kind, value = item
    return kind(_empty(each, like) for each in value) if kind in (tuple, list) else value


def _in_order(name: str, run: Callable[..., Any], *, images: bool) -> Callable[..., Any]:
    """`run` of the op of this name, whose first argument is x and whose last is a Quantizer of it,
    so that with batch_invariant a row's result does not depend on the others.

    images: rows are images, x [batch, channels, *size]: each is run alone, from memory of its own.
        Else they are all but the last dimension, and `run` keeps the order itself
    """

    def in_order(*args: Any) -> Any:
        if not batch_invariant():
            return run(*args)
        x, *rest = args
        by = rest[-1]
        if by.fmt and by.scale is None:
            check_rows(f"the input of {name}", by.format, x.ndim, 1 if images else x.ndim - 1)
        if not images or not x.shape[0]:
            return run(*args)
        return torch.cat([run(image.clone(), *rest) for image in x.split(1)])

    return in_order
