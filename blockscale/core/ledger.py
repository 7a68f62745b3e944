# SPDX-License-Identifier: BSD-3-Clause
"""The ledger: what became of every layer and every parameter. Nothing is skipped silently."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from blockscale.core.parse import display_name
from blockscale.core.untrusted import TEXT, quote, shown

Status = Literal["quantized", "kept", "skipped"]


class SkippedError(ValueError):
    """A layer could not be quantized and `strict` asked for all of them."""


@dataclass(frozen=True)
class Entry:
    """One layer or parameter.

    status: "quantized"; "kept" in float on purpose (a pattern of the recipe, a vector such as a
    norm's weight or a bias); "skipped": the recipe covers it but it could not be quantized.
    """

    name: str
    kind: str
    status: Status
    weight: str = ""
    input: str = ""
    output: str = ""
    reason: str = ""  # why it was kept or skipped
    notes: tuple[str, ...] = ()  # e.g. scales that saturated, non-finite values
    elements: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    details: str = ""  # how it was quantized, e.g. with scales from which observer
    bias: str = ""
    here: str = field(default="", compare=False)  # what this machine makes of it, where it is slow

    @property
    def formats(self) -> str:
        """The formats in one short text, by their names where they have one."""
        parts = {"": self.weight, "input ": self.input, "output ": self.output, "bias ": self.bias}
        return ", ".join(label + display_name(text) for label, text in parts.items() if text)

    @property
    def summary(self) -> str:
        """The formats and how, or else the reason, in one short text."""
        return "; ".join(filter(None, [self.formats, self.details, self.here])) or self.reason


def _plain(entry: Entry) -> dict[str, Any]:
    """An entry for JSON; of this machine only where there is something to say."""
    return {key: value for key, value in asdict(entry).items() if value or key != "here"}


@dataclass
class Ledger:
    """Entries in the model's order, and the recipe's patterns that matched nothing.

    notes: what to know of the whole, such as that a recipe's calibration did not happen
    """

    entries: list[Entry] = field(default_factory=list)
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, name: str) -> Entry:
        """The entry of the layer or parameter `name`. Raises KeyError."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def of(self, status: Status) -> list[Entry]:
        """The entries of one status."""
        return [entry for entry in self.entries if entry.status == status]

    @property
    def quantized(self) -> list[Entry]:
        """What was quantized."""
        return self.of("quantized")

    @property
    def kept(self) -> list[Entry]:
        """What stayed in float on purpose."""
        return self.of("kept")

    @property
    def skipped(self) -> list[Entry]:
        """What the recipe covers but could not be quantized."""
        return self.of("skipped")

    @property
    def bytes_before(self) -> int:
        """Bytes of all parameters before."""
        return sum(entry.bytes_before for entry in self.entries)

    @property
    def bytes_after(self) -> int:
        """Bytes of all codes, scales and kept parameters after."""
        return sum(entry.bytes_after for entry in self.entries)

    def raise_if_skipped(self) -> None:
        """Raise SkippedError that names every skipped entry and unmatched pattern, if any."""
        lines = [f"{shown(e.name)} ({e.kind}): {shown(e.reason, TEXT)}" for e in self.skipped]
        lines += [f"pattern {quote(pattern)} matches nothing" for pattern in self.unmatched]
        if lines:
            raise SkippedError(
                "strict: not everything the recipe covers can be quantized; nothing was changed."
                + "".join(f"\n  {line}" for line in lines)
                + "\nName them in the recipe's skip list, or call with strict=False."
            )

    def warn(self, stacklevel: int = 3) -> None:
        """One UserWarning that names what was skipped, noted or unmatched, if anything was.

        stacklevel: of the line that the warning names, as for `warnings.warn`
        """
        lines = [shown(note, TEXT) for note in self.notes]
        lines += [f"{shown(e.name)}: skipped, {shown(e.reason, TEXT)}" for e in self.skipped]
        lines += [f"{shown(e.name)}: {shown(note, TEXT)}" for e in self.entries for note in e.notes]
        lines += [f"pattern {quote(p)} of the recipe matches nothing" for p in self.unmatched]
        if lines:
            warnings.warn("\n  ".join(["blockscale:", *lines]), stacklevel=stacklevel)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "unmatched": list(self.unmatched),
            **notes,
            "entries": [_plain(entry) for entry in self.entries],
        }

    def to_json(self) -> str:
        """The ledger as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        """A plain table, one line an entry, totals last."""
        rows = [(e.status, shown(e.name), e.kind, shown(e.summary, TEXT)) for e in self.entries]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        lines = [
            "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]])
            for row in rows
        ]
        notes = [(e.name, note) for e in self.entries for note in e.notes]
        lines += [f"note  {shown(name)}: {shown(note, TEXT)}" for name, note in notes]
        lines += [f"note  {shown(note, TEXT)}" for note in self.notes]
        lines += [f"pattern {quote(pattern)} matches nothing" for pattern in self.unmatched]
        counts = (
            f"{len(self.quantized)} quantized, {len(self.kept)} kept, {len(self.skipped)} skipped"
        )
        total = f"{self.bytes_before / 1e6:.2f} MB -> {self.bytes_after / 1e6:.2f} MB"
        return "\n".join([*(line.rstrip() for line in lines), f"{counts}; {total}"])
