# SPDX-License-Identifier: BSD-3-Clause
"""A ledger for people: what became of each tensor, what to know about it, and the totals."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from blockscale.core.ledger import Entry, Ledger
from blockscale.core.untrusted import TEXT, quote, shown
from blockscale.reporting.table import aligned, family, size

# Tables of what was searched and foretold on a real model, from docs/search.json.

_SHOWN = (3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5, 7, 8)


def searched_tables(data: dict[str, Any]) -> str:
    """The tables of docs/search.md as Markdown."""
    foretold = ["", *_foretold(data)] if "foretold" in data else []
    return "\n".join([*_search_choice(data), *foretold])


def _search_choice(data: dict[str, Any]) -> Iterator[str]:
    searches, hardware = data["search"], data["hardware"]
    seconds = ", ".join(f"`{name}` {each['seconds']:.0f} s" for name, each in searches.items())
    yield (
        f"all-MiniLM-L6-v2, {len(searches['fisher']['layers'])} weights, searched on every other "
        f"sentence of the demonstration, 24 of them; quality is the mean cosine of the embeddings "
        f"of the other 24 to the float model's. {hardware['processor']}, {data['threads']} thread"
        f"{'s' if data['threads'] > 1 else ''} on a machine with a load of {data['load']:.0f} on "
        f"{hardware['cores']} cores: {seconds}, for {len(searches['fisher']['points'])} budgets. "
        f"Commit `{data['commit']}`."
    )
    yield ""
    names = list(searches)
    yield f"| budget | {' | '.join(f'searched by `{name}`' for name in names)} | best uniform |"
    yield f"|--:|{'--:|' * len(names)}---|"
    for budget in _SHOWN:
        points = {n: [p for p in searches[n]["points"] if p["bits"] <= budget] for n in names}
        cells = [f"{max(p['quality'] for p in points[name]):.6f}" for name in names]
        yield f"| {budget} | {' | '.join(cells)} | {_best(data['uniform'], budget)} |"
    yield ""
    four = [each for each in data["uniform"] if 4 < each["bits"] <= 5]
    best = max(four, key=lambda each: each["quality"])
    choice = searches["fisher"]["chosen"]
    yield (
        f"At {choice['bits']:.4f} bits the searched recipe gives {choice['quality']:.6f}, the best "
        f"of {len(four)} uniform 4-bit formats, `{best['format']}` at {best['bits']:.4f} bits, "
        f"{best['quality']:.6f}: 1 - cosine is "
        f"{(1 - best['quality']) / (1 - choice['quality']):.1f} times as large. No uniform format "
        f"from 3 to 8.25 bits is better than a searched recipe of at most as many bits."
    )


def _best(uniform: list[dict[str, Any]], budget: float) -> str:
    fitting = [each for each in uniform if each["bits"] <= budget]
    best = max(fitting, key=lambda each: each["quality"])
    return f"{best['quality']:.6f} `{best['format']}`, {best['bits']:.3f} bits"


def _foretold(data: dict[str, Any]) -> Iterator[str]:
    forecast = data["foretold"]
    yield (
        "What `bs.recommend` foretold of the same model, and what its `check` then measured; times "
        "by the process's own clock (`time.process_time`), one thread, since other processes used "
        f"the machine. Commit `{forecast['commit']}`."
    )
    yield ""
    yield "| budget | bits | bytes | error | foretold ms | measured ms | error | speedup | error |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for row in forecast["rows"]:
        before, after, errors = row["foretold"], row["measured"], row["errors"]
        name = ", ".join([row["budget"], *row["candidates"]])
        yield (
            f"| {name} | {row['bits']:.3f} | {after['bytes']:,} | {_percent(errors['bytes'])} | "
            f"{1e3 * before['seconds']:.1f} | {1e3 * after['seconds']:.1f} | "
            f"{_percent(errors['seconds'])} | {after['speedup']:.2f} | "
            f"{_percent(errors['speedup'])} |"
        )


def _percent(error: float) -> str:
    return f"{100 * error:+.1f} %" if error else "0"


@dataclass(frozen=True)
class Group:
    """All tensors of one fate that differ only in numbers of their names.

    name: of the one, or of the family; before, after: bytes of all; what: format, or why not
    """

    status: str
    name: str
    count: int
    kind: str
    before: int
    after: int
    what: str


def grouped(ledger: Ledger) -> list[Group]:
    """The entries in groups, in the ledger's order."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in ledger:
        key = (entry.status, family(entry.name), entry.kind, entry.summary)
        groups.setdefault(key, []).append(entry)
    return [
        Group(
            status, entries[0].name if len(entries) == 1 else name, len(entries), kind,
            sum(entry.bytes_before for entry in entries),
            sum(entry.bytes_after for entry in entries), what,
        )
        for (status, name, kind, what), entries in groups.items()
    ]  # fmt: skip


def ledger_table(ledger: Ledger) -> str:
    """One line for all tensors that differ only in numbers of their names; totals last."""
    rows = [
        (g.status, g.name, str(g.count), g.kind, size(g.before), size(g.after), g.what)
        for g in grouped(ledger)
    ]
    text = aligned(
        ("", "tensor", "count", "kind", "before", "after", "format, or why not"), rows, "  r rr "
    )
    return "\n".join([text, "", *ledger_notes(ledger), ledger_summary(ledger)])


def ledger_notes(ledger: Ledger) -> list[str]:
    """What a user should know: notes on tensors, patterns without effect."""
    notes = [
        f"note: {shown(entry.name)}: {shown(note, TEXT)}"
        for entry in ledger
        for note in entry.notes
    ]
    patterns = (f"note: pattern {quote(p)} of the recipe matches nothing" for p in ledger.unmatched)
    whole = (f"note: {shown(note, TEXT)}" for note in ledger.notes)
    return [*whole, *notes, *patterns]


def ledger_summary(ledger: Ledger) -> str:
    """Counts and sizes in one line."""
    counts = (
        f"{len(ledger.quantized)} quantized, {len(ledger.kept)} kept, {len(ledger.skipped)} skipped"
    )
    elements = sum(entry.elements for entry in ledger)
    bits = 8 * ledger.bytes_after / max(elements, 1)
    sizes = f"{size(ledger.bytes_before)} -> {size(ledger.bytes_after)}"
    return f"{counts}; {sizes}, {bits:.2f} bits per weight"
