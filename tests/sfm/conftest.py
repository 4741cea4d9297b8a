from collections.abc import Iterator
from pathlib import Path

import pytest

from sdgmnet.sfm.depth import estimate_depths
from tests.sfm.rendered import HEIGHT, OPTIONS, WIDTH, Rendered, rendered_scene, write_workspace


@pytest.fixture(scope="session")
def rendered() -> Rendered:
    return rendered_scene(WIDTH, HEIGHT)


@pytest.fixture(scope="session")
def workspace(rendered: Rendered, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("dense") / "workspace"
    write_workspace(rendered, folder)
    report = estimate_depths(folder, OPTIONS)
    assert report.made == tuple(view.name for view in rendered.scene.views)
    assert report.skipped == {}
    yield folder
