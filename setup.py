"""The kernels inside the wheel: one library per target of this machine, compiled where a C++ compiler is installed.

Everything else is in pyproject.toml. Without a compiler the wheel is pure Python, and torch does the work of the kernels. An
editable install has no libraries either: the kernels are compiled on first use, from the sources as they are then.
"""

import os
import platform
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NATIVE = "sdgmnet/native"
TARGETS = runpy.run_path(str(Path(__file__).parent / NATIVE / "targets.py"))
COMPILER = TARGETS["compiler"]()
NAMES = TARGETS["targets_of"](platform.machine())
COMPILES = sys.platform == "linux" and COMPILER is not None and NAMES and os.environ.get("SDGMNET_KERNELS") != "none"


def compile_kernels(folder: Path) -> None:
    """One library per target. Those that cannot be compiled are left out, with a warning."""
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(name: str) -> None:
        flags = (*TARGETS["FLAGS"], "-s")
        command = TARGETS["compile_command"](COMPILER, flags, name, folder / f"{name}.so")
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            print(f"warning: the kernels for {name} cannot be compiled: {done.stderr.strip()[-500:]}", file=sys.stderr)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, NAMES))


class BuildWithKernels(build_py):
    def run(self) -> None:
        super().run()
        if COMPILES and not self.editable_mode:
            compile_kernels(Path(self.build_lib) / NATIVE / TARGETS["PREBUILT"])


class AnyPython(bdist_wheel):
    """ctypes loads the libraries: they depend on the machine, not on the version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class MaybePlatform(Distribution):
    def has_ext_modules(self) -> bool:
        return bool(COMPILES)


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": AnyPython}, distclass=MaybePlatform)
