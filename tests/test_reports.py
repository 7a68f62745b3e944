# SPDX-License-Identifier: BSD-3-Clause
"""What a worker of xdist reports, and what it does not."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.reports import OneMessage, apart, together

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def heard(*outcomes: str) -> list[str]:
    """Which reports of a test that follows one with failures are sent on."""
    found: list[str] = []
    send = together(lambda events: found.extend(what["data"]["when"] for _, what in events[:-1]))
    for when in ("setup", "call", "teardown"):
        send("testreport", data={"when": when, "outcome": FAILED})
    send("runtest_protocol_complete")
    found.clear()
    phases = ("setup", "teardown") if len(outcomes) == 2 else ("setup", "call", "teardown")
    for when, outcome in zip(phases, outcomes, strict=True):
        send("testreport", data={"when": when, "outcome": outcome})
    assert not found
    send("runtest_protocol_complete")
    return found


@pytest.mark.parametrize(
    ("outcomes", "sent"),
    [
        ((PASSED, PASSED, PASSED), ["call"]),
        ((PASSED, FAILED, PASSED), ["call", "teardown"]),  # with what teardown printed
        ((PASSED, PASSED, FAILED), ["call", "teardown"]),
        ((PASSED, SKIPPED, PASSED), ["call", "teardown"]),
        ((SKIPPED, PASSED), ["setup", "teardown"]),
        ((FAILED, PASSED), ["setup", "teardown"]),
    ],
)
def test_results_are_sent(outcomes: tuple[str, ...], sent: list[str]) -> None:
    assert heard(*outcomes) == sent


def test_a_test_is_one_message_and_all_else_is_sent_as_it_was() -> None:
    messages: list[Any] = []
    heard: list[Any] = []
    send, hear = together(messages.append), apart(heard.append)
    events: list[Any] = [
        ("collectionfinish", {"ids": ["a"]}),
        ("logstart", {"nodeid": "a", "location": ("a", 1, "b")}),
        ("testreport", {"data": {"when": "call", "outcome": PASSED}}),
        ("logfinish", {"nodeid": "a", "location": ("a", 1, "b")}),
        ("runtest_protocol_complete", {"item_index": 0, "duration": 0.1}),
        ("workerfinished", {"workeroutput": {"a": 1}}),
    ]
    for name, what in events:
        send(name, **what)
    assert [len(each) for each in messages] == [1, 4, 1]
    for message in [*messages, "END"]:
        hear(message)
    assert heard == [*events, "END"]


def test_workers_and_nodes_are_patched() -> None:
    sent: list[Any] = []
    channel = SimpleNamespace(send=sent.append)
    worker = SimpleNamespace(sendevent=None, channel=channel)
    for plugins in ([object()], [object(), worker]):
        manager = SimpleNamespace(get_plugins=lambda each=plugins: each)
        config: Any = SimpleNamespace(pluginmanager=manager)
        OneMessage().pytest_configure(config)
    worker.sendevent("workerready", pid=1)  # type: ignore[misc]
    node = SimpleNamespace(process_from_remote=lambda event: sent.append(event))
    OneMessage().pytest_configure_node(node)
    node.process_from_remote(sent[0])
    assert sent == [[("workerready", {"pid": 1})], ("workerready", {"pid": 1})]


def test_no_event_is_lost_between_threads() -> None:
    """Sending lets other threads run, as xdist's does that takes tests back."""
    sent: list[Any] = []

    def send(events: Any) -> None:
        time.sleep(0)
        sent.extend(events)

    sendevent = together(send)

    def tell(name: str) -> None:
        for i in range(2000):
            sendevent(name, place=i)

    threads = [threading.Thread(target=tell, args=(name,)) for name in ("logstart", "unscheduled")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    sendevent("workerfinished", place=-1)
    for name in ("logstart", "unscheduled"):
        assert [what["place"] for each, what in sent if each == name] == list(range(2000))
