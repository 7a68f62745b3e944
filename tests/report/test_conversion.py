"""A conversion as text: one line for many layers, errors one a tensor, the proof last."""

from dataclasses import replace

from blockscale.export.conversion.result import Conversion, Converted
from blockscale.report.conversion import conversion_table

ONE = Converted("l.0.w", "l.0.w", (2, 3), "exact", "awq", "uint4", "Q5_0", "values", 6, 7)


def test_lossless() -> None:
    done = Conversion("x", "y", "gguf", [ONE, replace(ONE, name="l.1.w")], {"z": "why"},
                      ("tokenizer.json",), ("a note",), "it rounds", 14, 20)  # fmt: skip
    lines = conversion_table(done).splitlines()
    assert lines[1].split() == ["exact", "l.*.w", "2", "awq", "uint4", "->", "Q5_0"]
    assert "left out: z: why" in lines and "note: a note" in lines
    assert "copied: tokenizer.json" in lines and lines[-1] == "note: it rounds"
    assert any(
        line.startswith("lossless: 2 exact;") and "12 values, 0 differ" in line for line in lines
    )
    assert "lossless" not in conversion_table(done, compared=False)


def test_errors() -> None:
    again = replace(ONE, how="requantized", relative=0.0123, sqnr=38.2, notes=("because",))
    text = conversion_table(Conversion("x", "y", "gguf", [ONE, again]))
    assert "1.230%" in text and "38.20 dB" in text and "because" in text
    assert "not lossless: 1 exact, 1 requantized" in text
