"""A ledger for people: what became of each tensor, what to know about it, and the totals."""

from blockscale.core.ledger import Entry, Ledger
from blockscale.report.table import aligned
from blockscale.report.wording import family, size


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
    text = aligned(
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
