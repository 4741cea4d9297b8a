"""Pairs of images to match: how they are chosen, and hloc's text files, two names per line."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal, get_args

from sdgmnet.errors import InputError
from sdgmnet.report import print_aside
from sdgmnet.storage import read_text, write_text

Pair = tuple[str, str]
Method = Literal["exhaustive", "sequential", "retrieval", "list"]
CHOICES = tuple(method for method in get_args(Method) if method != "list")
FORMER = {"all": "exhaustive"}
EXHAUSTIVE_UP_TO = 60  # images
NEIGHBOURS = {"sequential": 10, "retrieval": 20}  # of an image, where the user gives no number
PAIRS_HELP = (
    "Pairs to match. exhaustive: all; sequential: neighbours by name, and loop closure; retrieval: images that look alike; "
    "or a text file with two names per line."
)
PAIRS_DEFAULT = f"default: exhaustive for up to {EXHAUSTIVE_UP_TO} images, otherwise retrieval."
NEIGHBOURS_HELP = (
    "Number of neighbours per image; default: "
    f"{NEIGHBOURS['sequential']} before and after it for --pairs sequential, {NEIGHBOURS['retrieval']} on average for --pairs "
    "retrieval."
)


def choose_method(choice: str | None, count: int) -> Method:
    """What --pairs chooses for so many images: a method by its name, "list" for a file; None chooses by the number."""
    if choice is None:
        return "exhaustive" if count <= EXHAUSTIVE_UP_TO else "retrieval"
    if choice in FORMER:
        print_aside(f"sdgmnet: --pairs {choice} is now called --pairs {FORMER[choice]}.")
        choice = FORMER[choice]
    return choice if choice in CHOICES else "list"  # type: ignore[return-value]


def ordered_pairs(method: Literal["exhaustive", "sequential"], names: Sequence[str], neighbours: int) -> list[Pair]:
    """Pairs that depend on nothing but the names and their order."""
    if method == "exhaustive":
        return list(combinations(names, 2))
    return [(names[one], names[two]) for one, two in sequential_pairs(len(names), neighbours)]


def sequential_pairs(count: int, neighbours: int) -> list[tuple[int, int]]:
    """Indices: each image with the next ones, and with those 2, 4, 8, ... times as far, which close a walk around something."""
    steps = {*range(1, neighbours + 1), *(neighbours * 2**power for power in range(1, 20))}
    return sorted((first, first + step) for step in steps for first in range(count - step))


def in_blocks(pairs: Sequence[Pair], images: int) -> list[Pair]:
    """The pairs, ordered by blocks of images: with that many images in memory, an image is read once per pair of blocks."""
    names = dict.fromkeys(name for pair in pairs for name in pair)
    block = {name: number // max(images // 2, 1) for number, name in enumerate(names)}
    return sorted(pairs, key=lambda pair: (block[pair[0]], block[pair[1]]))


def read_pairs(path: Path, known: set[str]) -> list[Pair]:
    """Pairs of known image names. A pair that occurs again, either way round, is taken once."""
    advice = f"give {', '.join(CHOICES)}, or a text file with two image names per line"
    lines = read_text(path, advice).splitlines()
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
