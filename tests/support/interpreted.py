# SPDX-License-Identifier: BSD-3-Clause
"""Triton's interpreter, which replaces the functions of triton.language once a launch.

By itself (3.6) it does so again at each call of a device function, though they stay replaced until
the launch ends, and looks for them among all members of five modules and classes each time: half of
what our kernels take in it. And each result of an operation is of a type that is built anew, with a
shape of objects: a third of what is left. Here a type of one element and shape is built once. Each
sum and product of integers is computed twice and compared, to say nothing when it overflows unless
`debug` is set: a fourth of the rest.
"""

import inspect
from dataclasses import replace as but
from functools import cache
from typing import Any

_launches = [0]  # how many run: one may start another


def replace_once() -> None:
    """From now on, in this process, where nothing was launched yet."""
    from triton.runtime import interpreter

    launch, function = interpreter.GridExecutor, interpreter.InterpretedFunction
    if hasattr(function.__call__, "once"):
        return
    run, call, replace = launch.__call__, function.__call__, interpreter._patch_lang

    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        _launches[0] += 1
        try:
            return run(self, *args, **kwargs)
        finally:
            _launches[0] -= 1

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _launches[0]:
            return call(self, *args, **kwargs)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    def replaced(seen: Any) -> Any:
        """Also what the functions that it calls see, as those of triton.language itself do."""
        return replace(_Seeing({"tl": interpreter.tl, "core": interpreter.tl.core}))

    def builtins(place: Any, builder: Any, scope: Any) -> None:
        for name, member in _builtins(place):
            if getattr(place, name) is member:
                interpreter._patch_attr(place, name, member, builder, scope)

    called.once = True
    interpreter._patch_lang_tensor = _indexed(interpreter._patch_lang_tensor)
    launch.__call__, function.__call__ = launched, called
    interpreter._patch_lang, interpreter._patch_builtin = replaced, builtins
    _types_once(interpreter.tl.core)
    _blocks_of_one_shape(interpreter.TritonSemantic)
    builder = interpreter.interpreter_builder
    builder.options = but(builder.options, sanitize_overflow=builder.options.debug)
    interpreter._get_np_dtype = _numpy_once(interpreter._get_np_dtype, interpreter.tl.core)


def _indexed(patch: Any) -> Any:
    """What replaces the methods of a tensor, with one that numpy 2.4 leaves undefined: a number as
    Python's, for the bounds of loops."""

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched


def _types_once(core: Any) -> None:
    """Blocks of one element and shape share what is computed of these, and tensors of one shape."""
    block, tensor = core.block_type, core.tensor
    make_block, make_tensor = block.__init__, tensor.__init__
    blocks: dict[Any, Any] = {}
    shapes: dict[Any, Any] = {}

    def new_block(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *shape)
        if key not in blocks:
            make_block(self, element_ty, shape)  # or raises
            blocks[key] = self.shape, self.numel, self.name
        self.element_ty = element_ty
        self.shape, self.numel, self.name = blocks[key]

    def new_tensor(self: Any, handle: Any, type: Any) -> None:
        key = (*type.shape,) if type.is_block() else ()
        if key not in shapes:
            make_tensor(self, handle, type)
            shapes[key] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[key]

    block.__init__, tensor.__init__ = new_block, new_tensor


def _blocks_of_one_shape(semantic: Any) -> None:
    """They need not be made alike, which builds that shape and compares it twice."""
    alike = semantic.broadcast_impl_value

    def broadcast(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        a, b = lhs.type, rhs.type
        if a.is_block() and b.is_block() and (*a.shape,) == (*b.shape,):
            return lhs, rhs
        made: tuple[Any, Any] = alike(self, lhs, rhs)
        return made

    semantic.broadcast_impl_value = broadcast


def _numpy_once(find: Any, core: Any) -> Any:
    """The interpreter's dtype of numpy for a type, by its element."""
    known: dict[Any, Any] = {}

    def numpy_dtype(type: Any) -> Any:
        one = type.element_ty if isinstance(type, core.block_type) else type
        if isinstance(one, core.pointer_type):
            return find(one)
        if one not in known:
            known[one] = find(one)
        return known[one]

    return numpy_dtype


class _Seeing:
    """A function, of which the interpreter asks what it sees."""

    def __init__(self, names: dict[str, Any]):
        self.__globals__ = names


@cache
def _builtins(place: Any) -> list[tuple[str, Any]]:
    """The functions of a module or class that the compiler has, as they are before a launch."""
    from triton.language.core import is_builtin

    return [(name, member) for name, member in inspect.getmembers(place) if is_builtin(member)]
