# SPDX-License-Identifier: BSD-3-Clause
"""Write the generated pages: `make docs`. A test checks that they are up to date.

docs/formats.md from the catalogue; docs/performance.md and its plots from docs/performance_notes.md
and the newest full run of `blockscale bench` that git tracks; in docs/design.md the drawing of the
house, from the folders of the package and the first sentence of what each says of itself; in
docs/graph.md the graphs; docs/models.md from docs/models.json; docs/accuracy.md and its plots from
docs/accuracy_notes.md, docs/accuracy.json and docs/accuracy_earlier.json; the figures of
docs/search.md; in docs/webgpu.md the table of ops; docs/real_models.md's; blockscale/core/
preset_figures.json from docs/real_models.json and docs/preset_families.json, and docs/defaults.md's
table from that; docs/reliability.md from
docs/reliability_notes.md and the figures of the last campaign; docs/clients.md from
docs/clients.jsonl.
"""

from docs.pages import (
    DOCS,
    clients,
    figures,
    formats,
    graphs,
    house,
    models,
    presets,
    real_models,
    webgpu,
)


def made() -> dict[str, str]:
    """{path below docs: content} of every page."""
    return {
        "search.md": figures.searched(),
        "reliability.md": figures.reliability(),
        "clients.md": clients.page(),
        "formats.md": formats.page(),
        "design.md": house.design(),
        "graph.md": graphs.graph(),
        "models.md": models.models(),
        "webgpu.md": webgpu.webgpu(),
        "real_models.md": real_models.real_models(),
        presets.NAME: presets.measured(),
        "defaults.md": presets.defaults(),
        **figures.performance(),
        **figures.accuracy(),
    }


def main() -> None:
    """Write them."""
    for name, text in made().items():
        target = DOCS / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)


if __name__ == "__main__":
    main()
