# SPDX-License-Identifier: BSD-3-Clause
"""A ledger for people: layers that differ in number are one line, and nothing is left out."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.ledger import Entry, Ledger
from blockscale.reporting.ledger import ledger_notes, ledger_summary, ledger_table


def ledger():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(3)], nn.Linear(64, 8))
    return bs.quantize_(model, bs.Recipe("mxfp4", skip=["3"]))


def test_layers_that_differ_in_number_are_one_line():
    lines = [" ".join(line.split()) for line in ledger_table(ledger()).splitlines()]
    assert lines[0] == "tensor count kind before after format, or why not"
    assert lines[1] == "quantized * 3 Linear 49.2 kB 6.5 kB e2m1:group32:e8m0/floor"
    assert lines[2].startswith("kept 3 1 Linear ")
    assert lines[-1] == ledger_summary(ledger())


def test_the_summary():
    text = ledger_summary(ledger())
    assert text.startswith("3 quantized, 1 kept, 0 skipped; 51.2 kB -> 8.6 kB, ")
    assert text.endswith(" bits per weight")


@pytest.mark.filterwarnings("ignore:blockscale")
def test_a_pattern_without_effect_is_a_note():
    model = nn.Sequential(nn.Linear(64, 8))
    made = bs.quantize_(model, bs.Recipe("mxfp4", rules={"nothing": "int8"}))
    assert ledger_notes(made) == ["note: pattern 'nothing' of the recipe matches nothing"]
    assert ledger_notes(made)[0] in ledger_table(made)


def test_names_from_files_are_printable():
    odd = "a\x1b[2J[/red]\n.weight"
    entry = Entry(odd, "matrix", "skipped", reason="\x1b[31m", notes=("b\nc",))
    text = ledger_table(Ledger([entry], unmatched=("\x07*",)))
    assert all(line.isprintable() for line in text.split("\n"))
    assert r"note: a\x1b[2J[/red]\n.weight: b\nc" in text and r"'\x07*'" in text
