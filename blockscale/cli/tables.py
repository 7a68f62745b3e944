"""Plain text for people: aligned columns that a pipe, a file and a page can hold."""

import re
from collections.abc import Sequence

from blockscale.core.ledger import Entry, Ledger


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> str:
    """Rows under a header; `right` has an `r` in the place of each column of numbers."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    sides = right.ljust(len(header))
    cells = [
        [
            cell.rjust(w) if side == "r" else cell.ljust(w)
            for cell, w, side in zip(line, widths, sides, strict=True)
        ]
        for line in lines
    ]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def size(nbytes: float) -> str:
    """Bytes in the unit that suits: `90.9 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def shape(sizes: Sequence[int]) -> str:
    """A shape: `384 x 1536`, `scalar`."""
    return " x ".join(str(each) for each in sizes) or "scalar"


def family(name: str) -> str:
    """A name without its numbers, so that the layers of a stack share one: `layer.*.weight`."""
    return re.sub(r"\d+", "*", name)


def ledger_table(ledger: Ledger) -> str:
    """One line for all tensors that differ only in numbers of their names; totals last."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in ledger:
        key = (entry.status, family(entry.name), entry.kind, entry.formats or entry.reason)
        groups.setdefault(key, []).append(entry)
    rows = []
    for (status, name, kind, what), entries in groups.items():
        shown = entries[0].name if len(entries) == 1 else name
        before, after = (
            sum(getattr(e, k) for e in entries) for k in ("bytes_before", "bytes_after")
        )
        rows.append((status, shown, str(len(entries)), kind, size(before), size(after), what))
    text = table(
        ("", "tensor", "count", "kind", "before", "after", "format, or why not"), rows, "  r rr "
    )
    return "\n".join([text, "", *ledger_notes(ledger), ledger_summary(ledger)])


def ledger_notes(ledger: Ledger) -> list[str]:
    """What a user should know: notes on tensors, patterns without effect."""
    notes = [f"note: {entry.name}: {note}" for entry in ledger for note in entry.notes]
    return notes + [f"note: pattern {p!r} of the recipe matches nothing" for p in ledger.unmatched]


def ledger_summary(ledger: Ledger) -> str:
    """Counts and sizes in one line."""
    counts = (
        f"{len(ledger.quantized)} quantized, {len(ledger.kept)} kept, {len(ledger.skipped)} skipped"
    )
    elements = sum(entry.elements for entry in ledger)
    bits = 8 * ledger.bytes_after / max(elements, 1)
    sizes = f"{size(ledger.bytes_before)} -> {size(ledger.bytes_after)}"
    return f"{counts}; {sizes}, {bits:.2f} bits per weight"
