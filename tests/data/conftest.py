import pytest

from tests.reconstruction.rendered import Rendered, rendered_scene


@pytest.fixture(scope="session")
def rendered() -> Rendered:
    """Three views of a wall, a floor and a sphere, with exact depths and normals."""
    return rendered_scene(width=320, height=240, count=3)
