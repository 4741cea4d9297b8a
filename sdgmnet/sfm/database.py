"""COLMAP's database, read and written pair by pair with SQL.

Cameras and images are written by pycolmap, in its own process. Keypoints and matches are plain arrays (docs/protocols.md 7.2),
written here: each pair is committed when it is matched, so that a kill costs one pair and memory does not grow with the
number of pairs (docs/decisions/colmap-database.md).
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from sdgmnet.errors import InputError

MAX_IMAGE_ID = 2147483647  # COLMAP's pair id is MAX_IMAGE_ID * first + second

Table = Literal["matches", "two_view_geometries"]


class Verified(NamedTuple):
    """Number of pairs with inliers of two-view geometry, and of inliers in total."""

    pairs: int
    matches: int


@contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection. Commits outlive the process, though not a power failure; the file stays consistent in any case."""
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    connection = sqlite3.connect(path, timeout=60)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        # COLMAP's databases have tables only. A view can be a query that SQLite never finishes.
        if connection.execute("SELECT 1 FROM sqlite_master WHERE type IN ('view', 'trigger') LIMIT 1").fetchone():
            raise sqlite3.DatabaseError("it has views or triggers")
        yield connection
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite's messages may hold damaged names
        if "disk is full" in str(error):
            raise InputError(f"{path} cannot be written, the disk is full: free some space and run again.") from error
        raise InputError(f"{path} is not a valid COLMAP database ({error}): remove it and run again.") from error
    finally:
        connection.close()


def image_ids(database: sqlite3.Connection) -> dict[str, int]:
    rows = database.execute("SELECT name, image_id FROM images").fetchall()
    if not all(isinstance(name, str) and isinstance(number, int) for name, number in rows):
        raise sqlite3.DatabaseError("its images are malformed")
    return dict(rows)


def count_keypoints(database: sqlite3.Connection) -> dict[int, int]:
    """By image id."""
    counts = database.execute("SELECT image_id, rows FROM keypoints").fetchall()
    if not all(isinstance(number, int) and isinstance(rows, int) and rows >= 0 for number, rows in counts):
        raise sqlite3.DatabaseError("its keypoints are malformed")
    return dict(counts)


def write_keypoints(database: sqlite3.Connection, image_id: int, table: np.ndarray) -> None:
    """Rows (N, 4) of `colmap.to_colmap`, instead of those of the image so far; the caller commits."""
    table = np.ascontiguousarray(table, dtype="<f4").reshape(-1, 4)
    database.execute(
        "INSERT OR REPLACE INTO keypoints (image_id, rows, cols, data) VALUES (?, ?, ?, ?)",
        (image_id, *table.shape, table.tobytes()),
    )


def read_sift(database: sqlite3.Connection, image_id: int) -> np.ndarray:
    """COLMAP's SIFT descriptors (N, 128) uint8 of an image."""
    row = database.execute("SELECT rows, cols, data FROM descriptors WHERE image_id = ?", (image_id,)).fetchone()
    rows, columns, data = row or (0, 128, b"")
    if not isinstance(data, bytes | None) or columns != 128 or len(data or b"") != rows * columns:
        raise sqlite3.DatabaseError("its descriptors are malformed")
    return np.frombuffer(data or b"", dtype=np.uint8).reshape(-1, 128)


def pair_id(first: int, second: int) -> int:
    return MAX_IMAGE_ID * min(first, second) + max(first, second)


def is_matched(database: sqlite3.Connection, number: int) -> bool:
    """Whether the pair of this id is in the database, with matches or without."""
    return database.execute("SELECT 1 FROM matches WHERE pair_id = ?", (number,)).fetchone() is not None


def write_matches(database: sqlite3.Connection, first: int, second: int, pairs: np.ndarray) -> None:
    """Commit the matches (M, 2) of two image ids. In the table, the image with the lower id comes first."""
    rows = np.ascontiguousarray(pairs if first < second else pairs[:, ::-1], dtype="<u4").reshape(-1, 2)
    database.execute(
        "INSERT INTO matches (pair_id, rows, cols, data) VALUES (?, ?, 2, ?)",
        (pair_id(first, second), len(rows), rows.tobytes()),
    )
    database.commit()


def clear_matches(database: sqlite3.Connection) -> None:
    for table in ("matches", "two_view_geometries"):
        database.execute(f"DELETE FROM {table}")
    database.commit()


def read_matches(
    database: sqlite3.Connection, ids: Mapping[str, int], table: Table = "matches"
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Names of each pair, in alphabetical order, and its matches (M, 2), one pair at a time; or its inliers."""
    names = {number: name for name, number in ids.items()}
    for number, data in database.execute(f"SELECT pair_id, data FROM {table} ORDER BY pair_id"):
        one, two = divmod(number, MAX_IMAGE_ID) if isinstance(number, int) else (-1, -1)
        valid = one in names and two in names and one != two and isinstance(data, bytes | None)
        if not valid or len(data or b"") % 8:
            raise sqlite3.DatabaseError("its matches are malformed")
        pairs = np.frombuffer(data or b"", dtype="<u4").reshape(-1, 2).astype(np.int64)
        first, second = names[one], names[two]
        yield (first, second, pairs) if first < second else (second, first, pairs[:, ::-1])


def count_pairs(database: sqlite3.Connection, table: Table, *, with_matches: bool = False) -> int:
    """Pairs that were matched or verified; `with_matches` leaves out those without any match."""
    condition = " WHERE rows > 0" if with_matches else ""
    return int(database.execute(f"SELECT COUNT(*) FROM {table}{condition}").fetchone()[0])


def count_verified(database: sqlite3.Connection) -> Verified:
    pairs, rows = database.execute("SELECT COUNT(*), SUM(rows) FROM two_view_geometries WHERE rows > 0").fetchone()
    if not isinstance(rows, int | None):
        raise sqlite3.DatabaseError("its verified matches are malformed")
    return Verified(int(pairs), int(rows or 0))
