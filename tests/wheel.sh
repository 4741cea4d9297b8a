#!/bin/sh
# Builds the wheel, installs it into a clean environment and uses it outside the repository.
set -eu
python="$1"
repository="$(pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$python" -m build --wheel --outdir "$work/dist" "$repository" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$repository/constraints.txt" "$work"/dist/*.whl 'scikit-image>=0.25'
cd "$work"
venv/bin/sdgmnet --version
venv/bin/sdgmnet train --data demo --iterations 3 --batch-size 8 --evaluations 1 --evaluation-pairs 100 -o run
venv/bin/sdgmnet evaluate phototour sift run --data demo
venv/bin/python -c "import sdgmnet, pathlib, sdgmnet.native.build as build; root = pathlib.Path(sdgmnet.__file__).parent; assert (root / 'py.typed').exists() and all(source.exists() for source in build.SOURCES); assert build.compiler() is None or build.library() is not None"
