#!/bin/sh
# bridges.sh FOLDER [CLONE_OF_HLOC]: the bridges of docs/guides/use_with.md against the real packages, each with all its
# requirements in a virtual environment of its own in FOLDER. hloc is not on PyPI: clone cvg/Hierarchical-Localization.
# The package itself comes from this folder, not from pip: two of them require an older kornia than it does.
set -eu
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
python="${PYTHON:-python3}"
ours="torch==2.13.0 rich shtab filelock safetensors h5py pytest"
export PYTHONPATH="$PWD"

run() {  # NAME "REQUIREMENTS" TESTS...
  name="$1" requirements="$2"
  shift 2
  "$python" -m venv "$folder/$name"
  # shellcheck disable=SC2086
  "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check $ours $requirements
  "$folder/$name/bin/python" -m pip list --disable-pip-version-check | grep -iE '^(hloc|vismatch|deep[-_]image|kornia |torch|pycolmap)'
  "$folder/$name/bin/python" -m pytest -q -W ignore -p no:cacheprovider -p tests.torchvision_operators "$@"
}

run vismatch vismatch==1.4.0 'tests/test_use_with.py::test_section_runs[vismatch]'
run deep-image-matching 'deep-image-matching==1.2.4 kornia==0.8.2' 'tests/test_use_with.py::test_section_runs[deep-image-matching]'
if [ $# -gt 1 ]; then
  # Not hloc's own requirements: LightGlue, from GitHub, and torchvision, for other extractors.
  export PYTHONPATH="$PYTHONPATH:$(cd "$2" && pwd)"
  run hloc '-c constraints.txt kornia opencv-python-headless scipy matplotlib pycolmap faiss-cpu tqdm' \
    'tests/test_use_with.py::test_section_runs[hloc]' 'tests/test_use_with.py::test_section_runs[An extractor in hloc]' tests/features/test_hloc.py
fi
