"""Pairs of images to match: hloc's text files, two names per line."""

from pathlib import Path

from sdgmnet.errors import InputError
from sdgmnet.storage import read_text


def read_pairs(path: Path, known: set[str]) -> list[tuple[str, str]]:
    """Pairs of known image names. A pair that occurs again, either way round, is taken once."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a text file.") from error
    found: dict[frozenset[str], tuple[str, str]] = {}
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
        raise InputError(f"{path} holds no pairs.")
    return list(found.values())
