# SPDX-License-Identifier: BSD-3-Clause
"""`bs.report`: one HTML page, figures, or plain data about a quantized model or a search."""

from pathlib import Path
from typing import Any

from blockscale.core.work.progress import Progress
from blockscale.files.whole import check_place, written_whole
from blockscale.reporting.model.describe import describe
from blockscale.reporting.model.figures import check_folder, draw
from blockscale.reporting.model.page import check_extra, page
from blockscale.reporting.model.search import is_search


def report(  # noqa: PLR0913 - each is a thing to show
    path: str | Path,
    output: str | Path | None = None,
    *,
    source: str | Path | None = None,
    search: str | Path | None = None,
    evaluation: str | Path | None = None,
    figures: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What a quantized model or a search is, as plain data; also as a page and as figures.

    path: a file or directory that `bs.checkpoint` reads, or the .json file of a search
    output: the page to write: one HTML file that needs nothing else (the extra `report`)
    source: the float model with the same tensor names, for errors and saturation
    search: the .json file of a search to show beside a model
    evaluation: the .json file of `bs.evaluate(…).save` or `blockscale eval --out`, of this model
    figures: a folder for figures of papers, as PDF, SVG and PNG (matplotlib)
    progress: hears of the bytes that are looked at

    One layer at a time is in memory. Raises FileError for what cannot be read and ValueError for a
    place that cannot be written, before anything is written.
    """
    if output is not None:
        check_place(output, "report.html")
        check_extra()
    if figures is not None:
        check_folder(figures)
    alone = is_search(path)
    if alone and search is not None:
        raise ValueError(f"{path} and {search} are both searches: a report shows only one")
    data = describe(
        None if alone else path,
        source=source,
        search=path if alone else search,
        evaluation=evaluation,
        progress=progress,
    )
    if output is not None:
        text = page(data)
        with written_whole(Path(output)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if figures is not None:
        draw(data, figures)
    return data
