"""A conversion for people: what became of each tensor, what it cost, and what was proved."""

from blockscale.core.untrusted.names import TEXT, shown
from blockscale.export.conversion.result import Conversion, Converted
from blockscale.report.table import aligned
from blockscale.report.wording import family, size


def conversion_table(done: Conversion, compared: bool = True) -> str:
    """One line for all tensors that differ only in numbers of their names, errors one a tensor.

    compared: whether it was written and read back
    """
    groups: dict[tuple[str, ...], list[Converted]] = {}
    for each in done.tensors:
        key = (each.how, family(each.name), each.kind, each.found, each.written)
        groups.setdefault(key, []).append(each)
    rows = []
    for (how, name, kind, found, written), tensors in groups.items():
        shared = tensors[0].name if len(tensors) == 1 else name
        what = written if how == "copied" or found == written else f"{found} -> {written}"
        rows.append((how, shared, str(len(tensors)), kind, what))
    lines = [aligned(("", "tensor", "count", "was", "format"), rows, "  r  "), ""]
    lines += _errors(done.of("requantized")) if compared else []
    lines += [f"left out: {shown(name)}: {shown(why, TEXT)}" for name, why in done.left_out.items()]
    lines += [f"note: {shown(note, TEXT)}" for note in done.notes]
    lines += [
        f"note: {shown(each.name)}: {shown(note, TEXT)}"
        for each in done.tensors
        if each.how != "requantized"
        for note in each.notes
        if note != "float32 now"
    ][:20]
    if done.copied:
        lines.append(f"copied: {', '.join(map(shown, done.copied))}")
    return "\n".join([*lines, *_proof(done, compared)])


def _errors(tensors: list[Converted]) -> list[str]:
    """The error that quantizing again added, for each tensor."""
    if not tensors:
        return []
    rows = []
    for each in tensors:
        sqnr = "none" if each.sqnr is None else f"{each.sqnr:.2f} dB"
        reason = "; ".join(each.notes)
        rows.append((each.name, each.written, f"{each.relative:.3%}", sqnr, reason))
    head = ("quantized again", "as", "relative error", "SQNR", "because")
    return [aligned(head, rows, "  rr "), ""]


def _proof(done: Conversion, compared: bool) -> list[str]:
    counts = {how: len(done.of(how)) for how in ("exact", "dequantized", "copied", "requantized")}
    told = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
    sizes = size(done.bytes_before)
    if not compared:
        return [f"{told}; {sizes}"]
    codes = sum(each.compared == "codes" for each in done.tensors)
    rest = len(done.tensors) - codes
    elements = sum(each.elements for each in done.tensors)
    proof = (
        f"{'lossless' if done.lossless else 'not lossless'}: {told}; read back and compared bit "
        f"for bit: codes and scales of {codes} tensors, values of {rest}; {elements:,} values, "
        f"{'0 differ' if done.lossless else '0 differ but for those quantized again'}"
    )
    lines = [proof, f"{sizes} -> {size(done.bytes_after)}"]
    return lines + ([f"note: {done.computes}"] if done.computes else [])
