"""Ctrl-C in a command that the same words continue says so."""

from pathlib import Path
from typing import Any

import pytest

from sdgmnet.cli import main
from tests.features.samples import noise_image, write_image


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("describe {tmp}/photos -o {tmp}/f.h5", "sdgmnet.features.collection.locate_in_file"),
        ("match {tmp}/photos -o {tmp}/m.h5", "sdgmnet.features.collection.match"),
        ("data views {tmp}/photos -o {tmp}/views --views 2", "sdgmnet.data.synthetic.sets.patches_of_views"),
    ],
)
def test_an_interrupted_command_can_be_continued(
    words: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.png", "b.png"):
        write_image(tmp_path / "photos" / name, noise_image(80, 60))

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupt)
    rootsift = [] if words.startswith("data") else ["--descriptor", "rootsift"]
    assert main([*words.replace("{tmp}", str(tmp_path)).split(), *rootsift]) == 130
    assert "sdgmnet: interrupted; run the same command again to continue." in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} <= {"photos", "features.h5"}
