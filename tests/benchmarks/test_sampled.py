import numpy as np

from sdgmnet.benchmarks.sampled import Sampled, Shown, draw, hardest, sample, table

NOTHING = Shown(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, bool))


def scored(*correct: tuple[int, int, int], drawn: int = 200) -> Sampled:
    return Sampled(drawn, correct, NOTHING)


def test_a_draw_takes_visible_ones_once_each_and_all_alike() -> None:
    visible = np.arange(1000) % 2 == 0
    draws = [draw(visible, seed) for seed in range(200)]
    for one in draws:
        assert len(one) == len(set(one)) == 200 and visible[one].all()
    often = np.bincount(np.concatenate(draws), minlength=1000)[visible]  # 80 expected, standard deviation 7
    assert often.min() > 45 and often.max() < 115
    assert (draw(visible, 3) == draws[3]).all() and (draws[0] != draws[1]).any()
    assert sorted(draw(np.array([True, False, True]), 0)) == [0, 2]
    assert len(draw(np.zeros(5, dtype=bool), 0)) == 0


def test_by_hand() -> None:
    xy = np.array([[1.0, 1], [2, 2], [3, 3], [4, 4]])
    wanted = xy + 10
    places = np.array([[11.0, 11], [12, 14.5], [13, 17], [90, 90]])  # off by 0, 2.5 and 4
    eye = np.eye(4, dtype=np.float32)
    score = sample(xy, wanted, np.array([True, True, True, False]), eye, places, eye)
    assert score.drawn == 3 and score.correct == ((1, 2, 3),) * 10 and score.mean(1) == 2
    shown = score.shown
    assert {tuple(row) for row in shown.keypoints[shown.correct]} == {(1, 1), (2, 2)}
    for keypoint, other in zip(shown.keypoints, shown.nearest, strict=True):
        assert (other == places[int(keypoint[0]) - 1]).all()


def test_without_keypoints() -> None:
    xy, eye = np.ones((2, 2)), np.eye(2, dtype=np.float32)
    score = sample(xy, xy, np.ones(2, bool), eye, xy[:0], eye[:0])
    assert score.drawn == 2 and score.correct == ((0, 0, 0),) * 10 and not score.shown.correct.any()
    score = sample(xy[:0], xy[:0], np.ones(0, bool), eye[:0], xy, eye)
    assert score.drawn == 0 and score.correct == ((0, 0, 0),) * 10 and len(score.shown.keypoints) == 0


def test_table_says_which_pairs_have_too_few() -> None:
    header, body = table(["a"], [[scored((1, 3, 8), (1, 4, 8)), scored((10, 20, 30)), scored((0, 0, 0), drawn=0)]])
    assert body == [["a", "3.7", "7.8", "12.7", "3.9", "2 of 3"]]
    assert len(header) == len(body[0])


def test_hardest_pairs() -> None:
    """Of every sequence the pair with the lowest mean that is not 0 for all, then the lowest of these."""
    names = ["wall", "wall", "wall", "boat", "boat", "bark", "bikes"]
    first = [scored((0, count, 9)) for count in (9, 0, 4, 6, 1, 0, 3)]
    second = [scored((0, count, 9)) for count in (9, 0, 4, 6, 2, 0, 0)]
    assert hardest(names, [first, second], 5) == [4, 6, 2]
    assert hardest(names, [first, second], 2) == [4, 6]
    assert hardest(["bark"], [[first[5]], [second[5]]], 5) == []
