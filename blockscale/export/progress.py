"""What a long run tells its caller while it lasts. This one listens to nothing: override what you need."""


class Progress:
    """Told of sizes in bytes of the source tensors, and of what a person should know."""

    def start(self, total: int, done: int) -> None:
        """Work begins; `done` bytes of `total` were finished by an earlier run."""

    def advance(self, name: str, nbytes: int) -> None:
        """`nbytes` more of tensor `name` are written."""

    def say(self, text: str) -> None:
        """One line, such as what a resumed run found."""
