# SPDX-License-Identifier: BSD-3-Clause
"""What the quick way may lose, from the rules of a device that flushes subnormals."""

from fractions import Fraction

import pytest
import torch

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.shader import source
from blockscale.kernels.webgpu.matmul import (
    FEW,
    Limits,
    MatrixPlaces,
    cast_shader,
    constants_of,
    most,
    plan,
    product_shader,
    storage,
)
from blockscale.kernels.webgpu.matmul_weight import right_of
from blockscale.kernels.webgpu.spec import float_of
from tests.kernels.webgpu.exact import stored

_TINY = Fraction(1, 2**126)


@pytest.mark.parametrize("inner", [1, 100, 4096, 100000])
@pytest.mark.parametrize(
    "limits", [Limits(2.0**8, 2.0**22), Limits(2.0**64, 2.0**-34), Limits(2.0**30, 1.0, 2.0**30)]
)
def test_a_trusted_sum_lost_less_than_it_may(limits: Limits, inner: int) -> None:
    """Each product loses a subnormal factor, product or step at most; 2^-18 of |y| is allowed."""
    left, value, step = (Fraction(each) for each in (limits.left_factor, limits.value, limits.step))
    of_left = _TINY * Fraction(limits.weight)
    of_step = _TINY * left * value
    of_value = _TINY * left * step
    of_product = _TINY * max(step, 1)
    lost = inner * (of_left + of_step + of_value + of_product + _TINY)
    assert lost <= Fraction(float_of(limits.least(inner))) / 2**18


def test_nothing_overflows_within_the_limits() -> None:
    limits = Limits(2.0**8, 2.0**22)
    assert limits.left_factor * limits.value * limits.step * 2.0**40 < 2.0**127
    assert float_of(int(constants_of(limits)["STEP_LIMIT"])) == limits.step


def test_places_by_name() -> None:
    named = MatrixPlaces(5, 4, 3, 2).by_name("left")
    assert named == {"left_start": 5, "left_batch": 4, "left_row": 3, "left_column": 2}


_WORKGROUP_BYTES = 16384 * 2  # of the least device that WebGPU has, and lavapipe


@pytest.mark.pairs
@pytest.mark.parametrize("quads", [4, 8])
@pytest.mark.parametrize("outputs", [1, 33, 4096, 100000])
@pytest.mark.parametrize("inner", [3, 1024, 16384])
@pytest.mark.parametrize("rows", range(1, FEW + 1))
def test_few_rows(rows: int, inner: int, outputs: int, quads: int) -> None:
    made = plan(1, rows, outputs, inner, "words", quads)
    has = dict(made.constants)
    assert made.kernel == "few_rows"
    assert has["ROWS"] >= rows
    assert 256 % has["TEAM"] == 0
    assert made.sizes["column_groups"] * 4 * (256 // has["TEAM"]) >= outputs
    staged = max(has["ROWS"] * has["TILES"] * quads * (has["TEAM"] + 1), has["ROWS"] * 256)
    results = has["ROWS"] * 4 * (256 // has["TEAM"])
    table = 256
    assert 16 * staged + 4 * (results + 256 + table + 2) <= _WORKGROUP_BYTES


@pytest.mark.some(4)
@pytest.mark.parametrize("rows", [5, 17, 33, 65, 1000, 5000])
@pytest.mark.parametrize("outputs", [1, 64, 300, 9000])
def test_many_rows(rows: int, outputs: int) -> None:
    made = plan(3, rows, outputs, 64, "any", 8)
    has = dict(made.constants)
    assert made.kernel == "many_rows"
    tile_outputs = 256 // (has["TILE_ROWS"] // (4 * has["SIDE"])) * 4 * has["SIDE"]
    assert made.sizes["column_groups"] * tile_outputs >= outputs
    rows_of_tiles = made.sizes["tiles"] // made.sizes["column_groups"]
    assert rows_of_tiles * has["TILE_ROWS"] >= rows
    assert made.groups == 3 * made.sizes["tiles"]


def test_what_few_rows_cannot_read_goes_by_tiles() -> None:
    assert plan(1, 1, 64, 64, "", 0).kernel == "many_rows"


@pytest.mark.parametrize("row_bytes", [(1,), (6,), (100, 12), (256,), (384, 96)])
def test_windows_begin_at_multiples(row_bytes: tuple[int, ...], monkeypatch) -> None:
    monkeypatch.setattr(type(gpu()), "binding_limit", property(lambda self: 30000))
    many = most(100000, *row_bytes)
    assert many * max(row_bytes) <= 30000
    assert all(many * each % 256 == 0 for each in row_bytes)
    assert most(3, *row_bytes) == 3


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", ["int4", "nvfp4", "nf4", "uint4", "mxfp6"])
@pytest.mark.parametrize("rows", [1, 100])
def test_all_parts_are_there(fmt: str, rows: int) -> None:
    right = right_of(stored(torch.randn(2, 128), fmt))
    made = plan(1, rows, 2, 128, right.chunk, right.chunk_quads)
    shader = product_shader(
        made, right.roles, right.constants, torch.float16, torch.float32, torch.float16
    )
    found = source(shader, ("rows",), None)
    assert {"x", "y", "codes", "bias"} <= set(found.bindings)
    assert "fn main" in found.text


def test_how_numbers_are_stored() -> None:
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    assert [storage(kind) for kind in kinds] == [0, 1, 2]
    assert dict(cast_shader(torch.float16).constants) == {"RESULT_STORAGE": 1}
