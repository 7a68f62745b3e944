# SPDX-License-Identifier: BSD-3-Clause
"""The tests of blockscale/A/b.py lie in tests/A/test_b.py, so that a stranger finds them, and what
several files of tests share lies in tests/support."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
LEAST = 0.85  # of all modules

# module -> why it has no test of its own, and what tests it
_FEW = "Gluon, which only a Hopper runs: tests/gpu/test_linear_few.py"
_FUSED = "Gluon, which only a Hopper runs: tests/gpu/test_linear_fused.py"
WITHOUT: dict[str, str] = {
    "integrations/vllm/method.py": "vLLM's classes, run in vLLM: tests/clients/test_vllm_plugin.py",
    "kernels/cuda/matmul/hopper/few.py": _FEW,
    "kernels/cuda/matmul/hopper/few_six_bits.py": _FEW,
    "kernels/cuda/matmul/hopper/few_small_blocks.py": _FEW,
    "kernels/cuda/matmul/hopper/fused.py": _FUSED,
    "kernels/cuda/matmul/hopper/fused_six_bits.py": _FUSED,
    "kernels/cuda/matmul/hopper/fused_slots.py": _FUSED,
}


def modules() -> list[str]:
    """Every module but the folders' own __init__.py, as a path below blockscale/."""
    files = (ROOT / "blockscale").rglob("*.py")
    names = (f.relative_to(ROOT / "blockscale").as_posix() for f in files)
    return sorted(name for name in names if not name.endswith(("__init__.py", "__main__.py")))


def mirrored(module: str) -> pathlib.Path:
    """blockscale/`module` -> the file of its tests."""
    path = pathlib.PurePath(module)
    return ROOT / "tests" / path.parent / f"test_{path.name}"


def test_every_module_has_a_test_or_a_reason() -> None:
    missing = [m for m in modules() if not mirrored(m).is_file() and m not in WITHOUT]
    assert not missing, missing


def test_reasons_are_needed_and_say_something() -> None:
    assert set(WITHOUT) <= set(modules())
    assert not [m for m in WITHOUT if mirrored(m).is_file()]
    assert all(len(reason.split()) >= 4 for reason in WITHOUT.values())


def test_most_modules_have_a_test() -> None:
    have = [m for m in modules() if mirrored(m).is_file()]
    assert len(have) >= LEAST * len(modules()), f"{len(have)} of {len(modules())}"


def test_a_test_holds_tests() -> None:
    files = [mirrored(m) for m in modules() if mirrored(m).is_file()]
    assert not [f for f in files if "def test_" not in f.read_text()]


def test_tests_take_nothing_from_other_tests() -> None:
    """What they share is in tests/support: a test file can be moved, merged and deleted alone."""
    wrong = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        named = re.search(r"from\s+tests[\w.]*\.test_", text)  # most are not parsed
        for node in ast.walk(ast.parse(text)) if named else ():
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = node.module.split(".")
                if parts[0] == "tests" and parts[-1].startswith("test_"):
                    wrong.append(f"{path.relative_to(ROOT)}: {node.module}")
    assert not wrong, wrong


def test_support_holds_no_tests() -> None:
    files = sorted((ROOT / "tests/support").rglob("*.py"))
    assert len(files) > 50
    assert not [f for f in files if f.name.startswith("test_") or "def test_" in f.read_text()]
