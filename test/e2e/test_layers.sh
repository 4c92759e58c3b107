#!/bin/sh
# scripts/layers accepts the includes of the repository, scripts/calls its calls, and both scripts reject
# trees that break their rules.
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
refuses lib/opts/x.h '"base/err.h"' 'opts may not include base' "option structs are the lowest layer"
refuses lib/opts/x.c '"opts/x.h"' 'lib/opts may contain headers only' "option structs have no functions"
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

# calls_tree: makes a tree with three files that do not call each other; add_file completes it
calls_tree() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/lib/train" "$tree/build/lib/train" "$tree/daemon"
    add_file lib/train/leaf.c 'int leaf(void) { return 1; }'
    add_file lib/train/part.c 'int leaf(void); int part(void) { return leaf(); }'
    add_file lib/train/facade.c 'int part(void), leaf(void); int facade(void) { return part() + leaf(); }'
}

# add_file PATH TEXT: writes a source file and compiles it
add_file() {
    mkdir -p "$tree/$(dirname "$1")" "$tree/build/$(dirname "$1")"
    echo "$2" >"$tree/$1"
    cc -c -o "$tree/build/$1.o" "$tree/$1"
}

# calls_say STATUS TEXT NAME: scripts/calls ends with this exit code and prints this text about the tree
calls_say() {
    found=$(BUILD=build scripts/calls "$tree" 2>&1)
    status=$?
    if [ $status -ne "$1" ] || [ "${found#*"$2"}" = "$found" ] && [ -n "$2" ]; then
        echo "# expected (exit code $1): $2; found (exit code $status): $found"
        echo "not ok - $3"
    else
        echo "ok - $3"
    fi
}

found=$(scripts/calls 2>&1)
status=$?
[ $status -eq 0 ] || echo "$found" | sed 's/^/# /'
ok $status "calls_of_the_repository_form_no_cycle"

calls_tree
calls_say 0 '' "calls_facade_that_calls_its_parts_is_accepted"

calls_tree
add_file lib/train/leaf.c 'int facade(void); int leaf(void) { return facade(); }'
calls_say 1 'lib/train/leaf.c -> lib/train/facade.c: facade' "calls_part_that_calls_the_facade_is_refused"

calls_tree
add_file lib/train/leaf.c 'int facade(void); int (*const leaf_calls[])(void) = { facade }; int leaf(void) { return 1; }'
calls_say 1 'files of train form a cycle' "calls_table_of_functions_counts_as_a_call"

calls_tree
add_file lib/train/leaf.c 'static int facade(void) { return 2; } int leaf(void) { return facade(); }'
calls_say 0 '' "calls_static_function_of_the_same_name_is_accepted"

calls_tree
add_file lib/other/x.c 'int part(void); int other(void) { return part(); }'
add_file lib/train/part.c 'int other(void); int part(void) { return other(); }'
calls_say 0 '' "calls_between_folders_are_left_to_layers"

calls_tree
rm "$tree/build/lib/train/part.c.o"
calls_say 1 'build/lib/train/part.c.o is absent; build first' "calls_object_absent_is_refused"

calls_tree
rm "$tree/lib/train/leaf.c"
add_file lib/train/twig.c 'int leaf(void) { return 1; }'
echo 'int facade(void); int leaf(void) { return facade(); }' | cc -xc -c -o "$tree/build/lib/train/leaf.c.o" -
calls_say 0 '' "calls_object_of_a_removed_file_is_ignored"

calls_tree
echo 'no object' >"$tree/build/lib/train/part.c.o"
calls_say 1 'part.c.o' "calls_object_unreadable_is_refused"
