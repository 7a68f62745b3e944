# SPDX-License-Identifier: BSD-3-Clause
"""docs/real_models.md: what recipes do to a model with real weights, from docs/real_models.json."""

import json
import re
from typing import Any

from docs.pages import DOCS

FIGURES = re.compile(r"(?P<head><!-- figures -->).*?(?P<tail><!-- end of figures -->)", re.DOTALL)
TEXTS = ("topics", "licences")


def real_models() -> str:
    """The page with its table."""
    data = json.loads((DOCS / "real_models.json").read_text())
    table = "\n".join(_lines(data["figures"]))
    return FIGURES.sub(
        lambda m: f"{m['head']}\n{table}\n\n{m['tail']}", (DOCS / "real_models.md").read_text()
    )


def _lines(cases: list[dict[str, Any]]) -> list[str]:
    ordered = sorted(cases, key=lambda case: (case["input"] is not None, _added(case, "topics")))
    lines = [
        "| weights | inputs | calibrated by | loss added | another text | KL | same first token | s |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for case in ordered:
        how = ", ".join(f"{name} {value}" for name, value in case["settings"].items()) or "rounded"
        agreed = case["topics"]["top-1 agreement"]["mean"]
        lines.append(
            f"| `{case['weight']}` | {_format(case['input'])} | {how} | "
            f"{_figure(case, 'topics', 'loss added')} | {_figure(case, 'licences', 'loss added')} | "
            f"{case['topics']['kl']['mean']:.4f} | {agreed:.1%} | {case['seconds']:.0f} |"
        )
    return lines


def _added(case: dict[str, Any], text: str) -> float:
    return float(case[text]["loss added"]["mean"])


def _figure(case: dict[str, Any], text: str, name: str) -> str:
    figure = case[text][name]
    return f"{figure['mean']:.4f} ± {figure['error']:.4f}"


def _format(fmt: str | None) -> str:
    return "float" if fmt is None else f"`{fmt}`"
