#!/usr/bin/env python3
"""make_bags.py - the files of test_padded_bags.c: nn.EmbeddingBag with padding_idx as PyTorch's exporter writes it, and
what PyTorch computes for it.

    python3 test/graph/make_bags.py        needs torch, onnx; the files are committed

Written by torch 2.15.0, onnx 1.23.2. bags_MODE.onnx: exported with optimize=False, as the recipe is; bags_MODE_default.onnx:
as is; bags_MODE_17.onnx: the latter
in opset 17, in which reductions have their axes as attributes. Descriptions and the metadata of nodes are removed, which halves the size. bags_MODE.txt: the sum of all logits for the ids of
bags(), and the gradient of each parameter."""
import os
import warnings

warnings.filterwarnings("ignore")

import onnx  # noqa: E402
import torch  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
ROWS, WIDTH, CLASSES, PADDING = 7, 3, 2, 2
MODES = {"sum": False, "mean": False, "max": False, "weighted": True}  # name: per_sample_weights


class Bags(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        # the second way to write row 2 of 7
        padding = PADDING - ROWS if name == "mean" else PADDING
        self.e = torch.nn.EmbeddingBag(ROWS, WIDTH, mode="sum" if MODES[name] else name, padding_idx=padding)
        self.l = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, ids, weights=None):
        return self.l(self.e(ids, per_sample_weights=weights))


def bags():
    """No padding, some, at the end, and nothing else."""
    return torch.tensor([[0, 1, 3, 6], [2, 4, 2, 1], [5, 5, 2, 2], [2, 2, 2, 2]])


def bag_weights():
    return torch.arange(16.0).reshape(4, 4) / 8 - 0.75


def clear(graph):
    """Removes descriptions and metadata of nodes, also in bodies."""
    for node in graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                clear(a.g)


def export(module, inputs, path, optimize):
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(module, inputs, None, dynamo=True, optimize=optimize, input_names=["ids", "weights"][:len(inputs)],
                                output_names=["logits"], dynamic_shapes=tuple({0: batch} for _ in inputs), verbose=False)
    model = program.model_proto
    clear(model.graph)
    assert not model.functions
    onnx.save(model, path)


def read_17(path):
    """Returns a model, in opset 17 in place of 20."""
    model = onnx.load(path)
    give_axes(model.graph, {})
    model.opset_import[0].version = 17
    onnx.checker.check_model(model)
    return model


def give_axes(graph, known):
    """Gives ReduceMean and ReduceMax their axes as attributes, also in bodies. known: constants of enclosing graphs."""
    known = {**known, **{t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}}
    for node in graph.node:
        if node.op_type == "Constant":
            known[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                give_axes(a.g, known)
        if node.op_type in ("ReduceMean", "ReduceMax") and len(node.input) > 1:
            attributes = [a for a in node.attribute if a.name != "noop_with_empty_axes"]
            attributes.append(onnx.helper.make_attribute("axes", known[node.input.pop()].flatten().tolist()))
            del node.attribute[:]
            node.attribute.extend(attributes)


def reference(module, inputs, path):
    loss = module(*inputs).double().sum()
    loss.backward()
    with open(path, "w") as f:
        print("loss %.9g" % loss.item(), file=f)
        for name, p in module.named_parameters():
            print(name, *("%.9g" % x for x in p.grad.flatten().tolist()), file=f)


def main():
    for name, has_weights in MODES.items():
        torch.manual_seed(3)
        module = Bags(name)
        inputs = (bags(), bag_weights()) if has_weights else (bags(),)
        for ending, optimize in (("", False), ("_default", True)):
            export(module, inputs, os.path.join(FOLDER, "bags_%s%s.onnx" % (name, ending)), optimize)
        if name in ("mean", "max"):
            onnx.save(read_17(os.path.join(FOLDER, "bags_%s_default.onnx" % name)), os.path.join(FOLDER, "bags_%s_17.onnx" % name))
        reference(module, inputs, os.path.join(FOLDER, "bags_%s.txt" % name))


main()
