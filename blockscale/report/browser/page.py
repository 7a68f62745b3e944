"""The page as one HTML file: shaders, formats, what the reference computed, style and scripts."""

import json
from collections.abc import Mapping
from importlib.resources import files

from blockscale.core.format import Format
from blockscale.report.browser.checks import check
from blockscale.report.browser.formats import parts, told

_SCRIPTS = ("shaders.js", "quantizing.js", "files.js", "view.js", "app.js")
_GRIDS = (
    ("numbers", "Numbers", "as they came, blue below 0 and orange above"),
    ("values", "Values", "that their codes mean"),
    ("errors", "Errors", "value minus number, strongest where they are largest"),
    ("codes", "Codes", "as unsigned bits, dark is 0"),
)


def page(formats: Mapping[str, Format], version: str) -> str:
    """HTML that needs nothing else.

    formats: by the name that the page shows; the first one, or mxfp4, is chosen when it opens
    version: of blockscale, for the foot of the page
    Raises ValueError for no formats, or one that a page cannot show.
    """
    if not formats:
        raise ValueError("a page needs at least one format")
    from jinja2 import Environment

    data = {
        "formats": [told(name, fmt) for name, fmt in formats.items()],
        "parts": parts(formats),
        "checks": [check(name, fmt) for name, fmt in formats.items()],
    }
    made = Environment(autoescape=True, trim_blocks=True, keep_trailing_newline=True)
    return made.from_string(_text("page.html.jinja")).render(
        style=_text("style.css"),
        scripts=[_text(name) for name in _SCRIPTS],
        # "</script>" and "<!--" in a string would end the script that it stands in, or hide its end
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        grids=_GRIDS,
        checks=len(data["checks"]),
        version=version,
    )


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
