#!/usr/bin/python3
"""check_export.py {ORIGINAL EXPORTED}...: checks that each exported model is valid, is in inference form, and
otherwise equals the original, field by field, except for the values of its weights."""
import sys

import onnx


def without_values(t):
    bare = onnx.TensorProto()
    bare.name, bare.data_type = t.name, t.data_type
    bare.dims.extend(t.dims)
    return bare


def inference_form(model, names):
    """The changes that export makes to a training graph."""
    g = model.graph
    nodes = []
    modes = {n.input[2] for n in g.node if n.op_type == "Dropout" and len(n.input) > 2}
    for n in g.node:
        if n.op_type == "Identity" and n.output[0] in names:
            continue  # became an initializer
        if n.op_type == "BatchNormalization":
            del n.output[1:]
            for a in [a for a in n.attribute if a.name == "training_mode"]:
                n.attribute.remove(a)
        if n.op_type == "Dropout":
            del n.input[2:]
        nodes.append(n)
    # Values that only Dropout nodes read, as their training_mode, are removed too.
    modes -= {i for n in nodes for i in n.input} | {v.name for v in [*g.output, *g.input]}
    nodes = [n for n in nodes if not (n.op_type == "Constant" and n.output[0] in modes)]
    initializers = [t for t in g.initializer if t.name not in modes]
    del g.initializer[:]
    g.initializer.extend(initializers)
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del g.node[:]
    g.node.extend(kept)


def check(original_path, exported_path):
    # Not check_model(path, full_check=True): that writes inferred shapes into the file.
    onnx.checker.check_model(exported_path)
    onnx.checker.check_model(onnx.load(exported_path), full_check=True)
    original = onnx.load(original_path, load_external_data=False)
    exported = onnx.load(exported_path, load_external_data=False)
    names = {t.name for t in exported.graph.initializer}
    inference_form(original, names)
    for n in exported.graph.node:
        if n.op_type == "BatchNormalization":
            assert len(n.output) == 1 and not any(a.name == "training_mode" for a in n.attribute)
        if n.op_type == "Dropout":
            assert len(n.input) < 3

    old = {t.name for t in original.graph.initializer}
    extra = [t for t in exported.graph.initializer if t.name not in old]
    produced = {o for n in onnx.load(original_path, load_external_data=False).graph.node
                for o in n.output if n.op_type == "Identity"}
    assert all(t.name in produced for t in extra), "an initializer from nowhere"
    for m in (original, exported):
        bare = sorted((without_values(t) for t in m.graph.initializer if t.name in old),
                      key=lambda t: t.name)
        del m.graph.initializer[:]
        m.graph.initializer.extend(bare)
    assert original == exported, "something else changed"
    assert original.SerializeToString(deterministic=True) == \
        exported.SerializeToString(deterministic=True)


def main(paths):
    assert len(paths) >= 2 and len(paths) % 2 == 0
    for pair in zip(paths[::2], paths[1::2]):
        try:
            check(*pair)
        except Exception:
            print("check_export: %s -> %s" % pair, file=sys.stderr)
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
