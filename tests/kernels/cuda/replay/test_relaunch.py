# SPDX-License-Identifier: BSD-3-Clause
"""How recorded kernels are started: by what Triton's launcher itself would call."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.backends.nvidia import driver

from blockscale.kernels.cuda.replay import relaunch
from blockscale.kernels.cuda.replay.relaunch import Launch

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
        assert len(step.known) <= 3
