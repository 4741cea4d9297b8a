#!/bin/sh
# sanitize.sh PYTHON: the tests of the native code with the library built with sanitizers (flags: tests/native/conftest.py).
# A finding aborts the tests. Leaks are not checked: Python itself keeps memory until its end.
set -eu
python=$1
cd "$(dirname "$0")/../.."
cxx=${CXX:-g++}
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
# Python is not built with the sanitizers, so their runtime must be loaded first; libstdc++ with it, for exceptions.
preload="$("$cxx" -print-file-name=libasan.so) $("$cxx" -print-file-name=libstdc++.so.6)"
SDGMNET_SANITIZE=1 SDGMNET_KERNELS=compile XDG_CACHE_HOME="$cache" LD_PRELOAD="$preload" \
  ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:abort_on_error=1:verify_asan_link_order=0 \
  UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
  "$python" -m pytest -q -p no:cacheprovider --durations=5 tests/native/test_boundary.py tests/native/test_nearest.py \
  tests/native/test_trunk.py tests/native/test_batchnorm.py -k 'not every_target'
