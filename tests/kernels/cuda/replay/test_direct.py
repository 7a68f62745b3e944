# SPDX-License-Identifier: BSD-3-Clause
"""Starting kernels past Triton's own way: what is remembered, and what is not."""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import triton

from blockscale.kernels.cuda.replay import direct as module
from blockscale.kernels.cuda.replay.direct import Direct, cdiv, direct, power_of_2


class Kernel:
    """Counts what Triton's own way would compile, and what goes past it."""

    arg_names = ("x", "y", "n", "R", "BLOCK")

    def __init__(self) -> None:
        self.compiled: list[tuple[Any, ...]] = []
        self.direct: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **named: Any) -> Kernel.Compiled:
            self.compiled.append((grid, arguments, named))
            return Kernel.Compiled(self)

        return run

    @dataclass
    class Compiled:
        kernel: "Kernel"

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments: self.kernel.direct.append((grid, arguments))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(module, "interpreting", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return Kernel()


R, OTHER = object(), object()
X = torch.zeros(64)


def start(kernel: Direct, x: Any = X, y: Any = None, n: int = 5, **named: Any) -> None:
    kernel[(3, 2)](x, y, n, **({"BLOCK": 64, "R": R, "num_warps": 4} | named))


def test_the_second_call_goes_past(kernel: Kernel) -> None:
    d = Direct(kernel)
    start(d)
    assert kernel.compiled == [((3, 2), (X, None, 5), {"BLOCK": 64, "R": R, "num_warps": 4})]
    other = torch.ones(64)
    start(d, other)
    assert len(kernel.compiled) == 1
    grid, arguments = kernel.direct[0]
    assert grid == (3, 2, 1)
    assert arguments == (other, None, 5, R, 64)  # in the kernel's order, without its options


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.zeros(64, dtype=torch.bfloat16)},
        {"y": torch.zeros(4)},
        {"n": 6},
        {"R": OTHER},
        {"BLOCK": 32},
        {"num_warps": 8},
    ],
)
def test_what_triton_would_look_at_is_looked_at(kernel: Kernel, change: dict[str, Any]) -> None:
    d = Direct(kernel)
    start(d)
    start(d, **change)
    assert len(kernel.compiled) == 2
    assert not kernel.direct
    start(d, **change)
    start(d)
    assert len(kernel.compiled) == 2


def test_a_tensor_that_begins_elsewhere(kernel: Kernel) -> None:
    d = Direct(kernel)
    for _ in range(2):
        start(d, X[1:])
    assert len(kernel.compiled) == 2
    assert not d.compiled


class Sizes(NamedTuple):
    m: int
    k: int


def test_named_tuples_count_by_value(kernel: Kernel) -> None:
    d = Direct(kernel)
    for sizes in (Sizes(3, 4), Sizes(3, 4), Sizes(3, 5)):
        start(d, y=sizes)
    assert len(kernel.compiled) == 2
    assert [arguments[1] for _, arguments in kernel.direct] == [(3, 4)]
    assert all(
        Sizes(3, 4) not in kept and Sizes(3, 5) not in kept for _, kept in d.compiled.values()
    )


def test_memory_is_bounded(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    d = Direct(kernel)
    for n in range(10):
        start(d, n=n)
    assert len(d.compiled) <= 3


def test_nothing_is_remembered_of_the_interpreter(kernel: Kernel, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "interpreting", lambda: True)
    d = Direct(kernel)
    for _ in range(2):
        start(d)
    assert len(kernel.compiled) == 2


def test_one_of_each(kernel: Kernel) -> None:
    other = Kernel()
    assert direct(kernel) is direct(kernel)
    assert direct(kernel) is not direct(other)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 63, 64, 65, 8191, 8192, 28672])
def test_whole_numbers(n: int) -> None:
    assert power_of_2(n) == triton.next_power_of_2(n)
    for by in (1, 2, 3, 64, 128):
        assert cdiv(n, by) == triton.cdiv(n, by)


def test_all_kernels_are_started_by_direct() -> None:
    """kernel[grid](…) stands nowhere else."""
    from blockscale.kernels import cuda

    starts = []
    for file in sorted(Path(cuda.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                by = node.func.value
                if not (isinstance(by, ast.Call) and getattr(by.func, "id", "") == "direct"):
                    starts.append(f"{file.name}: {ast.unparse(node.func)}")
    assert starts == ["direct.py: compiled[whole]", "direct.py: self.kernel[grid]"]
