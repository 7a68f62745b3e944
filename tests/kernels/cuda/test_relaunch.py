# SPDX-License-Identifier: BSD-3-Clause
"""How recorded kernels are started: by what Triton's launcher itself would call."""

import ast
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import triton
from triton.backends.nvidia import driver

from blockscale.kernels.cuda import relaunch
from blockscale.kernels.cuda import relaunch as module
from blockscale.kernels.cuda.relaunch import Direct, Launch, cdiv, direct, power_of_2

pytestmark = pytest.mark.skipif(
    not triton.__version__.startswith("3.6."), reason="about Triton 3.6, not another"
)
BEFORE = (3, 2, 1, 99, "function", False, True, None, None, (4, 1, 0), None, None, None)
META = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [8, 64], "fp4_padded": False}


class CudaLauncher:
    """As the driver's, but for the C function."""

    __call__ = driver.CudaLauncher.__call__
    num_ctas = 1
    global_scratch_size = profile_scratch_size = 0
    global_scratch_align = profile_scratch_align = 1
    launch_cooperative_grid, launch_pdl = False, True

    def __init__(self, signature: dict[int, Any], metas: list[Any] | None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.asked = 0
        self.launch = driver.wrap_handle_tensordesc(self.started, signature, metas)

    def started(self, *arguments: Any) -> None:
        self.calls.append(arguments)


def compiled(launcher: Any) -> Any:
    return SimpleNamespace(run=launcher, function="function", packed_metadata=(4, 1, 0))


def recorded(launcher: Any, arguments: tuple[Any, ...], places: dict[int, Any]) -> Launch:
    step = Launch(compiled(launcher), (3, 2, 1))
    for number, each in enumerate(arguments):
        step.takes(each, number, places.get(number))
    return step


def public(launcher: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the C function gets the ordinary way."""
    launcher(3, 2, 1, 99, "function", (4, 1, 0), None, None, None, *arguments)
    return launcher.calls.pop()


def test_pointers() -> None:
    launcher = CudaLauncher(dict(enumerate(("*fp32", "i32", "*fp32", "constexpr"))), None)
    x = torch.zeros(8)
    step = recorded(launcher, (x, 5, None, "C"), {0: (1, 16)})
    step([0, 4096], [], 99)
    assert launcher.calls.pop() == (*BEFORE, 4112, 5, None, "C")
    assert public(launcher, (4112, 5, None, "C")) == (*BEFORE, 4112, 5, None, "C")
    assert not any(each is x for each in step.arguments)  # its memory is free


def described(x: torch.Tensor) -> Any:
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    return TensorDescriptor.from_tensor(x, [8, 64], NVMMASharedLayout(128, 16, 2))


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The tensor maps that were made."""
    made: list[tuple[Any, ...]] = []

    def fill(*arguments: Any) -> tuple[Any, ...]:
        made.append(arguments)
        return arguments

    utils = SimpleNamespace(fill_tma_descriptor=fill)
    active = SimpleNamespace(active=SimpleNamespace(utils=utils))
    monkeypatch.setattr(driver.triton.runtime, "driver", active)
    return made


@pytest.mark.parametrize("version", ["3.6.0", "3.99.0"])
def test_descriptors(
    version: str, maps: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map for each address is made once, in the versions that are known."""
    monkeypatch.setattr(triton, "__version__", version)
    kinds = ("i32", "tensordesc<bf16[8, 64]>", "*fp32", "tensordesc<bf16[8, 64]>", "constexpr")
    launcher = CudaLauncher(dict(enumerate(kinds)), [META, META])
    x, w, y = torch.zeros(8, 64).bfloat16(), torch.zeros(24, 64).bfloat16(), torch.zeros(4)
    call = (7, described(x), y, described(w), "T")
    step = recorded(launcher, call, {1: (0, 0), 2: (1, 4), 3: (2, 0)})
    assert all(each[3].base is None for each in step.descriptors)
    for other in (x, x.clone()):
        at = [other.data_ptr(), y.data_ptr() - 4, w.data_ptr()]
        expected = public(launcher, (7, described(other), y.data_ptr(), described(w), "T"))
        maps.clear()
        for i in range(2):
            step(at, [], 99)
            assert [*map(str, launcher.calls.pop())] == [*map(str, expected)]
            assert len(maps) == (2 if version == "3.99.0" else 1) or i or other is x
        assert other is x or len(maps) == (4 if version == "3.99.0" else 1)


def test_scratch_memory_is_left_to_the_launcher() -> None:
    launcher = CudaLauncher({0: "i32"}, None)
    launcher.global_scratch_size = 64
    assert recorded(launcher, (5,), {}).run is launcher
    assert recorded(lambda *_: None, (5,), {}).run is not launcher


def test_descriptors_are_bounded(
    maps: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaunch, "_MOST", 3)
    launcher = CudaLauncher({0: "tensordesc<bf16[8, 64]>"}, [META])
    step = recorded(launcher, (described(torch.zeros(8, 64).bfloat16()),), {0: (0, 0)})
    for at in range(16, 160, 16):
        step([at], [], 99)
        assert launcher.calls.pop()[len(BEFORE)][0] == at
        assert len(step.copies) <= 3


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


def test_values_that_triton_does_not_look_at(kernel: Kernel) -> None:
    """Another number is the same kernel's, a wider one is not."""
    kernel.do_not_specialize = ["n"]  # type: ignore[attr-defined]
    d = Direct(kernel)
    for n in (5, 6, 16, 1, -7):
        start(d, n=n)
    assert len(kernel.compiled) == 1
    assert [arguments[2] for _, arguments in kernel.direct] == [6, 16, 1, -7]
    start(d, n=1 << 31)
    start(d, n=6, BLOCK=32)
    assert len(kernel.compiled) == 3


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
    assert starts == ["relaunch.py: compiled[whole]", "relaunch.py: self.kernel[grid]"]
