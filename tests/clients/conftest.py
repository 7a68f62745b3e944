# SPDX-License-Identifier: BSD-3-Clause
"""`pytest -m clients tests/clients --record FILE`: what each client said, as a line of JSON."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import results
from tests.clients.programs import AbsentError

RESULTS = pytest.StashKey[results.Results]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record", type=Path, metavar="FILE", help="of clients: write figures as lines of JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--record", None)
    if file is not None:
        config.stash[RESULTS] = results.Results(file)


def name_of(item: pytest.Item) -> tuple[str, str]:
    """The file of a test, and the test in it."""
    return item.path.name, f"{item.path.name}::{item.name}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Results of tests that are no more are dropped; deselected ones are still here."""
    if RESULTS not in config.stash or any("::" in each for each in config.args):
        return
    for module, test in map(name_of, items):
        config.stash[RESULTS].tests.setdefault(module, set()).add(test)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give the outcome to the results, unless the client is not installed."""
    report = yield
    mark = item.get_closest_marker("loads")
    told = item.config.stash.get(RESULTS, None)
    absent = call.excinfo is not None and call.excinfo.errisinstance(AbsentError)
    if told is None or mark is None or absent or not (report.when == "call" or report.failed):
        return report
    if not report.skipped:
        figures, reason = results.taken(), ""
        if call.excinfo is not None:
            said = str(call.excinfo.value).split("\n")  # of a program: its output, the error last
            reason = next((each for each in reversed(said) if each.strip()), call.excinfo.typename)
        client = item.getparent(pytest.Module).obj.CLIENT  # type: ignore[union-attr]
        told.add(name_of(item)[1], client, mark.args[0], reason[:300], figures)
    return report


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    """Figures are of the test that notes them."""
    results.taken()
