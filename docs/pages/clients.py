# SPDX-License-Identifier: BSD-3-Clause
"""docs/clients.md: which programs of others take our files, from docs/clients.jsonl.

A run of tests/clients writes that file (tests/clients/results.py); which tests there are is read
from their source, so that one that never ran stands in the table, too.
"""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from blockscale.core.parse import display_name
from docs.pages import DOCS

RESULTS = DOCS / "clients.jsonl"
TESTS = DOCS.parent / "tests" / "clients"
KEYS = ("test", "client", "version", "loads", "figures", "reason", "machine", "commit", "date")
KNOWN = {"difference", "nats", "cosine", "equal", "of", "refused"}

HEAD = """# Clients

Generated from `docs/clients.jsonl` by `make clients`; do not edit. It answers: *which programs of others take our files, and do they compute
what the model here computes?* Each row is a test below `tests/clients` that starts the program itself in an environment of its own
(`requirements/clients.sh`), gives it files that blockscale wrote, and compares with the model here on a CPU. Models are small, with random weights.

| figure | what it is |
|---|---|
| tokens equal | of greedy generation, or of tokenizers' texts: how many in all cases. Where some are not, a note of the export says which ([export.md](export.md)) |
| difference | the greatest of any logit, of all cases: float32 on both sides, sums in another order |
| nats | the greatest mean divergence of next tokens |
| cosine | the least of any row: the client rounds inputs by itself, or codes beside ties |
| refused | the client says no, as our documentation says it does |

The last column says when: a test that was not run again keeps its figure of then. `+` after a commit: with changes that were not committed.
What runs inside our own environment (transformers, compressed-tensors, peft, onnxruntime, ExecuTorch) is tested by `make test`, and not here.
"""


class Case(NamedTuple):
    """A test function. test: such as "test_mlx.py::test_logits"; loads: what the client is given"""

    test: str
    client: str
    loads: str


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of results. Raises ValueError, with the number of the line, where one is
    no line that a run writes."""
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        where = f"{path.name}, line {number}"
        again = f"take the file from git, and let `make clients` write it (found {text[:60]!r})"
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where} is no JSON ({error.msg}): {again}") from None
        if not isinstance(line, dict) or set(line) != set(KEYS):
            raise ValueError(f"{where}: expected the keys {', '.join(KEYS)}: {again}")
        if unknown := set(line["figures"]) - KNOWN:
            raise ValueError(f"{where}: unknown figures {', '.join(sorted(unknown))}: {again}")
        lines.append(line)
    return lines


def cases(folder: Path = TESTS) -> list[Case]:
    """Each test function of a folder that says what its client loads, in order."""
    every: list[Case] = []
    for path in sorted(folder.glob("test_*.py")):
        tree = ast.parse(path.read_text())
        names = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        every += [
            Case(f"{path.name}::{function.name}", str(names["CLIENT"]), loads)
            for function in functions
            for loads in _marks(function)
        ]
    return every


def _marks(function: ast.FunctionDef) -> Iterator[str]:
    """The argument of its decorator `pytest.mark.loads`."""
    for each in function.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.loads":
            yield ast.literal_eval(each.args[0])


def page(path: Path = RESULTS, known: list[Case] | None = None) -> str:
    """docs/clients.md, from what was run."""
    known = cases() if known is None else known
    lines = read(path)
    table = [
        "| client | what it loads | cases | beside the model here | version | run |",
        "|---|---|---|---|---|---|",
    ]
    table += [
        _row(case, [line for line in lines if _function(line) == case.test])
        for case in sorted(known, key=lambda case: (case.client.lower(), case.test))
    ]
    unknown = sorted({_function(line) for line in lines} - {case.test for case in known})
    text = HEAD + "\n" + "\n".join(table) + "\n"
    if unknown:
        names = ", ".join(f"`{each}`" for each in unknown)
        text += f"\nResults of tests that are no more, until `make clients` drops them: {names}.\n"
    return text


def _function(line: dict[str, Any]) -> str:
    return str(line["test"]).partition("[")[0]


def _row(case: Case, lines: list[dict[str, Any]]) -> str:
    if not lines:
        return f"| {case.client} | {case.loads} | | **not run** | | |"
    labels = [_label(line) for line in lines if _label(line)]
    versions = sorted({line["version"] for line in lines})
    runs = sorted({f"{line['date']}, `{line['commit']}`, {line['machine']}" for line in lines})
    failed = [line for line in lines if line["reason"]]
    passed = [line["figures"] for line in lines if not line["reason"]]
    said = [f"**failed**: {_label(line) or 'it'} ({line['reason']})" for line in failed]
    if passed:
        said.insert(0, figures(passed) + (f" in {len(passed)} of {len(lines)}" if failed else ""))
    cells = (
        case.client, case.loads, ", ".join(labels), "; ".join(said), "; ".join(versions),
        "; ".join(runs),
    )  # fmt: skip
    return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"


def _label(line: dict[str, Any]) -> str:
    """The case of a test, whose name pytest writes in ASCII; formats by their names."""
    text = str(line["test"]).partition("[")[2].removesuffix("]").replace("\\xd7", "×")
    return "-".join(display_name(part) for part in text.split("-"))


def figures(several: list[dict[str, Any]]) -> str:
    """The worst of several cases, or the sum of what is counted."""

    def of(name: str) -> list[Any]:
        return [each[name] for each in several if name in each]

    said = []
    if of("of"):
        said.append(f"{sum(of('equal')):,} of {sum(of('of')):,} tokens equal")
    if of("difference"):
        said.append(f"difference {max(of('difference')):.1e}")
    if of("nats"):
        said.append(f"{max(of('nats')):.1e} nats")
    if of("cosine"):
        said.append(f"cosine {min(of('cosine')):.5f}")
    if of("refused"):
        said.append("refused")
    return ", ".join(said) or "as expected"
