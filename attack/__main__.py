# SPDX-License-Identifier: BSD-3-Clause
"""`make attack`: attack blockscale for an hour, or for as long as asked; `python -m attack --help`."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATE = ROOT / "build" / "attack" / "state.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, default=0, help="of every case (0)")
    parser.add_argument("--only", default="", help="parts, with commas between them")
    parser.add_argument(
        "--case", type=int, help="run this case of the one part alone, with its traceback"
    )
    parser.add_argument("--state", type=Path, default=STATE, help="where a campaign goes on from")
    parser.add_argument("--fresh", action="store_true", help="forget what was attacked before")
    parser.add_argument(
        "--figures", type=Path, help="write the figures of docs/reliability.md here"
    )
    return parser.parse_args()


def settled() -> None:
    """One thread, and calls that can be made to fail: both are settled when a process begins."""
    from attack import calls

    wanted = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "LD_PRELOAD": calls.built()}
    wanted |= {"MALLOC_MMAP_THRESHOLD_": "65536", "HF_HUB_OFFLINE": "1"}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, "-W", "ignore", "-m", "attack", *sys.argv[1:]])


def version() -> str:
    """The commit, and whether the tree is as it says."""
    run = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(run, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    given = arguments()
    settled()
    from attack import show
    from attack.campaign import Campaign, place
    from attack.part import Case
    from attack.parts import parts

    known = {part.name: part for part in parts()}
    names = [name for name in given.only.split(",") if name] or list(known)
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no part {', '.join(unknown)}: there are {', '.join(known)}")
    chosen = [known[name] for name in names]
    if given.case is not None:
        folder = place()
        if chosen[0].prepare:
            chosen[0].prepare(folder)
        print(chosen[0].case(Case(given.case, given.seed, folder)) or f"case {given.case} passes")
        return 0
    if given.fresh:
        given.state.unlink(missing_ok=True)
    campaign = Campaign(given.state, given.seed, version())
    missing = {part.name: reason for part in chosen if part.missing and (reason := part.missing())}
    able = [part for part in chosen if part.name not in missing]
    try:
        with show.progress(campaign, able, given.minutes * 60) as say:
            campaign.run(able, given.minutes * 60, say)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on")
    failed = show.summary(campaign, chosen, missing)
    if given.figures:
        show.write_figures(campaign, missing, given.figures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
