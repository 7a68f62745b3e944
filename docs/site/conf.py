# SPDX-License-Identifier: BSD-3-Clause
"""`make docs-site`: a site of the pages in docs/ and of the docstrings of all public names.

Sphinx reads the pages (Markdown, by MyST); docs/api/ is written here, a page for each module that
users import from.
"""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import blockscale

project, author = "blockscale", "the blockscale authors"
release = version = blockscale.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_extra_path = ["index.html"]  # leads to docs/index.html
html_title = f"blockscale {release}"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "docs/api/*"]  # of the repository
exclude_patterns = ["docs/*_notes.md", "README.md"]
myst_heading_anchors = 4
autodoc_typehints = "description"
# links out of docs/, to files of the repository; names in hints that are private or of torch
suppress_warnings = ["myst.xref_missing", "myst.header", "ref.python"]

MODULES = (
    "blockscale",
    "blockscale.calibration.observers",
    "blockscale.graph",
    "blockscale.export",
    "blockscale.qat",
    "blockscale.compat.torch_ao",
    "blockscale.compat.torchao",
    "blockscale.integrations.transformers",
    "blockscale.integrations.peft",
)
_INDENT = re.compile(r" *")
_ENTRY = re.compile(r"(?P<names>[*\\]*[a-z_][\w\\]*(, [\w\\]+)*): (?P<text>.*)", re.DOTALL)
_shown: set[int] = set()  # what has its place already: some names are in two modules


def public(module: ModuleType) -> list[str]:
    """The names of a module that are no modules and not private."""
    listed = getattr(module, "__all__", None) or dir(module)
    return [
        name
        for name in sorted(listed)
        if not name.startswith("_")
        and callable(value := getattr(module, name))
        and getattr(value, "__module__", "").startswith("blockscale")
    ]


def page(name: str, module: ModuleType) -> str:
    """The page of a module, in reStructuredText."""
    first = (inspect.getdoc(module) or name).split("\n\n")[0]
    lines = [name, "=" * len(name), "", marked(" ".join(first.split())), ""]
    for each in public(module):
        if id(getattr(module, each)) in _shown:
            continue
        _shown.add(id(getattr(module, each)))
        kind = "class" if inspect.isclass(getattr(module, each)) else "function"
        lines += [f".. auto{kind}:: {name}.{each}"]
        lines += ["   :members:", "   :member-order: bysource"] * (kind == "class")
        lines += [""]
    return "\n".join(lines)


def write_pages(folder: Path) -> None:
    """docs/api/, which git ignores."""
    folder.mkdir(exist_ok=True)
    index = ["API", "===", "", ".. toctree::", ""]
    for name in MODULES:
        (folder / f"{name}.rst").write_text(page(name, importlib.import_module(name)))
        index.append(f"   {name}")
    (folder / "index.rst").write_text("\n".join(index) + "\n")


def marked(text: str) -> str:
    """Text with `code` -> the same in reStructuredText."""
    parts = text.split("`")
    plain = [re.sub(r"([*|_\\])", r"\\\1", part) for part in parts[::2]]
    code = [f"``{part}``" if part.strip() else "" for part in parts[1::2]]
    return "".join(a + b for a, b in zip(plain, [*code, ""], strict=False))


def paragraphs(lines: list[str]) -> list[str]:
    """A docstring -> reStructuredText: `code`, and what each parameter is.

    A paragraph is text that goes on with a hanging indent; one that begins with "name: " says what
    a parameter or a field is.
    """
    out: list[str] = []
    for paragraph in "\n".join(lines).strip().split("\n\n"):
        pieces: list[str] = []
        for line in paragraph.split("\n"):
            indent = len(_INDENT.match(line)[0])  # type: ignore[index]
            if pieces and (indent or not _ENTRY.match(line)):
                pieces[-1] += " " + line.strip()
            else:
                pieces.append(line.strip())
        for piece in pieces:
            text = marked(piece)
            entry = _ENTRY.match(text)
            out += [f":param {entry['names']}: {entry['text']}" if entry else text]
        out += [""]
    return out


def table(index: str) -> str:
    """The site's table of contents, hidden on the page itself: what docs/index.md links to."""
    linked = re.findall(r"\]\(([\w./]+)\.md\)", index)
    pages = "\n".join(dict.fromkeys([*linked, "../CHANGELOG", "api/index"]))
    return f"\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{pages}\n```\n"


def setup(app: Any) -> None:
    """Sphinx calls it."""
    write_pages(Path(app.srcdir) / "docs" / "api")

    def plain(*event: Any) -> None:  # app, what, name, object, options, lines
        event[-1][:] = paragraphs(event[-1])

    def contents(_: Any, name: str, source: list[str]) -> None:
        if name == root_doc:
            source[0] += table(source[0])

    app.connect("autodoc-process-docstring", plain)
    app.connect("source-read", contents)
