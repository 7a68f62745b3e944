# SPDX-License-Identifier: BSD-3-Clause
"""Many Python threads that use ops at the same time: each finds what one alone finds."""

import threading

import torch

import blockscale as bs
from attack.part import Case, Counts, Found, Part
from attack.parts.cells import bits, fmt, numbers
from blockscale.layers.apply import quantize_

_THREADS, _ROUNDS = 6, 4


def case(case: Case) -> Counts:
    rng = case.random()
    shapes = ((40, 64), (200, 512), (7, 33))
    jobs = [(fmt(rng), numbers(rng, rng.choice(shapes), torch.float32)) for _ in range(_THREADS)]
    layer = torch.nn.Sequential(torch.nn.Linear(64, 48))
    quantize_(layer, "int4:group32:fp32")
    x = torch.linspace(-1, 1, 640).view(10, 64)

    def work(text: str, each: torch.Tensor) -> bytes:
        with torch.no_grad():
            return bits(_round_trip(each, text)) + bits(layer(x))

    torch.set_num_threads(2)  # OpenMP's threads, of every thread of ours
    expected = [work(*job) for job in jobs]
    wrong: list[str] = []

    def run(index: int) -> None:
        try:
            torch.set_num_threads(1 + index % 2)
            found = [work(*jobs[index]) for _ in range(_ROUNDS)]
            wrong.extend(jobs[index][0] for each in found if each != expected[index])
        except BaseException as error:
            wrong.append(f"{jobs[index][0]}: {error!r}")

    threads = [threading.Thread(target=run, args=(index,)) for index in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(1)
    if wrong:
        raise Found("threads: a result that one thread alone does not find", "; ".join(wrong))
    return {"calls in threads": _THREADS * _ROUNDS}


def _round_trip(x: torch.Tensor, text: str) -> torch.Tensor:
    try:
        return (
            bs.fake_quantize(x, text, seed=5) if "stochastic" in text else bs.fake_quantize(x, text)
        )
    except ValueError:
        return torch.zeros(1)


PARTS = (Part("threads", "calls in threads", 10_000, case, seconds=60, share=0.5),)
