"""Modules whose buffers keep their dtype, and whose state says in which format they are."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.format import Format
from blockscale.core.operand import FIRST
from blockscale.core.reference import QParams


class Buffers(nn.Module):
    """Buffers that keep their dtype: `model.half()` must not round a scale.

    The state holds the format's spelling, so that one in another format is refused: many formats
    have the same shapes and dtypes.

    dtype: of the float tensor that the buffers stand for, which follows casts; None if of none
    """

    fmt: str
    dtype: torch.dtype | None = None
    _is_hf_initialized = True  # transformers' init_weights leaves alone what says this

    def get_extra_state(self) -> Tensor:
        """The spelling as bytes: a tensor, so that every file format of states can hold it."""
        return torch.tensor(list(self.fmt.encode()), dtype=torch.uint8)

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
                f"{prefix[:-1]} is quantized, and its state was computed with (now {state.dtype}): "
                f"codes cannot be averaged or scaled; do that in float, and quantize the result"
            )
            return
        fmt = self.fmt if state is None else bytes(state.tolist()).decode(errors="replace")
        if fmt != self.fmt:
            error_msgs.append(f"{prefix[:-1]} is in format {self.fmt}, the state in {fmt}")
            return
        for name, buffer in self._buffers.items():
            new = state_dict.get(f"{prefix}{name}")
            if buffer is not None and new is not None and new.dtype != buffer.dtype:
                error_msgs.append(f"{prefix}{name} is {buffer.dtype}, the state's {new.dtype}")
                return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Buffers":
        del recurse
        if self.dtype is not None:  # the float tensor would have changed its dtype here
            device = next(b.device for b in self._buffers.values() if b is not None)
            self.dtype = fn(torch.empty(0, dtype=self.dtype, device=device)).dtype
        for name, buffer in self._buffers.items():
            if buffer is not None:
                moved = fn(buffer)
                self._buffers[name] = (
                    moved if moved.dtype == buffer.dtype else buffer.to(moved.device)
                )
        return self


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
        return self._buffers["scale"], self._buffers["zero_point"], self._buffers["outer"]

    @property
    def qparams(self) -> QParams | None:
        """All that stands beside the codes; None without a scale."""
        part: dict[str, Any] = self._buffers
        if part["scale"] is None:
            return None
        more = {name: part[name] for name in self._further}
        return QParams(part["scale"], part["outer"], part["zero_point"], **more)
