# SPDX-License-Identifier: BSD-3-Clause
"""The structs that C++ takes a format as: every field by its name, none missing, none unknown."""

import os
import signal
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.core.element import ElementNumbers
from blockscale.core.rounding import ROUNDINGS
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import DTYPES, UNKNOWN, addresses, floats, native, seed_words
from blockscale.kernels.numbers import FormatNumbers, lowered

TWO_LEVELS = lowered("e2m1:group16:e4m3")
# ELF (System V ABI, chapters 4 and 5): where a header says what segments there are
ELF_SEGMENTS = (32, 40), (54, 56), (56, 58)
LOADED, OF_THREADS = 1, 7  # PT_LOAD, PT_TLS


def named(numbers: ElementNumbers | FormatNumbers) -> dict[str, Any]:
    names = [field.name for field in fields(numbers) if field.name not in UNKNOWN]
    return {name: getattr(numbers, name) for name in names}


def made(kind: str, **changes: Any) -> Any:
    """An Element or a Spec of the numbers above, but for these fields."""
    if kind == "Element":
        return _native.Element(**(named(TWO_LEVELS.element) | changes))
    assert TWO_LEVELS.inner is not None
    parts = {
        "element": _native.Element(**named(TWO_LEVELS.element)),
        "inner": _native.Element(**named(TWO_LEVELS.inner)),
    }
    return _native.Spec(**(named(TWO_LEVELS) | parts | changes))


@pytest.mark.parametrize("kind", ["Element", "Spec"])
def test_every_field_is_needed(kind: str) -> None:
    assert made(kind) is not None
    numbers = TWO_LEVELS.element if kind == "Element" else TWO_LEVELS
    for missing in named(numbers):
        given = {name: value for name, value in named(numbers).items() if name != missing}
        given |= {"element": made("Element")} if "element" in given else {}
        given |= {"inner": None} if "inner" in given else {}
        with pytest.raises(ValueError, match=f"{kind}: field '{missing}' is missing"):
            getattr(_native, kind)(**given)


@pytest.mark.parametrize("kind", ["Element", "Spec"])
def test_no_field_is_unknown(kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind}: there is no field 'codebook'"):
        made(kind, codebook=[1.0])


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("Element", "bits", "four"),
        ("Element", "bits", 1.5),
        ("Element", "signed", 1),
        ("Element", "low", None),
        ("Element", "nan", 2**40),
        ("Spec", "full", 0),
        ("Spec", "levels", "6"),
        ("Spec", "element", TWO_LEVELS.element),
        ("Spec", "inner", TWO_LEVELS.inner),
    ],
)
def test_another_type(kind: str, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{kind}: field '{field}' cannot be "):
        made(kind, **{field: value})


@pytest.mark.parametrize(
    ("kind", "field", "known"),
    [
        ("Element", "family", "integer, minifloat, binary, codebook"),
        ("Element", "statistic", "magnitude, high, range, mean, mean_above"),
        ("Spec", "statistic", "magnitude, high, range, mean, mean_above"),
        ("Spec", "scale", "fp32, fp16, bf16, pow2, e8m0, two_level"),
        ("Spec", "offset", "fp32, fp16, bf16"),
        ("Spec", "rounding", ", ".join(ROUNDINGS)),
    ],
)
def test_names_that_no_kernel_knows(kind: str, field: str, known: str) -> None:
    for name in ("ten", 0, None):
        with pytest.raises(ValueError, match=f"field '{field}': no {name!r}; there are {known}"):
            made(kind, **{field: name})
    for name in known.split(", "):
        lists = {"values": [0.0, 1.0] * 8, "order": [0, 1], "thresholds": [0.5]}
        more = lists if name == "codebook" else {}
        assert made(kind, **{field: name}, **more) is not None


BOOK = lowered("nf4:token:fp32").element


@pytest.mark.parametrize(
    "changes",
    [
        {"values": BOOK.values[:15]},
        {"order": BOOK.order[:15]},
        {"thresholds": BOOK.thresholds[:14]},
        {"order": (16, *BOOK.order[1:])},
        {"order": (-1, *BOOK.order[1:])},
        {"bits": 3},
        {"bits": 9},
        {"order": (), "thresholds": ()},
    ],
    ids=str,
)
def test_lists_of_a_codebook_that_do_not_fit(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a codebook's lists do not fit one another"):
        _native.Element(**(named(BOOK) | changes))


def test_an_inner_format_needs_inner_numbers() -> None:
    inner = native("e4m3:tensor:fp32").handle
    block = [-1, 16]
    assert _native.NativeFormat(made("Spec"), block, 1, inner) is not None
    for spec, given in ((made("Spec"), None), (made("Spec", inner=None), inner)):
        with pytest.raises(ValueError, match="a format has `inner` where its numbers have it"):
            _native.NativeFormat(spec, block, 1, given)


def test_numbers_of_another_format_give_its_codes() -> None:
    """The struct is what kernels compute by, not the format's name."""
    x = torch.tensor([[-8.0, 3.0, 7.0, 0.5]])
    parts = native("int4:tensor:fp32").new_parts(x.shape)
    codes = torch.empty((1, 2), dtype=torch.uint8)
    found = []
    for low in (-7.0, -8.0):
        numbers = lowered("int4:tensor:fp32")
        element = _native.Element(**named(replace(numbers.element, low=low)))
        spec = _native.Spec(**(named(numbers) | {"element": element}))
        handle = _native.NativeFormat(spec, [], 0, None)
        parts.scale.fill_(1.0)
        _native.quantize(
            handle, x.shape, x.data_ptr(), DTYPES[x.dtype], addresses(parts), codes.data_ptr(),
            True, 0, 0, 1,
        )  # fmt: skip
        found.append(codes.flatten().tolist())
    assert found == [[9 | 3 << 4, 7 | 0 << 4], [8 | 3 << 4, 7 | 0 << 4]]


def test_floats() -> None:
    for dtype, number in DTYPES.items():
        x = torch.zeros(2, 3, dtype=dtype)
        values, kind = floats(x)
        assert values is x and kind == number
    assert floats(torch.zeros(3, 2).t())[0].is_contiguous()
    with pytest.raises(ValueError, match="expected a tensor on the CPU, found one on meta"):
        floats(torch.zeros(2, device="meta"))
    with pytest.raises(TypeError):
        floats(torch.zeros(2, dtype=torch.float64))


def test_seed_words() -> None:
    plain, drawn = native("int8:token:fp32"), native("int8:token:fp32:stochastic")
    assert seed_words(plain, None) == (0, 0)
    assert seed_words(drawn, torch.tensor(5)) == (5, 0)
    assert seed_words(drawn, torch.tensor([-5, 7])) == (-5, 7)
    with pytest.raises(ValueError, match="stochastic rounding needs a seed"):
        seed_words(drawn, None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_goes_on_with_one_thread() -> None:
    """OpenMP's threads are not in it: the first kernel waited for them for ever."""
    threads, x = torch.get_num_threads(), torch.randn(1024, 1024)
    torch.set_num_threads(2)
    try:
        before = bs.quantize(x, "int8_channel").codes
        child = os.fork()
        if not child:
            try:
                if torch.get_num_threads() != 1:  # with two, the next line waits for ever
                    os._exit(3)
                same = torch.equal(bs.quantize(x, "int8_channel").codes, before)
                x @ x  # torch's own threads are gone, too
                os._exit(0 if same else 5)
            finally:
                os._exit(4)
    finally:
        torch.set_num_threads(threads)
    for _ in range(12_000):  # ten minutes: a busy machine is no hang
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("it hangs")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")
def test_no_data_of_threads() -> None:
    """Where the first touch of thread_local data finds no memory, glibc ends the process."""
    library = Path(bs.hardware().native.path).read_bytes()
    start, size, count = (int.from_bytes(library[a:b], "little") for a, b in ELF_SEGMENTS)
    kinds = [int.from_bytes(library[start + size * i :][:4], "little") for i in range(count)]
    assert LOADED in kinds
    assert OF_THREADS not in kinds


@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")
def test_threads_take_what_exceptions_need():
    """cxxabi.h declares the function as one without effects: a plain call of it is left out."""
    library = Path(bs.hardware().native.path).read_bytes()
    assert b"\0__cxa_get_globals\0" in library
