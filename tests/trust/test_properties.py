"""Properties for arbitrary bytes, text and numbers, by hypothesis."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed: pip install 'sdgmnet[dev]'")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from sdgmnet.data.hpatches.files import read_descriptor_file
from sdgmnet.data.phototour import bitmap_problem, read_integers
from sdgmnet.data.sequences import read_homography
from sdgmnet.errors import InputError
from sdgmnet.features import eth
from sdgmnet.features.images import MAX_PIXELS, declared_pixels, is_truncated, read_gray
from sdgmnet.sfm.workspace import read_map, write_map
from sdgmnet.storage import parse_json, read_arrays, read_json
from sdgmnet.training.config import TrainConfig

# The folder is the same for all examples of a test: each writes its file anew.
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
few = settings(quick, max_examples=10)  # they wait for the disk
floats = some.floats(width=32, allow_nan=False, allow_infinity=False)
values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | some.text(),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(), inner, max_size=4),
    max_leaves=10,
)


@quick
@given(content=some.binary(max_size=400))
def test_any_bytes_are_read_or_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    readers = (
        read_arrays, read_json, read_gray, read_map, read_homography, read_descriptor_file, TrainConfig.load,
        eth.read_descriptors, eth.read_keypoints, lambda path: read_integers(path, 2),
    )  # fmt: skip
    for read in readers:
        try:
            read(path)
        except InputError as error:
            assert "a.npz" in str(error)


@quick
@given(
    head=some.sampled_from([b"\x89PNG\r\n\x1a\n", b"BM", b"\xff\xd8", b"P6 ", b"II*\0", b"MM\0*", b"RIFF"]),
    rest=some.binary(),
)
def test_headers_of_images_never_fail(head: bytes, rest: bytes) -> None:
    assert declared_pixels(head + rest) >= 0
    assert is_truncated(head + rest) in (True, False)
    assert isinstance(bitmap_problem(head + rest, len(rest)), str)


@quick
@given(width=some.integers(1, 2**31 - 1), height=some.integers(1, 2**31 - 1))
def test_png_header_is_parsed(width: int, height: int) -> None:
    header = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big")
    assert declared_pixels(header) == width * height
    assert (declared_pixels(header) > MAX_PIXELS) == (width * height > 2**28)


@quick
@given(content=values)
def test_json_round_trip(content: object) -> None:
    assert parse_json(json.dumps(content)) == content


@few
@given(rows=some.lists(some.lists(floats, min_size=3, max_size=3), max_size=5))
def test_eth_tables_round_trip(rows: list[list[float]], tmp_path: Path) -> None:
    table = np.array(rows, dtype=np.float32).reshape(-1, 3)
    eth.write_descriptors(tmp_path / "a.bin", table)
    found = eth.read_descriptors(tmp_path / "a.bin")
    assert found.tobytes() == table.tobytes() and (found.shape == table.shape or not len(table))


@few
@given(rows=some.lists(some.lists(floats, min_size=4, max_size=4), min_size=1, max_size=5), cut=some.integers(1, 30))
def test_maps_are_read_complete_or_refused(rows: list[list[float]], cut: int, tmp_path: Path) -> None:
    path, depths = tmp_path / "a.bin", np.array(rows, dtype=np.float32)
    write_map(path, depths)
    assert np.array_equal(read_map(path), depths)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError):
        read_map(path)


@quick
@given(name=some.sampled_from(sorted(TrainConfig.__dataclass_fields__)), value=values)
def test_configuration_is_valid_or_refused(name: str, value: object, tmp_path: Path) -> None:
    content = json.loads(json.dumps(dataclasses.asdict(TrainConfig()))) | {name: value}
    (tmp_path / "config.json").write_text(json.dumps(content))
    try:
        config = TrainConfig.load(tmp_path / "config.json")
    except InputError:
        return
    (tmp_path / "again.json").write_text(json.dumps(dataclasses.asdict(config)))
    assert TrainConfig.load(tmp_path / "again.json") == config
