#!/usr/bin/env python3
"""Prints roi_align_data.h: the expected values of test_roi_align.c: outputs and gradients of torchvision's roi_align; for
mode max, which torchvision does not have, the output of ONNX's reference evaluator.

    python3 test/op/make_roi_align.py >test/op/roi_align_data.h          (onnx 1.23, PyTorch 2.15, torchvision 0.29)

x and dy come from the linear congruential generator of make_resize.py, with the seeds 1 and 2.
"""
import numpy as np
import onnx
import torch
import torchvision
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

SHAPE, BINS = (2, 2, 5, 6), (2, 3)
# inside; over the edges; larger than the image; reversed (x2 < x1); smaller than an element; all outside
ROIS = [[1, 1.5, 8.2, 7], [-3, -2, 4, 5], [-30, -20, 90, 60], [7, 6, 2.5, 3], [4, 4, 4.25, 4.5], [200, 200, 220, 230]]
BATCH = [0, 1, 1, 0, 1, 0]


def random(shape, seed):
    out = np.empty(int(np.prod(shape)), np.float32)
    for i in range(out.size):
        seed = (1664525 * seed + 1013904223) % 2**32
        out[i] = (seed >> 8) / 2**24 - 0.5
    return out.reshape(shape)


def by_torchvision(x, dy, half, ratio, scale):
    x = torch.tensor(x, dtype=torch.float64).requires_grad_()
    rois = torch.tensor([[b] + r for b, r in zip(BATCH, ROIS)], dtype=torch.float64)
    y = torchvision.ops.roi_align(x, rois, BINS, scale, ratio, half)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    return [t.detach().numpy() for t in (y, x.grad)]


def by_onnx(x, half, ratio, scale):
    node = helper.make_node("RoiAlign", ["x", "rois", "batch"], ["y"], mode="max", sampling_ratio=ratio, spatial_scale=scale,
                            output_height=BINS[0], output_width=BINS[1],
                            coordinate_transformation_mode="half_pixel" if half else "output_half_pixel")
    infos = [helper.make_tensor_value_info(n, t, None) for n, t in (
        ("x", TensorProto.FLOAT), ("rois", TensorProto.FLOAT), ("batch", TensorProto.INT64), ("y", TensorProto.FLOAT))]
    model = helper.make_model(helper.make_graph([node], "g", infos[:3], infos[3:]), opset_imports=[helper.make_opsetid("", 22)])
    feeds = {"x": x, "rois": np.array(ROIS, np.float32), "batch": np.array(BATCH, np.int64)}
    return [ReferenceEvaluator(model).run(None, feeds)[0], None]


def numbers(a):
    if a is None:
        return "NULL"
    lines, line = [], ""
    for word in ("%.9g," % v for v in np.asarray(a, np.float64).ravel()):
        if len(line) + len(word) > 88:
            lines.append(line)
            line = ""
        line += (" " if line else "") + word
    return "(const float[]){\n          " + "\n          ".join(lines + [line.rstrip(",")]) + " }"


def main():
    x, dy = random(SHAPE, 1), random((len(ROIS), SHAPE[1]) + BINS, 2)
    print("/* roi_align_data.h - printed by test/op/make_roi_align.py with onnx %s, PyTorch %s,\n * torchvision %s. */" % (
        onnx.__version__, torch.__version__, torchvision.__version__))
    print("static const float roi_rois[] = { %s };" % ", ".join("%.9g" % v for r in ROIS for v in r))
    print("static const int64_t roi_batch[] = { %s };" % ", ".join(map(str, BATCH)))
    print("static const struct roi_case {\n    bool max, half_pixel;\n    int64_t ratio;\n    float scale;\n"
          "    const float *out, *dx; /* dx NULL: unknown */\n} roi_cases[] = {")
    for mode in ("avg", "max"):
        for half in (False, True):
            for ratio in (0, 2):
                for scale in (1.0, 0.5):
                    got = by_onnx(x, half, ratio, scale) if mode == "max" else by_torchvision(x, dy, half, ratio, scale)
                    print("    { %s, %s, %d, %.9g,\n      %s },"
                          % ("true" if mode == "max" else "false", "true" if half else "false", ratio, scale,
                             ",\n      ".join(numbers(v) for v in got)))
    print("};")


if __name__ == "__main__":
    main()
