# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale verify`: is a quantized directory what was written, and can it be made again."""

import json
import warnings
from pathlib import Path
from typing import Annotated

import typer

from blockscale.cli.progress import Bar
from blockscale.core.untrusted import shown
from blockscale.files.verify import reproduce as make_again
from blockscale.files.verify import verify as verify_directory
from blockscale.reporting.table import size


def verify(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A directory that blockscale quantized.")
    ],
    reproduce: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL_DIR",
            help="Quantize this model again and compare.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
) -> None:
    """Check every file of a quantized directory against its ledger.

    Sizes and SHA-256 are compared. The command fails where files are missing, changed or not
    listed.
    """
    with Bar(quiet or as_json) as bar, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "blockscale:", UserWarning)  # of the run that is repeated
        if reproduce is None:
            verification = verify_directory(directory, bar)
        else:
            verification = make_again(directory, reproduce, bar)
    if as_json:
        print(json.dumps(verification.to_dict(), indent=2))
    elif not quiet and not verification.wrong:
        how = "made again with the same bytes" if reproduce else "as the ledger says"
        total = size(sum(verification.proved.values()))
        print(f"{len(verification.proved)} files of {directory}, {total}, are {how}")
    if verification.wrong:
        lines = [f"\n  {shown(name)}: {reason}" for name, reason in verification.wrong.items()]
        raise ValueError(f"{directory} is not what its ledger says:{''.join(lines)}")
