# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/test_layers.py: `absolute`, `BESIDE`, `LAYERS`.
"""

import ast
import pathlib

LAYERS = (
    "core", "kernels", "ops", "layers", "parallel", "calibration", "qat", "graph", "selection",
    "files", "export", "evaluation", "reporting", "demo", "bench", "cli",
)  # fmt: skip


USERS = ("demo", "bench", "cli")  # they use the package as anybody does: `import blockscale as bs`


BESIDE = {  # only USERS import them
    "compat": ("core", "kernels", "ops", "layers", "parallel", "calibration", "qat"),
    "integrations": tuple(each for each in LAYERS if each not in USERS),
}


def absolute(node: ast.ImportFrom, path: pathlib.PurePath) -> str:
    """The module that `from … import` names, in the file blockscale/`path`."""
    if not node.level:
        return node.module or ""
    parents = ("blockscale", *path.parts[:-1])
    kept = parents[: len(parents) - node.level + 1]
    return ".".join((*kept, *filter(None, [node.module])))
