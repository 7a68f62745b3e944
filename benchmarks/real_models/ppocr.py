# SPDX-License-Identifier: BSD-3-Clause
"""PP-OCRv4's recognition of a line from rapidocr-onnxruntime (Apache-2.0): images -> characters.

The images are drawn here: lines of help texts in the font that Pillow carries. onnxruntime runs the
network.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.real_models import minilm, packages

NAME = "ch_PP-OCRv4_rec_infer.onnx"
HEIGHT, SIZE, MARGIN = 48, 30, 8  # pixels: of a line, of its letters, and around them
LONGEST = 48  # characters of a line


def path() -> Path:
    """The recognition network's ONNX file."""
    return packages.directory("rapidocr_onnxruntime", "rapidocr-onnxruntime") / "models" / NAME


def texts(count: int, first: int = 0) -> list[str]:
    """Beginnings of lines of help texts, whole words; first: as `minilm.sentences` has it."""
    made = []
    for line in minilm.sentences(count, first):
        words = [word for word in line.split() if word.isascii()]
        while len(" ".join(words)) > LONGEST:
            words.pop()
        made.append(" ".join(words))
    return made


def drawn(text: str) -> Tensor:
    """A line in black on white: float32 [3, 48, width] of -1 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(SIZE)
    width = int(font.getlength(text)) + 2 * MARGIN
    image = Image.new("L", (width, HEIGHT), 255)
    ImageDraw.Draw(image).text((MARGIN, HEIGHT / 2), text, fill=0, font=font, anchor="lm")
    grey = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(HEIGHT, width)
    return (grey.float() / 127.5 - 1).expand(3, -1, -1)


class Reader:
    """The network as it is, or with other weights.

    model: bytes of an ONNX model; None for the package's own
    """

    def __init__(self, model: bytes | None = None):
        import onnxruntime as ort  # type: ignore[import-untyped]

        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = torch.get_num_threads()
        self.session = ort.InferenceSession(model or str(path()), options)
        held: Any = ort.InferenceSession(str(path())) if model else self.session
        listed = held.get_modelmeta().custom_metadata_map["character"].splitlines()
        self.characters = ["", *listed, " "]  # the first is CTC's blank

    def shares(self, text: str) -> Tensor:
        """What the network sees in a drawn text: [steps, characters], each step's shares."""
        return torch.from_numpy(self.session.run(None, self.call(text))[0][0])

    def call(self, text: str) -> dict[str, Any]:
        """The network's input of a drawn text, by its name."""
        return {self.session.get_inputs()[0].name: drawn(text)[None].numpy()}

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Each drawn text, as it is read."""
        return [self.read(self.shares(text)) for text in texts]

    def read(self, shares: Tensor) -> str:
        """The likeliest character of each step, those that go on once (CTC's greedy path); spaces
        at both ends, which are the drawing's margins, are none of the text."""
        steps = shares.argmax(-1).unique_consecutive()
        return "".join(self.characters[i] for i in steps.tolist()).strip()
