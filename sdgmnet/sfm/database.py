"""COLMAP's database as the place where keypoints, matches and what was verified are kept, image by image, pair by pair.

Cameras and images are written by pycolmap, in a process of its own. The tables of keypoints and matches are plain arrays
(PROTOCOLS.md 7.2), written here as they come: a pair is in the database when it is finished, so that a process that is killed
costs one pair at most, and memory does not grow with their number.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.sfm.sparse import Step, alone, camera_groups, import_group
from sdgmnet.storage import new_file

LAST_ID = 2147483647  # COLMAP numbers pairs by it
COLUMNS = 4  # of a keypoint: x, y, scale, orientation


class Verified(NamedTuple):
    """Of the pairs that two-view geometry explains: how many, and how many matches they have together."""

    pairs: int
    matches: int


def create(
    path: Path,
    images: Path,
    photos: Sequence[dict[str, Any]],
    sharing: str,
    keypoints: Iterable[tuple[str, np.ndarray]],
    log: Path,
) -> Step:
    """A new database of the photos below `images`, cameras shared as said, with the keypoints of each, COLMAP's rows (N, 4)."""
    with new_file(path) as part:
        step = alone(
            f"{__name__}:_write_images", log, path=str(part), images=str(images), photos=list(photos), sharing=sharing
        )
        with opened(part) as database:
            ids = image_ids(database)
            for name, rows in keypoints:
                table = np.ascontiguousarray(rows, dtype="<f4").reshape(-1, COLUMNS)
                database.execute(
                    "INSERT INTO keypoints (image_id, rows, cols, data) VALUES (?, ?, ?, ?)",
                    (ids[name], *table.shape, table.tobytes()),
                )
            database.commit()
    return step


def _write_images(path: str, images: str, photos: Sequence[dict[str, Any]], sharing: str) -> None:
    import pycolmap

    with pycolmap.Database.open(path):
        pass
    for group in camera_groups(photos, sharing):
        import_group(Path(path), Path(images), group)


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection whose commits outlive the process, though not a power failure; what COLMAP reads is whole in any case."""
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    connection = sqlite3.connect(path, timeout=60)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        require_tables(connection)
        yield connection
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # damaged names, even within sqlite's own messages
        if "disk is full" in str(error):
            raise InputError(f"{path} cannot be written, the disk is full: free some space and run again.") from error
        raise InputError(
            f"{path} is not a database of COLMAP that can be used ({error}): remove it and run again."
        ) from error
    finally:
        connection.close()


def require_tables(database: sqlite3.Connection) -> None:
    """COLMAP's databases hold tables only. A view can be a question that sqlite answers for ever."""
    if database.execute("SELECT 1 FROM sqlite_master WHERE type IN ('view', 'trigger') LIMIT 1").fetchone():
        raise sqlite3.DatabaseError("it holds views or triggers")


def image_ids(database: sqlite3.Connection) -> dict[str, int]:
    rows = database.execute("SELECT name, image_id FROM images").fetchall()
    if not all(isinstance(name, str) and isinstance(number, int) for name, number in rows):
        raise damaged("its images")
    return dict(rows)


def count_keypoints(database: sqlite3.Connection) -> dict[int, int]:
    """By the image's number."""
    counts = database.execute("SELECT image_id, rows FROM keypoints").fetchall()
    if not all(isinstance(number, int) and isinstance(rows, int) and rows >= 0 for number, rows in counts):
        raise damaged("its keypoints")
    return dict(counts)


def damaged(what: str) -> sqlite3.DatabaseError:
    """For `opened` to tell, which knows the file."""
    return sqlite3.DatabaseError(f"{what} are damaged")


def pair_id(first: int, second: int) -> int:
    return LAST_ID * min(first, second) + max(first, second)


def is_matched(database: sqlite3.Connection, number: int) -> bool:
    """Whether the pair of this number is finished; it may be without a match."""
    return database.execute("SELECT 1 FROM matches WHERE pair_id = ?", (number,)).fetchone() is not None


def count_finished(database: sqlite3.Connection) -> int:
    """Pairs that are finished, those without a match among them."""
    return int(database.execute("SELECT COUNT(*) FROM matches").fetchone()[0])


def write_matches(database: sqlite3.Connection, first: int, second: int, pairs: np.ndarray) -> None:
    """Pairs (M, 2): keypoint of the image `first`, of `second`. The image with the lower number stands first in the table."""
    rows = np.ascontiguousarray(pairs if first < second else pairs[:, ::-1], dtype="<u4").reshape(-1, 2)
    database.execute(
        "INSERT INTO matches (pair_id, rows, cols, data) VALUES (?, ?, 2, ?)",
        (pair_id(first, second), len(rows), rows.tobytes()),
    )
    database.commit()


def read_matches(
    database: sqlite3.Connection, ids: Mapping[str, int], table: str = "matches"
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Names and (M, 2) of each pair, the name that comes first by the alphabet first; one pair in memory at a time.

    table: "matches", or "two_view_geometries" for those that were verified.
    """
    names = {number: name for name, number in ids.items()}
    for number, data in database.execute(f"SELECT pair_id, data FROM {table} ORDER BY pair_id"):
        one, two = divmod(number, LAST_ID) if isinstance(number, int) else (None, None)
        if (
            one not in names
            or two not in names
            or one == two
            or not isinstance(data, bytes | None)
            or len(data or b"") % 8
        ):
            raise damaged("its matches")
        pairs = np.frombuffer(data or b"", dtype="<u4").reshape(-1, 2).astype(np.int64)
        first, second = names[one], names[two]
        yield (first, second, pairs) if first < second else (second, first, pairs[:, ::-1])


def count_matched(database: sqlite3.Connection) -> int:
    """Pairs that have matches to verify."""
    return int(database.execute("SELECT COUNT(*) FROM matches WHERE rows > 0").fetchone()[0])


def count_judged(database: sqlite3.Connection) -> int:
    """Pairs that were verified, well or badly."""
    return int(database.execute("SELECT COUNT(*) FROM two_view_geometries").fetchone()[0])


def count_verified(database: sqlite3.Connection) -> Verified:
    pairs, rows = database.execute("SELECT COUNT(*), SUM(rows) FROM two_view_geometries WHERE rows > 0").fetchone()
    if not isinstance(rows, int | None):
        raise damaged("its verified matches")
    return Verified(int(pairs), int(rows or 0))
