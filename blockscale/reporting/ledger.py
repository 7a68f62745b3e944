# SPDX-License-Identifier: BSD-3-Clause
"""A ledger for people: what became of each tensor, what to know about it, and the totals."""

from dataclasses import dataclass

from blockscale.core.ledger import Entry, Ledger
from blockscale.core.untrusted.names import TEXT, quoted, shown
from blockscale.reporting.table import aligned
from blockscale.reporting.wording import family, size


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
        key = (entry.status, family(entry.name), entry.kind, entry.told)
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
    unmatched = (
        f"note: pattern {quoted(p)} of the recipe matches nothing" for p in ledger.unmatched
    )
    return [*notes, *unmatched]


def ledger_summary(ledger: Ledger) -> str:
    """Counts and sizes in one line."""
    counts = (
        f"{len(ledger.quantized)} quantized, {len(ledger.kept)} kept, {len(ledger.skipped)} skipped"
    )
    elements = sum(entry.elements for entry in ledger)
    bits = 8 * ledger.bytes_after / max(elements, 1)
    sizes = f"{size(ledger.bytes_before)} -> {size(ledger.bytes_after)}"
    return f"{counts}; {sizes}, {bits:.2f} bits per weight"
