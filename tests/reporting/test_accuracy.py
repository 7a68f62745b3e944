# SPDX-License-Identifier: BSD-3-Clause
"""The page on a language model's accuracy says what was measured, no more."""

import xml.etree.ElementTree as ET

import pytest

from blockscale.reporting import accuracy

NOTES = "# Title\n{plots}\n{tables}\n{machines}\n"
ABOUT = {
    "commit": "0123456789abcdef+",
    "threads": 2,
    "versions": {"torch": "2.13", "triton": "not installed"},
    "hardware": {"processor": "A CPU", "devices": [{"name": "A GPU"}]},
}


def seed(added, **more):
    part = {"added": added, "agreement": 0.9}
    return {"held": part, "machine": 0, "seconds": {"cpu": 2.0}, **more}


def row(by, algorithm, bits, seeds, given=None, weight="int4"):
    about = {"by": by, "weight": weight, "algorithm": algorithm, "input": given, "transform": None}
    return {**about, "bits": bits, "seeds": dict(enumerate(seeds))}


def run(*rows):
    return {"machines": [ABOUT], "rows": {str(i): each for i, each in enumerate(rows)}}


def lines(page):
    return [line for line in page.splitlines() if line.startswith("| ") and "bits" not in line]


def test_rows_are_by_bits_then_by_what_is_lost():
    made = accuracy.pages(NOTES, run(
        row("ours", "b", 5.0, [seed(0.1)]),
        row("ours", "a", 4.5, [seed(0.3), seed(0.1)]),
        row("theirs", "c", 4.5, [seed(0.15)]),
        row("ours", "a", 8.5, [seed(0.4)], "mxfp8"),
    ))  # fmt: skip
    assert set(made) == {"accuracy.md", "images/accuracy-weights.svg", "images/accuracy-inputs.svg"}
    rows = lines(made["accuracy.md"])
    assert [line.split(" | ")[2] for line in rows[:3]] == ["theirs c", "ours a", "ours b"]
    assert "| 0.2000 | 0.1000 … 0.3000 (2) | – | 90.00 % | cpu 2.0 |" in rows[1]
    assert rows[3].startswith("| 8.50 | `int4` | `mxfp8` | ours a |")
    assert "* A CPU, 2 threads, A GPU; commit `0123456789ab`; torch 2.13\n" in made["accuracy.md"]


def test_the_other_text_is_the_mean_of_the_seeds_that_have_it():
    other = {"held2": {"added": 0.5, "agreement": 0.9}}
    made = accuracy.pages(NOTES, run(row("ours", "a", 4.0, [seed(0.1), seed(0.3, **other)])))
    assert "| 0.5000 |" in lines(made["accuracy.md"])[0]
    assert "Weights and inputs" not in made["accuracy.md"]


def test_seconds_are_of_each_device():
    cells = [seed(0.1, seconds={"cuda": s, "cpu": 60.0}) for s in (1.0, 2.0, 9.0)]
    made = accuracy.pages(NOTES, run(row("ours", "a", 4.0, cells)))
    assert "| cpu 60.0, cuda 2.0 |" in made["accuracy.md"]


def test_caches_have_tables_of_their_own_and_earlier_models_too():
    kept = row("ours", "", 4.5, [seed(0.1)], weight="float") | {"cache": "mxfp4"}
    both = row("ours", "a", 8.5, [seed(0.1)], "mxfp8") | {"cache": "mxfp8"}
    before = run(row("theirs", "z", 3.0, [seed(0.7)]))
    made = accuracy.pages(NOTES + "{earlier}\n{earlier_machines}", run(kept, both), earlier=before)
    assert set(made) == {"accuracy.md"}  # neither is a point of a plot of weights
    page = made["accuracy.md"]
    assert "### Keys and values\n\n| bits | format | cache | by |" in page
    assert "| 4.50 | `float` | `mxfp4` | ours | 0.1000 |" in page
    assert "| 8.50 | `int4` | `mxfp8` | `mxfp8` | ours a | 0.1000 |" in page
    assert "#### Weights only" in page and "| 3.00 | `int4` | theirs z | 0.7000 |" in page
    assert page.count("* A CPU") == 2


def test_plots_are_drawn_and_ours_come_first():
    made = accuracy.pages(NOTES, run(
        row("a theirs", "c", 4.5, [seed(0.15)]), row("blockscale", "z", 5.0, [seed(-0.1)]),
    ))  # fmt: skip
    texts = [each.text for each in ET.fromstring(made["images/accuracy-weights.svg"])]
    assert texts.index("blockscale z") < texts.index("a theirs c")
    assert accuracy.mean(row("x", "y", 4, [seed(1.0), seed(2.0)]), "added") == pytest.approx(1.5)
