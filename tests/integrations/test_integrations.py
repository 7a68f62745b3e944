# SPDX-License-Identifier: BSD-3-Clause
"""An integration comes along with the library that it is for, however that is imported."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockscale import integrations
from blockscale.integrations import bring_along
from tests.support import fresh

Write = Callable[..., None]
LIBRARY, OURS = "a_library_of_tests", "ours_about_a_library"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes the library, as a package, and our module about it."""

    def files(library: str, ours: str = f"from {LIBRARY} import value\n") -> None:
        (tmp_path / LIBRARY).mkdir(exist_ok=True)
        (tmp_path / LIBRARY / "__init__.py").write_text(library)
        (tmp_path / f"{OURS}.py").write_text(ours)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
    yield files
    sys.dont_write_bytecode = kept
    sys.meta_path[:] = before
    for name in (LIBRARY, OURS):
        sys.modules.pop(name, None)


def test_after_the_library_and_not_before(write: Write) -> None:
    write("value = 1\n")
    before = list(sys.meta_path)  # with what other tests wait for, which is not here yet
    bring_along(LIBRARY, OURS)
    assert OURS not in sys.modules
    library = importlib.import_module(LIBRARY)
    assert sys.modules[OURS].value == 1
    assert library.__spec__ is not None
    assert library.__spec__.loader is library.__loader__
    assert (
        type(library.__loader__).__module__ != integrations.__name__
    )  # as if we had not been there
    assert sys.meta_path == before


def test_at_once_where_it_is_imported_already(write: Write) -> None:
    write("value = 2\n")
    importlib.import_module(LIBRARY)
    before = list(sys.meta_path)
    bring_along(LIBRARY, OURS)
    assert sys.modules[OURS].value == 2
    assert sys.meta_path == before


def test_looking_for_it_is_no_import(write: Write) -> None:
    """transformers asks whether peft is there before anybody imports it."""
    write("value = 3\n")
    bring_along(LIBRARY, OURS)
    spec = importlib.util.find_spec(LIBRARY)
    assert spec is not None and spec.origin is not None and spec.origin.endswith("__init__.py")
    assert spec.submodule_search_locations
    assert OURS not in sys.modules
    importlib.import_module(LIBRARY)
    assert OURS in sys.modules


def test_one_that_is_not_there(write: Write) -> None:
    bring_along(LIBRARY, OURS)
    assert importlib.util.find_spec(LIBRARY) is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(LIBRARY)
    write("value = 4\n")  # installed meanwhile, as in a notebook
    importlib.import_module(LIBRARY)
    assert OURS in sys.modules


def test_one_that_fails_is_tried_again(write: Write) -> None:
    write("raise RuntimeError('half installed')\n")
    bring_along(LIBRARY, OURS)
    with pytest.raises(RuntimeError, match="half installed"):
        importlib.import_module(LIBRARY)
    assert OURS not in sys.modules
    write("value = 5  # and more text, so that its size differs\n")
    importlib.import_module(LIBRARY)
    assert OURS in sys.modules


def test_a_version_that_ours_does_not_fit_goes_on_without(write: Write) -> None:
    write("__version__ = '9.0'\n", f"from {LIBRARY} import moved_elsewhere\n")
    bring_along(LIBRARY, OURS)
    with pytest.warns(UserWarning, match=r"does not fit .*\(9\.0\): ImportError"):
        library = importlib.import_module(LIBRARY)
    assert library.__version__ == "9.0"


QUANTIZED = "blockscale.quantize_(torch.nn.Sequential(torch.nn.Linear(32, 32)), 'int8')"
SCRIPTS = {
    "blockscale first": f"{QUANTIZED}; assert 'peft' not in sys.modules; import peft",
    "peft first": f"import peft; {QUANTIZED}",
    "transformers first": f"import transformers; {QUANTIZED}; import peft",
    "a submodule first": f"{QUANTIZED}; from peft.tuners.lora import LoraConfig; import peft",
    "twice": f"{QUANTIZED}; {QUANTIZED}; import peft; {QUANTIZED}",
    "by hand": "import blockscale.integrations.peft, peft",
}


@pytest.mark.slow
def test_importing_us_leaves_the_import_system_alone() -> None:
    code = (
        "import sys, torch; a = list(sys.meta_path); import blockscale; print(sys.meta_path == a)"
    )
    done = fresh.run(code, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.slow
@pytest.mark.parametrize("order", SCRIPTS)
def test_peft(order: str) -> None:
    pytest.importorskip("peft")
    told = "print(peft.PEFT_TYPE_TO_TUNER_MAPPING[peft.PeftType.LORA].__name__)"
    code = f"import blockscale, sys, torch; {SCRIPTS[order]}; {told}"
    done = fresh.run(code, warn="ignore")
    assert done.stdout.strip() == "QuantizedLoraModel", done.stderr
