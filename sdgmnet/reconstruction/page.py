"""A model as one HTML file in which it can be turned: points, cameras and a little script, nothing from elsewhere."""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdgmnet.files import write_text
from sdgmnet.reconstruction.cloud import Cloud, read_ply
from sdgmnet.reconstruction.mapping import POINTS
from sdgmnet.reconstruction.model import SCENE, Place
from sdgmnet.reconstruction.overview import draw_overview, frustum, frustum_length, looking, usual
from sdgmnet.reconstruction.views import View, load_scene

TEMPLATE = Path(__file__).with_name("page.html")
MOST = 200_000  # points: 2.4 MB
REACH = 4.0  # radii of the scene; what lies farther away is left out
EDGES = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1))  # of a frustum


def write_page(cloud: Cloud, views: Sequence[View], path: Path | str, title: str) -> None:
    """The points are turned as the cameras look, x right, y down, z ahead, and scaled so that the usual ones lie within 1."""
    turn = looking(views, 0, 0)
    centres = np.array([view.centre() for view in views])
    shown = np.concatenate([usual(cloud.points), centres]) @ turn.T
    low, high = shown.min(axis=0), shown.max(axis=0)
    middle, radius = (low + high) / 2, max(float(np.linalg.norm(high - low)) / 2, 1e-9)
    places = (cloud.points @ turn.T - middle) / radius
    near = np.flatnonzero((np.abs(places) < REACH).all(axis=1))
    if len(near) > MOST:
        near = np.sort(np.random.default_rng(0).choice(near, MOST, replace=False))
    unit = REACH / np.iinfo(np.int16).max
    length = frustum_length(centres, np.concatenate([usual(cloud.points), centres]))
    corners = [(frustum(view, length) @ turn.T - middle) / radius for view in views]
    lines = np.array([[one[start], one[end]] for one in corners for start, end in EDGES])
    data = {
        "places": packed(np.rint(places[near] / unit).astype("<i2")),
        "colours": packed(cloud.colours[near]),
        "unit": unit,
        "cameras": [round(float(number), 4) for number in lines.ravel()],
        "distance": 2.2,
    }
    text = TEMPLATE.read_text(encoding="utf-8").replace("@TITLE@", html.escape(title))
    write_text(path, text.replace("@DATA@", json.dumps(data)))


def show_model(place: Place, summary: dict[str, Any], name: str) -> None:
    """cloud.png and cloud.html of a workspace: its largest model."""
    title = (
        f"{name}: {summary['registered']} of {summary['photos']} photos, {summary['points']} points, "
        f"tracks of {summary['track_length']:.2f}, {summary['reprojection_error']:.2f} px"
    )
    cloud, views = read_ply(place.sparse / POINTS), load_scene(place.notes / SCENE).views
    draw_overview(cloud, views, place.folder / "cloud.png", title)
    write_page(cloud, views, place.folder / "cloud.html", title)


def packed(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
