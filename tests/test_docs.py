"""The documents say only what is there."""

import importlib
import re
from pathlib import Path
from typing import Any

import cv2
import pytest

from sdgmnet.data.synthetic.demo import read_motorcycle

REPOSITORY = Path(__file__).parent.parent


def named_in(document: str) -> list[str]:
    return re.findall(r"`([a-zA-Z_][\w.]*\.[\w.]+)`", (REPOSITORY / "docs" / document).read_text(encoding="utf-8"))


def resolves(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["sdgmnet", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if not hasattr(found, attribute) and attribute not in getattr(found, "__dataclass_fields__", {}):
                return False
            found = getattr(found, attribute, None)
        return True
    return False


def test_every_function_of_paper_to_code_exists() -> None:
    names = [name.replace("TrainConfig.", "training.config.TrainConfig.", 1) if name.startswith("TrainConfig.") else name
             for name in named_in("paper_to_code.md")]  # fmt: skip
    names = [
        name.replace("SDGMLoss.", "loss.sdgm.SDGMLoss.", 1) if name.startswith("SDGMLoss.") else name for name in names
    ]
    names = [name.replace("config.", "training.config.", 1) if name.startswith("config.") else name for name in names]
    assert len(names) > 30
    missing = [name for name in names if not resolves(name)]
    assert not missing


def test_every_test_of_paper_to_code_exists() -> None:
    text = (REPOSITORY / "docs/paper_to_code.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert len(files) > 8
    assert all((REPOSITORY / name).exists() for name in files), files
    for number in range(1, 16):
        assert f"({number})" in text


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (REPOSITORY / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(document: str) -> None:
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert ((REPOSITORY / document).parent / target).exists(), target


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    matching, code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    pair = read_motorcycle()
    for name, picture in (("a.jpg", pair.left), ("b.jpg", pair.right)):
        cv2.imwrite(str(tmp_path / name), picture)
    monkeypatch.chdir(tmp_path)
    left: dict[str, Any] = {}
    exec(matching, left)
    assert len(left["found"]) > 500
    code = code.replace("range(100)", "range(2)").replace("(2, 64, 1", "(2, 4, 1").replace("1000", "10")
    names: dict[str, object] = {}
    exec(code, names)
    assert names["descriptors"].shape == (10, 128)  # type: ignore[attr-defined]
