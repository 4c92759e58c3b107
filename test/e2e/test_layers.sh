#!/bin/sh
# scripts/layers accepts the tree and rejects each kind of violation.
set -u
cd "$(dirname "$0")/../.." || exit 1
tree=$(mktemp -d) || exit 1
trap 'rm -rf "$tree"' EXIT

ok() { # ok STATUS NAME
    [ "$1" -eq 0 ] && echo "ok - $2" || echo "not ok - $2"
}

# refuses FILE INCLUDE TEXT NAME: a tree with this one include is refused with this text
refuses() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/lib/base" "$tree/lib/op" "$tree/daemon" "$tree/test/base" "$tree/$(dirname "$1")"
    echo '#include "base/err.h"' >"$tree/daemon/main.c"
    echo "#include $2" >"$tree/$1"
    found=$(scripts/layers "$tree" 2>&1)
    status=$?
    if [ $status -eq 0 ] || [ "${found#*"$1:1: $3"}" = "$found" ]; then
        echo "# expected: $1:1: $3; found (exit code $status): $found"
        echo "not ok - $4"
    else
        echo "ok - $4"
    fi
}

order=$(scripts/layers 2>&1)
status=$?
[ $status -eq 0 ] || echo "$order" | sed 's/^/# /'
ok $status "every include of the tree is one that its folder may have"
case "$order" in *" base") ok 0 "base is the lowest layer" ;; *) ok 1 "base is the lowest layer" ;; esac

refuses lib/base/x.c '"op/op.h"' 'base may not include op' "a lower folder may not include a higher one"
refuses lib/comm/x.c '"rdzv/rdzv.h"' 'comm may not include rdzv' "the planes do not include each other"
refuses lib/rdzv/x.h '"train/train.h"' 'rdzv may not include train' "nor the other way, nor in headers"
refuses lib/train/x.c '"daemon/run.h"' 'train may not include daemon' "nothing in lib/ includes daemon/"
refuses lib/ckpt/x.c '"tensor/tensor_priv.h"' '"tensor/tensor_priv.h" is private to tensor' "private headers stay private"
refuses lib/op/act/x.c '"act.h"' '"act.h" does not name its folder' "an include names its folder"
refuses lib/op/act/x.c '<oneapi/dnnl/dnnl.h>' '<oneapi/dnnl/dnnl.h> may be included only by lib/op/dnn' "oneDNN is known to one file"
refuses daemon/x.c '<grpc/grpc.h>' '<grpc/grpc.h> may be included only by lib/rdzv/' "gRPC is known to rdzv alone"
refuses lib/op/x.c '<cuda_runtime.h>' '<cuda_runtime.h> may be included only by *.cu and *.cuh' "CUDA is known to its own files"
refuses lib/op/x.c '"device/launch.cuh"' '"device/launch.cuh" may be included only by .cu files' "and so are its headers"
refuses lib/base/x.cu '"op/op.h"' 'base may not include op' "a .cu file has the layers of its folder"
refuses lib/new/x.c '"base/err.h"' 'folder new is not in the table' "a new folder needs a row"

# refuses_cycle TEXT NAME FILE INCLUDE FILE INCLUDE: a tree with these two files is refused with this text
refuses_cycle() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/lib/train" "$tree/daemon" "$tree/test"
    echo '#include "base/err.h"' >"$tree/daemon/main.c"
    echo "#include $4" >"$tree/$3"
    echo "#include $6" >"$tree/$5"
    found=$(scripts/layers "$tree" 2>&1)
    status=$?
    if [ $status -eq 0 ] || [ "${found#*"$1"}" = "$found" ]; then
        echo "# expected: $1; found (exit code $status): $found"
        echo "not ok - $2"
    else
        echo "ok - $2"
    fi
}

refuses_cycle 'headers of train form a cycle' "headers form no cycle" \
    lib/train/a.h '"train/b.h"' lib/train/b.h '"train/a.h"'
refuses_cycle 'files of train form a cycle' "a part does not include the facade that includes it" \
    lib/train/facade.c '"train/part.h"' lib/train/part.c '"train/facade.h"'
