# SPDX-License-Identifier: BSD-3-Clause
"""Workers of xdist send one message a test, with its result alone, in the place of six: these cost
as much as a small test itself, of which there are thousands."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

Event = tuple[str, dict[str, Any]]
_OF_A_TEST = ("logstart", "testreport", "logfinish")  # and what follows them goes along


class OneMessage:
    """A plugin of a worker and of the process that started it."""

    def pytest_configure(self, config: pytest.Config) -> None:
        """In a worker."""
        plugins = config.pluginmanager.get_plugins()
        worker: Any = next((each for each in plugins if hasattr(each, "sendevent")), None)
        if worker is not None:
            worker.sendevent = together(lambda events: worker.channel.send(events))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """In the first process, before it listens to a worker."""
        node.process_from_remote = apart(node.process_from_remote)


def together(send: Callable[[list[Event]], None]) -> Callable[..., None]:
    """xdist's `sendevent(name, **what)`: events of a test are kept until it is complete. That its
    setup or teardown passed is left out where its call passed as well."""
    kept: list[Event] = []
    tells = False  # something of this test
    lock = threading.Lock()  # a thread of xdist says which tests another process may have

    def sendevent(name: str, **what: Any) -> None:
        nonlocal tells
        if name == "testreport":
            report = what["data"]
            tells = report["outcome"] != "passed" or (tells and report["when"] != "setup")
            if report["when"] != "call" and not tells:
                return
        with lock:
            kept.append((name, what))
            if name not in _OF_A_TEST:
                send(kept.copy())
                kept.clear()

    return sendevent


def apart(hear: Callable[[Any], None]) -> Callable[[Any], None]:
    """xdist's `process_from_remote(event)`, of a list of events or of what is none."""

    def process_from_remote(message: Any) -> None:
        for event in message if isinstance(message, list) else [message]:
            hear(event)

    return process_from_remote
