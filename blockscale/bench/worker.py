# SPDX-License-Identifier: BSD-3-Clause
"""One side of a race between checkouts: a process that measures a case when it is told to.

It is started by its path with another checkout's package, so it asks no more of that than its own
`blockscale.bench` of any release that has `every_case` and `measure`. Lines of JSON on standard
input name a case and seconds; each is answered by a line on standard output."""

import json
import os
import sys
from typing import Any, TextIO


def serve(data: dict[str, Any], io: TextIO, answers: TextIO) -> None:
    """Answer until the input ends. told: the settings, by the names of `Settings`."""
    import blockscale
    from blockscale.bench import machine, settings
    from blockscale.bench.machine import every_core
    from blockscale.bench.run import every_case, measure

    plain = {key: value for key, value in data.items() if key != "tiny"}
    plain["formats"] = tuple(plain.get("formats", ()))
    sizes = settings.TINY if data.get("tiny") else settings.sizes(plain["device"], plain["quick"])
    choice = settings.Settings(**plain, sizes=sizes)
    with every_core():
        cases = {case.name: case for case in every_case(choice)}
        about = {
            "package": str(blockscale.__file__),
            "commit": machine.commit(),
            "cases": list(cases),
        }
        _say(answers, about)
        for line in io:
            request = json.loads(line)
            record = measure(cases[request["case"]], choice, request["seconds"])
            _say(answers, record)


def _say(answers: TextIO, data: Any) -> None:
    answers.write(json.dumps(data) + "\n")
    answers.flush()


if __name__ == "__main__":
    # What a case prints must not come between the answers: those have a descriptor of their own.
    with os.fdopen(os.dup(1), "w") as mine:
        os.dup2(2, 1)
        serve(json.loads(sys.argv[1]), sys.stdin, mine)
