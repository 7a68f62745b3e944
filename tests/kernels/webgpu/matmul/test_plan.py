# SPDX-License-Identifier: BSD-3-Clause
"""Plans cover every row and output, and fit the memory of a workgroup."""

import pytest

from blockscale.kernels.webgpu.matmul.plan import FEW, plan

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
