"""What a user can meet: a sentence that says what is wrong, where, and what to do."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


def suggestion(text: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the name that is spelt nearly like it, if there is one."""
    near = get_close_matches(text, list(names), 1)
    return f"; did you mean {near[0]}?" if near else "."


class InputError(ValueError):
    """Input that cannot be used as given. The command line prints its text and exits with code 2."""


class Stopped(RuntimeError):
    """Work that ended before its end, in an orderly way. The command line prints its text and exits with `exit_code`."""

    exit_code = 1


class Interrupted(Stopped):
    """A person or the system asked to stop; what can be resumed has been saved."""

    exit_code = 130


@contextmanager
def resumable() -> Iterator[None]:
    """Work that the same command continues, with a message that tells so on Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted; run the same command again to continue.") from None


class TrainingStopped(Stopped):
    """A run that cannot go on, with the reason and where its last checkpoint is."""
