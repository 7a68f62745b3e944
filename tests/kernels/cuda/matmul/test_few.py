# SPDX-License-Identifier: BSD-3-Clause
"""Few rows: which weights and settings. The products: tests/gpu/test_linear_few.py."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.few import FewSettings, fits, takes, to_measure, usual
from blockscale.kernels.cuda.matmul.operands import ProductCall
from blockscale.kernels.cuda.matmul.reading import reading

FORMATS = (
    *("mxfp4", "int8_channel", "fp8", "int2:group64:e8m0/floor", "binary:token:fp32"),
    *(
        "mxfp6",
        "int6:token:fp32",
        "int4:group32:fp32",
        "int4:group64:fp32",
        "int8:group16:fp32",
        "int2:group64:fp32",
    ),
)


def test_what_is_taken() -> None:
    def taken(name: str, words: int = 32) -> bool:
        return takes(reading(str(parse(name)), 4096), words)

    assert all(taken(name, 48 if name in ("mxfp6", "int6:token:fp32") else 32) for name in FORMATS)
    assert taken("uint4:group32:fp32:asym")
    assert not taken("uint8:group32:fp32:asym")  # zero points of 8 bits are no offsets of 128
    assert not taken("int4:group16:fp32")  # two words for four threads
    assert not taken("mxfp6")  # steps of 48 words
    assert not taken("e3m2:group16:e8m0/floor", 48)
    assert not taken("int8:group4:e8m0/floor")  # two words would have two scales


def test_a_table_has_seven_numbers() -> None:
    settings = FewSettings(16, 64, 32, 2, 4)
    assert settings.entry() == (16, 64, 32, 2, 0, 4, 1)
    assert FewSettings.read(settings.entry()) == settings
    assert FewSettings.read([8, 32, 48, 1, 0]) == FewSettings(8, 32, 48, 1, 1)


def test_enough_programs_of_enough_words() -> None:
    """k is divided until there are 792 programs, or less than four turns of words each."""
    r = reading(str(parse("mxfp4")), 8192)
    for n, k, split_k in ((28672, 8192, 1), (8192, 8192, 4), (4096, 8192, 8), (512, 512, 1)):
        assert usual(ProductCall("weight", "", 1, n, k, True), r) == FewSettings(
            8, 32, 32, 2, split_k
        )
    assert usual(ProductCall("weight", "", 20, 28672, 8192, True), r).rows == 32
    assert (
        usual(ProductCall("weight", "", 64, 28672, 8192, True), r).rows == 32
    )  # two tiles of rows


def test_what_is_measured() -> None:
    r = reading(str(parse("mxfp4")), 8192)
    for rows, tile in ((1, 8), (8, 8), (9, 16), (32, 32)):
        call = ProductCall("weight", "", rows, 4096, 8192, True)
        each = to_measure(call, r)
        assert {settings.rows for settings in each} == {tile}
        assert all(fits(call, r, settings) for settings in each)
        assert to_measure(call._replace(fused=False), r) == []
    assert to_measure(ProductCall("weight", "", 33, 4096, 8192, True), r) == []
