# SPDX-License-Identifier: BSD-3-Clause
"""Pages whose figures somebody measured: speed, accuracy, reliability, search."""

import json
import re

from blockscale.bench.results import newest_full
from blockscale.cli.commands.bench import pages
from blockscale.reporting import accuracy as accuracy_page
from blockscale.reporting.ledger import searched_tables
from docs.pages import DOCS, real_models

ACCURACY = DOCS / "accuracy.json"  # python -m benchmarks.language_model.gather
RELIABILITY = DOCS / "reliability.json"  # make attack
SEARCH = DOCS / "search.json"  # python -m benchmarks.search.minilm, .foretold


SPEED = {"performance": "cpu", "performance_cuda": "cuda"}  # a page's name, what it is about


FIGURES = re.compile(
    r"(?P<head><!-- figures: [^>]*-->\n).*?(?P<tail><!-- end of figures -->)", re.DOTALL
)


def performance() -> dict[str, str]:
    """{path below docs: content} of the pages about speed."""
    made: dict[str, str] = {}
    for name, kind in SPEED.items():
        newest = newest_full(kind=kind)
        run = None if newest is None else (f"benchmarks/results/{newest[0].name}", newest[1])
        notes = (DOCS / f"{name}_notes.md").read_text()
        made |= pages(notes, run, name)
    return made


def accuracy() -> dict[str, str]:
    """{path below docs: content} of the page about a language model's accuracy."""
    notes = (DOCS / "accuracy_notes.md").read_text()
    notes = notes.replace("{keys_values}", real_models.keys_values())
    earlier = json.loads((DOCS / "accuracy_earlier.json").read_text())
    return accuracy_page.pages(notes, json.loads(ACCURACY.read_text()), earlier=earlier)


def reliability() -> str:
    """The page on the last campaign."""
    figures = json.loads(RELIABILITY.read_text())
    lines = [
        "| part | attacked | a whole campaign | minutes | commit | failures |",
        "|---|--:|--:|--:|---|---|",
    ]
    for name, part in figures["parts"].items():
        counts = ", ".join(f"{count:,} {unit}" for unit, count in part["counts"].items())
        failures = [
            f"{count:,} × {kind.replace('|', '/')}" for kind, count in part["failures"].items()
        ]
        wanted = f"{part['wanted']:,} {part['unit']}"
        lines.append(
            f"| {name} | {counts} | {wanted} | {part['minutes']} | "
            f"`{part.get('version', figures['version'])}` | {'; '.join(failures) or 'none'} |"
        )
    lines += [
        f"| {name} | not run: {reason} | | | | |" for name, reason in figures["missing"].items()
    ]
    about = (
        f"Seed {figures['seed']}, {figures['machine']} with "
        f"{figures['processors']} processors, Python {figures['python']}."
    )
    notes = (DOCS / "reliability_notes.md").read_text()
    return notes.replace("<!-- figures -->", "\n".join([about, "", *lines]))


def searched() -> str:
    """docs/search.md with the figures of docs/search.json."""
    tables = searched_tables(json.loads(SEARCH.read_text()))
    return FIGURES.sub(
        lambda m: f"{m['head']}\n{tables}\n\n{m['tail']}", (DOCS / "search.md").read_text()
    )
