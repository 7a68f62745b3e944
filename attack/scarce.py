# SPDX-License-Identifier: BSD-3-Clause
"""Native calls under many limits on memory: `python -m attack.scarce THREADS STEPS [NAME …]`.

The room that the process may still take is a little more each time, until the call finds enough. Then
its result is that of a call without limits; before, it is a MemoryError that says how much was asked for.
"""

import json
import os
import re
import resource
import sys
import traceback

import torch

from attack.native_calls import CASES

_MOST = 96e6  # bytes of room before the last call, which has no limit
_SAID = re.compile(r"blockscale: no memory for \d+\.\d{3} MB \(\d+ bytes\)")


def used() -> int:
    """Bytes of address space that this process has."""
    # unbuffered: a buffer that is gone when the call begins would be room for it
    file = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return int(os.read(file, 100).split()[0]) * resource.getpagesize()
    finally:
        os.close(file)


def limit(room: int | None) -> None:
    soft = resource.RLIM_INFINITY if room is None else used() + room
    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))


def attempt(call, room: int | None) -> str | None:
    """What the lack of memory is said with, or None if there was enough."""
    limit(room)
    try:
        call.run()
    except MemoryError as error:
        return str(error)
    finally:
        limit(None)
    return None


def main(name: str, threads: int, steps: int) -> dict[str, int]:
    torch.set_num_threads(1)
    call = CASES[name](1)
    call.run()
    expected = [each.clone() for each in call.results]
    call = CASES[name](threads)
    lacks: dict[str, int] = {}
    for step in range(steps + 1):
        for each in call.results:
            each.zero_()
        lack = attempt(call, None if step == steps else int(_MOST * (step / steps) ** 3))
        if lack is not None:
            assert _SAID.fullmatch(lack), lack
            lacks[lack] = lacks.get(lack, 0) + 1
            continue
        for found, want in zip(call.results, expected, strict=True):
            same = torch.equal(found.view(torch.uint8), want.view(torch.uint8))
            assert same, f"{name}: another result at step {step}"
    lacking = sum(lacks.values())
    assert lacking <= steps, "the last call has all the memory that there is"
    return {"limits": steps + 1, "lacks": lacking, "sizes": len(lacks)}


def alone(name: str, threads: int, steps: int) -> int:
    """`main` in a fork, which has imported all: what one call gives back may be all that the next one
    needs. Its exit code."""
    child = os.fork()
    if not child:
        code = 1
        try:
            sys.stdout.write(json.dumps({"name": name} | main(name, threads, steps)) + "\n")
            sys.stdout.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    for each in sys.argv[3:] or CASES:
        if code := alone(each, int(sys.argv[1]), int(sys.argv[2])):
            sys.exit(f"{each}: exit code {code}")
