# SPDX-License-Identifier: BSD-3-Clause
"""A ledger for people: layers that differ in number are one line, and nothing is left out."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.ledger import Entry, Ledger
from blockscale.reporting.ledger import ledger_notes, ledger_summary, ledger_table, searched_tables


def ledger():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(3)], nn.Linear(64, 8))
    return bs.quantize_(model, bs.Recipe("mxfp4", skip=["3"]))


def test_layers_that_differ_in_number_are_one_line():
    lines = [" ".join(line.split()) for line in ledger_table(ledger()).splitlines()]
    assert lines[0] == "tensor count kind before after format, or why not"
    assert lines[1] == "quantized * 3 Linear 49.2 kB 6.5 kB mxfp4"
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


# The tables of docs/search.md from figures that are known, and from those that are kept.

DATA = json.loads((Path(__file__).parents[2] / "docs" / "search.json").read_text())


def rows(table, first):
    return [line for line in table.splitlines() if line.startswith(f"| {first} |")]


def tables(text):
    """What was searched for; what was foretold, if it was."""
    searched, _, foretold = text.partition("What `bs.recommend` foretold")
    return searched, foretold


def test_each_budget_has_the_best_that_keeps_to_it():
    text = searched_tables(DATA)
    [row] = rows(tables(text)[0], "4.5")
    points = DATA["search"]["fisher"]["points"]
    best = max(point["quality"] for point in points if point["bits"] <= 4.5)
    assert row.split("|")[2].strip() == f"{best:.6f}"
    fitting = [each for each in DATA["uniform"] if each["bits"] <= 4.5]
    assert f"`{max(fitting, key=lambda each: each['quality'])['format']}`" in row


def test_what_is_foretold_is_set_beside_what_is_measured():
    text = searched_tables(DATA)
    for told in DATA.get("foretold", {"rows": ()})["rows"]:
        [row] = rows(tables(text)[1], ", ".join([told["budget"], *told["candidates"]]))
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        assert cells[2] == f"{told['measured']['bytes']:,}"
        assert float(cells[4]) == pytest.approx(1e3 * told["foretold"]["seconds"], abs=0.06)
        assert float(cells[5]) == pytest.approx(1e3 * told["measured"]["seconds"], abs=0.06)


def test_the_figures_that_are_kept_keep_what_is_promised():
    """At 4.5 bits the searched recipe is better than every uniform 4-bit format, and no uniform
    format of 3 to 8.25 bits is better than a searched recipe of at most as many bits."""
    for search in DATA["search"].values():
        points = [(point["bits"], point["quality"]) for point in search["points"]]
        at = max(quality for bits, quality in points if bits <= 4.5)
        four = [each for each in DATA["uniform"] if 4 < each["bits"] <= 5]
        assert len(four) >= 8
        assert all(each["quality"] < at for each in four)
        for each in DATA["uniform"]:
            if 3 <= each["bits"] <= 8.25:
                better = [q for bits, q in points if bits <= each["bits"]]
                assert max(better) >= each["quality"], each["format"]
    assert all(row["errors"]["bytes"] == 0 for row in DATA.get("foretold", {"rows": ()})["rows"])
