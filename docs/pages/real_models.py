# SPDX-License-Identifier: BSD-3-Clause
"""What recipes and caches do to models with real weights: docs/real_models.md and its figures in
docs/real_models.json and docs/other_models.json; the table of keys and values of docs/accuracy.md, from docs/keys_values.json.
"""

import json
import math
import re
from typing import Any

from docs.pages import DOCS

FIGURES = re.compile(r"(?P<head><!-- figures -->).*?(?P<tail><!-- end of figures -->)", re.DOTALL)
OTHERS = re.compile(
    r"(?P<head><!-- figures: (?P<name>[^>]*) -->).*?(?P<tail><!-- end of figures: (?P=name) -->)",
    re.DOTALL,
)
TEXTS = ("topics", "licences")


def real_models() -> str:
    """The page with its table."""
    data = json.loads((DOCS / "real_models.json").read_text())
    table = "\n".join(_lines(data["figures"]))
    page = FIGURES.sub(
        lambda m: f"{m['head']}\n{table}\n\n{m['tail']}", (DOCS / "real_models.md").read_text()
    )
    others = json.loads((DOCS / "other_models.json").read_text())["figures"]
    return OTHERS.sub(lambda m: f"{m['head']}\n{_other(others, m['name'])}\n\n{m['tail']}", page)


def _other(cases: list[dict[str, Any]], name: str) -> str:
    """The table of one of the models besides SmolLM2."""
    mine = [case for case in cases if case["model"] == name]
    names = list(mine[0]["figures"])
    lines = [
        f"| weights | inputs | calibrated by | {' | '.join(names)} | s |",
        f"|---|---|---|{'--:|' * len(names)}--:|",
    ]
    for case in mine:
        how = case.get("by") or _how(case)
        figures = " | ".join(
            f"{each['mean']:.4f} ± {each['error']:.4f}" for each in case["figures"].values()
        )
        lines.append(
            f"| `{case['weight']}` | {_format(case['input'])} | {how} | {figures} | "
            f"{case['seconds']:.0f} |"
        )
    return "\n".join(lines)


def _how(case: dict[str, Any]) -> str:
    """What chose the codes, and the preset that this is."""
    told = ", ".join(f"{k} {value}" for k, value in case["settings"].items()) or "rounded"
    return f"preset `{case['preset']}`: {told}" if case.get("preset") else told


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


def keys_values() -> str:
    """The table of formats of keys and values, the smallest loss first."""
    data = json.loads((DOCS / "keys_values.json").read_text())
    lines = [
        "| keys and values | bits | keys per | keys rotated | window | loss added | perplexity × | KL "
        "| same first token |",
        "|---|--:|---|---|--:|--:|--:|--:|--:|",
    ]
    for case in sorted(data["figures"], key=lambda case: case["kl"]["mean"]):
        added = case["loss added"]["mean"]
        lines.append(
            f"| `{case['format']}` | {case['bits']:.2f} | {case['keys per']} | "
            f"{'hadamard' if case['rotated'] else ''} | {case['window']} | "
            f"{added:.4f} ± {case['loss added']['error']:.4f} | {math.exp(added):.4f} | "
            f"{case['kl']['mean']:.4f} | {case['top-1 agreement']['mean']:.1%} |"
        )
    return "\n".join(lines)
