import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sdgmnet import doctor
from sdgmnet.cli import main
from sdgmnet.native import build
from sdgmnet.version import __version__

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_FOR_USERS = {"dev", "docs"}


def names_of(requirements: list[str]) -> set[str]:
    return {one.split(">")[0] for one in requirements}


def test_packages_and_extras_are_those_of_the_project() -> None:
    assert names_of(PROJECT["dependencies"]) - {"typing_extensions"} == {names[0] for names in doctor.REQUIRED}
    extras = PROJECT["optional-dependencies"]
    assert set(doctor.EXTRAS) == set(extras) - NOT_FOR_USERS
    for name, packages in doctor.EXTRAS.items():
        assert set(packages) == names_of(extras[name]) - names_of(PROJECT["dependencies"])


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)}
    assert found["sdgmnet"].startswith(__version__)
    assert {"python", "packages", "processor", "kernels", "cache", "weights", "extra sfm", "threads", "gpu"} <= set(
        found
    )
    assert "sdgmnet-photos" in found["weights"]
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:18].strip() for line in lines if not line.startswith(" ")] == list(found)


def test_all_but_the_last_findings_need_no_torch() -> None:
    code = "import sys; from sdgmnet.doctor import quick_findings; list(quick_findings()); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_which_engine_runs_and_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(build.VARIABLE, "none")
    assert main(["--version", "--verbose"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        __version__, "engine on this CPU: torch (turned off by SDGMNET_KERNELS=none)",
    ]  # fmt: skip
    assert doctor.kernel_choice().advice
    monkeypatch.setenv(build.VARIABLE, "sse9")
    assert "'sse9'" in doctor.kernel_choice().value and build.VARIABLE in doctor.kernel_choice().advice


def test_what_is_missing_has_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "REQUIRED", (("no-such-package", "nor-this"),))
    assert "pip install no-such-package" in doctor.required_packages().advice
    assert "sdgmnet[sfm]" in doctor.extra("sfm", ["no-such-package"]).advice
    assert "OMP_NUM_THREADS" in doctor.threads(1, 8).advice
    assert doctor.threads(8, 8).advice == doctor.gpu([], None, has_driver=False).advice == ""
    assert doctor.gpu(["H100"], "13.0", has_driver=True).advice == ""
    assert "CUDA" in doctor.gpu([], None, has_driver=True).advice
    monkeypatch.setattr("sdgmnet.pretrained.SHIPPED", tmp_path)
    assert "install sdgmnet again" in doctor.weights().advice
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "x86_64" in doctor.processor().advice
