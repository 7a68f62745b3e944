# SPDX-License-Identifier: BSD-3-Clause
"""What is asked of a product: rows of tiles, and the numbers of a table's entry."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.kernels.cuda.matmul.call import Call, columns, tile_rows, worth_measuring


def test_seven_numbers() -> None:
    assert columns([8, 64, 32, 4, 5]) == (8, 64, 32, 4, 5, 1, 1)
    assert columns([8, 64, 32, 4, 5, 2]) == (8, 64, 32, 4, 5, 2, 1)
    assert columns([8, 64, 32, 4, 5, 2, 3]) == (8, 64, 32, 4, 5, 2, 3)
    for wrong in ([], [1, 2, 3, 4], [1] * 8):
        with pytest.raises(ValueError, match="5 to 7 were expected: delete the table"):
            columns(wrong)
    for wrong in ([7, 64, 32, 4, 5], [8, 64, 32, 4, -1], [8, 64, 32, 4, True], [8, 64, "a", 4, 5]):
        with pytest.raises(ValueError, match=r"with the number .* was expected: delete the table"):
            columns(wrong)


def test_rows_of_a_tile_are_powers_of_two() -> None:
    found = [tile_rows(rows, 16) for rows in (1, 15, 16, 17, 32, 33, 1000)]
    assert found == [16, 16, 16, 32, 32, 64, 1024]
    assert tile_rows(1, 8) == 8


def test_tiles_near_the_calls_rows() -> None:
    def worth(tile: int, rows: int) -> bool:
        return worth_measuring(tile, Call("weight", "", rows, 64, 64))

    assert [rows for rows in (1, 8, 9, 64) if worth(8, rows)] == [1, 8]
    assert [tile for tile in (16, 32, 64, 128, 256) if worth(tile, 40)] == [32, 64]
    assert [tile for tile in (16, 32, 64, 128, 256) if worth(tile, 128)] == [64, 128]
    assert [tile for tile in (16, 32, 64, 128, 256) if worth(tile, 1000)] == [128, 256]
