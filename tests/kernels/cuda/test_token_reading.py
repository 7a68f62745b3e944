# SPDX-License-Identifier: BSD-3-Clause
"""Which codes attention reads on CUDA, and how their scales meet them."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.kernels.cuda.token_reading import channel_reading, reading, without_fold


def test_what_is_read() -> None:
    """Codes of whole words that are bfloat16, in blocks of a token."""
    assert reading("mxfp4", 64) is not None
    assert reading("int8_token", 20) is not None
    for fmt, size in (
        ("int3:group32:fp32", 64), ("nf4:group64:fp32", 64), ("int8:tensor:fp32", 64),
        ("uint4:group40:fp32:asym", 80), ("int4:flat32:fp32", 64), ("mxfp4", 48), ("log4", 64),
        ("uint4:group32:fp16:offset", 64),
    ):  # fmt: skip
        assert reading(fmt, size) is None, fmt


def test_zero_points() -> None:
    """Those that are integers, of codes that no scale multiplies."""
    r = reading("uint4:group32:fp32:asym", 64)
    assert r is not None and r.zero and not r.fold
    assert reading("uint4:group32:fp32:asym(fp16)", 64) is None
    plain = reading("int4:group32:fp32", 64)
    assert plain is not None and not plain.zero


def test_words_of_a_step_of_keys_per_channel() -> None:
    """Eight, at 2 bits four, of as many blocks as they are of, or of a part of one."""
    for fmt, chunk, units, span in (
        ("int4:group32:fp16", 32, 2, 4), ("uint2:group32:fp16:asym", 32, 2, 2),
        ("int8:group32:fp16", 64, 1, 8), ("int4:group128:fp16", 128, 1, 8), ("mxfp4", 64, 2, 4),
    ):  # fmt: skip
        r = channel_reading(fmt, chunk)
        assert r is not None and (r.units, r.span_at_once, r.fold) == (units, span, ""), fmt
    for fmt, chunk in (("int4:group24:fp16", 24), ("int4:group12:fp16", 36), ("mxfp4", 40)):
        assert channel_reading(fmt, chunk) is None, fmt


def test_which_scales_multiply_codes() -> None:
    """Those whose products are bfloat16 with what decoding leaves to them: not floats, codes of 8
    bits, or a product of more than 8 bits."""
    for fmt, fold, lift in (
        ("mxfp4", "bytes", 2.0**64), ("nvfp4_token", "codes", 2.0**9),
        ("int4:group16:(e4m3:token:fp32)", "codes", 1.0),
        ("e2m1:group8:(e5m2:token:fp32)", "codes", 2.0**16),
    ):  # fmt: skip
        r = reading(fmt, 128)
        assert r is not None and (r.fold, r.lift) == (fold, lift), fmt
        plain = without_fold(r)
        assert (plain.fold, plain.lift, plain.decode_scale) == ("", 1.0, "") and r.decode_scale
    for fmt in (
        "mxfp8", "int4:group32:fp16", "int8_token", "int4:group32:e8m0", "e2m1:group24:e8m0",
        "int4:group16:(int8:token:fp32)",
    ):  # fmt: skip
        r = reading(fmt, 96)
        assert r is None or not r.fold, fmt
