"""Pairs of images that look alike."""

import sys

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.retrieval import (
    SAMPLED_IMAGES,
    WORDS,
    aggregate,
    choose_pairs,
    learn_words,
    nearest,
    retrieve_pairs,
    similar_pairs,
)

pytest.importorskip("faiss", reason="faiss is not installed: pip install 'sdgmnet[sfm]'")


def collection(scenes: int, views: int, count: int = 200) -> dict[str, np.ndarray]:
    """Images that see half of the points of their scene, with noise."""
    generator, images = np.random.default_rng(0), {}
    for scene in range(scenes):
        points = generator.normal(size=(2 * count, 32))
        for view in range(views):
            seen = points[generator.choice(2 * count, count, replace=False)]
            images[f"{scene}/{view}.jpg"] = (seen + 0.1 * generator.normal(size=seen.shape)).astype(np.float32)
    return images


def test_the_nearest_are_of_the_same_scene() -> None:
    images = collection(6, 5)
    pairs = retrieve_pairs(list(images), images.__getitem__, 4)
    same = {pair for pair in pairs if pair[0].split("/")[0] == pair[1].split("/")[0]}
    assert len(same) == 6 * 10 and same == set(pairs)
    assert pairs == sorted(pairs) == retrieve_pairs(list(images), images.__getitem__, 4)


def test_images_without_keypoints_copies_and_strangers() -> None:
    images = collection(2, 4)
    images["0/flat.jpg"] = np.zeros((0, 32), np.float32)
    images["9/alone.jpg"] = np.random.default_rng(9).normal(size=(50, 32)).astype(np.float32)
    images |= {f"0/copy{number}.jpg": images["0/0.jpg"] for number in range(5)}
    pairs = retrieve_pairs(list(images), images.__getitem__, 4)
    of = {name: {other for pair in pairs if name in pair for other in pair} - {name} for name in images}
    assert not of["0/flat.jpg"] and of["9/alone.jpg"]
    for number in range(5):  # copies do not take the places of other images
        assert {"0/0.jpg", "0/1.jpg", "0/2.jpg", "0/3.jpg"} <= of[f"0/copy{number}.jpg"]


def test_the_aggregate_is_the_formula() -> None:
    generator = np.random.default_rng(1)
    rows, words = generator.normal(size=(40, 8)), generator.normal(size=(5, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    sums = np.zeros((5, 8))
    for row in rows:
        nearest = np.square(row - words).sum(axis=1).argmin()
        sums[nearest] += row - words[nearest]
    expected = np.concatenate([one / max(np.linalg.norm(one), 1e-30) for one in sums])
    found = aggregate(rows.astype(np.float32), words)
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-5)
    np.testing.assert_allclose(aggregate(np.rint(rows * 1000).astype(np.int16), words), found, atol=2e-2)  # any length
    assert not aggregate(np.zeros((0, 8), np.float32), words).any()


def test_the_nearest_half_of_each_and_then_the_most_similar_pairs() -> None:
    """Against a loop over all pairs; rows of a dense group do not take all places of the others."""
    generator = np.random.default_rng(3)
    vectors = generator.normal(size=(40, 6))
    vectors[:15] = vectors[0] + 0.05 * generator.normal(size=(15, 6))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    centred = vectors - vectors.mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    products = (centred @ centred.T).astype(np.float64)
    np.fill_diagonal(products, -np.inf)
    rank = (-products).argsort(axis=1).argsort(axis=1)
    every = [(one, two) for one in range(40) for two in range(one + 1, 40)]
    every.sort(key=lambda pair: -products[pair])
    for neighbours in (1, 4, 7):
        best = {pair: min(rank[pair], rank[pair[::-1]]) for pair in every}
        expected = {pair for pair in every if best[pair] < (neighbours + 1) // 2}
        for pair in every:
            if len(expected) < 40 * neighbours // 2 and best[pair] < 2 * neighbours:
                expected.add(pair)
        found = similar_pairs(vectors, neighbours)
        assert set(found) == expected and found == sorted(found)
        assert min(sum(number in pair for pair in found) for number in range(40)) >= (neighbours + 1) // 2
    assert len(similar_pairs(vectors, 39)) == len(every) == len(similar_pairs(vectors, 100))


def test_a_row_that_is_not_found_among_its_equals() -> None:
    """Copies differ in their last bits on some machines; then others may come before a row itself."""
    rows = np.tile(np.array([[0.6, 0.8]], np.float32), (9, 1))
    found, products = nearest(rows, 3)
    assert found.shape == products.shape == (9, 3)
    assert all(number not in row for number, row in enumerate(found.tolist()))
    assert len(choose_pairs(found, products, 2)) >= 9


def test_few_descriptors_and_none() -> None:
    few = {"a": np.eye(3, 4, dtype=np.float32), "b": np.eye(2, 4, dtype=np.float32)}
    assert retrieve_pairs(["a", "b"], few.__getitem__, 20) == [("a", "b")]
    assert retrieve_pairs(["a", "b"], lambda _: np.zeros((0, 4), np.float32), 20) == []
    assert similar_pairs(np.zeros((3, 8), np.float32), 2) == []


def test_words_are_learnt_from_a_bounded_sample() -> None:
    read: list[str] = []

    def descriptors_of(name: str) -> np.ndarray:
        read.append(name)
        return np.random.default_rng(int(name)).normal(size=(9, 4)).astype(np.float32)

    words = learn_words([str(number) for number in range(1000)], descriptors_of, seed=0)
    assert words is not None and words.shape == (WORDS, 4)
    assert len(read) == SAMPLED_IMAGES and {"0", "999"} <= set(read)


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"a": 4, "b": 5}
    with pytest.raises(InputError, match="different lengths"):
        retrieve_pairs(list(sizes), lambda name: np.ones((3, sizes[name]), np.float32), 2)
    with pytest.raises(InputError, match="b has descriptors of length 5"):
        aggregate(np.ones((3, 5), np.float32), np.ones((2, 4), np.float32), "b")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match="sdgmnet\\[sfm\\]"):
        retrieve_pairs(["a"], lambda _: np.ones((3, 4), np.float32), 2)
