#!/usr/bin/env python3
"""Prints resize_data.h: the expected values of test_resize.c: outputs of ONNX Runtime (of ONNX's reference evaluator for
cases that it does not support) and gradients of PyTorch's interpolate. It reports differences between them: the evaluator
computes positions in double, so ties of `nearest` with an inexact scale are resolved differently, and its align_corners
uses a length that is not an integer.

    python3 test/op/make_resize.py >test/op/resize_data.h          (onnx 1.17, onnxruntime 1.20, PyTorch 1.13)

x and dy come from one linear congruential generator, so the C test makes the same ones: state = seed, then
state = 1664525 state + 1013904223 mod 2^32, value = (state >> 8) / 2^24 - 0.5; x of seed 1, dy of seed 2.
"""
import sys

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def random(shape, seed):
    out = np.empty(int(np.prod(shape)), np.float32)
    for i in range(out.size):
        seed = (1664525 * seed + 1013904223) % 2**32
        out[i] = (seed >> 8) / 2**24 - 0.5
    return out.reshape(shape)


def case(shape, opset=19, scales=None, sizes=None, roi=None, torch=None, **attrs):
    return dict(shape=shape, opset=opset, scales=scales, sizes=sizes, roi=roi, torch=torch, attrs=attrs)


def cases():
    for mode in NEAREST:
        for place in PLACES:
            yield case((1, 1, 5, 4), sizes=(1, 1, 7, 9), mode="nearest", nearest_mode=mode, coordinate_transformation_mode=place)
            yield case((1, 1, 8, 10), 13, scales=(1, 1, 0.5, 0.3), mode="nearest", nearest_mode=mode, coordinate_transformation_mode=place)
    for mode in ("linear", "cubic"):
        for place in PLACES:
            yield case((1, 1, 4, 5), sizes=(1, 1, 7, 9), mode=mode, coordinate_transformation_mode=place)
            yield case((1, 1, 8, 10), 11, scales=(1, 1, 0.6, 0.35), mode=mode, coordinate_transformation_mode=place)
        yield case((1, 1, 4, 5), 19, scales=(1, 1, 2.3, 1.7), mode=mode, coordinate_transformation_mode="half_pixel_symmetric")
        yield case((1, 1, 7, 9), 19, scales=(1, 1, 0.6, 1.0), mode=mode, coordinate_transformation_mode="half_pixel_symmetric")
        for exclude in (0, 1):
            yield case((1, 1, 9, 11), 18, sizes=(1, 1, 4, 3), mode=mode, antialias=1, exclude_outside=exclude)
            yield case((1, 1, 6, 7), 18, scales=(1, 1, 0.6, 2.0), mode=mode, antialias=1, exclude_outside=exclude)
        yield case((1, 1, 4, 5), 13, sizes=(1, 1, 6, 7), roi=(0, 0, 0.1, 0.3, 1, 1, 0.8, 1.4), mode=mode,
                   coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=0.75)
        yield case((1, 1, 3, 1), 13, sizes=(1, 1, 4, 5), roi=(0, 0, -0.4, 0, 1, 1, 1.2, 0.9), mode=mode,
                   coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=0.75)
        yield case((1, 1, 4, 5), 18, sizes=(1, 4), axes=(2, 3), roi=(0.2, -0.3, 0.6, 0.9), mode=mode,
                   coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=0.75)
    yield case((1, 1, 4, 5), 13, sizes=(1, 1, 6, 5), roi=(0, 0, 0.9, 0.0, 1, 1, 0.1, 1.0), mode="nearest",
               coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=-2.0)
    yield case((1, 1, 4, 6), 13, scales=(1, 1, 2.0, 1.5), mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1)
    yield case((1, 1, 5, 6), 11, scales=(1, 1, 1.8, 0.7), mode="nearest", coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode="floor")
    # one to three spatial axes, and others
    yield case((2, 2, 5), 13, scales=(1, 1, 2.5), mode="linear")
    yield case((1, 2, 2, 3, 3), 13, sizes=(1, 2, 4, 5, 2), mode="linear")
    yield case((1, 2, 2, 3, 3), 13, sizes=(1, 2, 3, 3, 7), mode="nearest")
    yield case((6,), 13, scales=(0.5,), mode="cubic")
    yield case((2, 2, 4), 13, sizes=(3, 3, 5), mode="linear")
    yield case((1, 3, 4, 2), 18, sizes=(5, 7), axes=(1, 2), mode="linear")
    yield case((2, 3, 4, 2), 18, scales=(0.5, 2.0), axes=(2, 1), mode="nearest")
    # a box to fit in or to cover
    for policy in ("not_larger", "not_smaller"):
        yield case((1, 1, 4, 6), 18, sizes=(7, 8), axes=(2, 3), mode="linear", keep_aspect_ratio_policy=policy)
        yield case((1, 1, 6, 10), 18, sizes=(3, 4), axes=(2, 3), mode="nearest", keep_aspect_ratio_policy=policy)
    # PyTorch
    for shape, size in (((1, 2, 4, 5), (8, 10)), ((1, 2, 7, 6), (3, 11)), ((1, 2, 6, 6), (2, 3))):
        for mode, ours, kinds in (("bilinear", "linear", (0, 1)), ("bicubic", "cubic", (0, 1)), ("nearest", "nearest", (None,))):
            for align in kinds:
                place = "asymmetric" if align is None else "align_corners" if align else "pytorch_half_pixel"
                kw = dict(mode=mode) if align is None else dict(mode=mode, align_corners=bool(align))
                yield case(shape, 13, sizes=shape[:2] + size, torch=dict(size=size, **kw), mode=ours, nearest_mode="floor",
                           coordinate_transformation_mode=place)
    for mode, ours, a in (("bilinear", "linear", -0.75), ("bicubic", "cubic", -0.5)):
        yield case((1, 2, 9, 8), 18, sizes=(1, 2, 4, 5), torch=dict(size=(4, 5), mode=mode, antialias=True), mode=ours, antialias=1,
                   exclude_outside=1, cubic_coeff_a=a)
    yield case((2, 3, 4), 13, sizes=(2, 3, 9), torch=dict(size=9, mode="linear"), mode="linear")
    yield case((1, 2, 3, 4, 2), 13, sizes=(1, 2, 5, 6, 4), torch=dict(size=(5, 6, 4), mode="trilinear"), mode="linear")


def run(c):
    feeds = {"x": random(c["shape"], 1)}
    names = ["x", "", "", ""]
    for i, (k, t) in enumerate((("roi", np.float32), ("scales", np.float32), ("sizes", np.int64))):
        if c[k] is not None:
            feeds[k] = np.array(c[k], t)
            names[i + 1] = k
    if c["opset"] == 11 and c["roi"] is None:
        feeds["roi"] = np.zeros(2 * len(c["shape"]), np.float32)  # unused
        names[1] = "roi"
    elem = {"sizes": TensorProto.INT64}
    graph = helper.make_graph([helper.make_node("Resize", names, ["y"], **c["attrs"])], "g",
                              [helper.make_tensor_value_info(k, elem.get(k, TensorProto.FLOAT), v.shape) for k, v in feeds.items()],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", c["opset"])], ir_version=9)
    try:
        ort = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    except Exception as e:  # an unsupported case
        ort = None
        print("no ONNX Runtime: %s: %s" % (c, str(e).splitlines()[0][-90:]), file=sys.stderr)
    y = None
    if c["opset"] != 11 or c["attrs"].get("coordinate_transformation_mode") != "tf_half_pixel_for_nn":
        y = ReferenceEvaluator(model).run(None, feeds)[0].astype(np.float32)
    if y is not None and ort is not None and (y.shape != ort.shape or not np.allclose(y, ort, atol=1e-5)):
        print("DIFFER: %s: %s %s\n%s\n%s" % (c, y.shape, ort.shape, y, ort), file=sys.stderr)
    y = y if ort is None else ort
    dx = None
    if c["torch"]:
        x = torch.from_numpy(feeds["x"]).requires_grad_()
        z = F.interpolate(x, **c["torch"])
        if not np.allclose(z.detach().numpy(), y, atol=1e-5):
            print("PYTORCH DIFFERS: %s" % c, file=sys.stderr)
        z.backward(torch.from_numpy(random(y.shape, 2)))
        dx = x.grad.numpy()
    return y, dx


def floats(values):
    return "{ " + ", ".join("%.9g" % v for v in np.ravel(values)) + " }"


def lines(indent, values):
    words, out, line = ["%.9g" % v for v in np.ravel(values)], [], indent
    for k, w in enumerate(words):
        w += "," if k + 1 < len(words) else ""
        if len(line) + 1 + len(w) > 100:
            out.append(line)
            line = indent
        line += (" " if line != indent else "") + w
    return "\n".join(out + [line])


def main():
    print("/* resize_data.h - printed by test/op/make_resize.py with onnx %s, ONNX Runtime %s, PyTorch\n * %s. */" % (
        onnx.__version__, onnxruntime.__version__, torch.__version__))
    print("static const struct resize_case {\n    uint32_t opset;\n    struct shape in, out;\n    uint32_t n; /* number of values of scales, sizes, half of roi */\n"
          "    float scales[5];\n    int64_t sizes[5];\n    float roi[10];\n    struct op_attr attrs[8];\n    const float *y, *dx; /* dx NULL: PyTorch has no such mode */\n"
          "} resize_cases[] = {")
    for c in cases():
        y, dx = run(c)
        n = len(c["scales"] or c["sizes"])
        print("    { %d, GRADCHECK_SHAPE(%s), GRADCHECK_SHAPE(%s), %d," % (
            c["opset"], ", ".join(map(str, c["shape"])), ", ".join(map(str, y.shape)), n))
        print("      %s, { %s }, %s," % (floats(c["scales"] or [0]), ", ".join(map(str, c["sizes"] or [0])), floats(c["roi"] or [0])))
        print("      {")
        for k, v in c["attrs"].items():
            if isinstance(v, str):
                print('          STRING("%s", "%s"),' % (k, v))
            elif isinstance(v, float):
                print('          FLOAT("%s", %.9g),' % (k, v))
            elif isinstance(v, tuple):
                print('          INTS("%s", %s),' % (k, ", ".join(map(str, v))))
            else:
                print('          INT("%s", %d),' % (k, v))
        print("      },")
        for what, values in (("y", y), ("dx", dx)):
            if values is None:
                print("      NULL },")
            else:
                print("      (const float[]){\n%s\n      }%s" % (lines(" " * 10, values), "," if what == "y" else " },"))
    print("};")


main()
