# SPDX-License-Identifier: BSD-3-Clause
"""Functions and constants that are imported get another text's code; files are read as it."""

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import planted

TEXT = """import functools

STEP = 1
TWICE = STEP * 2


def decorate(f):
    @functools.wraps(f)
    def call(x):
        return f(x) + 10

    return call


@decorate
def moved(x):
    add = lambda y: y + STEP
    return add(x)


class Box:
    size = 3

    def grown(self, by=2):
        return self.size + by + TWICE
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    path = tmp_path / "planted_here.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("planted_here", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "planted_here", module)
    spec.loader.exec_module(module)
    yield module


def swap(module: ModuleType, old: str, new: str) -> None:
    path = Path(str(module.__file__))
    planted.swap(path, TEXT.replace(old, new), planted.functions(path.parent))


def test_functions_in_whatever_holds_them(module: ModuleType) -> None:
    held, box = module.moved, module.Box()
    swap(module, "return self.size + by", "return self.size - by")
    assert box.grown() == 3
    swap(module, "y + STEP", "y - STEP")
    assert held(5) == 14
    assert "y - STEP" in inspect.getsource(module.moved)
    swap(module, "f(x) + 10", "f(x) + 20")
    assert held(5) == 24


def test_constants_and_what_is_made_of_them(module: ModuleType) -> None:
    swap(module, "STEP = 1", "STEP = 4")
    assert module.moved(5) == 19
    assert module.Box().grown() == 3 + 2 + 8


@pytest.mark.parametrize(
    ("old", "new"),
    [("size = 3", "size = 4"), ("by=2", "by=3"), ("STEP = 1", "STEP = 1\nOTHER = 1")],
)
def test_what_is_there_before_the_import(module: ModuleType, old: str, new: str) -> None:
    with pytest.raises(planted.TooLateError):
        swap(module, old, new)


def test_imports_and_readers_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = tmp_path / "planted_there.py", tmp_path / "kernel.wgsl"
    code.write_text("X = 1\n")
    text.write_text("fn main() {}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr("io.open", open)
    monkeypatch.setattr("builtins.open", open)
    planted.plant(code, "X = 2\n")
    planted.plant(text, "fn other() {}")
    assert importlib.import_module("planted_there").X == 2
    assert text.read_text() == "fn other() {}" and text.read_bytes() == b"fn other() {}"
    assert code.read_text() == "X = 1\n"
    del sys.modules["planted_there"]
