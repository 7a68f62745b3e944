# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of whole directories share: the folder around a model, and who hears of a run."""

import pytest

from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.metadata import FileError
from tests.support.file_models import contents


class Untouched:
    """The folder around a model, where an error must leave nothing."""

    def __init__(self, folder, model):
        self.folder, self.model, self.out = folder, model, folder / "out"
        self.before = contents(folder)

    def refuses(self, match, recipe="mxfp4", kind=FileError, out=None, **options):
        with pytest.raises(kind, match=match):
            quantize_directory(self.model, out or self.out, recipe, **options)
        assert contents(self.folder) == self.before
        assert not list(self.folder.glob(".*"))


def changed(place):
    """The folder as it is now is what an error must leave."""
    place.before = contents(place.folder)
    return place


class Listener:
    """A Progress that counts tensors and remembers what it is told."""

    def __init__(self):
        self.texts, self.total, self.done, self.advanced, self.names = [], 0, 0, 0, []

    def start(self, total, done):
        self.total, self.done = total, done

    def advance(self, name, nbytes):
        self.advanced += nbytes
        self.names.append(name)

    def say(self, text):
        self.texts.append(text)
