"""Who may import whom: the streams flow one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sdgmnet

ROOT = Path(sdgmnet.__file__).parent
EVERYWHERE = {"arrays", "errors", "files", "locks", "version"}
# part -> parts it may import besides itself and EVERYWHERE
ALLOWED = {
    "distributed": set(),
    "synchronised": {"distributed"},
    "sphere": set(),
    "metrics": set(),
    "resampling": set(),
    "report": set(),
    "html": {"report"},
    "encoders": {"pretrained"},  # within from_pretrained and save_pretrained, which people expect on the class
    "handcrafted": {"features.keypoints"},
    "loss": {"distributed", "sphere"},
    "features.images": set(),
    "features.keypoints": set(),
    "features.patches": {"features.keypoints"},
    "features.regions": {"features.keypoints", "features.patches"},
    "features.describe": {
        "contenders",
        "encoders",
        "features.images",
        "features.keypoints",
        "features.patches",
        "inference",
        "pretrained",
    },
    "features.opencv": {"features.describe", "features.keypoints", "pretrained"},
    "features.kornia": {"features.keypoints", "features.patches"},
    "features.colmap": {"features.describe", "features.keypoints", "reconstruction"},
    "features.compact": set(),
    "export": {"data", "encoders", "features.keypoints", "features.patches", "inference", "pretrained"},
    "features.match": {"features.describe", "native"},
    "features.h5": {"features.describe", "features.keypoints", "features.match"},
    "features.own_keypoints": {"features.h5", "features.keypoints"},
    "features.verify": {"features.describe", "features.match"},
    "features.draw": set(),
    "features.eth": {"features.keypoints"},
    "reconstruction": {
        "features.colmap",
        "features.describe",
        "features.h5",
        "features.images",
        "features.keypoints",
        "features.match",
        "features.patches",
    },
    "data": {
        "features.images",
        "features.keypoints",
        "features.patches",
        "features.regions",
        "reconstruction",
        "resampling",
    },
    "native": {"encoders"},
    "inference": {"encoders", "native", "resampling"},
    "pretrained": {"encoders"},
    "foreign": {"inference"},
    "contenders": {"features.keypoints", "foreign", "handcrafted", "inference", "pretrained"},
    "training": {
        "data",
        "distributed",
        "encoders",
        "inference",
        "loss",
        "metrics",
        "native",
        "pretrained",
        "synchronised",
    },
    "benchmarks": {
        "data",
        "contenders",
        "features.describe",
        "features.eth",
        "features.h5",
        "features.images",
        "features.keypoints",
        "features.match",
        "features.patches",
        "features.verify",
        "metrics",
        "native",
        "reconstruction",
    },
    "paper": {"benchmarks", "training", "loss", "data"},
}
SEEN_BY_SPEED = {"distributed", "encoders", "inference", "loss", "training"}  # the one benchmark that sees these


def part_of(module: str) -> str:
    """sdgmnet.data.synthetic.demo -> data; sdgmnet.features.patches -> features.patches."""
    names = module.split(".")[1:]
    return ".".join(names[:2]) if names and names[0] == "features" else (names[0] if names else "")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sdgmnet"):
            found.add(part_of(node.module) if node.module != "sdgmnet" else part_of(f"sdgmnet.{node.names[0].name}"))
        elif isinstance(node, ast.Import):
            found |= {part_of(alias.name) for alias in node.names if alias.name.startswith("sdgmnet.")}
    return found


def modules() -> list[Path]:
    return sorted(
        path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem not in ("__init__", "__main__")
    )


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_streams(path: Path) -> None:
    part = part_of(".".join(["sdgmnet", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"))
    if part in EVERYWHERE | {"cli", "commands", "features"}:
        return
    if path.name in ("speed.py", "hpatches_speed.py", "distributed_speed.py"):
        assert not imports(path) - {part} - EVERYWHERE - ALLOWED["benchmarks"] - SEEN_BY_SPEED
        return
    assert part in ALLOWED, f"{part} is new: say in this test what it may import"
    extra = imports(path) - {part} - EVERYWHERE - ALLOWED[part]
    assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"


def test_nobody_imports_the_command_line() -> None:
    for path in modules():
        if "commands" not in path.parts:
            assert not imports(path) & {"cli", "commands"}, path


def test_import_has_no_side_effects_and_needs_no_optional_package() -> None:
    code = (
        "import random, numpy, torch, sys; before = (torch.get_num_threads(), torch.initial_seed(), random.getstate(),"
        " str(numpy.random.get_state())); import sdgmnet; after = (torch.get_num_threads(), torch.initial_seed(),"
        " random.getstate(), str(numpy.random.get_state())); assert before == after;"
        " heavy = {'cv2', 'skimage', 'matplotlib', 'tensorboard', 'kornia', 'tyro'} & set(sys.modules);"
        " assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""
