# SPDX-License-Identifier: BSD-3-Clause
"""Public docstrings that leave something out.

    python -m tests.support.public_docs

Of the names of `blockscale`, of its public modules and of the methods of their classes: a summary
in one line, every parameter by its name, "Raises" where the body raises. tests/test_public_docs.py
wants nothing left out.
"""

import dis
import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

MODULES = (
    "blockscale",
    "blockscale.observers",
    "blockscale.compat.torch_ao",
    "blockscale.compat.torchao",
    "blockscale.export",
    "blockscale.graph",
    "blockscale.integrations.diffusers",
    "blockscale.integrations.peft",
    "blockscale.integrations.transformers",
    "blockscale.parallel",
    "blockscale.qat",
)
# Methods that another library calls, whose own documentation has the parameters.
THEIRS = ("BlockscaleQuantizer", "QuantizedLoraModel", "RecipeConfig")
LONGEST = 100


def public(module: str) -> Iterator[tuple[str, Any]]:
    """(dotted name, object) of every public function, class, method and property of a module."""
    package, _, name = module.rpartition(".")
    if module == "blockscale.observers":  # an alias of blockscale.calibration.observers
        value = getattr(importlib.import_module(package), name)
    else:
        value = importlib.import_module(module)
    yield from _members(module, value)


def _members(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, ModuleType):
        for name in getattr(value, "__all__", None) or dir(value):
            each = getattr(value, name, None)
            own = str(getattr(each, "__module__", "")).startswith(value.__name__)
            if not name.startswith("_") and own and callable(each):
                yield from _members(f"{path}.{name}", each)
        return
    yield path, value
    for name, each in vars(value).items() if inspect.isclass(value) else ():
        plain = each.__func__ if isinstance(each, classmethod | staticmethod) else each
        if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield f"{path}.{name}", plain


def lacks(path: str, value: Any) -> list[str]:
    """What the docstring of a public object leaves out, in words."""
    function = value.fget if isinstance(value, property) else value
    text = inspect.getdoc(value) or ""
    if not text:
        return ["a docstring"]
    first, rest = text.split("\n\n")[0], []
    if len(text.splitlines()[0]) > LONGEST or not re.search(r"[.:`)]$", first.strip()):
        rest.append("a summary that ends")
    if not inspect.isfunction(function) or any(f".{name}." in path for name in THEIRS):
        return rest
    own = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    rest += [f"the parameter {name}" for name in own if not re.search(rf"\b{name}\b", text)]
    steps = [step.opname for step in dis.get_instructions(function)]
    raises = steps.count("RAISE_VARARGS") - steps.count("LOAD_ASSERTION_ERROR")
    if raises > 0 and "Raise" not in text:
        rest.append("Raises")
    return rest


if __name__ == "__main__":
    for module in MODULES:
        for path, value in public(module):
            if parts := lacks(path, value):
                print(f"{path}: {', '.join(parts)}")
