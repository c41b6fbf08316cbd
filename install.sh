#!/bin/sh
# Installs what C and C++ programs need: the header, both libraries, and the file for pkg-config.
#
#     ./install.sh PREFIX [LIBRARIES]
#
# LIBRARIES is the folder that `cargo build --release` left them in, by default target/release. DESTDIR goes before
# PREFIX, for packages.
set -eu

[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
prefix=$1
libraries=${2:-$here/target/release}
place=${DESTDIR:-}$prefix

number() { sed -n "s/^#define ATTNPACK_VERSION_$1 //p" "$here/include/attnpack.h"; }
major=$(number MAJOR) minor=$(number MINOR) patch=$(number PATCH)
version=$major.$minor.$patch
# Before 1.0 a minor version may change the interface, and then has a name of its own.
if [ "$major" = 0 ]; then soname=libattnpack.so.0.$minor; else soname=libattnpack.so.$major; fi

for file in libattnpack.a libattnpack.so; do
    [ -f "$libraries/$file" ] || { echo "there is no $libraries/$file: run cargo build --release first" >&2; exit 1; }
done

mkdir -p "$place/include" "$place/lib/pkgconfig"
cp "$here/include/attnpack.h" "$place/include/attnpack.h"
cp "$libraries/libattnpack.a" "$place/lib/libattnpack.a"
cp "$libraries/libattnpack.so" "$place/lib/libattnpack.so.$version"
chmod 755 "$place/lib/libattnpack.so.$version"
ln -sf "libattnpack.so.$version" "$place/lib/$soname"
ln -sf "$soname" "$place/lib/libattnpack.so"
cat >"$place/lib/pkgconfig/attnpack.pc" <<PC
prefix=$prefix
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: attnpack
Description: Fused prefill attention for NVIDIA GPUs
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lattnpack
Libs.private: -lpthread -ldl -lm
PC
echo "installed attnpack $version in $place"
