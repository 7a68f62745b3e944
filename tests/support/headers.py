# SPDX-License-Identifier: BSD-3-Clause
"""The licence in the first lines of every source file, as SPDX has it (spdx.dev, ISO/IEC 5962).

    python -m tests.support.headers     writes it where it is missing; `make fix` does

tests/test_headers.py says which files lack it. Data, and files without comments, have none.
"""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LICENCE = "SPDX-License-Identifier: BSD-3-Clause"
COMMENT = {  # suffix -> the line
    ".py": f"# {LICENCE}",
    ".sh": f"# {LICENCE}",
    ".wgsl": f"// {LICENCE}",
    ".cpp": f"// {LICENCE}",
    ".h": f"// {LICENCE}",
    ".js": f"// {LICENCE}",
    ".css": f"/* {LICENCE} */",
}


def sources(root: Path = ROOT) -> list[Path]:
    """The files that git knows, and new ones that it does not ignore, which take such a line."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    files = (root / name for name in names.splitlines())
    return sorted(f for f in files if f.suffix in COMMENT and f.is_file() and f.stat().st_size)


def has_one(path: Path) -> bool:
    """Whether the first line, or the one after `#!`, is the licence as this kind of file has it."""
    lines = path.read_text().split("\n", 2)[:2]
    at = 1 if lines[0].startswith("#!") else 0
    return lines[at : at + 1] == [COMMENT[path.suffix]]


def write(path: Path) -> None:
    """Put the line where `has_one` looks for it."""
    text = path.read_text()
    first, rest = text.split("\n", 1) if text.startswith("#!") else ("", text)
    path.write_text((f"{first}\n" if first else "") + COMMENT[path.suffix] + "\n" + rest)


def main() -> None:
    for path in sources():
        if not has_one(path):
            write(path)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
