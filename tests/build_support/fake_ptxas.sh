# Called as the build calls ptxas: --version, or -v -arch=ARCH FILE -o CUBIN.
if [ "$1" = --version ]; then
    echo "ptxas: NVIDIA (R) Ptx optimizing assembler"
    echo "Cuda compilation tools, release @RELEASE@, V@VERSION@"
    exit 0
fi
arch=${2#-arch=}
file=$3
cubin=$5
case $arch in
sm_80 | sm_90 | sm_90a) ;;
*)
    echo "ptxas fatal   : Value '$arch' is not defined for option 'gpu-name'" >&2
    exit 255
    ;;
esac
if [ "$file" = probe.ptx ]; then
    if [ -e "$0.probe" ]; then . "$0.probe"; fi
    : >"$cubin"
    exit 0
fi
echo "$file $arch" >>@LOG@
if grep -q bad_instruction "$file"; then
    line=$(grep -n bad_instruction "$file" | cut -d : -f 1)
    echo "ptxas $file, line $line; error   : Not a name of any known instruction: 'bad_instruction'" >&2
    echo "ptxas fatal   : Ptx assembly aborted due to errors" >&2
    exit 255
fi
entry=${file%.ptx}
spill=$(sed -n 's/^[[:space:]]*spill \([0-9]*\);$/\1/p' "$file")
if grep -q loss "$file"; then
    echo "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in function '$entry'" >&2
fi
if grep -q warn "$file"; then
    echo "ptxas warning : Something about '$entry'" >&2
fi
if ! grep -q silent "$file"; then
    echo "ptxas info    : Function properties for $entry" >&2
    echo "    8 bytes stack frame, ${spill:-0} bytes spill stores, 0 bytes spill loads" >&2
    echo "ptxas info    : Used 42 registers, used 1 barriers" >&2
fi
echo "cubin of $file for $arch" >"$cubin"
