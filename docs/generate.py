"""Write the generated pages: `make docs`. A test checks that they are up to date.

docs/formats.md from the catalogue; docs/performance.md and its plots from docs/performance_notes.md
and the newest full run of `blockscale bench` that git tracks; in docs/design.md the drawing of the
house, from the folders of the package and the first sentence of what each says of itself; in
docs/graph.md the graphs; docs/models.md from docs/models.json; docs/accuracy.md and its plots from
docs/accuracy_notes.md, docs/accuracy.json and docs/accuracy_earlier.json; the figures of docs/search.md; docs/reliability.md from docs/reliability_notes.md and
the figures of the last campaign.
"""

import ast
import importlib.util
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import torch

import blockscale as bs
from blockscale.bench.results import newest_full
from blockscale.core.elements import FAMILIES
from blockscale.core.scale import RULES
from blockscale.graph import passes
from blockscale.graph.program import imported
from blockscale.report import accuracy as accuracy_page
from blockscale.report.searched import searched_tables
from blockscale.report.speed.page import pages

PAGE = Path(__file__).with_name("formats.md")
DESIGN = Path(__file__).with_name("design.md")
FLOWS = Path(__file__).with_name("flows.json")  # python -m tests.graph.flows
EXPORTS = Path(__file__).with_name("exports.json")  # python -m tests.export.table
GRAPH = Path(__file__).with_name("graph.md")
MODELS = Path(__file__).with_name("models.json")  # python -m tests.models.table
ACCURACY = Path(__file__).with_name("accuracy.json")  # python -m benchmarks.language_model.gather
RELIABILITY = Path(__file__).with_name("reliability.json")  # make attack
SEARCH = Path(__file__).with_name("search.json")  # python -m benchmarks.search.minilm, .foretold
FIGURES = re.compile(
    r"(?P<head><!-- figures: [^>]*-->\n).*?(?P<tail><!-- end of figures -->)", re.DOTALL
)
PACKAGE = Path(bs.__file__).parent
SPEED = {"performance": "cpu", "performance_cuda": "cuda"}  # a page's name, what it is about
SHAPE = (4096, 4096)

HEAD = """# The formats

Generated from `blockscale/core/catalog.py` by `make docs`; do not edit. What every part means, exactly, is in
[numerics.md](numerics.md). A name is accepted wherever a spelling is, on the command line too
(`blockscale formats` prints this table, `blockscale formats mxfp4` one format in full).

* **max/smallest**: largest and smallest positive value of the element, before scaling; their ratio is what one block can hold.
* **bits**: stored bits per element of a 4096 × 4096 tensor, with scales and zero points.
* **SQNR**: signal to quantization noise on standard normal numbers [256, 4096] (seed 0), in decibels.

| name | spelling | max | smallest | bits | SQNR |
|---|---|--:|--:|--:|--:|
"""

TAIL = """
Any other combination is spelled out: `element:block:scale[:option…]`.

* elements: {elements}
* blocks: `tensor`, `channelA`, `token`, `groupN`, `groupN@A`, `tileRxC`
* scales: `fp32`, `fp16`, `bf16`, `pow2/RULE`, `e8m0/RULE` (`e8m0` is `e8m0/floor`), `e4m3`, `e5m2`, or a format in parentheses
* rules: {rules}
* options: `asym`, `full`, `half`, `recip`, and a rounding ({roundings})
* shorthand: `bfpM` and `bfpMxN` for M-bit mantissas in groups of N (64), `BFP[8|8]{{64}}(SN)` as hardware people write it (symmetric S, else N or _; rounding N, U, D, S), and `MXFP8[E4M3]{{32}}`, `MXINT8{{32}}`
"""

# What the scale rule alone changes (docs/numerics.md, 3.4).
RULE_HEAD = """
## What the rule of an e8m0 scale changes

SQNR on the same numbers. `floor` is OCP's conversion and lets the largest values saturate; `tosa` takes the smallest scale that
does not, and any decoder reads the result.

"""

NAN_HEAD = """
## What becomes of NaN and infinity

Most formats have no code for them. Where scales are powers of two in a byte (`e8m0`) or codes of a small float, a NaN or an infinity makes its
whole block NaN, as OCP MX asks; elsewhere **it comes out as a number and nothing downstream sees it**: an overflow in a model's activations
is hidden by `int8_token` and shown by `mxfp8`. So what was hidden is counted: `bs.compare` says for each layer how many NaN and infinite
elements of its weight and of its inputs its formats made finite, `bs.quantize_` warns of such weights and refuses them with `strict=True`, and
observers count them ([numerics.md](numerics.md), 3.7 and 4, has the exact rule).

| formats | a NaN becomes | an infinity becomes |
|---|---|---|
"""


FLOW_HEAD = """
## What runs where

Two linear layers in each format, through modules (`bs.calibrate`), `bs.graph.convert` and `bs.graph.fuse`, whose results are equal to the bit on the
reference, and lowered to each target. `kernel`: one of ours; `oneDNN`: torch's product of 8-bit integers; `torch's ops`: the reference traced for
Inductor, with its bits. Every cell was run, by `tests/graph/test_flows.py`, on an x86-64 processor with AVX-512 and VNNI, those of `cuda` by
`tests/gpu/test_graph.py` on an H200, where linear layers go through `linear`, which quantizes its input inside.
"""


EXPORT_HEAD = """
## What other runtimes read

A model of two linear layers in each format, written by `bs.export`, read by the target's own runtime and compared with the converted graph.
`integers`: at least one of the two products is computed in them; `decoded`: both in float, from packed codes, as `bs.export.audit` finds. compressed-tensors: its layout, whose decompressor gives the same
values. Every cell was run, by `tests/export/test_table.py`; see [export.md](export.md).
"""


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


def number(value: float) -> str:
    """A short exact-looking number: powers of two as such when small."""
    if value < 1e-4:
        return f"2^{math.frexp(value)[1] - 1}"
    return f"{value:g}"


def sqnr(spelling: str) -> float:
    """Signal to noise in decibels on normal numbers."""
    x = torch.randn(256, 4096, generator=torch.Generator().manual_seed(0))
    error = x - bs.fake_quantize(x, spelling)
    return 10 * math.log10(float(x.square().sum() / error.square().sum()))


def odd_values() -> Iterator[str]:
    """A line for all named formats that treat NaN and infinity alike."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in bs.formats():
        told = becomes(name, math.nan), becomes(name, math.inf)
        groups.setdefault(told, []).append(f"`{name}`")
    for (nan, infinity), names in groups.items():
        yield f"| {', '.join(names)} | {nan} | {infinity} |\n"


def becomes(name: str, value: float) -> str:
    """What is left of one such element among 1, 2, … 16."""
    x = torch.arange(256.0).remainder(16).add(1).reshape(1, -1)
    x[0, 3] = value
    left = bs.fake_quantize(x, name)[0]
    if left[3].isnan():
        return "NaN" if left.isnan().sum() == 1 else "NaN, with all of its block"
    if left[3] == 0:
        return "0"
    return "the largest value of its block" if left[3] == left.max() else f"{left[3]:g}"


def page() -> str:
    """The whole page."""
    from blockscale.core.rounding import ROUNDINGS

    rows = [
        f"| `{name}` | `{f}` | {number(f.element.max)} | {number(f.element.smallest)} "
        f"| {f.bits_per_element(SHAPE):.3g} | {sqnr(str(f)):.1f} |"
        for name, f in bs.formats().items()
    ]
    tail = TAIL.format(
        elements="; ".join(f.SPELLINGS for f in FAMILIES),
        rules=", ".join(f"`{rule}`" for rule in RULES),
        roundings=", ".join(f"`{r}`" for r in ROUNDINGS),
    )
    columns = list(RULES)
    lines = ["| element | " + " | ".join(columns) + " |", "|---" + "|--:" * len(columns) + "|"]
    for element in ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "int8"):
        cells = [f"{sqnr(f'{element}:group32:e8m0/{rule}'):.2f}" for rule in columns]
        lines.append(f"| `{element}:group32` | " + " | ".join(cells) + " |")
    rules = RULE_HEAD + "\n".join(lines) + "\n"
    rules += NAN_HEAD + "".join(odd_values())
    run = FLOW_HEAD + "\n".join(table(FLOWS)) + "\n"
    run += EXPORT_HEAD + "\n".join(table(EXPORTS)) + "\n"
    return HEAD + "\n".join(rows) + "\n" + tail + rules + run


def table(path: Path) -> Iterator[str]:
    """A table of formats and what they were run in, from JSON that a test run wrote."""
    recorded = json.loads(path.read_text())
    columns = list(next(iter(recorded.values()))["weight"])
    for part in ("weight", "weight and input"):
        yield f"\n| {part} | " + " | ".join(columns) + " |\n|---" + "|---" * len(columns) + "|"
        for name, parts in recorded.items():
            yield f"| `{name}` | " + " | ".join(parts[part][c] for c in columns) + " |"


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


def performance() -> dict[str, str]:
    """{path below docs: content} of the pages about speed."""
    made: dict[str, str] = {}
    for name, kind in SPEED.items():
        newest = newest_full(kind=kind)
        run = None if newest is None else (f"benchmarks/results/{newest[0].name}", newest[1])
        notes = Path(__file__).with_name(f"{name}_notes.md").read_text()
        made |= pages(notes, run, name)
    return made


def accuracy() -> dict[str, str]:
    """{path below docs: content} of the page about a language model's accuracy."""
    notes = ACCURACY.with_name("accuracy_notes.md").read_text()
    earlier = json.loads(ACCURACY.with_name("accuracy_earlier.json").read_text())
    return accuracy_page.pages(notes, json.loads(ACCURACY.read_text()), earlier=earlier)


HOUSE = re.compile(
    r"(?<=<!-- the house: made by `make docs` -->\n\n```text\n).*?(?=```\n)", re.DOTALL
)
SOURCES = {  # folders of C++, which say nothing of themselves
    "src": "C++, compiled to one library: what Python calls, and the choice of the instruction set.",
    "isa": "The kernels, compiled once for each instruction set, in a namespace of its own.",
    "simd": "Vectors: one way to write them for every instruction set.",
    "memory": "Memory and threads that are not to be had: errors, never the end of the process.",
    "tuning": "Choices of which only speed depends: their bounds, what holds unmeasured, and setting them.",
    "primitives": "quantize, dequantize and fake_quantize: statistics, scales, encoding, packing.",
    "linear": "Products with a quantized weight.",
    "amx": "Those of many rows by a processor's matrix unit: its tiles, blocks that are scaled, parts of floats.",
    "fused": "Ops between products: tables, sums, norms, attention, on floats and codes.",
    "records": "Blocks of other producers' files, taken apart into codes and scales and put together.",
    "integer": "Products, tables and row functions on integers alone, which end in rounding shifts.",
}


def layers() -> tuple[list[str], list[str]]:
    """The rooms in the order of imports, and those beside them, as tests/test_layers.py has them."""
    path = PACKAGE.parent / "tests" / "test_layers.py"
    spec = importlib.util.spec_from_file_location("layers", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.LAYERS), list(module.BESIDE)


def house(package: Path = PACKAGE) -> str:
    """A drawing of the package's folders: one line a room, in the order in which they may import."""
    order, beside = layers()
    lines = ["blockscale/"]
    rooms = [name for name in order if (package / name).is_dir()]
    for name in rooms:
        lines += ["  ↑"] if name != rooms[0] else []
        lines += rows(package / name, 1)
    lines += [
        "",
        *(row for name in beside if (package / name).is_dir() for row in rows(package / name, 1)),
    ]
    return "\n".join(lines) + "\n"


def rows(folder: Path, depth: int) -> Iterator[str]:
    """A room and those inside it."""
    name = "  " * depth + folder.name + "/"
    yield f"{name:22} {about(folder)}"
    for inside in sorted(each for each in folder.iterdir() if each.is_dir()):
        if any(each.suffix in (".py", ".cpp", ".h") for each in inside.rglob("*")):
            yield from rows(inside, depth + 1)


def about(folder: Path) -> str:
    """The first sentence of what a package says of itself."""
    start = folder / "__init__.py"
    if not start.exists():
        return SOURCES.get(folder.name, "C++.")
    said = " ".join(
        (ast.get_docstring(ast.parse(start.read_text())) or "").partition("\n\n")[0].split()
    )
    sentence = re.match(r".*?\.(?= [A-Z]|$)|.*", said)
    return sentence[0] if sentence else ""


DRAWN = re.compile(r"(?P<head><!-- drawn: (?P<name>\w+) -->\n\n```text\n).*?(?=```\n)", re.DOTALL)


def drawings() -> dict[str, str]:
    """The graphs of docs/graph.md: two linear layers and a GELU, after each step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    x, rows = torch.randn(4, 64), torch.export.Dim("rows")
    program = torch.export.export(model.eval(), (x,), dynamic_shapes=({0: rows},))
    prepared = bs.graph.prepare(program, bs.Recipe("int8_channel", "uint8:tensor:fp32:asym"))
    prepared(x)
    converted = bs.graph.convert(prepared)
    graphs = {"prepared": prepared, "converted": converted, "fused": bs.graph.fuse(converted)}
    drawn = {name: bs.graph.draw(g) for name, g in graphs.items()} | {"passes": by_pass()}
    return {name: re.sub(r"\bs\d+\b", "rows", text) for name, text in drawn.items()}


class Block(torch.nn.Module):
    """Two readers of one tensor, a residual and a norm: what passes have something to do with."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.norm, self.out = torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, 32] -> [rows, 8]."""
        return self.out(torch.nn.functional.relu(self.norm(self.q(x) * self.k(x) + x)))


def by_pass() -> str:
    """A converted Block, and what each pass that changes something makes of it."""
    torch.manual_seed(0)
    x, rows = torch.randn(4, 32), torch.export.Dim("rows")
    program = torch.export.export(Block().eval(), (x,), dynamic_shapes=({0: rows},))
    prepared = bs.graph.prepare(program, bs.Recipe("int8_channel", "int8:tensor:fp32"))
    prepared(x)
    graph = imported(bs.graph.convert(prepared))
    text = f"converted\n{bs.graph.draw(graph)}"
    for each in passes.FUSE:
        if count := each.run(graph):
            passes.tidy(graph)
            name = each.__name__.rpartition(".")[2]
            text += f"\nafter {name} ({count})\n{bs.graph.draw(graph)}"
    return text


def graph() -> str:
    """docs/graph.md with the graphs of today."""
    drawn = drawings()
    return DRAWN.sub(lambda found: found["head"] + drawn[found["name"]], GRAPH.read_text())


def design() -> str:
    """docs/design.md with the drawing of today."""
    return HOUSE.sub(lambda _: house(), DESIGN.read_text())


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
    notes = RELIABILITY.with_name("reliability_notes.md").read_text()
    return notes.replace("<!-- figures -->", "\n".join([about, "", *lines]))


def searched() -> str:
    """docs/search.md with the figures of docs/search.json."""
    tables = searched_tables(json.loads(SEARCH.read_text()))
    return FIGURES.sub(
        lambda m: f"{m['head']}\n{tables}\n\n{m['tail']}", SEARCH.with_suffix(".md").read_text()
    )


if __name__ == "__main__":
    SEARCH.with_suffix(".md").write_text(searched())
    RELIABILITY.with_suffix(".md").write_text(reliability())
    PAGE.write_text(page())
    DESIGN.write_text(design())
    GRAPH.write_text(graph())
    MODELS.with_suffix(".md").write_text(models())
    for name, text in {**performance(), **accuracy()}.items():
        target = PAGE.parent / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
