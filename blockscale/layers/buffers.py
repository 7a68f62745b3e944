# SPDX-License-Identifier: BSD-3-Clause
"""Modules whose buffers keep their dtype, and whose state says in which format they are.

accelerate offloads a module's parameters, and brings them back when the module is called. Codes
are buffers, and the module that holds them is not called: the layer above it is. So a module of
ours looks at the hook that accelerate gives it: the codes go where accelerate keeps them, by
default, and are read from there at each use.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from math import ceil, prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockscale.core.format import Format
from blockscale.core.operand import FIRST
from blockscale.core.reference import QParams


class Buffers(nn.Module):
    """Buffers that keep their dtype: `model.half()` must not round a scale.

    The state holds the format's spelling, so that one in another format is refused: many formats
    have the same shapes and dtypes. torch.distributed.checkpoint writes into a model's own tensors,
    and compares nothing but names and sizes before: the spelling's sizes tell formats apart, too.

    dtype: of the float tensor that the buffers stand for, which follows casts; None if of none
    offloads: whether accelerate may keep the buffers elsewhere; else they stay where they are used
    """

    fmt: str
    dtype: torch.dtype | None = None
    offloads: ClassVar[bool] = False
    frozen = False  # whether the tensors are parameters without gradients (`freeze`)
    _is_hf_initialized = True  # transformers' init_weights leaves alone what says this
    _keeper: Any = None  # accelerate's hook that has the buffers, while they are on "meta" here
    _hooks: list[tuple[Any, bool]]  # hooks that offload, and their offload_buffers as it was

    @property
    def own(self) -> dict[str, Any]:
        """The tensors by name, as they lie in the module; None for what the format lacks."""
        return self._parameters if self.frozen else self._buffers

    def freeze(self) -> None:
        """Hold the tensors as parameters that take no gradient, under the same names."""
        if self.frozen:
            return
        self._dtypes = {n: part.dtype for n, part in self._buffers.items() if part is not None}
        for name, part in list(self._buffers.items()):
            del self._buffers[name]
            self._parameters[name] = None if part is None else nn.Parameter(part, False)
        self.frozen = True

    def get_extra_state(self) -> Tensor:
        """The spelling as bytes, zeros after it: a tensor, so that every file format of states can
        hold it."""
        spelling, sizes = self.fmt.encode(), _sizes(self.fmt)
        return torch.tensor(
            [*spelling, *bytes(prod(sizes) - len(spelling))], dtype=torch.uint8
        ).view(sizes)

    def set_extra_state(self, state: Tensor) -> None:
        """Nothing to set: `_load_from_state_dict` has compared it."""

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        state = state_dict.get(f"{prefix}_extra_state")
        if state is not None and state.dtype != torch.uint8:
            error_msgs.append(
                f"{prefix[:-1]} is quantized, and its state was changed by arithmetic (now "
                f"{state.dtype}): codes cannot be averaged or scaled; do that in float and "
                "quantize the result"
            )
            return
        fmt = self.fmt if state is None else _spelling_in(state)
        if fmt != self.fmt:
            error_msgs.append(
                f"{prefix[:-1]} has the format {self.fmt}, and the state was saved with "
                f"{fmt}: build the layer with the same format"
            )
            return
        for name, buffer in self.own.items():
            new = state_dict.get(f"{prefix}{name}")
            if buffer is not None and new is not None and new.dtype != buffer.dtype:
                error_msgs.append(f"{prefix}{name} is {buffer.dtype}, the state's {new.dtype}")
                return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Buffers":
        del recurse
        own = self.own
        if self.dtype is not None:  # the float tensor would have changed its dtype here
            device = next(b.device for b in own.values() if b is not None)
            self.dtype = fn(torch.empty(0, dtype=self.dtype, device=device)).dtype
        for name, buffer in own.items():
            if buffer is not None:
                result = fn(buffer)
                result = result if result.dtype == buffer.dtype else buffer.to(result.device)
                own[name] = nn.Parameter(result, False) if self.frozen else result
        return self

    # --- accelerate: add_hook_to_module sets `_hf_hook` after the hook's init_hook has run

    @property
    def _hf_hook(self) -> Any:
        """accelerate's hook on this module. Raises AttributeError without one."""
        if "_hf_hook" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no hook of accelerate")
        return self.__dict__["_hf_hook"]

    @_hf_hook.setter
    def _hf_hook(self, hook: Any) -> None:
        self.__dict__["_hf_hook"], self._hooks = hook, []
        for each in getattr(hook, "hooks", (hook,)):  # a SequentialHook has several
            if getattr(each, "offload", False):
                self._leave_to(each)

    @_hf_hook.deleter
    def _hf_hook(self) -> None:
        for hook, offload_buffers in self._hooks:
            hook.offload_buffers = offload_buffers
        self._keeper = None
        del self.__dict__["_hf_hook"], self.__dict__["_hooks"]

    def _leave_to(self, hook: Any) -> None:
        """Let an AlignDevicesHook that offloads parameters keep the buffers, too, or none."""
        self._hooks.append((hook, hook.offload_buffers))
        if self.frozen:
            raise ValueError(
                f"a weight in {self.fmt} is held as parameters (bs.parallel.as_parameters_), which "
                "FSDP2 shards: let accelerate offload the model as bs.quantize_ gave it"
            )
        own_parts = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        if not self.offloads:
            for name, buffer in own_parts.items():
                if buffer.device.type == "meta":
                    self._buffers[name] = hook.weights_map[name].to(hook.execution_device)
        elif not hook.offload_buffers:
            if isinstance(hook.weights_map, dict):  # made by the hook, of parameters alone
                real = {name: buffer for name, buffer in own_parts.items() if not buffer.is_meta}
                hook.weights_map |= {name: buffer.to("cpu") for name, buffer in real.items()}
            self._buffers.update({name: buffer.to("meta") for name, buffer in own_parts.items()})
        hook.offload_buffers = self.offloads
        self._keeper = hook if self.offloads else None

    def present(self) -> dict[str, Any]:
        """The buffers with their numbers, on the device where they are used."""
        if self.frozen:
            return self._in_use()
        if self._keeper is None:
            return self._buffers
        rest, device = self._keeper.weights_map, self._keeper.execution_device
        return {
            name: rest[name].to(device) if buffer is not None and buffer.is_meta else buffer
            for name, buffer in self._buffers.items()
        }

    def _in_use(self) -> dict[str, Any]:
        """Parameters, which FSDP2 gathers for a call: other objects at each, so that nothing that
        kernels keep beside a weight outlives it. Raises RuntimeError where they have no numbers."""
        for name, part in self._parameters.items():
            if part is not None and part.dtype != self._dtypes[name]:
                raise RuntimeError(
                    f"the {name} of a weight in {self.fmt} was cast to {part.dtype}, which changes "
                    "what the codes mean: leave param_dtype out of fully_shard's mp_policy, and "
                    "cast parameters by model.to(dtype), which knows codes"
                )
            if hasattr(part, "full_tensor"):
                raise RuntimeError(
                    f"a weight in {self.fmt} was read while its {name} is sharded: call the module "
                    "that fully_shard was given, or its unshard() first"
                )
        parts = self._parameters.items()
        return {name: None if part is None else part.detach() for name, part in parts}


_DIMENSIONS, _TWOS = 30, 8  # of which any 8 of 30: 5,852,925 ways, and 256 bytes


@cache
def _sizes(spelling: str) -> tuple[int, ...]:
    """The sizes of a spelling's tensor: 1 or 2, and which are 2 depends on all of its bytes."""
    digests = [sha256(f"{i} {spelling}".encode()).digest() for i in range(_DIMENSIONS)]
    twos = sorted(range(_DIMENSIONS), key=digests.__getitem__)[:_TWOS]
    sizes = (2 if i in twos else 1 for i in range(_DIMENSIONS))
    return (ceil(len(spelling.encode()) / 2**_TWOS), *sizes)


def _spelling_in(state: Tensor) -> str:
    """What `get_extra_state` gave, or that of release 0.1, which is [bytes]."""
    return bytes(state.flatten().tolist()).rstrip(b"\0").decode(errors="replace")


Parts = tuple[Tensor | None, Tensor | None, Tensor | None]  # scale, zero_point, outer


class Scaled(Buffers):
    """A module with the buffers `scale`, `zero_point` and `outer`, which may be None, and one for
    each further part that its format has (Format.parts): `offset`, `offset_outer`, `scale_offset`.
    """

    format: Format

    def set_parts(self, qparams: QParams | None) -> None:
        """Hold these tensors from now on: new buffers, nothing is copied or checked."""
        parts = {} if qparams is None else qparams._asdict()
        self._further = [name for name in self.format.parts if name not in FIRST]
        for name in ("scale", "zero_point", "outer", *self._further):
            self.register_buffer(name, parts.get(name))

    @property
    def parts(self) -> Parts:
        """Scale, zero point and outer scale, in the order in which ops take them."""
        part = self.present()
        return part["scale"], part["zero_point"], part["outer"]

    @property
    def qparams(self) -> QParams | None:
        """All that stands beside the codes; None without a scale."""
        return self._qparams_of(self.present())

    def _qparams_of(self, part: dict[str, Any]) -> QParams | None:
        if part["scale"] is None:
            return None
        more = {name: part[name] for name in self._further}
        return QParams(part["scale"], part["outer"], part["zero_point"], **more)
