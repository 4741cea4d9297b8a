"""torch.hub from a clone, and names on the Hugging Face Hub, which is a server on this machine here."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from sdgmnet import SDGMLoss, SDGMNet
from sdgmnet.encoders import FastSDGMNet
from sdgmnet.errors import InputError
from sdgmnet.pretrained import is_hub_name, shipped_names
from tests.test_pretrained import assert_same_weights

CLONE = Path(__file__).parent.parent
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def load(name: str, **options: object) -> object:
    return torch.hub.load(str(CLONE), name, source="local", **options)


def test_torch_hub(tmp_path: Path) -> None:
    encoder = load("sdgmnet")
    assert isinstance(encoder, SDGMNet) and not encoder.training
    assert_same_weights(encoder, SDGMNet.from_pretrained())
    loss = load("sdgm_loss", alpha=1.0)
    assert isinstance(loss, SDGMLoss) and loss.alpha == 1.0
    FastSDGMNet().save_pretrained(tmp_path)
    assert isinstance(load("sdgmnet_fast", weights=str(tmp_path)), FastSDGMNet)
    if "sdgmnet-fast" in shipped_names():
        assert isinstance(load("sdgmnet_fast"), FastSDGMNet)
    else:
        with pytest.raises(InputError, match="no weights sdgmnet-fast"):
            load("sdgmnet_fast")


def test_torch_hub_from_another_folder(tmp_path: Path) -> None:
    """Where sdgmnet is not importable before; what it imports later is found too."""
    code = f"""
import torch
encoder = torch.hub.load({str(CLONE)!r}, "sdgmnet", source="local")
import numpy, sdgmnet
print(sdgmnet.describe_patches(encoder, numpy.zeros((2, 64, 64), numpy.uint8)).shape, sdgmnet.__file__)
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["(2,", "128)", str(CLONE / "sdgmnet/__init__.py")]


def test_what_is_a_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert is_hub_name("someone/weights") and is_hub_name("some-one/weights_v1.2")
    paths = ("runs/mine", "sdgmnet", "./a/b", "/a/b", "a/b/c", "../b", "a/..", "a/b.safetensors", Path("a/b"), "a b/c")
    assert not any(map(is_hub_name, paths))


def test_without_the_package_nothing_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"someone/weights .*pip install 'sdgmnet\[hub\]'"):
        SDGMNet.from_pretrained("someone/weights")
    with pytest.raises(InputError, match="revision"):
        SDGMNet.from_pretrained(revision="main")


def test_readme(tmp_path: Path) -> None:
    FastSDGMNet().save_pretrained(tmp_path, {"trained_on": ["a", "b"], "note": "Taken by me."})
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert text.startswith("---\nlibrary_name: sdgmnet\n")
    assert "- trained on: a, b\n" in text and "Taken by me." in text and "FastSDGMNet.from_pretrained(" in text
    (tmp_path / "README.md").write_text("mine")
    FastSDGMNet().save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Address of a Hub that has someone/weights, and the paths that were asked of it."""
    torch.manual_seed(0)
    SDGMNet().save_pretrained(tmp_path / "weights", {"which": "hub"})
    content = (tmp_path / "weights/model.safetensors").read_bytes()
    paths = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            found = self.path == "/someone/weights/resolve/main/model.safetensors"
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(content) if found else 0))
            if found:
                self.send_header("ETag", '"etag"')
                self.send_header("X-Repo-Commit", COMMIT)
            else:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            if found and self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", paths
        running.shutdown()


def total(encoder: SDGMNet) -> float:
    return float(sum(one.double().abs().sum() for one in encoder.state_dict().values()))


PROGRAM = """
import json, sys
from sdgmnet import SDGMNet
from sdgmnet.errors import InputError
for name in sys.argv[1:]:
    try:
        print(json.dumps(float(sum(one.double().abs().sum() for one in SDGMNet.from_pretrained(name).state_dict().values()))))
    except InputError as error:
        print(json.dumps(str(error)))
"""


def test_a_name_on_the_hub(server: tuple[str, list[str]], tmp_path: Path) -> None:
    """Downloaded once, then from the cache, without a network too; what is not there is named."""
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install 'sdgmnet[hub]'")
    address, paths = server
    expected = total(SDGMNet.from_pretrained(tmp_path / "weights"))

    def answers(*names: str, **environment: str) -> list[object]:
        own = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        own |= {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *names], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, **own, **environment},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    found, missing = answers("someone/weights", "someone/else", HF_ENDPOINT=address)
    assert found == pytest.approx(expected)
    assert isinstance(missing, str) and missing.startswith("someone/else is not a local file or folder")
    assert all(path.endswith("/resolve/main/model.safetensors") for path in paths)
    asked = len(paths)
    found, missing = answers("someone/weights", "someone/else", HF_ENDPOINT=address, HF_HUB_OFFLINE="1")
    assert found == pytest.approx(expected) and len(paths) == asked
    assert isinstance(missing, str) and "check the name and the network" in missing
