"""Who may import whom, lazy imports included: rooms form no cycle, and commands do not know each other."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BASIS = {"errors", "heap", "options", "registry", "storage", "version"}  # any room may import these
# Room -> rooms it may import besides itself and BASIS. `data.photos` is the part of `data` that reconstructs.
ALLOWED = {
    "errors": set(),
    "heap": set(),
    "version": set(),
    "storage": {"errors"},
    "options": set(),
    "registry": set(),
    "sphere": set(),
    "metrics": set(),
    "distributed": set(),
    "report": set(),
    "pretrained": set(),
    "encoders": {"pretrained"},
    "native": {"encoders", "report", "sphere"},
    "engine": {"encoders", "native"},
    "doctor": {"native", "pretrained"},
    "loss": {"distributed", "sphere"},
    "features": {"distributed", "encoders", "engine", "native", "report"},
    "descriptors": {"encoders", "engine", "features", "pretrained"},
    "sfm": {"descriptors", "features", "report"},
    "data": {"distributed", "engine", "features", "report"},
    "data.photos": {"data", "features", "report", "sfm"},
    "export": {"data", "encoders", "engine", "features"},
    "training": {"data", "distributed", "encoders", "engine", "loss", "metrics", "pretrained", "report", "sphere"},
    "benchmarks": {"data", "data.photos", "descriptors", "engine", "features", "metrics", "native", "report", "sfm"},
    "plots": {"benchmarks", "data", "features", "loss", "metrics", "sfm", "training"},
}
LIBRARY = set(ALLOWED)
ALLOWED |= {"app": LIBRARY - {"benchmarks"}}
LIBRARY |= {"app"}
ALLOWED |= {
    "cli": {"benchmarks", "report"},
    "commands": LIBRARY | {"cli"},
    "reproduce": LIBRARY | {"cli"},
    "bench": LIBRARY | {"cli"},
}


def room_of(module: str) -> str:
    """sdgmnet.features.patches -> features; sdgmnet.data.photos.tracks -> data.photos; reproduce.runs -> reproduce."""
    names = module.removeprefix("sdgmnet.").split(".")
    return "data.photos" if names[:2] == ["data", "photos"] else names[0]


def modules() -> list[Path]:
    found = [path for top in ("sdgmnet", "reproduce", "bench") for path in (ROOT / top).rglob("*.py")]
    return sorted(path for path in found if path not in (ROOT / "sdgmnet/__init__.py", ROOT / "sdgmnet/__main__.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports anywhere in it, under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            is_module = (ROOT / node.module.replace(".", "/")).is_dir()
            found |= {f"{node.module}.{alias.name}" if is_module else node.module for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("sdgmnet", "reproduce", "bench") and name != "sdgmnet"}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    room = room_of(name_of(path))
    assert room in ALLOWED, f"{room} is a new room: add it to ALLOWED"
    others = {room_of(name) for name in imported(path) if room_of(name) != "__init__"}
    assert not others - {room} - BASIS - ALLOWED[room]


def test_rooms_form_no_cycle() -> None:
    needs: dict[str, set[str]] = {}
    for path in modules():
        room = room_of(name_of(path))
        needs.setdefault(room, set()).update({room_of(name) for name in imported(path)} - {room})
    TopologicalSorter(needs).prepare()  # raises CycleError


def test_commands_do_not_import_each_other() -> None:
    for path in (ROOT / "sdgmnet/commands").glob("*.py"):
        assert not {name for name in imported(path) if room_of(name) == "commands"}, path


def test_import_has_no_side_effects_and_needs_no_optional_package() -> None:
    code = (
        "import random, numpy, torch, sys; state = lambda: (torch.get_num_threads(), torch.initial_seed(),"
        " random.getstate(), str(numpy.random.get_state())); before = state(); import sdgmnet; assert before == state();"
        " heavy = {'cv2', 'skimage', 'matplotlib', 'tensorboard', 'kornia', 'tyro'} & set(sys.modules);"
        " assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""
