#!/usr/bin/env python3
"""`trainerctl run` compared with ONNX Runtime: outputs of the same graph on the same arrays, and gradients compared with
finite differences; control flow, functions, shape arithmetic; and what is refused, with its exit code."""
# san: yes
import json
import os
import subprocess

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from kit import GUARD, TRAINERCTL, main, test, workdir

F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
rng = np.random.default_rng(5)


def info(name, a):
    if isinstance(a, tuple):
        return helper.make_tensor_value_info(name, a[0], a[1])
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype)
                                         if hasattr(helper, "np_dtype_to_tensor_dtype")
                                         else onnx.mapping.NP_TYPE_TO_TENSOR_TYPE[a.dtype], a.shape)


def node(op, inputs, outputs, **attrs):
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def const(name, value):
    return numpy_helper.from_array(np.asarray(value), name)


def model(nodes, inputs, outputs, inits=(), opset=17, functions=(), imports=()):
    """Makes a model. inputs: {name: array or (type, dims)}; outputs: {name: type}."""
    graph = helper.make_graph(nodes, "g", [info(n, a) for n, a in inputs.items()],
                              [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()], list(inits))
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *imports], ir_version=8,
                          functions=list(functions))
    return m


def run(m, arrays, *args, fmt="npy"):
    """Returns the finished process and {name: array} of its outputs."""
    folder = workdir()
    path = os.path.join(folder, "model.onnx")
    onnx.save(m, path)
    flags = []
    for name, a in arrays.items():
        file = os.path.join(folder, "in_%d.%s" % (len(flags), fmt))
        if fmt == "npy":
            np.save(file, a)
        else:
            with open(file, "wb") as f:
                f.write(numpy_helper.from_array(a, name).SerializeToString())
        flags += ["--input", "%s=%s" % (name, file)]
    out = os.path.join(folder, "out")
    p = subprocess.run([TRAINERCTL, "run", path, *flags, "-o", out, *args], capture_output=True, text=True, timeout=GUARD)
    written = {}
    for file in sorted(os.listdir(out)) if os.path.isdir(out) else []:
        name, ending = file.rsplit(".", 1)
        if ending == "npy":
            written[name] = np.load(os.path.join(out, file))
        else:
            with open(os.path.join(out, file), "rb") as f:
                written[name] = numpy_helper.to_array(onnx.TensorProto.FromString(f.read()))
    return p, written


def oracle(m, arrays):
    s = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in s.get_outputs()], s.run(None, arrays)))


def float_sum(outputs):
    return sum(float(np.sum(a, dtype=np.float64)) for a in outputs.values() if a.dtype == np.float32)


def agree(m, arrays, tolerance=2e-5, gradients=True, step=1e-2, slope=2e-2, **kw):
    """Checks that the outputs are those of ONNX Runtime, and the gradients of a few elements of each input its finite
    differences."""
    p, got = run(m, arrays, *(["--gradients"] if gradients else []), **kw)
    assert p.returncode == 0, p.stderr
    want = oracle(m, arrays)
    for name, a in want.items():
        b = got[name]
        assert b.dtype == a.dtype and b.shape == a.shape, (name, b.dtype, b.shape, a.dtype, a.shape)
        if a.dtype == np.float32:
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(b, a, err_msg=name)
    if not gradients:
        return got
    for name, a in arrays.items():
        if a.dtype != np.float32:
            assert name + ".grad" not in got
            continue
        g = got[name + ".grad"]
        assert g.shape == a.shape
        for i in rng.permutation(a.size)[:6]:
            up, down = a.copy(), a.copy()
            up.flat[i] += step
            down.flat[i] -= step
            d = (float_sum(oracle(m, {**arrays, name: up})) - float_sum(oracle(m, {**arrays, name: down}))) / (2 * step)
            assert abs(d - g.flat[i]) <= slope * (1 + abs(d)), (name, i, d, g.flat[i])
    return got


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


@test
def run_weights_as_initializers_or_inputs_agrees_with_onnx_runtime():
    w, b, x = normal(5, 7), normal(7), normal(3, 5)
    nodes = [node("MatMul", "x w", "h"), node("Add", "h b", "s"), node("Tanh", "s", "y")]
    agree(model(nodes, {"x": x}, {"y": F}, [const("w", w), const("b", b)]), {"x": x})
    got = agree(model(nodes, {"x": x, "w": w, "b": b}, {"y": F, "h": F}), {"x": x, "w": w, "b": b})
    assert set(got) == {"y", "h", "x.grad", "w.grad", "b.grad"}


@test
def run_convolution_network_in_inference_form_agrees_with_onnx_runtime():
    x = normal(2, 3, 9, 8)
    nodes = [node("Conv", "x k c", "a", pads=[1, 1, 1, 1]),
             node("BatchNormalization", "a g h m v", "n"), node("Relu", "n", "r"),
             node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
             node("GlobalAveragePool", "p", "q"), node("Flatten", "q", "f"), node("Gemm", "f w", "y", transB=1)]
    inits = [const("k", normal(4, 3, 3, 3)), const("c", normal(4)), const("g", normal(4)), const("h", normal(4)),
             const("m", normal(4)), const("v", np.abs(normal(4)) + 1), const("w", normal(6, 4))]
    agree(model(nodes, {"x": x}, {"y": F}, inits), {"x": x}, slope=5e-2)


@test
def run_arrays_of_every_order_type_and_format_are_read():
    x = np.asfortranarray(normal(4, 6))
    m = model([node("Identity", "x", "y")], {"x": x}, {"y": F})
    for fmt in ("npy", "pb"):
        p, got = run(m, {"x": x}, fmt=fmt)
        assert p.returncode == 0, p.stderr
        np.testing.assert_array_equal(got["y"], x)
    for dtype in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "?", "f2", "f4", "f8"):
        a = (rng.integers(0, 2, (2, 3)) + 0).astype(dtype)
        m = model([node("Identity", "x", "y")], {"x": a}, {"y": info("y", a).type.tensor_type.elem_type})
        for fmt in ("npy", "pb"):
            p, got = run(m, {"x": a}, fmt=fmt)
            assert p.returncode == 0, (dtype, p.stderr)
            assert got["y"].dtype == a.dtype and np.array_equal(got["y"], a), dtype
    scalar = np.array(2.5, np.float32)
    agree(model([node("Mul", "x x", "y")], {"x": scalar}, {"y": F}), {"x": scalar})


@test
def run_shapes_as_inputs_and_constants_of_every_op_are_folded():
    x = normal(2, 6)
    nodes = [node("Reshape", "x to", "r"), node("Add", "from one", "f"), node("Slice", "r f until", "y")]
    arrays = {"x": x, "to": np.array([4, 3]), "from": np.array([0]), "until": np.array([3])}
    agree(model(nodes, arrays, {"y": F}, [const("one", np.array([1]))]), arrays)
    y = normal(2, 4, 6, 5)
    nodes = [node("Conv", "c k", "a", pads=[1, 1, 1, 1]), node("BatchNormalization", "a g h m v", "n"),
             node("MaxPool", "n", "q", kernel_shape=[2, 2]), node("Add", "y a", "z")]
    inits = [const("c", normal(2, 3, 6, 5)), const("k", normal(4, 3, 3, 3)), const("g", normal(4)),
             const("h", normal(4)), const("m", normal(4)), const("v", np.abs(normal(4)) + 1)]
    agree(model(nodes, {"y": y}, {"z": F, "q": F}, inits), {"y": y})


@test
def run_shape_arithmetic_agrees_with_onnx_runtime():
    x = normal(3, 4, 5)
    nodes = [node("Shape", "x", "s"), node("Gather", "s zero", "n", axis=0), node("Gather", "s two", "d", axis=0),
             node("Unsqueeze", "n axes", "nu"), node("Unsqueeze", "d axes", "du"),
             node("Concat", "nu minus du", "to", axis=0), node("Reshape", "x to", "r"), node("Size", "x", "k"),
             node("Cast", "k", "kf", to=F), node("Div", "r kf", "y")]
    inits = [const("zero", np.int64(0)), const("two", np.int64(2)), const("axes", np.array([0])),
             const("minus", np.array([-1]))]
    agree(model(nodes, {"x": (F, ["a", "b", "c"])}, {"y": F, "s": I, "to": I}, inits), {"x": x})


@test
def run_if_on_a_shape_uses_the_selected_branch():
    x, w = normal(3, 4), normal(4)
    then = helper.make_graph([node("Mul", "x w", "t")], "then", [], [helper.make_tensor_value_info("t", F, None)])
    other = helper.make_graph([node("Add", "x w", "e")], "else", [], [helper.make_tensor_value_info("e", F, None)])
    nodes = [node("Shape", "x", "s"), node("Gather", "s zero", "n", axis=0), node("Greater", "n three", "c"),
             helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    inits = [const("zero", np.int64(0)), const("three", np.int64(3))]
    m = model(nodes, {"x": (F, ["n", 4]), "w": w}, {"y": F}, inits)
    agree(m, {"x": x, "w": w})
    agree(m, {"x": normal(5, 4), "w": w})
    for b in (np.array(True), np.array(False)):
        m = model([helper.make_node("If", ["b"], ["y"], then_branch=then, else_branch=other)],
                  {"x": x, "w": w, "b": b}, {"y": F})
        agree(m, {"x": x, "w": w, "b": b})
    m = model([node("ReduceMax", "x", "top", keepdims=0), node("Greater", "top one", "b"),
               helper.make_node("If", ["b"], ["y"], then_branch=then, else_branch=other)],
              {"x": x, "w": w}, {"y": F}, [const("one", np.float32(1))])
    p, _ = run(m, {"x": x, "w": w})
    assert p.returncode == 3 and "If 'y': its condition depends on the data" in p.stderr, p.stderr


def loop_body(nodes, carried, scans):
    ins = [helper.make_tensor_value_info("i", I, []), helper.make_tensor_value_info("go", B, [])]
    ins += [helper.make_tensor_value_info(c + "_in", F, None) for c in carried]
    outs = [helper.make_tensor_value_info("go_on", B, [])]
    outs += [helper.make_tensor_value_info(c + "_out", F, None) for c in carried + scans]
    return helper.make_graph(nodes, "body", ins, outs)


@test
def run_loops_with_a_known_iteration_count_are_unrolled_with_gradients():
    x, w = normal(2, 3) / 2, normal(3, 3) / 2
    body = loop_body([node("Identity", "go", "go_on"), node("MatMul", "h_in w", "m"), node("Cast", "i", "f", to=F),
                      node("Add", "m f", "k"), node("Tanh", "k", "h_out"), node("Mul", "h_out h_out", "s_out")],
                     ["h"], ["s"])
    nodes = [node("Shape", "x", "sh"), node("Size", "sh", "two"), node("Add", "two one", "trips"),
             helper.make_node("Loop", ["trips", "", "x"], ["h", "s"], body=body)]
    m = model(nodes, {"x": x, "w": w}, {"h": F, "s": F}, [const("one", np.int64(1))])
    got = agree(m, {"x": x, "w": w})
    assert got["s"].shape == (3, 2, 3)
    # a loop until a condition that does not depend on data; carried values that are exchanged
    body = loop_body([node("Less", "i limit", "go_on"), node("Identity", "b_in", "a_out"), node("Add", "a_in b_in", "b_out")],
                     ["a", "b"], [])
    m = model([helper.make_node("Loop", ["", "yes", "x", "x"], ["a", "b"], body=body)], {"x": x}, {"a": F, "b": F},
              [const("yes", np.array(True)), const("limit", np.int64(4))])
    agree(m, {"x": x})
    trips = np.array(3)
    body = loop_body([node("Identity", "go", "go_on"), node("Neg", "h_in", "h_out")], ["h"], [])
    m = model([helper.make_node("Loop", ["n", "", "x"], ["h"], body=body)], {"x": x, "n": trips}, {"h": F})
    agree(m, {"x": x, "n": trips})
    m = model([node("ReduceMax", "x", "top", keepdims=0), node("Cast", "top", "n", to=I),
               helper.make_node("Loop", ["n", "", "x"], ["h"], body=body)], {"x": x}, {"h": F})
    p, _ = run(m, {"x": x})
    assert p.returncode == 3 and "Loop 'h': its trip count depends on the data" in p.stderr, p.stderr


@test
def run_scans_on_any_axis_in_both_directions_agree_with_onnx_runtime():
    x, h, w = normal(4, 2, 3), normal(2, 3), normal(3, 3) / 2
    body = helper.make_graph([node("Add", "h_in x_in", "a"), node("MatMul", "a w", "b"), node("Tanh", "b", "h_out"),
                              node("Neg", "h_out", "s_out")], "body",
                             [helper.make_tensor_value_info(n, F, None) for n in ("h_in", "x_in")],
                             [helper.make_tensor_value_info(n, F, None) for n in ("h_out", "s_out")])
    for more in ({}, {"scan_input_directions": [1]}, {"scan_output_directions": [1], "scan_output_axes": [1]}):
        m = model([helper.make_node("Scan", ["h", "x"], ["last", "all"], body=body, num_scan_inputs=1, **more)],
                  {"x": x, "h": h, "w": w}, {"last": F, "all": F})
        agree(m, {"x": x, "h": h, "w": w})
    m = model([helper.make_node("Scan", ["h", "x"], ["last", "all"], body=body, num_scan_inputs=1,
                                scan_input_axes=[-3])], {"x": x, "h": h, "w": w}, {"last": F, "all": F}, opset=12)
    agree(m, {"x": x, "h": h, "w": w})


@test
def run_model_functions_nested_with_attributes_are_inlined():
    x, w = normal(3, 4), normal(4)
    imports = [helper.make_opsetid("", 17)]
    scale = helper.make_function("my", "Scale", ["a"], ["b"],
                                 [ref_node("LeakyRelu", "a", "t", "alpha", "slope"), node("Mul", "t t", "b")],
                                 imports, ["slope"])
    both = helper.make_function("my", "Both", ["a", "v"], ["c", "a2"],
                                [helper.make_node("Scale", ["a"], ["t"], domain="my", slope=0.25),
                                 node("Add", "t v", "c"), node("Sub", "a v", "a2")],
                                imports + [helper.make_opsetid("my", 1)], [])
    m = model([helper.make_node("Both", ["x", "w"], ["p", "q"], domain="my"),
               helper.make_node("Both", ["q", "w"], ["t", ""], domain="my")],
              {"x": x, "w": w}, {"p": F, "t": F}, functions=[scale, both], imports=[helper.make_opsetid("my", 1)])
    flat = model([node("LeakyRelu", "x", "a1", alpha=0.25), node("Mul", "a1 a1", "a2"), node("Add", "a2 w", "p"),
                  node("Sub", "x w", "q"), node("LeakyRelu", "q", "b1", alpha=0.25), node("Mul", "b1 b1", "b2"),
                  node("Add", "b2 w", "t")], {"x": x, "w": w}, {"p": F, "t": F})
    want = agree(flat, {"x": x, "w": w})
    p, got = run(m, {"x": x, "w": w}, "--gradients")
    assert p.returncode == 0, p.stderr
    for name, a in want.items():
        np.testing.assert_array_equal(got[name], a)
    loop = helper.make_function("my", "Loop", ["a"], ["b"], [helper.make_node("Loop", ["a"], ["b"], domain="my")],
                                imports + [helper.make_opsetid("my", 1)], [])
    m = model([helper.make_node("Loop", ["x"], ["y"], domain="my")], {"x": x}, {"y": F}, functions=[loop],
              imports=[helper.make_opsetid("my", 1)])
    p, _ = run(m, {"x": x})
    assert p.returncode == 3 and "function 'Loop'" in p.stderr and "deep" in p.stderr, p.stderr


def ref_node(op, inputs, outputs, attr, ref):
    n = node(op, inputs, outputs)
    a = n.attribute.add()
    a.name, a.ref_attr_name, a.type = attr, ref, onnx.AttributeProto.FLOAT
    return n


@test
def run_unsupported_feature_is_named_and_ends_with_3():
    x = normal(2, 3)
    rows = [
        ([node("StringNormalizer", "x", "y")], "StringNormalizer"),
        ([node("TfIdfVectorizer", "x", "y", mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0, ngram_counts=[0],
               ngram_indexes=[0])], "TfIdfVectorizer"),
        ([helper.make_node("Fancy", ["x"], ["y"], domain="their.own")], "their.own.Fancy"),
        ([node("ReduceMax", "x", "m", axes=[0], keepdims=0), node("Cast", "m", "k", to=I), node("Reshape", "x k", "y")],
         "Reshape"),
    ]
    for nodes, name in rows:
        inputs = {"x": x}
        p, _ = run(model(nodes, inputs, {"y": F}), inputs)
        assert p.returncode == 3 and name in p.stderr.splitlines()[-1], (name, p.returncode, p.stderr)
    d = x.astype(np.float64)
    p, _ = run(model([node("MatMul", "x w", "y")], {"x": d}, {"y": TensorProto.DOUBLE}, [const("w", normal(3, 3).astype(np.float64))]),
               {"x": d})
    assert p.returncode == 0 and "float64 is computed in float32" in p.stderr, p.stderr


@test
def run_type_without_npy_form_names_the_other_format():
    m = model([node("Cast", "x", "y", to=TensorProto.BFLOAT16)], {"x": np.float32([1, 2])}, {"y": TensorProto.BFLOAT16})
    p, _ = run(m, {"x": np.float32([1, 2])})
    assert p.returncode == 3 and "output 'y': .npy has no type for bfloat16" in p.stderr and "--format pb" in p.stderr, p.stderr
    p, _ = run(m, {"x": np.float32([1, 2])}, "--format", "pb", "--inference")
    assert p.returncode == 0, p.stderr


@test
def run_invalid_input_is_named_and_ends_with_2():
    x = normal(2, 3)
    m = model([node("Neg", "x", "y")], {"x": (F, ["n", 3])}, {"y": F})
    for arrays, words in (({}, "model input 'x' is not fed"), ({"z": x}, "no input 'z'; its inputs are: 'x'"),
                          ({"x": x.astype(np.float64)}, "'x' is float32, but the array"),
                          ({"x": normal(2, 4)}, "has shape [-1, 3]")):
        p, _ = run(m, arrays)
        assert p.returncode == 2 and words in p.stderr, (p.returncode, p.stderr)
    folder = workdir()
    for data, words in ((b"", "not a .npy file"), (b"\x93NUMPY\x01\x00\x76\x00", "truncated"),
                        (b"\x93NUMPY\x01\x00\x10\x00{'descr': '>f4'}", "supported are little-endian")):
        path = os.path.join(folder, "bad.npy")
        with open(path, "wb") as f:
            f.write(data)
        onnx.save(m, os.path.join(folder, "m.onnx"))
        p = subprocess.run([TRAINERCTL, "run", os.path.join(folder, "m.onnx"), "--input", "x=" + path, "-o", folder],
                           capture_output=True, text=True, timeout=GUARD)
        assert p.returncode in (2, 3) and words in p.stderr, (data, p.returncode, p.stderr)
    for args in ([], ["nothing.onnx", "-o", folder], ["m.onnx"], ["m.onnx", "-o", folder, "--what"]):
        p = subprocess.run([TRAINERCTL, "run", *args], cwd=folder, capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == 2 and p.stderr.startswith(("usage", "trainerctl")), (args, p.returncode, p.stderr)


@test
def run_empty_tensors_are_accepted():
    x = normal(0, 3)
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("Concat", "r z", "y", axis=0)]
    z = normal(2, 4)
    agree(model(nodes, {"x": (F, ["n", 3]), "z": z}, {"y": F, "h": F}, [const("w", normal(3, 4))]), {"x": x, "z": z})


@test
def run_clip_limits_have_gradients():
    x = np.float32([-2.5, -1.7, -0.3, 0.2, 0.8, 1.9, 2.2])
    m = model([node("Clip", "x low high", "y")], {"x": x, "low": (F, []), "high": (F, [])}, {"y": F})
    got = agree(m, {"x": x, "low": np.array(-1, np.float32), "high": np.array(1, np.float32)})
    assert got["low.grad"] == 2 and got["high.grad"] == 2


@test
def run_inputs_without_derivative_are_named():
    nodes = [node("Mul", "x v", "fill"), node("Pad", "x pads fill", "y"), node("Pad", "y pads fill", "z")]
    arrays = {"x": np.float32([2]), "v": np.float32(3)}
    m = model(nodes, {"x": arrays["x"], "v": arrays["v"]}, {"z": F}, [const("pads", np.int64([1, 1]))])
    p, written = run(m, arrays, "--gradients")
    assert p.returncode == 0, p.stderr
    told = [line for line in p.stderr.splitlines() if "does not differentiate" in line]
    assert told == ["trainerctl: warning: Pad 'y' (and 1 more of this op) does not differentiate its input 2, 'fill': the "
                    "gradients of the values from which 'fill' is computed lack this contribution"], p.stderr
    assert written["v.grad"] == 0 and written["x.grad"] == 1
    p, _ = run(m, arrays)
    assert "differentiate" not in p.stderr
    # The gradient of w lacks the part through this input.
    nodes = [node("MatMul", "x w", "h"), node("ReduceMax", "w", "top", keepdims=0), node("Pad", "h pads top", "y")]
    m = model(nodes, {"x": (F, ["batch", 4])}, {"y": F}, [const("w", normal(4, 3)), const("pads", np.int64([0, 0, 0, 1]))])
    path = os.path.join(workdir(), "cut.onnx")
    onnx.save(m, path)
    p = subprocess.run([TRAINERCTL, "inspect", path], capture_output=True, text=True, timeout=GUARD)
    assert "note       Pad 'y' does not differentiate its input 2, 'top'" in p.stdout, p.stdout + p.stderr
    p = subprocess.run([TRAINERCTL, "inspect", "--json", path], capture_output=True, text=True, timeout=GUARD)
    assert [n for n in json.loads(p.stdout)["notes"] if "input 2, 'top'" in n], p.stdout


@test
def inspect_prints_a_network_and_its_unsupported_ops():
    import json
    folder = workdir()
    path = os.path.join(folder, "m.onnx")

    def inspect(m, *args):
        onnx.save(m, path)
        p = subprocess.run([TRAINERCTL, "inspect", path, "--json", *args], capture_output=True, text=True, timeout=GUARD)
        return p.returncode, json.loads(p.stdout) if p.stdout else p.stderr

    w = normal(3, 4)
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "y")]
    code, got = inspect(model(nodes, {"x": (F, ["n", 3])}, {"y": F}, [const("w", w)]), "--batch", "8")
    assert code == 0 and got["problem"] is None and got["trained_numbers"] == 12, got
    assert [(o["name"], o["count"], o["supported"]) for o in got["ops"]] == [("MatMul", 1, True), ("Relu", 1, True)]
    assert got["inputs"] == [{"name": "x", "dtype": "float32", "shape": [None, 3]}]
    assert got["training"]["forward_flops_per_sample"] >= 2 * 12 and got["training"]["work_bytes"] > 0
    code, got = inspect(model(nodes, {"x": (F, ["n", "t"])}, {"y": F}, [const("w", w)]))
    assert code == 0 and "--shape x=" in got["problem"] and got["training"] is None, got
    code, got = inspect(model(nodes, {"x": (F, ["n", "t"])}, {"y": F}, [const("w", w)]), "--shape", "x=1,3")
    assert code == 0 and got["problem"] is None, got
    code, got = inspect(model(nodes + [node("Det", "y", "z")], {"x": (F, ["n", 3])}, {"z": F}, [const("w", w)]))
    assert code == 3 and "Det (1 node" in got["problem"] and not got["ops"][2]["supported"], got
    with open(path, "wb") as f:
        f.write(b"nothing")
    p = subprocess.run([TRAINERCTL, "inspect", path], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 2 and "not a readable ONNX model" in p.stderr, p.stderr


@test
def inspect_plans_with_a_trainable_batch_and_states_its_source():
    import json
    folder = workdir()
    path = os.path.join(folder, "m.onnx")

    def inspect(m, *args):
        onnx.save(m, path)
        p = subprocess.run([TRAINERCTL, "inspect", path, *args], capture_output=True, text=True, timeout=GUARD)
        q = subprocess.run([TRAINERCTL, "inspect", path, "--json", *args], capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == q.returncode, (p.stdout, q.stdout)
        return p.returncode, json.loads(q.stdout), p.stdout

    def network(first, *more):
        nodes = [node("MatMul", "x w", "h"), node("BatchNormalization", "h s b m v", "n nm nv", training_mode=1), *more]
        averages = [const(k, np.linspace(0.5, 1, 4).astype(np.float32) + i) for i, k in enumerate("sbmv")]
        return model(nodes, {"x": (F, [first, 3])}, {nodes[-1].output[0]: F}, [const("w", normal(3, 4)), *averages])

    code, got, text = inspect(network("n"))  # a variance of one value
    assert code == 0 and got["batch"] == 2 and got["batch_from"] == "least" and got["training"] and got["problem"] is None, got
    assert "batch      2 samples, because 1 is refused: " in text and "normalises each channel over a single value" in text, text
    code, got, text = inspect(network("n"), "--batch", "1")
    assert code == 2 and got["batch"] == 1 and got["batch_from"] == "flag" and "a single value" in got["problem"], got
    code, got, text = inspect(network("n"), "--batch", "5")
    assert code == 0 and got["batch"] == 5 and "batch      5 samples, by --batch\n" in text, text
    code, got, text = inspect(network(4))
    assert code == 0 and got["batch"] == 4 and got["batch_from"] == "file" and "fixes at its input 'x'" in text, text
    code, got, text = inspect(network(4), "--batch", "3")
    assert code == 0 and got["batch"] == 3, got
    code, got, text = inspect(network(1))  # the batch of an example input, which no other shape of the file contains
    assert code == 0 and got["batch"] == 2 and got["batch_from"] == "least", got
    code, got, text = inspect(model([node("Relu", "x", "y")], {"x": (F, ["n", 3])}, {"y": F}))
    assert code == 0 and got["batch"] == 1 and got["batch_from"] == "default" and "batch      1 sample; --batch N" in text, text
    reshape = model([node("Relu", "x", "h"), node("Reshape", "h to", "y")], {"x": (F, ["n", 3])}, {"y": F},
                    [const("to", np.asarray([7, 5], np.int64))])
    code, got, text = inspect(reshape)  # refused with batch 1 and 2: the reason is that of 1
    assert code == 2 and got["batch"] == 1 and got["batch_from"] == "default" and "with 1 samples" in got["problem"], got


if __name__ == "__main__":
    main()
