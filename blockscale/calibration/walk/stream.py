# SPDX-License-Identifier: BSD-3-Clause
"""Weights that are read one block at a time, of a model on the meta device."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

Source = str | Path | Mapping[str, Tensor] | Callable[[str], Tensor]


class Stream:
    """Reads parameters and buffers of a model on the meta device, and forgets them again.

    source: a directory of safetensors files, or one of them; a mapping; a function of a name
    """

    def __init__(self, model: nn.Module, source: Source):
        self.model = model
        self._read = _reader(source)
        self._names: dict[int, list[str]] = {}
        self._meta: dict[int, tuple[Tensor, Tensor]] = {}  # what was read, and what it replaced
        real = [t.device for t in model.parameters() if not t.is_meta]
        self.device = real[0] if real else torch.device("cpu")
        for name, tensor in _named(model):
            self._names.setdefault(id(tensor), []).append(name)

    def load(self, *inside: str, outside: tuple[str, ...] = ()) -> None:
        """Read what the modules of these names have ("" for all), and not what `outside` have."""
        for name, tensor in list(_named(self.model)):
            wanted = any(_in(name, each) for each in inside)
            if tensor.is_meta and wanted and not any(_in(name, each) for each in outside):
                self._load(tensor)

    def unload(self, tensors: list[Tensor]) -> None:
        """Forget what was read of these."""
        for tensor in tensors:
            if id(tensor) in self._meta:
                torch.utils.swap_tensors(*self._meta.pop(id(tensor)))

    def restore(self) -> None:
        """Forget everything."""
        self.unload([tensor for tensor, _ in list(self._meta.values())])

    def _load(self, tensor: Tensor) -> None:
        found = None
        for name in self._names[id(tensor)]:
            try:
                found = self._read(name)
                break
            except KeyError:
                continue
        if found is None:
            raise ValueError(
                f"the source has no {self._names[id(tensor)][0]!r}, which is on the meta "
                "device: a buffer that no file holds (a table of positions) must be made on "
                "a real device"
            )
        if found.shape != tensor.shape:
            raise ValueError(
                f"{self._names[id(tensor)][0]}: expected {tuple(tensor.shape)}, the source has "
                f"{tuple(found.shape)}"
            )
        found = found.detach().to(self.device, tensor.dtype)
        if isinstance(tensor, nn.Parameter):
            found = nn.Parameter(found, requires_grad=tensor.requires_grad)
        torch.utils.swap_tensors(tensor, found)
        self._meta[id(tensor)] = tensor, found


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _in(name: str, module: str) -> bool:
    return not module or name.startswith(f"{module}.")


def _reader(source: Source) -> Callable[[str], Tensor]:
    if isinstance(source, Mapping):
        return source.__getitem__
    if callable(source):
        return source
    path = Path(source)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise ValueError(f"{path} holds no safetensors files")
    places: dict[str, Path] = {}
    for file in files:
        with safe_open(str(file), "pt") as opened:
            places |= dict.fromkeys(opened.keys(), file)

    def read(name: str) -> Tensor:
        with safe_open(str(places[name]), "pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor

    return read
