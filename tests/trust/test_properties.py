"""Properties for arbitrary bytes, text and numbers, by hypothesis."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed: pip install 'sdgmnet[dev]'")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from sdgmnet.data.phototour import bitmap_problem
from sdgmnet.errors import InputError
from sdgmnet.features.images import declared_pixels, is_truncated
from sdgmnet.storage import parse_json, read_arrays
from sdgmnet.training.config import TrainConfig
from tests.trust.test_damage import READERS

# The folder is the same for all examples of a test: each writes its file anew.
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | some.text(),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(), inner, max_size=4),
    max_leaves=10,
)
IN_PYTHON = ("image.png", "card.json", "config.json", "arrays.npz", "table.bin", "map.bin", "H_1_2", "descriptors.csv",
             "integers.txt", "keypoints.txt")  # fmt: skip


@quick
@given(content=some.binary(max_size=400))
def test_any_bytes_are_read_or_refused(content: bytes, tmp_path: Path) -> None:
    for name in IN_PYTHON:
        (tmp_path / name).write_bytes(content)
        try:
            READERS[name](tmp_path / name)
        except InputError as error:
            assert name in str(error)


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
@given(content=values)
def test_json_round_trip(content: object) -> None:
    assert parse_json(json.dumps(content)) == content


def test_npz_round_trip(tmp_path: Path) -> None:
    square = np.arange(6.0).reshape(2, 3)
    given = {"rows": square, "columns": np.asfortranarray(square), "words": np.array(["a", "bc"]),
             "one": np.array("{}"), "none": np.zeros((0, 2))}  # fmt: skip
    np.savez(tmp_path / "a.npz", **given)
    for name, array in read_arrays(tmp_path / "a.npz").items():
        assert array.dtype == given[name].dtype and np.array_equal(array, given[name]) and array.flags.writeable
    with pytest.raises(InputError, match="other"):
        read_arrays(tmp_path / "a.npz", ["rows", "other"])


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
