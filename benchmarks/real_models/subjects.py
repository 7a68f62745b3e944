# SPDX-License-Identifier: BSD-3-Clause
"""The models besides SmolLM2, each with its recipes and what is measured of it."""

import copy
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn

import blockscale as bs
from benchmarks.real_models import efficientnet, minilm, piper, ppocr, whisper
from benchmarks.real_models.peers import PEERS, STATIC
from benchmarks.real_models.recipes import INT4, Case
from blockscale.evaluation.figures import Figure, FigureSums
from blockscale.evaluation.tasks import character_errors, word_errors
from blockscale.export import quantize_onnx

GPTQ = {"weight": "gptq"}
ONE_SCALE = "int8:tensor:fp32:asym"
INT8, ROUNDED4 = Case("int8_channel", "int8_channel"), Case("int4 group32", INT4)
CALIBRATED4 = Case("int4 group32 gptq", INT4, None, GPTQ)
PAIR8 = Case("int8_channel × int8_token", "int8_channel", "int8_token")
STATIC8 = Case("int8_channel × int8 static", "int8_channel", ONE_SCALE)
W4A16 = Case.of_preset("w4a16")
Figures = Mapping[str, Figure]


class Subject(Protocol):
    """cases: the recipes; measured: the figures of one, and seconds of quantizing alone."""

    cases: ClassVar[list[Case]]

    def measured(self, case: Case) -> tuple[Figures, float]: ...


def line(name: str, subject: Subject, case: Case) -> dict[str, Any]:
    """A recipe's figures as a line of the file."""
    figures, seconds = subject.measured(case)
    return {"case": f"{name}: {case.name}", "model": name, "weight": case.weight} | {
        "input": case.input, "settings": case.settings, "seconds": round(seconds, 2),
        "preset": case.preset, "by": case.by,
        "figures": {key: figure.to_dict() for key, figure in figures.items()},
    }  # fmt: skip


def quantized(model: nn.Module, case: Case, batches: Callable[[], list[Any]]) -> nn.Module:
    """A copy of the model by a recipe, or a peer's; batches are asked for where one calibrates."""
    if case.by:
        return (PEERS | STATIC)[case.by](model, batches())
    made = copy.deepcopy(model)
    if case.settings:
        bs.calibrate(made, batches(), case.recipe, progress=False, **case.settings)
    else:
        bs.quantize_(made, case.recipe)
    return made


def quantized_file(path: Path, case: Case, calls: Any = None) -> bytes:
    """An ONNX file's bytes by a recipe; calls: for scales of static inputs, and the settings."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "model.onnx"
        quantize_onnx(path, out, case.recipe, calibrate=calls, progress=False, **case.settings)
        return out.read_bytes()


class EfficientNet:
    """Agreement with the float model. Static inputs without settings in the graph flow, which sees
    the products of layers whose forward is their own (the package's padded convolutions); what has
    settings, and peers', is the same network of plain layers, batch norms folded."""

    cases: ClassVar[list[Case]] = [
        INT8,
        STATIC8,
        Case("int8_channel, bias", "int8_channel", None, {"bias": "correct"}),
        *(Case.of_preset(name) for name in ("w8a8-static", "edge-int8")),
        *(Case(f"int8 static by {name}", "int8_channel", ONE_SCALE, by=name) for name in STATIC),
        Case("mxint8", "mxint8"),
        Case("mxfp8", "mxfp8"),
        ROUNDED4,
    ]

    def __init__(self, images: int = 192, calibration: int = 24):
        self.model = efficientnet.load()
        self.batches = list(efficientnet.cuts(images, 2).split(16))
        self.calibration = list(efficientnet.cuts(calibration, 1).split(8))
        self.reference = Remembered(self.model)

    def measured(self, case: Case) -> tuple[Figures, float]:
        began = time.monotonic()
        made = self.quantized(case)
        seconds = time.monotonic() - began
        found = bs.evaluate(made, self.batches, self.reference, kind="classes")
        return found.figures, seconds

    def quantized(self, case: Case) -> nn.Module:
        if case.settings or case.by:
            return quantized(efficientnet.folded(), case, lambda: self.calibration)
        return quantized(self.model, case, list) if case.input is None else self.graph(case)

    def graph(self, case: Case) -> nn.Module:
        rows = torch.export.Dim.AUTO
        program = torch.export.export(self.model, (self.batches[0],), dynamic_shapes=({0: rows},))
        recipe = bs.Recipe(weight=case.weight, input=case.input)
        prepared = bs.graph.prepare(program, recipe)
        bs.calibrate(prepared, self.calibration, progress=False)
        return bs.graph.convert(prepared)


class Remembered(nn.Module):
    """A model that keeps what it gave for each batch, which others are measured beside."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.kept: dict[bytes, Tensor] = {}

    def forward(self, batch: Tensor) -> Tensor:
        key = batch.numpy().tobytes()
        if key not in self.kept:
            self.kept[key] = self.model(batch)
        return self.kept[key]


class MiniLM:
    """Cosines of sentences' embeddings to the float model's."""

    cases: ClassVar[list[Case]] = [
        INT8,
        PAIR8,
        ROUNDED4,
        CALIBRATED4,
        W4A16,
        Case("int4 group32 asym gptq", f"u{INT4}:asym", None, GPTQ),
        *(Case(f"int4 group32 by {name}", INT4, by=name) for name in PEERS),
    ]

    def __init__(self, count: int = 64, calibration: int = 512):
        self.model = minilm.load()
        texts = minilm.sentences(count)
        self.batches = minilm.batches(texts)
        self.cosines = minilm.Cosines(self.model)
        self.others = [each for each in minilm.sentences(calibration, 1) if each not in texts]

    def measured(self, case: Case) -> tuple[Figures, float]:
        began = time.monotonic()
        made = quantized(self.model, case, lambda: minilm.batches(self.others, 32))
        seconds = time.monotonic() - began
        return bs.evaluate(made, self.batches, figures=self.cosines).figures, seconds


def plain(text: str) -> str:
    """A text's words without case and punctuation."""
    kept = "".join(c for c in text.lower() if c.isalnum() or c.isspace() or c == "'")
    return " ".join(kept.split())


@dataclass
class Spoken:
    """What Piper said, and the mel bands of it [windows of 30 seconds, 80, 3000]."""

    said: list[str]
    bands: Tensor


def spoken(voice: piper.Voice, first: int, count: int, together: int = 1) -> Spoken:
    """Sentences of the voice's list from `first` on, so many of them in each window."""
    pairs = piper.SENTENCES[first : first + count]
    groups = [pairs[i : i + together] for i in range(0, len(pairs), together)]
    waves = [torch.cat([voice(phonemes) for _, phonemes in group]) for group in groups]
    return Spoken(
        [" ".join(text for text, _ in group) for group in groups], whisper.features(waves)
    )


def errors(heard: list[str], said: list[str]) -> Figures:
    """Word errors without case and punctuation."""
    held = FigureSums()
    held.add({"word errors": word_errors([plain(t) for t in heard], [plain(t) for t in said])})
    return held.figures()


class Whisper:
    """The closed loop Piper -> Whisper: words of a quantized Whisper."""

    cases: ClassVar[list[Case]] = [
        INT8,
        W4A16,
        PAIR8,
        ROUNDED4,
        *(Case(f"int4 group32 by {name}", INT4, by=name) for name in PEERS if "torchao" in name),
    ]

    def __init__(self, count: int = 40, calibration: int = 20):
        voice = piper.Voice()
        self.model, self.listener = whisper.load(), whisper.Listener()
        self.spoken = spoken(voice, 0, count)
        # windows that are nearly full: of one sentence each, nine tenths are silence, which is
        # what calibration then gets right
        self.other = spoken(voice, count, calibration, 10)
        self.floats = self.heard(self.model)

    def heard(self, model: nn.Module) -> list[str]:
        return [t for part in self.spoken.bands.split(4) for t in self.listener(model, part)]

    def calibration(self) -> list[dict[str, Tensor]]:
        """Sounds beside the tokens that the listener gives for them, from the first to the end."""
        batches, config = [], cast("Any", self.model.config)
        first = [config.decoder_start_token_id, self.listener.id_of("<|notimestamps|>")]
        for said, bands in zip(self.other.said, self.other.bands, strict=True):
            ids = self.listener.tokenizer.encode(" " + said, add_special_tokens=False).ids
            batches.append({"input_features": bands[None]} | {
                "decoder_input_ids": torch.tensor([[*first, *ids, config.eos_token_id]])
            })  # fmt: skip
        return batches

    def measured(self, case: Case) -> tuple[Figures, float]:
        began = time.monotonic()
        made = quantized(self.model, case, self.calibration)
        seconds = time.monotonic() - began
        heard = self.heard(made)
        floats = errors(self.floats, self.spoken.said)["word errors"]
        unlike = errors(heard, self.floats)["word errors"]
        found = errors(heard, self.spoken.said)
        return {**found, "word errors in float": floats, "words unlike float's": unlike}, seconds


class Piper:
    """The closed loop Piper -> Whisper: words of a float Whisper that hears a rounded voice."""

    cases: ClassVar[list[Case]] = [INT8, ROUNDED4]

    def __init__(self, count: int = 40):
        self.model, self.listener = whisper.load(), whisper.Listener()
        self.count = count
        self.floats = self.errors(piper.Voice())

    def errors(self, voice: piper.Voice) -> Figures:
        made = spoken(voice, 0, self.count)
        heard = [t for part in made.bands.split(4) for t in self.listener(self.model, part)]
        return errors(heard, made.said)

    def measured(self, case: Case) -> tuple[Figures, float]:
        began = time.monotonic()
        weights = quantized_file(piper.path(), case)
        seconds = time.monotonic() - began
        found = self.errors(piper.Voice(weights))
        return {**found, "word errors in float": self.floats["word errors"]}, seconds


class PPOCR:
    """Drawn text -> PP-OCRv4's recognition, quantized as an ONNX file."""

    cases: ClassVar[list[Case]] = [
        INT8,
        PAIR8,
        STATIC8,
        Case("mxint8", "mxint8"),
        ROUNDED4,
        CALIBRATED4,
        Case("int4 group32, bias", INT4, None, {"bias": "correct"}),
        Case("int4 group32 gptq, bias", INT4, None, {**GPTQ, "bias": "correct"}),
    ]

    def __init__(self, count: int = 64, calibration: int = 16):
        self.texts = ppocr.texts(count)
        self.others = [t for t in ppocr.texts(calibration, 1) if t not in self.texts]
        self.reader = ppocr.Reader()
        self.floats = self.reader(self.texts)

    def measured(self, case: Case) -> tuple[Figures, float]:
        began = time.monotonic()
        calls = [self.reader.call(text) for text in self.others]
        learns = case is STATIC8 or case.settings
        weights = quantized_file(ppocr.path(), case, calls if learns else None)
        seconds = time.monotonic() - began
        read, held = ppocr.Reader(weights)(self.texts), FigureSums()
        held.add({
            "character errors": character_errors(read, self.texts),
            "character errors in float": character_errors(self.floats, self.texts),
            "characters unlike float's": character_errors(read, self.floats),
        })  # fmt: skip
        return held.figures(), seconds


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "EfficientNet-Lite0": EfficientNet,
    "MiniLM-L6": MiniLM,
    "Whisper tiny.en": Whisper,
    "Piper joe": Piper,
    "PP-OCRv4 recognition": PPOCR,
}
