# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale spell`: how a format is spelled."""

# Goes to:   blockscale/cli/commands/spell.py
# Its test:  tests/cli/commands/test_spell.py: what it prints, its JSON, and how it ends badly.
# By itself: its line in `blockscale --help`, its own help, and errors of the kinds ValueError and
#            OSError as one message with exit code 1. Add it to the table in docs/cli.md.

import json
from typing import Annotated

import typer

from blockscale.core.parse import parse


def spell(
    name: Annotated[str, typer.Argument(metavar="FORMAT", help="A name, or any spelling.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the one spelling of a format."""
    text = str(parse(name))
    print(json.dumps({"name": name, "spelling": text}, indent=2) if as_json else text)
