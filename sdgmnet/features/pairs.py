"""Pairs of images to match: hloc's text files, two names per line."""

from collections.abc import Sequence
from pathlib import Path

from sdgmnet.errors import InputError
from sdgmnet.storage import read_text, write_text

Pair = tuple[str, str]


def read_pairs(path: Path, known: set[str]) -> list[Pair]:
    """Pairs of known image names. A pair that occurs again, either way round, is taken once."""
    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: give a text file with two image names per line.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file: write two image names per line.") from error
    found: dict[frozenset[str], Pair] = {}
    for number, line in enumerate(lines, start=1):
        names = line.split()
        if not names:
            continue
        if len(names) != 2 or names[0] == names[1]:
            raise InputError(f"{path}, line {number}: give the names of two different images.")
        for name in names:
            if name not in known:
                raise InputError(f"{path}, line {number}: the folder has no image named {name}.")
        found.setdefault(frozenset(names), (names[0], names[1]))
    if not found:
        raise InputError(f"{path} contains no pairs: write two image names per line.")
    return list(found.values())


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """InputError if a name contains spaces, which the format cannot hold."""
    spaced = next((name for pair in pairs for name in pair if len(name.split()) > 1), None)
    if spaced is not None:
        raise InputError(f"{path} is not written: hloc's list of pairs cannot hold spaces, as in {spaced}.")
    write_text(path, "".join(f"{first} {second}\n" for first, second in pairs))
