#!/bin/sh
# wheel.sh PYTHON FOLDER: the wheel and the sdist of a folder in clean environments, outside the repository.
# The wheel is used with no compiler on PATH, an empty cache and, where the system allows it, no network.
set -eu
python="$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"
dist="$(cd "$2" && pwd)"
repository="$(pwd)"
work="$(mktemp -d)"
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"

"$python" -m venv venv
install="venv/bin/python -m pip install --quiet --disable-pip-version-check"
lock="$repository/locks/wheel.txt"
if [ "$(head -n 1 "$lock")" = "$("$python" "$repository/tests/lock.py" --platform)" ]; then
  echo "Dependencies with the hashes of locks/wheel.txt."
  $install --require-hashes -r "$lock"
  $install --no-deps --no-index "$dist"/*manylinux*.whl
else  # the lock is for another Python, machine or build of torch
  $install -c "$repository/constraints.txt" "$dist"/*manylinux*.whl 'scikit-image>=0.25'
fi
venv/bin/python -m pip check
package="$(venv/bin/python -c 'import sdgmnet, pathlib; print(pathlib.Path(sdgmnet.__file__).parent)')"
test -f "$package/py.typed"
chmod -R a-w "$package"
(cd "$package" && find . -type f -exec cksum {} + | sort) > before

offline=""
if unshare --map-root-user --net true 2> /dev/null; then offline="unshare --map-root-user --net"; fi
clean() {  # the command in the clean environment
  $offline env -i PATH="$work/venv/bin" HOME="$work/home" PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 "$@"
}
mkdir home
clean sdgmnet --version --verbose
clean python -c "
import cv2
from sdgmnet.data.synthetic.demo import read_motorcycle
from sdgmnet.native import build
assert build.compiler() is None
assert build.library() is not None, build.why_not()
print(build.kernels().origin)
pair = read_motorcycle()
cv2.imwrite('left.png', pair.left[..., ::-1])
cv2.imwrite('right.png', pair.right[..., ::-1])
"
clean sdgmnet match left.png right.png -o matches.png --verify fundamental
test -s matches.png
clean python "$repository/tests/native/parity.py"
clean SDGMNET_KERNELS=none sdgmnet match left.png right.png -o without.png
clean sdgmnet train --data demo --iterations 3 --batch-size 8 --evaluations 1 --evaluation-pairs 100 -o run
clean sdgmnet evaluate phototour sift run --data demo
(cd "$package" && find . -type f -exec cksum {} + | sort) > after
cmp before after
test ! -e home/.cache/sdgmnet

# Without a compiler the sdist gives a pure wheel; torch does the work of the kernels.
env PATH="$work/venv/bin" CXX= venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir pure "$dist"/*.tar.gz
ls pure/*-py3-none-any.whl
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall pure/*.whl
clean python -c "from sdgmnet.native import build; assert build.library() is None; print(build.why_not())"
clean sdgmnet match left.png right.png -o pure.png
clean sdgmnet doctor
