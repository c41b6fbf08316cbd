#!/bin/sh
# Installs what C and C++ programs need: the header, both libraries, and the file for pkg-config.
#
#     ./install.sh PREFIX [LIBRARIES]
#
# PREFIX is an absolute path. LIBRARIES is the folder that `cargo build --release` left them in. DESTDIR goes before PREFIX,
# for packages.
set -eu

fail() { echo "$1" >&2; exit "${2:-1}"; }
case ${1:-} in
    /*) ;;
    *) fail "$(sed -n '2,7s/^# \{0,1\}//p' "$0")" 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1%/}
libraries=${2:-${CARGO_TARGET_DIR:-$here/target}/release}
place=${DESTDIR:-}$prefix

number() { sed -n "s/^#define ATTNPACK_VERSION_$1 //p" "$here/include/attnpack.h"; }
major=$(number MAJOR) minor=$(number MINOR) patch=$(number PATCH)
version=$major.$minor.$patch
# Before 1.0 a minor version may change the interface, and then has a name of its own.
if [ "$major" = 0 ]; then soname=libattnpack.so.0.$minor; else soname=libattnpack.so.$major; fi

for file in libattnpack.a libattnpack.so; do
    [ -f "$libraries/$file" ] || fail "there is no $libraries/$file: run cargo build --release first"
    grep -q attnpack_version "$libraries/$file" || fail "$libraries/$file has no functions for C: build it with the feature capi"
done

# `install` replaces a file: programs that run with the old library keep it.
install -d -m 755 "$place/include" "$place/lib/pkgconfig"
install -m 644 "$here/include/attnpack.h" "$place/include/attnpack.h"
install -m 644 "$libraries/libattnpack.a" "$place/lib/libattnpack.a"
install -m 755 "$libraries/libattnpack.so" "$place/lib/libattnpack.so.$version"
ln -sf "libattnpack.so.$version" "$place/lib/$soname"
ln -sf "$soname" "$place/lib/libattnpack.so"
rm -f "$place/lib/pkgconfig/attnpack.pc"
cat >"$place/lib/pkgconfig/attnpack.pc" <<PC
prefix=$prefix
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: attnpack
Description: Fused prefill attention for NVIDIA GPUs
Version: $version
Cflags: -I"\${includedir}"
Libs: -L"\${libdir}" -lattnpack
Libs.private: -lpthread -ldl -lm
PC
chmod 644 "$place/lib/pkgconfig/attnpack.pc"
echo "installed attnpack $version in $place"
