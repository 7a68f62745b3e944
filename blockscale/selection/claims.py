# SPDX-License-Identifier: BSD-3-Clause
"""What a recommendation says, sentence by sentence, and what was measured for each."""

from collections.abc import Iterator

from blockscale.kernels.hardware import Hardware
from blockscale.selection.advice import Advised
from blockscale.selection.choose import LayerChoice, LayerError
from blockscale.selection.recommendation import Claim


def claims_of(advice: Advised, machine: Hardware) -> tuple[Claim, ...]:
    """The claims, in the order in which people ask for them."""
    here = f"on this {machine.processor}, {machine.threads} threads"
    timed = f"medians of samples taken in turns {here} (blockscale.selection.times)"
    return (*_formats(advice), *_size(advice), *_errors(advice), *_speed(advice, timed))


def _formats(advice: Advised) -> Iterator[Claim]:
    shares = ", ".join(f"{n} × {name}" for name, n in advice.formats.items())
    bits = sum(e.bits * layer.elements for layer, e in _taken(advice))
    total = sum(layer.elements for layer in advice.search.layers)
    yield Claim(
        f"{bits / max(total, 1):.4f} bits a weight under the budget {advice.budget}: {shares}",
        f"counted from {len(advice.taken)} weights as they are stored, scales included",
    )
    blocks = ", ".join(f"{name} in {n}" for name, n in advice.blocks.items())
    yield Claim(f"blocks of weights that share a scale: {blocks}", "counted from the recipe")


def _size(advice: Advised) -> Iterator[Claim]:
    told = advice.foretold
    yield Claim(
        f"all parameters take {told.bytes} bytes, {told.float_bytes} in float: "
        f"{100 * (1 - told.bytes / told.float_bytes):.1f} % are saved",
        "counted from shapes and formats; bs.quantize_'s ledger counts the same",
    )


def _errors(advice: Advised) -> Iterator[Claim]:
    search = advice.search
    worst, error = min(_taken(advice), key=lambda pair: pair[1].sqnr)
    of = "its weight's" if search.quality == "none" else "its output's"
    how = "rounding of the weight" if search.quality == "none" else "its float inputs"
    yield Claim(
        f"the layer with the largest error is {worst.name} in {error.format}: {of} SQNR is "
        f"{error.sqnr:.2f} dB",
        f"measured: {how}, {advice.batches} batches" if advice.batches else f"measured: {how}",
    )
    quality = advice.foretold.quality
    if quality is not None and quality == quality:  # not NaN
        yield Claim(
            f"the model's {search.quality} is {quality:.6f}",
            f"measured with the recipe, objective {search.objective!r}; layers chosen by "
            f"{search.score!r}",
        )


def _speed(advice: Advised, timed: str) -> Iterator[Claim]:
    told = advice.foretold
    if told.seconds is not None and told.float_seconds is not None:
        yield Claim(
            f"a batch will take {1e3 * told.seconds:.3f} ms, {told.speedup:.2f} times as fast as "
            f"in float ({1e3 * told.float_seconds:.3f} ms)",
            f"the float model's time, its layers' exchanged for the recipe's: {timed}",
        )
    layers = [each for each in advice.search.layers if each.seconds]
    if layers:
        largest = max(layers, key=lambda each: each.seconds or 0.0)
        timings = [each for each in largest.candidates if each.seconds]
        fastest = min(timings, key=lambda each: each.seconds or 0.0)
        yield Claim(
            f"of the candidates {fastest.format} is the fastest in {largest.name} "
            f"{list(largest.shape)}: {1e6 * (fastest.seconds or 0):.1f} µs, in float "
            f"{1e6 * (largest.seconds or 0):.1f} µs",
            timed,
        )
    if advice.rows:
        listed = ", ".join(f"{rows}: {1e6 * s:.2f}" for rows, s in advice.rows.items())
        yield Claim(f"µs a row of the largest layer, by rows at a time: {listed}", timed)


def _taken(advice: Advised) -> list[tuple[LayerChoice, LayerError]]:
    """Each layer and its error in the candidate that it gets."""
    layers = advice.search.layers
    return [(each, each[advice.taken[each.name]]) for each in layers if each.name in advice.taken]
