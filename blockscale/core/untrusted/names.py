# SPDX-License-Identifier: BSD-3-Clause
"""Names from files as people see them: on one line, without anything that a terminal obeys."""

LONGEST = 4096  # characters of a tensor's name; longer ones are refused
SHOWN = 200  # characters of a name that are shown; a name of a real tensor has fewer than 120
TEXT = 1000  # characters of a reason or a note, which may have names in it
QUOTED = 60  # characters of a text that an error repeats: no more than a line


def shown(name: object, longest: int = SHOWN) -> str:
    """A name as it can be printed anywhere; one of printable characters and usual length as it is.

    Line ends, escape sequences, marks that turn the direction of text, and whatever else is not
    printable (Unicode's "Other" and "Separator", but for the space) become Python's escapes, such
    as \\x1b and \\u202e. The middle of a long name is left out.
    """
    text = name if isinstance(name, str) else str(name)
    if len(text) <= longest and text.isprintable():
        return text
    if len(text) > longest:
        left = longest // 2
        return f"{_escaped(text[:left])} … ({len(text):,} characters) … {_escaped(text[-left:])}"
    return _escaped(text)


def shown_lines(text: str) -> str:
    """A message of our own, which may have several lines of any length, likewise."""
    return text if text.isprintable() else "\n".join(map(_escaped, text.split("\n")))


def quoted(value: object) -> str:
    """What an error repeats of a text, in quotes, or of another value: no more than a line."""
    if not isinstance(value, str):
        return shown(repr(value), QUOTED)
    if len(value) > QUOTED:
        return f"{value[:QUOTED]!a}… ({len(value):,} characters)"
    return repr(value) if value.isprintable() else ascii(value)


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
