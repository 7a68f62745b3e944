# SPDX-License-Identifier: BSD-3-Clause
"""docs/accuracy.json from what benchmarks.language_model.evaluate wrote.

    python -m benchmarks.language_model.gather FILE.jsonl … [--output docs/accuracy.json]

For each setting: bits, and per seed what was lost on each part of the text, with seconds on each
kind of device. A cell that several files have is taken from the last. Machines are listed once.
"""

import argparse
import json
import pathlib
from typing import Any

from benchmarks.language_model.evaluate import read

TARGET = pathlib.Path(__file__).parents[2] / "docs" / "accuracy.json"


def gathered(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """{"machines": […], "rows": {name: {…}}} of lines that evaluate wrote."""
    machines: list[dict[str, Any]] = []
    rows: dict[str, dict[str, Any]] = {}
    for cell in cells:
        if cell["about"] not in machines:
            machines.append(cell["about"])
        row = rows.setdefault(cell["name"], {**cell["setting"], "bits": cell["bits"], "seeds": {}})
        seed = row["seeds"].setdefault(str(cell["seed"]), {"seconds": {}})
        seed |= {part: cell[part] for part in ("held", "held2") if part in cell}
        seed["machine"] = machines.index(cell["about"])
        seed["seconds"][cell["device"]] = cell["seconds"]
    return {"machines": machines, "rows": dict(sorted(rows.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=pathlib.Path, nargs="+")
    parser.add_argument("--output", type=pathlib.Path, default=TARGET)
    given = parser.parse_args()
    told = gathered([cell for path in given.files for cell in read(path)])
    given.output.write_text(json.dumps(told, indent=1) + "\n")
    print(f"{given.output}: {len(told['rows'])} settings; now `make docs`")


if __name__ == "__main__":
    main()
