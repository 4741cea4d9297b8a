#!/bin/sh
# onnxruntime_headers.sh FOLDER: unpacks the headers of onnxruntime, Debian's package libonnxruntime-dev, below a folder and
# prints where they are. Debian has the package from 13 (trixie) on; an earlier Debian takes it from there, without installing it.
set -eu
. /etc/os-release
mkdir -p "$1/lists/partial" "$1/archives/partial"
cd "$1"
sed "s/$VERSION_CODENAME/trixie/g" /etc/apt/sources.list.d/debian.sources > trixie.sources
options="-o Dir::Etc::sourcelist=$PWD/trixie.sources -o Dir::Etc::sourceparts=- -o Dir::State::lists=$PWD/lists -o Dir::Cache=$PWD"
options="$options -o APT::Sandbox::User=root --quiet=2"
apt-get $options update >&2
rm -f libonnxruntime-dev_*.deb
apt-get $options download libonnxruntime-dev >&2
dpkg-deb -x libonnxruntime-dev_*.deb .
echo "$PWD/usr/include/onnxruntime"
