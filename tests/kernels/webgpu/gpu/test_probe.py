# SPDX-License-Identifier: BSD-3-Clause
"""What a device gets wrong is found, and formats that need it are left to the reference."""

from collections.abc import Iterator

import pytest

from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu import probe, shader
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.probe import OPERATIONS, refusal, wrongly_computed
from blockscale.kernels.webgpu.spec import known, operations

PRODUCT = "product of normal numbers"
SUM = "sum of normal numbers"
QUICK = "division by a reciprocal"
PLAIN = shader.part


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Parts may be changed; what was asked of the device before is forgotten, also afterwards."""

    def forget() -> None:
        shader.source.cache_clear()
        shader.assemble.cache_clear()
        wrongly_computed.cache_clear()
        probe._told.clear()

    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


def plant(at: pytest.MonkeyPatch, name: str, right: str, wrong: str) -> None:
    """Another text in a part of all shaders."""
    assert right in PLAIN(name)

    def part(asked: str) -> str:
        return PLAIN(asked).replace(right, wrong) if asked == name else PLAIN(asked)

    at.setattr(shader, "part", part)


def test_this_device_is_right() -> None:
    assert wrongly_computed() == ()
    assert refusal(OPERATIONS) is None


def test_liberties_are_no_faults(planted: pytest.MonkeyPatch) -> None:
    """Flushed subnormals and bad divisions are what kernels expect."""
    planted.setattr(probe, "_HARDWARE", "flushing")
    assert wrongly_computed() == ()


@pytest.mark.parametrize(
    ("part", "right", "wrong", "found"),
    [
        ("hardware/plain", "bitcast<f32>(a) + bitcast<f32>(b)",
         "bitcast<f32>(a ^ 1u) + bitcast<f32>(b)", (SUM,)),
        ("hardware/plain", "bitcast<f32>(a) * bitcast<f32>(b)",
         "bitcast<f32>((a + 4u) & 0xfffffff8u) * bitcast<f32>(b)", (QUICK, PRODUCT)),
        ("hardware/plain", "bitcast<f32>(a) / bitcast<f32>(b)",
         "bitcast<f32>(a) / bitcast<f32>(b + 8u)", (QUICK,)),
        ("arithmetic/integers/multiply", "u32((whole.x & 0xffffu) != 0u)", "0u", (OPERATIONS[0],)),
        ("arithmetic/integers/divide", "u32(rest != 0u)", "0u", (OPERATIONS[1], QUICK)),
        ("arithmetic/integers/add", "moved | lost", "moved", (OPERATIONS[2], OPERATIONS[3])),
        ("bits/parts", "(kept & 1u) == 1u", "true", (OPERATIONS[0], *OPERATIONS[2:5])),
    ],
)  # fmt: skip
def test_faults_are_found(
    planted: pytest.MonkeyPatch, part: str, right: str, wrong: str, found: tuple[str, ...]
) -> None:
    plant(planted, part, right, wrong)
    assert wrongly_computed() == found


def test_formats_are_refused_once(planted: pytest.MonkeyPatch) -> None:
    wrong = "bitcast<f32>(a) / bitcast<f32>(b + 8u)"
    plant(planted, "hardware/plain", "bitcast<f32>(a) / bitcast<f32>(b)", wrong)
    assert QUICK in operations(parse("int8"))
    assert QUICK not in operations(parse("mxfp4"))
    with pytest.warns(UserWarning, match=f"wrong in {QUICK}: the reference"):
        assert not known((parse("int8"),), ())
    assert not known((parse("int8"),), ())  # said once
    assert known((parse("mxfp4"),), ())


def test_floats_of_a_device_are_used_only_where_they_are_exact(planted: pytest.MonkeyPatch) -> None:
    planted.delenv(probe.ARITHMETIC)
    expected = "native" if gpu().software else "integers"
    assert probe.arithmetic() == expected
    probe._arithmetic.cache_clear()
    wrong = "bitcast<f32>((a + 4u) & 0xfffffff8u) / bitcast<f32>(b)"
    plant(planted, "arithmetic/native/divide", "bitcast<f32>(a) / bitcast<f32>(b)", wrong)
    wrongly_computed.cache_clear()
    shader.source.cache_clear()
    shader.assemble.cache_clear()
    assert "division from integers" in wrongly_computed("native")
    assert wrongly_computed() == ()
    assert probe.arithmetic() == "integers"
    probe._arithmetic.cache_clear()
    planted.setenv(probe.ARITHMETIC, "integers")
    assert probe.arithmetic() == "integers"
