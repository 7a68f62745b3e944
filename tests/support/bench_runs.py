# SPDX-License-Identifier: BSD-3-Clause
"""Small runs for the tests: every case once, on tiny shapes."""

from dataclasses import replace

from blockscale.bench.run import Watcher, every_case, measure
from blockscale.bench.settings import TINY, Settings

SETTINGS = Settings(sizes=TINY, peers=False)
FEW = replace(SETTINGS, only="overhead/*/int8/*")


class Heard(Watcher):
    """Keeps what it hears; raises `stop` when the case with that number begins."""

    def __init__(self, stop=None, at=0):
        self.began, self.ended, self.said, self.total = [], [], [], None
        self.stop, self.at = stop, at

    def start(self, total, done):
        self.total = (total, done)

    def begin(self, case):
        if self.stop is not None and len(self.began) == self.at:
            raise self.stop
        self.began.append(case.name)

    def end(self, case):
        self.ended.append(case.name)

    def say(self, text):
        self.said.append(text)


def measured(settings=SETTINGS, seconds=0.0):
    """Every case as plain data; without time for more, each contestant has one sample."""
    return [measure(case, settings, seconds) for case in every_case(settings)]


def ticking(seconds):
    """A clock on which a call of each contestant takes what `seconds` says, by its name."""

    def tick(call, times):
        for _ in range(times):
            call()
        return times * seconds

    return tick
