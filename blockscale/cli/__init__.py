# SPDX-License-Identifier: BSD-3-Clause
"""The command line: one file a command, found by its name. It needs the extra `cli`."""

import sys


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from blockscale.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.exit(f"blockscale's command line needs {error.name}: pip install 'blockscale[cli]'")
    app()
