#!/usr/bin/env python3
"""Prints grid_sample_data.h, the expected values of test_grid_sample.c: outputs and gradients of PyTorch's grid_sample;
for volumes with mode cubic, which PyTorch does not have, the output of ONNX's reference evaluator.

    python3 test/op/make_grid_sample.py >test/op/grid_sample_data.h          (onnx 1.23, PyTorch 2.15)

x, grid and dy come from the linear congruential generator of make_resize.py, with the seeds 1, 3 and 2; the grid is multiplied
by 3.2, so that a third of the positions is outside of the input.
"""
import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

PADDINGS = ("zeros", "border", "reflection")
ONNX = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


def random(shape, seed):
    out = np.empty(int(np.prod(shape)), np.float32)
    for i in range(out.size):
        seed = (1664525 * seed + 1013904223) % 2**32
        out[i] = (seed >> 8) / 2**24 - 0.5
    return out.reshape(shape)


def by_pytorch(x, grid, dy, mode, padding, align):
    x, grid = (torch.tensor(t, dtype=torch.float64).requires_grad_() for t in (x, grid))
    y = F.grid_sample(x, grid, mode, padding, align)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    return [t.detach().numpy() for t in (y, x.grad, grid.grad)]


def by_onnx(x, grid, mode, padding, align):
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=ONNX[mode], padding_mode=padding, align_corners=int(align))
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "grid", "y")]
    model = helper.make_model(helper.make_graph([node], "g", infos[:2], infos[2:]), opset_imports=[helper.make_opsetid("", 20)])
    return [ReferenceEvaluator(model).run(None, {"x": x, "grid": grid})[0], None, None]


def numbers(a):
    if a is None:
        return "NULL"
    text = ", ".join("%.9g" % v for v in np.asarray(a, np.float64).ravel())
    lines, line = [], ""
    for word in text.split(" "):
        if len(line) + len(word) > 88:
            lines.append(line)
            line = ""
        line += (" " if line else "") + word
    return "(const float[]){\n          " + "\n          ".join(lines + [line]) + " }"


def main():
    print("/* grid_sample_data.h - printed by test/op/make_grid_sample.py with onnx %s, PyTorch\n * %s. */" % (
        onnx.__version__, torch.__version__))
    print("static const struct grid_case {\n    uint32_t opset;\n    struct shape x, grid, y;\n    const char *mode, *padding;\n"
          "    bool align;\n    const float *out, *dx, *dgrid; /* dx, dgrid NULL: unknown */\n} grid_cases[] = {")
    for shape, places in (((2, 2, 3, 4), (2, 2, 3)), ((1, 2, 2, 3, 4), (1, 2, 1, 3)), ((1, 1, 1, 5), (1, 3, 2))):
        for mode in ("bilinear", "nearest", "bicubic"):
            for padding in PADDINGS:
                for align in (False, True):
                    volume = len(shape) == 5
                    if volume and mode == "bicubic" and padding != "zeros":
                        continue  # the evaluator pads the position, PyTorch (for images) each element that is read
                    x, grid = random(shape, 1), random(places + (len(shape) - 2,), 3) * np.float32(3.2)
                    out = shape[:2] + places[1:]
                    name = ONNX[mode] if volume or align else mode
                    got = by_onnx(x, grid, mode, padding, align) if volume and mode == "bicubic" else by_pytorch(
                        x, grid, random(out, 2), mode, padding, align)
                    sizes = ["GRADCHECK_SHAPE(%s)" % ", ".join(map(str, s)) for s in (shape, grid.shape, out)]
                    print("    { %d, %s,\n      \"%s\", \"%s\", %s," % (
                        20 if name != mode or volume else 16, ", ".join(sizes), name, padding, "true" if align else "false"))
                    print("      " + ",\n      ".join(numbers(v) for v in got) + " },")
    print("};")


if __name__ == "__main__":
    main()
