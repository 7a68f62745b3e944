"""A ledger's words beside what a file holds."""

from dataclasses import replace

from blockscale.core.ledger import Entry, Ledger
from blockscale.core.parse import parse


def compared(found: Ledger, told: Ledger) -> Ledger:
    """The ledger of a file, where weights that are not as `told` says are "skipped".

    Files without names (.pte) are compared by how many weights of a size are in codes.
    """
    entries = {entry.name: entry for entry in found}
    wanted = [entry for entry in told.quantized if entry.weight]
    if not any(_name(entry, entries) for entry in wanted):
        return _by_size(found, wanted)
    made = {entry.name: entry for entry in found}
    for entry in wanted:
        name = _name(entry, made)
        if name is None:
            made[entry.name] = _broken(entry, "the file has no weight of this name")
        elif reason := _reason(entry, made[name]):
            made[name] = replace(
                made[name], status="skipped", reason=f"its ledger says {entry.weight}: {reason}"
            )
    return Ledger(list(made.values()), told.unmatched)


def _name(entry: Entry, entries: dict[str, Entry]) -> str | None:
    """What a file calls the weight of a layer: as its codes, or as the tensor that it is."""
    names = (entry.name, f"{entry.name}.weight", f"{entry.name}.weight.codes")
    return next((name for name in names if name in entries), None)


def _reason(told: Entry, found: Entry) -> str:
    """Why a weight of a file is not what is said of it, or nothing."""
    if found.status != "quantized":
        return found.reason
    bits = parse(told.weight).bits
    stored = 8 * found.bytes_after / max(told.elements or found.elements, 1)
    if stored >= 32 or stored > max(2 * bits, 10) + 16:
        return f"the file takes {stored:.1f} bits of an element"
    return ""


def _by_size(found: Ledger, wanted: list[Entry]) -> Ledger:
    """Each weight that was promised takes one in codes of its size, as stored."""
    left = sorted(entry.elements for entry in found.quantized)
    missing = []
    for entry in sorted(wanted, key=lambda entry: entry.elements):
        bits = parse(entry.weight).bits
        sizes = [entry.elements, entry.elements * bits // 8]  # one a code, or packed in bytes
        size = next((each for each in left if any(_fits(each, size) for size in sizes)), None)
        if size is not None:
            left.remove(size)
        elif entry.elements:
            why = f"no weight of {entry.elements:,} elements is in codes in the file"
            missing.append(_broken(entry, f"its ledger says {entry.weight}: {why}"))
    return Ledger([*found.entries, *missing])


def _fits(stored: int, told: int) -> bool:
    """Whether it may be the size of a weight: ledgers of layers count the bias, too."""
    return 0 <= told - stored <= stored // 8


def _broken(entry: Entry, reason: str) -> Entry:
    return replace(entry, status="skipped", reason=reason, bytes_after=0)
