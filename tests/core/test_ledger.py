# SPDX-License-Identifier: BSD-3-Clause
"""The ledger: sums, lookups, one warning, one error, and the exact words of both."""

import json
import warnings
from dataclasses import FrozenInstanceError

import pytest

from blockscale.core.ledger import Entry, Ledger, SkippedError

A = Entry(
    "enc.a",
    "Linear",
    "quantized",
    "mxfp4",
    input="mxfp8",
    elements=64,
    bytes_before=256,
    bytes_after=34,
)
B = Entry(
    "enc.b", "LSTM", "skipped", reason="LSTM has no quantized form", elements=4, bytes_before=16
)
C = Entry(
    "norm.weight",
    "parameter of LayerNorm",
    "kept",
    reason="a vector",
    bytes_before=8,
    bytes_after=8,
)
N = Entry("n", "Linear", "quantized", "int8", output="fp8", notes=("1 of 4 weights are NaN", "two"))


def test_lookups_and_sums() -> None:
    ledger = Ledger([A, B, C])
    assert list(ledger) == [A, B, C]
    assert len(ledger) == 3
    assert ledger["enc.b"] is B
    assert (ledger.quantized, ledger.skipped, ledger.kept) == ([A], [B], [C])
    assert (ledger.bytes_before, ledger.bytes_after) == (280, 42)
    with pytest.raises(KeyError, match=r"enc\.z"):
        ledger["enc.z"]
    assert list(Ledger()) == []
    assert Ledger().bytes_before == 0


def test_entries_are_values() -> None:
    with pytest.raises(FrozenInstanceError):
        A.status = "kept"  # type: ignore[misc]
    assert (A.formats, N.formats, C.formats) == ("mxfp4, input mxfp8", "int8, output fp8", "")


def test_json_holds_everything() -> None:
    data = json.loads(Ledger([A, N], ("x.*",)).to_json())
    assert data["bytes_before"] == 256
    assert data["bytes_after"] == 34
    assert data["unmatched"] == ["x.*"]
    assert [Entry(**{**e, "notes": tuple(e["notes"])}) for e in data["entries"]] == [A, N]


def test_strict_names_everything_at_once() -> None:
    Ledger([A, C, N]).raise_if_skipped()  # a note is no skip
    with pytest.raises(SkippedError) as caught:
        Ledger([A, B, C, B], ("lm_haed", "re:x")).raise_if_skipped()
    assert str(caught.value) == (
        "strict: not everything the recipe covers can be quantized; nothing was changed.\n"
        "  enc.b (LSTM): LSTM has no quantized form\n"
        "  enc.b (LSTM): LSTM has no quantized form\n"
        "  pattern 'lm_haed' matches nothing\n"
        "  pattern 're:x' matches nothing\n"
        "Name them in the recipe's skip list, or call with strict=False."
    )
    assert isinstance(caught.value, ValueError)


def test_one_warning_for_the_caller_of_the_caller() -> None:
    def public() -> None:
        Ledger([A, B, N, B], ("lm_haed",)).warn()

    with pytest.warns(UserWarning) as caught:
        public()
    assert [str(w.message) for w in caught] == [
        "blockscale:\n"
        "  enc.b: skipped, LSTM has no quantized form\n"
        "  enc.b: skipped, LSTM has no quantized form\n"
        "  n: 1 of 4 weights are NaN\n"
        "  n: two\n"
        "  pattern 'lm_haed' of the recipe matches nothing"
    ]
    assert caught[0].filename == __file__


def test_nothing_to_say_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ledger([A, C]).warn()


def test_the_table() -> None:
    assert str(Ledger([A, B, C, N], ("x",))) == (
        "quantized  enc.a        Linear                  mxfp4, input mxfp8\n"
        "skipped    enc.b        LSTM                    LSTM has no quantized form\n"
        "kept       norm.weight  parameter of LayerNorm  a vector\n"
        "quantized  n            Linear                  int8, output fp8\n"
        "note  n: 1 of 4 weights are NaN\n"
        "note  n: two\n"
        "pattern 'x' matches nothing\n"
        "2 quantized, 1 kept, 1 skipped; 0.00 MB -> 0.00 MB"
    )
    assert str(Ledger()) == "0 quantized, 0 kept, 0 skipped; 0.00 MB -> 0.00 MB"


def test_details_follow_the_formats() -> None:
    entry = Entry("a", "Linear", "quantized", "int8", input="fp8", details="static input by mse")
    assert entry.summary == "int8, input fp8; static input by mse"
    assert str(Ledger([entry])).splitlines()[0].endswith(entry.summary)
    assert "details" in Ledger([entry]).to_json()
    assert B.summary == "LSTM has no quantized form"


def test_names_from_files_are_printable():
    entry = Entry("a\x1b[2J\nb", "matrix", "skipped", reason="c\x07", notes=("d\u202e",))
    ledger = Ledger([entry], unmatched=("\x1b*",))
    with pytest.warns(UserWarning, match="blockscale") as told:
        ledger.warn()
    assert all(line.isprintable() for line in str(told[0].message).split("\n"))
    with pytest.raises(SkippedError) as error:
        ledger.raise_if_skipped()
    for text in (str(error.value), str(ledger)):
        assert all(line.isprintable() for line in text.split("\n"))


def test_the_table_has_names_and_plain_data_spellings() -> None:
    entry = Entry("a", "Linear", "quantized", "e2m1:group16:e4m3", "int8:token:fp32")
    assert entry.formats == "nvfp4, input int8_token"
    assert "nvfp4" in str(Ledger([entry])) and "e2m1" not in str(Ledger([entry]))
    assert Ledger([entry]).to_dict()["entries"][0]["weight"] == "e2m1:group16:e4m3"
