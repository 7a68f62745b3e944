"""Define an op once. Its pure-PyTorch reference is its meaning and, with nothing added, the
fallback where no kernel fits, the shape rule for torch.compile and torch.export (unless it has one
of its own), and the oracle of its tests.

The only user of torch.library. `Library.define` + `impl` costs 1.6 µs a call over the plain
function, `custom_op` 6.5 µs (a CPU, torch 2.13), and quantized layers are called often.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from blockscale.core.parse import parse
from blockscale.kernels.registry import as_chosen, choice, find

_LIBRARY: Any = torch.library.Library("blockscale", "DEF")  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Op:
    """A registered op: callable as the torch op, with its reference at hand.

    ulps: how far a kernel may be from the reference because float sums are reordered
    (docs/numerics.md, section 7); 0 means equal bits.
    """

    name: str
    reference: Callable[..., Any]
    overload: Any
    ulps: int
    run: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """Call the torch op, or what it would end in, where nothing else is listening."""
        return self.run(*args) if _alone(args) else self.overload(*args)


_TENSORS = (Tensor, nn.Parameter)
_VALUES = (str, int, float, bool, list, torch.dtype)
_LISTENING = (  # as long as each of these says no, nobody is
    torch.compiler.is_compiling,
    torch._C._len_torch_dispatch_stack,
    torch._C._functorch.peek_interpreter_stack,
    torch._C._is_torch_function_mode_enabled,
    torch._C._autograd._profiler_enabled,
    torch._C._get_tracing_state,
)
_keys_of = torch._C._dispatch_keys
_plain: set[int] = set()  # dispatch keys that were seen to be those of plain tensors, or fewer


def _alone(args: tuple[Any, ...]) -> bool:
    """Whether the dispatcher would only pass the call on: no graph, gradient, mode or profiler.

    It takes 5 µs for that, half of a call on a small tensor.
    """
    for listening in _LISTENING:
        if listening():
            return False
    if forward_ad._current_level >= 0:
        return False
    grad = torch.is_grad_enabled()
    for arg in args:
        if arg is None:
            continue
        if type(arg) in _TENSORS:
            if _keys_of(arg).raw_repr() not in _plain and not _is_plain(arg):
                return False
            if grad and arg.requires_grad:
                return False
        elif type(arg) not in _VALUES:
            return False
    return True


def _nothing_asked(keys: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call that came to autograd with these dispatch keys only has to be passed on."""
    raw = keys.raw_repr()
    if raw not in _plain:
        if any(raw & ~plain == 0 for plain in _plain_keys(args[0].device.type)):
            _plain.add(raw)  # nothing that plain tensors have not
        else:
            return False
    if forward_ad._current_level >= 0:
        return False
    if torch.is_grad_enabled():
        for arg in args:
            if isinstance(arg, Tensor) and arg.requires_grad:
                return False
    return True


def _is_plain(tensor: Tensor) -> bool:
    """Whether it has memory of its own and nothing is put off: strided, not negated, not 0."""
    keys = _keys_of(tensor).raw_repr()
    if keys not in _plain_keys(tensor.device.type):
        return False
    _plain.add(keys)
    return True


@cache
def _plain_keys(device: str) -> frozenset[int]:
    """The dispatch keys of such tensors, inside and outside of inference mode."""
    if device == "meta":
        return frozenset()
    found = set()
    for inference in (False, True):
        with torch.inference_mode(inference):
            found.add(_keys_of(torch.empty(0, device=device)).raw_repr())
    return frozenset(found)


_format = cache(parse)  # three times as fast as what `parse` itself remembers
OPS: dict[str, Op] = {}
Seed = int | Sequence[int] | Tensor | None


def op(
    *, ulps: int = 0, shape: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Op]:
    """Make the decorated reference the torch op `blockscale::<its name>`.

    shape: what stands in for the reference where only shapes count, if the reference would ask
        symbolic sizes questions that a graph with dynamic shapes must leave open (padding does).
    Its first argument is a tensor on the device where it runs; `fmt` spells the format.
    """

    def define(reference: Callable[..., Any]) -> Op:
        name = reference.__name__
        parameters = inspect.signature(reference).parameters
        position = list(parameters).index("fmt")
        defaults = tuple(parameter.default for parameter in parameters.values())

        def run(*args: Any) -> Any:
            args += defaults[len(args) :]  # the dispatcher leaves out what equals its default
            fmt = _format(args[position])
            found = find(name, fmt, args[0].device.type, args)
            return reference(*args) if found is None else found.run(*args)

        schema = torch.library.infer_schema(reference, mutates_args=())
        _LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        fake = _on_one_device(name, shape or reference)
        torch.library.register_fake(f"blockscale::{name}", fake, lib=_LIBRARY)
        overload = getattr(torch.ops.blockscale, name).default
        OPS[name] = Op(name, reference, overload, ulps, run)
        return OPS[name]

    return define


def _on_one_device(name: str, shape: Callable[..., Any]) -> Callable[..., Any]:
    """The shape rule, but not for a mixture of meta tensors and others: torch takes it for meta,
    and would return memory that nobody wrote."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        tensors = (arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor))
        devices = {tensor.device.type for tensor in tensors}
        if "meta" in devices and len(devices) > 1:
            raise ValueError(f"blockscale::{name}: its tensors are on {', '.join(sorted(devices))}")
        return shape(*args, **kwargs)

    return checked


def differentiable(target: Op, save: Callable[..., None], backward: Callable[..., Any]) -> None:
    """Give `target` a gradient: `save(ctx, inputs, output)` and `backward(ctx, *gradients)`.

    As torch.library.register_autograd does, but a plain call is not dispatched a second time.
    """

    def save_with_choice(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.choice = choice()  # autograd runs a GPU's backward pass on a thread of its own
        save(ctx, inputs, output)

    def backward_with_choice(ctx: Any, *gradients: Any) -> Any:
        with as_chosen(ctx.choice):
            return backward(ctx, *gradients)

    try:
        from torch._library import autograd  # torch's own, which another torch may not have

        info = autograd.Info(backward_with_choice, save_with_choice)
        watched = autograd.make_autograd_impl(target.overload, info)
    except (ImportError, AttributeError, TypeError):
        torch.library.register_autograd(
            f"blockscale::{target.name}", backward_with_choice, setup_context=save_with_choice,
            lib=_LIBRARY,
        )  # fmt: skip
        return

    def kernel(keys: Any, *args: Any) -> Any:
        return target.run(*args) if _nothing_asked(keys, args) else watched(keys, *args)

    _LIBRARY.impl(target.name, kernel, "Autograd", with_keyset=True)


def not_differentiable(target: Op, instead: str) -> None:
    """Make a backward pass through `target` raise RuntimeError, not give a wrong gradient."""

    def backward(*_: Any) -> Any:
        raise RuntimeError(f"blockscale::{target.name} has no gradient: {instead}")

    differentiable(target, lambda *_, **__: None, backward)


def seed_tensor(seed: Seed, device: torch.device) -> Tensor:
    """A seed, or (seed, index of the first element), as the ops take it: int64 on the device.

    None draws one from torch's default generator, so torch.manual_seed makes it reproducible.
    """
    if seed is None:
        return torch.randint(2**63 - 1, (), dtype=torch.int64, device=device)
    if isinstance(seed, list | tuple) and len(seed) == 2:
        return torch.tensor([int(word) for word in seed], dtype=torch.int64, device=device)
    if isinstance(seed, Integral) and not isinstance(seed, bool):
        seed = int(seed)  # numpy's integers, too
    if not isinstance(seed, int | Tensor) or isinstance(seed, bool):
        raise TypeError(
            f"a seed is an int, (seed, index of the first element), an int64 tensor or None, "
            f"not {seed!r}"
        )
    if isinstance(seed, int):
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"a seed has 64 bits, which {seed} exceeds")
        return torch.tensor(seed, dtype=torch.int64, device=device)
    if seed.dtype != torch.int64 or tuple(seed.shape) not in ((), (2,)):
        raise ValueError(
            f"a seed tensor is int64 of shape [] (the seed) or [2] (the seed, the index of the "
            f"first element), not {seed.dtype} {tuple(seed.shape)}"
        )
    return seed
