# SPDX-License-Identifier: BSD-3-Clause
"""docs/models.md: which architectures of others work, from docs/models.json."""

import json
import re
from collections.abc import Iterator

from docs.pages import DOCS

MODELS = DOCS / "models.json"  # python -m tests.models.table


MODELS_HEAD = """# Models of others

Generated from `docs/models.json` by `make docs`; do not edit. It answers: *does my architecture work?* Each row is an architecture that
somebody else wrote, built small with random weights and quantized with one line, `bs.quantize_(model, "mxfp4")`: weights in 4-bit
floats, blocks of 32 with a shared scale, the rest in float. Each cell is a test that was run, not a promise.

| column | what was run |
|---|---|
| in codes | the share of the parameters' bytes that is quantized, by counting; the ledger that `quantize_` returns must count the same. The rest are mostly norms and biases, a larger part here than in a model of full size. |
| forward | the model runs; its results are finite and equal those of the float model with the decoded weights, up to the order of sums |
| compile | `torch.compile` (backend `aot_eager`): in one graph (`fullgraph=True`) wherever the float model is one |
| export | `torch.export.export` gives a program with the same results |
| save | `bs.save`, and `bs.load` into the float model with other weights: every stored bit and every result is the same |
| directory | the float model's directory through `blockscale quantize`, loaded with `bs.load`: the bits of `quantize_` in memory |
| from_pretrained | `from_pretrained` of transformers or diffusers with a `BlockscaleConfig`, of what `save_pretrained` then writes, and of the directory: the same bits each time |
| LoRA | adapters of PEFT on all linear layers: they learn, nothing else changes |

`yes` means equal, or close where the column says so; `no` that it fails, and `–` that there is nothing to compare, with a number
that leads to the reason below the table. A reason "the float model does not …" is one that quantizing has no part in.
To run it yourself: `make test` once for the environment, then `python -m tests.models.table bert`.
"""


COLUMNS = {
    "share": "in codes",
    "forward": "forward",
    "compile": "compile",
    "export": "export",
    "save": "save",
    "directory": "directory",
    "pretrained": "from_pretrained",
    "lora": "LoRA",
}


PLAIN = ("strict", "equal", "yes", "one graph")  # of a cell that needs no reason


LIBRARIES = {
    "transformers": "transformers",
    "sentence_transformers": "sentence-transformers",
    "diffusers": "diffusers",
    "timm": "timm",
    "torchvision": "torchvision",
    "torch": "torch.nn",
}


def models() -> str:
    """docs/models.md, from what was run."""
    rows = json.loads(MODELS.read_text())
    text = MODELS_HEAD + "\n" + "\n".join(totals(rows)) + "\n"
    for library, title in LIBRARIES.items():
        mine = {name: row for name, row in rows.items() if row["library"] == library}
        text += f"\n## {title}\n\n" + "\n".join(library_table(mine)) + "\n"
    return text


def totals(rows: dict[str, dict]) -> Iterator[str]:
    """How many of all models have what in each column."""
    enough = sum(
        float(row["cells"]["share"][1].partition(" ")[0]) >= 95
        for row in rows.values()
        if row["cells"]["share"][0]
    )
    yield f"{len(rows)} architectures; {enough} of them with at least 95 % of their bytes in codes."
    yield (
        "\n| | "
        + " | ".join(list(COLUMNS.values())[1:])
        + " |\n|---"
        + "|--:" * (len(COLUMNS) - 1)
        + "|"
    )
    for label, ok in (("yes", True), ("no", False), ("–", None)):
        counts = (sum(row["cells"][c][0] is ok for row in rows.values()) for c in list(COLUMNS)[1:])
        yield f"| {label} | " + " | ".join(map(str, counts)) + " |"


def library_table(rows: dict[str, dict]) -> Iterator[str]:
    """The models of one library, then the reasons, each once."""
    reasons: dict[str, int] = {}
    yield "| model | parameters | " + " | ".join(COLUMNS.values()) + " |"
    yield "|---|--:" + "|---" * len(COLUMNS) + "|"
    for name, row in sorted(rows.items()):
        cells = (model_cell(*row["cells"][column], reasons) for column in COLUMNS)
        yield f"| {name} | {row['parameters']:,} | ".replace(",", " ") + " | ".join(cells) + " |"
    yield ""
    for reason, each in reasons.items():
        yield f"{each}. " + re.sub(r"([*_<>|`])", r"\\\1", reason)


def model_cell(ok: bool | None, told: str, reasons: dict[str, int]) -> str:
    """A word or two, and the number of the reason if it has one."""
    if ok and "%" in told.partition(";")[0] and told.partition(" %")[0].replace(".", "").isdigit():
        short, _, reason = told.partition("; ")
    elif ok:
        short, reason = "yes", "" if told in PLAIN or told.endswith(" adapters") else told
    else:
        short, reason = "**no**" if ok is False else "–", told
    return short + (f" ({reasons.setdefault(reason, len(reasons) + 1)})" if reason else "")
