# SPDX-License-Identifier: BSD-3-Clause
"""The seam that vLLM asks for plug-ins at, without vLLM."""

import ast
import tomllib
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_entry_point_is_there_and_imports_nothing_before_it_is_called() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    place = project["entry-points"]["vllm.general_plugins"]["blockscale"]
    module, _, name = place.partition(":")
    found = import_module(module)
    assert callable(getattr(found, name))
    tree = ast.parse(Path(str(found.__file__)).read_text())
    assert not [each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    assert not module.startswith("blockscale.")  # whose __init__ takes a second to import
