"""What the page is given: the points as they are, turned as the cameras look."""

import base64
import json
import re
from pathlib import Path

import numpy as np

from sdgmnet.sfm.viewer import Cloud, write_page
from tests.sfm.planes import views_around


def test_the_page_holds_points_and_cameras_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    views = views_around(3)
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (500, 3)) + np.array([0, 0, 5])
    cloud = Cloud(np.concatenate([points, [[1e5, 0, 0]]]), rng.integers(0, 256, (501, 3)).astype(np.uint8))
    write_page(cloud, views, tmp_path / "cloud.html", "<boards> & more")
    text = (tmp_path / "cloud.html").read_text()
    assert "&lt;boards&gt; &amp; more" in text and "<boards>" not in text
    assert "http" not in text and "src=" not in text and "@" not in text.split("<script>")[0]
    found = re.search(r"const data = (\{.*\});", text)
    assert found is not None
    data = json.loads(found[1])
    places = np.frombuffer(base64.b64decode(data["places"]), "<i2").reshape(-1, 3) * data["unit"]
    colours = np.frombuffer(base64.b64decode(data["colours"]), np.uint8).reshape(-1, 3)
    np.testing.assert_array_equal(colours, cloud.colours[:-1])  # the point far away is left out
    # The same shape: all distances in one proportion.
    pairs = rng.integers(0, 500, (200, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    shown, true = (np.linalg.norm(set_[pairs[:, 0]] - set_[pairs[:, 1]], axis=1) for set_ in (places, points))
    assert np.std(shown / true) / np.mean(shown / true) < 0.01
    # Down stays down, ahead is ahead.
    assert np.corrcoef(places[:, 1], points[:, 1])[0, 1] > 0.98 and np.corrcoef(places[:, 2], points[:, 2])[0, 1] > 0.98
    lines = np.reshape(data["cameras"], (-1, 2, 3))
    assert len(lines) == 8 * len(views)
    centres = np.array([view.centre() for view in views])
    drawn = lines[::8, 0]
    ratio = np.linalg.norm(drawn[0] - drawn[2]) / np.linalg.norm(centres[0] - centres[2])
    np.testing.assert_allclose(ratio, np.mean(shown / true), rtol=0.01)
