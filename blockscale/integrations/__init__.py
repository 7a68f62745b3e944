# SPDX-License-Identifier: BSD-3-Clause
"""Integrations are imported when their library is, and not before.

`import blockscale` imports none of these libraries and changes nothing. The first quantized model
leaves a note with Python's import system: when the library has been imported, our module about it
is imported as well.
"""

import importlib
import importlib.util
import sys
import threading
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch import nn

from blockscale.core.recipe import Recipe
from blockscale.layers.model import listeners


def bring_along(library: str, ours: str) -> None:
    """Import our module `ours`, once, as soon as `library` is imported; now, if it has been."""
    if ours in sys.modules or any(isinstance(f, _Finder) and f.ours == ours for f in sys.meta_path):
        return
    if library in sys.modules:
        _bring(library, ours)
    else:
        sys.meta_path.insert(0, _Finder(library, ours))


def _bring(library: str, ours: str) -> None:
    """Import ours. Where that fails, warn, and leave the library as it is."""
    try:
        importlib.import_module(ours)
    except Exception as error:
        version = getattr(sys.modules[library], "__version__", "of unknown version")
        warnings.warn(
            f"blockscale: {ours} does not fit this {library} ({version}): "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )


class _Finder(MetaPathFinder):
    """Finds the library as everybody else would, and adds what happens after its import."""

    def __init__(self, library: str, ours: str):
        self.library, self.ours = library, ours
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != self.library or getattr(self._asking, "now", False):
            return None
        self._asking.now = True  # the same question once more goes to the other finders
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.now = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(Loader):
    """The library's own loader, after which our module is imported."""

    def __init__(self, own: Any, finder: _Finder):
        self._own, self._finder = own, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        _bring(self._finder.library, self._finder.ours)


# Other libraries' loaders and savers, which get what they need to know of quantized models.


def tell_transformers(model: nn.Module, recipe: Recipe | None) -> None:
    """Let `save_pretrained` of a quantized transformers model write what was quantized.

    model: quantized in place, of transformers or not (nothing happens then)
    recipe: what it was quantized by, for its config.json; None where that is not known
    """
    _attach(model, recipe, "transformers", "transformers.modeling_utils", "PreTrainedModel")


def tell_diffusers(model: nn.Module, recipe: Recipe | None) -> None:
    """Let `save_pretrained` of a quantized diffusers model write what was quantized.

    model, recipe: as of `tell_transformers`
    """
    _attach(model, recipe, "diffusers", "diffusers.models.modeling_utils", "ModelMixin")


def _attach(model: nn.Module, recipe: Recipe | None, library: str, module: str, kind: str) -> None:
    """Attach a recipe to the library's models. A library that nobody imported has none."""
    namespace = sys.modules.get(module)
    if namespace is None:
        return
    models = [each for each in model.modules() if isinstance(each, getattr(namespace, kind))]
    if models:
        import_module(f"blockscale.integrations.{library}").attach(models, recipe)


def tell_peft(model: nn.Module, recipe: Recipe | None) -> None:
    """Let peft put adapters on the quantized layers of `model`, whenever peft is imported.

    recipe: not used; every `tell_…` takes the same arguments
    """
    del model, recipe
    bring_along("peft", "blockscale.integrations.peft")


listeners.extend((tell_transformers, tell_diffusers, tell_peft))
