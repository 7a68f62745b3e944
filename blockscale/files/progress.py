"""What a long run tells its caller while it lasts."""


class Progress:
    """Listens to nothing: override what you need. Sizes are bytes of the source tensors."""

    def start(self, total: int, done: int) -> None:
        """Work begins; `done` bytes of `total` were finished by an earlier run."""

    def advance(self, name: str, nbytes: int) -> None:
        """`nbytes` more of tensor `name` are written."""

    def say(self, text: str) -> None:
        """One line, such as what a resumed run found."""
