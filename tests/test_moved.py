# SPDX-License-Identifier: BSD-3-Clause
"""Old names of modules import what took their place, warn, and hide no function."""

import importlib
import pickle
import pkgutil
import sys
import textwrap
import types
from pathlib import Path

import pytest

import blockscale as bs
from blockscale import moved
from tests.support import fresh

ROOT = Path(__file__).parents[1]


EMPTY = "blockscale.graph.lower.targets"  # one target a file, and nothing of its own


@pytest.mark.parametrize("old", sorted(moved.MOVED.keys() - {EMPTY}))
def test_every_old_name_leads_to_a_module(old: str) -> None:
    new = importlib.import_module(moved.MOVED[old])
    names = [name for name in vars(new) if not name.startswith("__")]
    with pytest.warns(DeprecationWarning, match=f"{old} is called {moved.MOVED[old]} now"):
        assert all(getattr(sys.modules[old], name) is getattr(new, name) for name in names)


@pytest.mark.parametrize("old", moved.MOVED)
def test_no_old_name_is_a_file(old: str) -> None:
    path = ROOT / old.replace(".", "/")
    assert not path.with_suffix(".py").exists()
    assert not path.is_dir() or not list(path.glob("*.py"))


def test_a_set_of_modules_is_found_under_its_old_name() -> None:
    old, new = (importlib.import_module(f"{n}.cpu") for n in (EMPTY, moved.MOVED[EMPTY]))
    with pytest.warns(DeprecationWarning, match=r"lower.targets.cpu is called .*target.cpu now"):
        assert old.supports is new.supports


def test_what_users_wrote_works_and_warns() -> None:
    """Each line as it stood in somebody's program; the functions stay functions after it."""
    script = """
        import warnings
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            from blockscale.calibrate.observers import min_max
            from blockscale.graph.lower import ways
            from blockscale.graph.lower.way import Way
            from blockscale.search.result import read_search
            from blockscale.export.onnx.pieces import Piece
            from blockscale.qat.convert import convert
            from blockscale.report import accuracy
            from blockscale.report.wording import size
            from blockscale.core.power_of_two import round_to_power_of_2
        import blockscale as bs
        for function in (bs.calibrate, bs.search, bs.report, bs.graph.lower, bs.graph.convert,
                         bs.export.onnx, bs.qat.convert):
            assert type(function).__name__ == "function", function
        from blockscale.selection import result
        assert read_search is result.read_search
        places = {(w.filename, w.lineno) for w in heard}
        assert {file for file, _ in places} == {"<string>"}, places
        assert len(places) == 9, [str(w.message) for w in heard]
    """
    fresh.run(textwrap.dedent(script), cwd=ROOT, check=True)


def test_pickles_of_old_names_load() -> None:
    new = pickle.dumps(bs.graph.lowering.Way, protocol=0)
    old = new.replace(b"blockscale.graph.lowering.way", b"blockscale.graph.lower.way")
    assert old != new
    with pytest.warns(DeprecationWarning, match="lower.way is called"):
        assert pickle.loads(old) is bs.graph.lowering.Way


@pytest.mark.parametrize("name", ["blockscale.core", "blockscalecalibrate", "numpy", "blockscale"])
def test_other_names_are_left_alone(name: str) -> None:
    assert moved.new_name(name) is None


def test_a_module_that_never_was_is_an_import_error() -> None:
    with pytest.raises(ImportError):
        importlib.import_module("blockscale.calibrate.nothing_here")
    with pytest.raises(AttributeError), pytest.warns(DeprecationWarning):
        _ = sys.modules["blockscale.calibrate"].nothing_here


def hidden() -> list[str]:
    """Modules that their package has another thing under the name of."""
    found = []
    for info in pkgutil.walk_packages(bs.__path__, "blockscale."):
        parent, _, leaf = info.name.rpartition(".")
        package = sys.modules.get(parent)
        here = getattr(package, leaf, None) if package else None
        if here is not None and not isinstance(here, types.ModuleType):
            found.append(info.name)
    return found


def test_no_module_is_hidden_by_what_its_package_exports() -> None:
    """`import blockscale.calibration.observers as o` works for every module, and pydoc finds it."""
    assert not hidden()


def test_a_hidden_module_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bs.graph, "nodes", len)
    assert "blockscale.graph.nodes" in hidden()
