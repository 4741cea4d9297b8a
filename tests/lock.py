"""Writes locks/*.txt: what a release is built and tested with, each file with its hash: python tests/lock.py (make lock).

Versions are those of constraints.txt. Hashes are of the files that pip takes here: a lock is for one Python, machine and index.
"""

import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from sdgmnet.storage import write_text

ROOT = Path(__file__).parent.parent
LOCKS = {  # file -> requirements
    "wheel.txt": (".[demo]",),  # the package itself is left out
    "build.txt": ("build", "cibuildwheel"),
    "sbom.txt": ("cyclonedx-bom",),
}


def platform_line() -> str:
    """The first line of locks/wheel.txt; tests/wheel.sh uses the lock where it is the same."""
    system = f"{platform.system()} {platform.machine()}"
    return f"# Python {platform.python_version().rpartition('.')[0]}, {system}, torch {version('torch')}"


def lock(requirements: tuple[str, ...]) -> str:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run(
        [*command, "-c", "constraints.txt", *requirements], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = []
    for item in json.loads(done.stdout)["install"]:
        name, number = item["metadata"]["name"].lower().replace("_", "-"), item["metadata"]["version"]
        if name != "sdgmnet":
            digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
            lines.append(f"{name}=={number} --hash=sha256:{digest}\n")
    return "".join(sorted(lines))


if __name__ == "__main__":
    if sys.argv[1:] == ["--platform"]:
        print(platform_line())
    else:
        for name, requirements in LOCKS.items():
            write_text(ROOT / "locks" / name, f"{platform_line()}\n{lock(requirements)}")
