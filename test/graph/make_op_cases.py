#!/usr/bin/env python3
"""make_op_cases.py OUT.gz: cases of the ops of opsets 23 to 28, and of DeformConv, for test_op_cases.c.

Each case is a model of one op, whose outputs are multiplied by constant weights; its float32 inputs; the
outputs; and the gradient of the sum of all outputs with respect to each input of float32 that may have one.
Outputs and gradients are computed by PyTorch in float64 from the definitions below; each output is also
compared with the reference implementation of the onnx package. The format of the archive is defined in
test/harness/onnx_case.h: gradients follow the outputs; an absent gradient is an empty tensor.
Made with PyTorch 2.15.0, torchvision 0.29.2 and onnx 1.23.2; needs all three.
"""
import gzip
import struct
import sys

import numpy as np
import onnx
import torch
import torchvision
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

rng = np.random.default_rng(12)
records = []


def normal(*shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def case(name, op, opset, inputs, f, attrs=None, n_out=1, no_gradient=(), compare=True):
    """inputs: {name: array or None}; f(**tensors) -> outputs, None for an output that the model lacks."""
    attrs = attrs or {}
    given = {k: v for k, v in inputs.items() if v is not None}
    tensors = {}
    for k, v in given.items():
        t = torch.from_numpy(v.copy())
        tensors[k] = t.double().requires_grad_(k not in no_gradient) if v.dtype == np.float32 else t
    outs = f(**tensors)
    outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
    node_outputs = [f"y{i}" if o is not None else "" for i, o in enumerate(outs)]
    nodes = [helper.make_node(op, [k if v is not None else "" for k, v in inputs.items()], node_outputs, **attrs)]
    while nodes[0].input and nodes[0].input[-1] == "":
        nodes[0].input.pop()
    weights, infos, results = [], [], []
    for i, o in enumerate(outs):
        if o is None:
            continue
        w = normal(*o.shape)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes.append(helper.make_node("Mul", [f"y{i}", f"w{i}"], [f"z{i}"]))
        infos.append(helper.make_tensor_value_info(f"z{i}", TensorProto.FLOAT, list(o.shape)))
        results.append(o * torch.from_numpy(w).double())
    total = sum(r.sum() for r in results)
    wanted = [k for k, t in tensors.items() if t.dtype == torch.float64 and t.requires_grad]
    grads = dict(zip(wanted, torch.autograd.grad(total, [tensors[k] for k in wanted], allow_unused=True)))
    graph = helper.make_graph(
        nodes, name, [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), list(v.shape))
                      for k, v in given.items()], infos, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    if compare:
        onnx.checker.check_model(model)
        for got, want in zip(ReferenceEvaluator(model).run(None, given), results):
            np.testing.assert_allclose(got, want.detach().numpy(), rtol=2e-4, atol=2e-5, err_msg=name)
    arrays = [r.detach().numpy().astype(np.float32) for r in results]
    for k, v in given.items():
        g = grads.get(k)
        arrays.append(np.zeros(0, np.float32) if g is None else g.numpy().astype(np.float32))
    blobs = [numpy_helper.from_array(a).SerializeToString() for a in [*given.values(), *arrays]]
    text = name.encode()
    parts = [struct.pack("<3I", len(text), len(given), len(arrays)), text]
    for blob in [model.SerializeToString(), *blobs]:
        parts += [struct.pack("<I", len(blob)), blob]
    records.append(b"".join(parts))


# ---- Attention ----

def attention(heads=None, kv_heads=None, scale=None, softcap=0.0, is_causal=0, left=-1, right=-1, mode=None,
              presents=False):
    def split(x, n):
        return x if x.dim() == 4 else x.reshape(x.shape[0], x.shape[1], n, -1).transpose(1, 2)

    def f(q, k, v, mask=None, past_key=None, past_value=None, nonpad=None):
        flat = q.dim() == 3
        q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
        past = 0
        if past_key is not None:
            past = past_key.shape[2]
            k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
        present = (k, v)
        t, s = q.shape[2], k.shape[2]
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        x = q @ k.transpose(2, 3) * (scale if scale is not None else q.shape[3] ** -0.5)
        stages = [x]
        if softcap > 0:
            x = softcap * torch.tanh(x / softcap)
        stages.append(x)
        bias = torch.zeros(1, 1, t, s, dtype=torch.float64)
        hidden = torch.zeros(1, 1, t, s, dtype=torch.bool)
        if mask is not None:
            if mask.shape[-1] < s:
                fill = False if mask.dtype == torch.bool else -np.inf
                mask = torch.cat([mask, mask.new_full((*mask.shape[:-1], s - mask.shape[-1]), fill)], -1)
            if mask.dtype == torch.bool:
                hidden = hidden | ~mask
            else:
                bias = bias + mask
        offset = torch.full((1, 1, 1, 1), past)
        if nonpad is not None:
            n = nonpad.reshape(-1, 1, 1, 1)
            hidden = hidden | (torch.arange(s) >= n)
            offset = n - t
        at = torch.arange(t).reshape(t, 1) + offset
        if is_causal:
            hidden = hidden | (torch.arange(s) > at)
        if left >= 0:
            hidden = hidden | (torch.arange(s) < at - left)
        if right >= 0:
            hidden = hidden | (torch.arange(s) > at + right)
        x = (x + bias).masked_fill(hidden, -np.inf)
        stages.append(x)
        empty = torch.isneginf(x).all(-1, keepdim=True)
        p = torch.softmax(x.masked_fill(empty, 0), -1).masked_fill(empty, 0)
        stages.append(p)
        y = p @ v
        y = y.transpose(1, 2).flatten(2) if flat else y
        outs = [y, *(present if presents else (None, None))]
        if mode is not None:
            outs.append(stages[mode].expand(p.shape))
        while outs[-1] is None:
            outs.pop()
        return outs

    return f


def heads(b, h, t, d):
    return normal(b, h, t, d)


def add_attention():
    def one(name, opset, inputs, attrs, **extra):
        names = {"left_window_size": "left", "right_window_size": "right", "q_num_heads": "heads",
                 "kv_num_heads": "kv_heads", "qk_matmul_output_mode": None}
        args = {names.get(k, k): v for k, v in attrs.items() if names.get(k, k)}
        args.update(extra)
        case(name, "Attention", opset, inputs, attention(**args), attrs)

    plain = {"q": heads(2, 3, 5, 8), "k": heads(2, 3, 6, 8), "v": heads(2, 3, 6, 4)}
    grouped = {"q": normal(2, 9, 4 * 8), "k": normal(2, 9, 2 * 8), "v": normal(2, 9, 2 * 6)}
    flat = {"q_num_heads": 4, "kv_num_heads": 2}
    boolean = rng.random((2, 1, 9, 9)) > 0.4
    boolean[0, 0, 3] = False  # a row without a key
    one("attention_plain", 23, plain, {})
    one("attention_scaled", 23, plain, {"scale": 0.3})
    one("attention_flat_grouped_causal", 23, grouped, {**flat, "is_causal": 1})
    one("attention_grouped_bool_mask_with_an_empty_row", 23, {**grouped, "mask": boolean}, flat)
    one("attention_causal_and_bool_mask", 24, {**grouped, "mask": boolean[0, 0]}, {**flat, "is_causal": 1})
    one("attention_mask_that_learns", 23, {**grouped, "mask": normal(1, 4, 9, 9)}, flat)
    one("attention_mask_of_one_row", 23, {**plain, "mask": normal(2, 1, 1, 6)}, {})
    one("attention_softcap", 23, grouped, {**flat, "softcap": 0.7, "is_causal": 1})
    one("attention_softcap_and_bool_mask", 24, {**grouped, "mask": boolean}, {**flat, "softcap": 0.7})
    one("attention_window", 25, grouped, {**flat, "left_window_size": 2, "right_window_size": 1})
    one("attention_causal_window", 25, grouped, {**flat, "left_window_size": 3, "is_causal": 1})
    one("attention_more_keys_than_rows", 25, {"q": heads(1, 2, 4, 4), "k": heads(1, 2, 7, 4), "v": heads(1, 2, 7, 4)},
        {"is_causal": 1, "left_window_size": 1})
    past = {**plain, "mask": None, "past_key": heads(2, 3, 4, 8), "past_value": heads(2, 3, 4, 4)}
    one("attention_past", 23, past, {"is_causal": 1}, presents=True)
    for mode in (0, 1, 3): # with mode 0 the reference implementation incorrectly returns scores after softcap
        one(f"attention_scores_of_mode_{mode}", 24, {**grouped, "mask": boolean},
            {**flat, "softcap": 1.5 if mode > 0 else 0.0, "qk_matmul_output_mode": mode}, mode=mode)
    one("attention_nonpad", 25, {**plain, "mask": None, "past_key": None, "past_value": None,
                                 "nonpad": np.array([3, 6], np.int64)},
        {"is_causal": 1, "left_window_size": 2})
    one("attention_nonpad_and_short_mask", 24, {**plain, "mask": rng.random((2, 1, 5, 4)) > 0.3, "past_key": None,
                                                "past_value": None, "nonpad": np.array([3, 4], np.int64)}, {})


# ---- gates, products, rotation ----

def rotary(interleaved=0, dim=0, n_heads=None):
    def f(x, cos, sin, position_ids=None):
        flat = x.dim() == 3
        y = x.reshape(x.shape[0], x.shape[1], n_heads, -1) if flat else x.transpose(1, 2)
        d = dim if dim > 0 else y.shape[-1]
        turned, rest = y[..., :d], y[..., d:]
        c, s = (cos[position_ids], sin[position_ids]) if position_ids is not None else (cos, sin)
        c, s = c.unsqueeze(2), s.unsqueeze(2)
        a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :d // 2], turned[..., d // 2:])
        real, imaginary = c * a - s * b, s * a + c * b
        turned = (torch.stack([real, imaginary], -1).flatten(-2) if interleaved
                  else torch.cat([real, imaginary], -1))
        y = torch.cat([turned, rest], -1)
        return y.flatten(2) if flat else y.transpose(1, 2)

    return f


def add_rotary():
    ids = rng.integers(0, 9, (2, 5))
    caches = {"cos": normal(9, 4), "sin": normal(9, 4)}
    direct = {"cos": normal(2, 5, 4), "sin": normal(2, 5, 4)}
    small = {"cos": normal(9, 2), "sin": normal(9, 2)}
    four = {"x": normal(2, 3, 5, 8)}
    three = {"x": normal(2, 5, 24)}

    def one(name, inputs, attrs, **args):
        case(name, "RotaryEmbedding", 23, inputs, rotary(**args), attrs, no_gradient=("cos", "sin"))

    one("rotary", {**four, **caches, "position_ids": ids}, {})
    one("rotary_interleaved", {**four, **caches, "position_ids": ids}, {"interleaved": 1}, interleaved=1)
    one("rotary_without_positions", {**four, **direct}, {})
    one("rotary_flat", {**three, **caches, "position_ids": ids}, {"num_heads": 3}, n_heads=3)
    one("rotary_flat_interleaved", {**three, **direct}, {"num_heads": 3, "interleaved": 1}, n_heads=3, interleaved=1)
    one("rotary_part", {**four, **small, "position_ids": ids}, {"rotary_embedding_dim": 4}, dim=4)
    one("rotary_part_interleaved", {**three, **small, "position_ids": ids},
        {"rotary_embedding_dim": 4, "num_heads": 3, "interleaved": 1}, dim=4, n_heads=3, interleaved=1)


def add_elements():
    x = normal(3, 7, scale=3)
    case("swish", "Swish", 24, {"x": x}, lambda x: x * torch.sigmoid(x))
    case("swish_alpha", "Swish", 24, {"x": x}, lambda x: x * torch.sigmoid(-0.4 * x), {"alpha": -0.4})
    two = {"a": x, "b": normal(3, 7)}
    case("swiglu", "SwiGLU", 28, two, lambda a, b: a * torch.sigmoid(a) * b)
    case("swiglu_alpha", "SwiGLU", 28, two, lambda a, b: a * torch.sigmoid(1.7 * a) * b, {"alpha": 1.7})


def cum_prod(dim, exclusive, reverse):
    def f(x, axis):
        y = x.flip(dim) if reverse else x
        if exclusive:
            y = torch.cat([torch.ones_like(y.narrow(dim, 0, 1)), y.narrow(dim, 0, y.shape[dim] - 1)], dim)
        y = torch.cumprod(y, dim)
        return y.flip(dim) if reverse else y

    return f


def add_cum_prod():
    x = normal(3, 5, 4)
    zeros = x.copy()
    zeros[0, 1, 0] = zeros[1, 0, 1] = zeros[1, 3, 1] = zeros[2, 4, 2] = 0
    for exclusive in (0, 1):
        for reverse in (0, 1):
            for dim, data in ((1, zeros), (-1, x)):
                case(f"cum_prod_{dim % 3}{'_exclusive' * exclusive}{'_reverse' * reverse}", "CumProd", 26,
                     {"x": data, "axis": np.array(dim, np.int64)}, cum_prod(dim, exclusive, reverse),
                     {"exclusive": exclusive, "reverse": reverse})


def rms(axis, epsilon):
    def f(x, scale):
        axes = tuple(range(axis, x.dim()))
        return x / torch.sqrt((x * x).mean(axes, keepdim=True) + epsilon) * scale

    return f


def add_rms():
    x = normal(2, 3, 4, 5)
    case("rms_last", "RMSNormalization", 23, {"x": x, "scale": normal(5)}, rms(3, 1e-5))
    case("rms_two_axes", "RMSNormalization", 23, {"x": x, "scale": normal(4, 5)}, rms(2, 0.1),
         {"axis": -2, "epsilon": 0.1})
    case("rms_scale_broadcast", "RMSNormalization", 23, {"x": x, "scale": normal(5)}, rms(1, 1e-5), {"axis": 1})
    case("rms_scale_of_one_number", "RMSNormalization", 23, {"x": x, "scale": normal(1)}, rms(2, 1e-5), {"axis": 2})


def add_group_norm():
    x = normal(2, 6, 4, 3)

    def by_group(x, scale, bias): # opset 18: one number per group
        return torch.nn.functional.group_norm(x, 3, scale.repeat_interleave(2), bias.repeat_interleave(2), 1e-3)

    def by_channel(x, scale, bias):
        return torch.nn.functional.group_norm(x, 3, scale, bias, 1e-3)

    attrs = {"num_groups": 3, "epsilon": 1e-3}
    case("group_norm_18", "GroupNormalization", 18, {"x": x, "scale": normal(3), "bias": normal(3)}, by_group, attrs,
         compare=False) # deprecated: the checker refuses it
    case("group_norm_21", "GroupNormalization", 21, {"x": x, "scale": normal(6), "bias": normal(6)}, by_channel, attrs)


# ---- states ----

def linear_attention(rule, n, kv, scale=None):
    def f(q, k, v, past=None, decay=None, beta=None):
        b, t, _ = q.shape
        q, k, v = q.reshape(b, t, n, -1), k.reshape(b, t, kv, -1), v.reshape(b, t, kv, -1)
        d, dv = k.shape[-1], v.shape[-1]
        state = past if past is not None else torch.zeros(b, kv, d, dv, dtype=torch.float64)
        by = scale if scale else d ** -0.5
        outs = []
        for i in range(t):
            if decay is not None:
                state = state * torch.exp(decay[:, i].reshape(b, kv, -1, 1))
            new = v[:, i]
            if beta is not None:
                seen = torch.einsum("bhdm,bhd->bhm", state, k[:, i])
                new = beta[:, i].reshape(b, -1, 1) * (new - seen)
            state = state + k[:, i].unsqueeze(-1) * new.unsqueeze(-2)
            outs.append(by * torch.einsum("bhd,bhdm->bhm", q[:, i], state.repeat_interleave(n // kv, 1)))
        return torch.stack(outs, 1).flatten(2), state

    return f


def add_linear_attention():
    def one(name, rule, b, t, n, kv, d, dv, past=False, decay=None, beta=None, scale=None, **attrs):
        inputs = {"q": normal(b, t, n * d), "k": normal(b, t, kv * d, scale=0.5), "v": normal(b, t, kv * dv),
                  "past": normal(b, kv, d, dv) if past else None,
                  "decay": -np.abs(normal(b, t, decay)) if decay else None,
                  "beta": rng.random((b, t, beta)).astype(np.float32) if beta else None}
        attrs = {"q_num_heads": n, "kv_num_heads": kv, "update_rule": rule, **attrs}
        if scale:
            attrs["scale"] = scale
        case(name, "LinearAttention", 27, inputs, linear_attention(rule, n, kv, scale), attrs)

    one("linear", "linear", 2, 5, 2, 2, 3, 4)
    one("linear_past_grouped", "linear", 2, 6, 4, 2, 3, 4, past=True, scale=0.25)
    one("gated_head", "gated", 2, 7, 2, 2, 4, 3, decay=2)
    one("gated_key_past", "gated", 1, 5, 4, 2, 3, 5, past=True, decay=6)
    one("delta", "delta", 2, 6, 2, 2, 4, 4, beta=2)
    one("delta_one_beta_past", "delta", 2, 4, 4, 2, 3, 2, past=True, beta=1)
    one("gated_delta", "gated_delta", 2, 9, 2, 2, 4, 3, decay=2, beta=2)
    one("gated_delta_long", "gated_delta", 1, 70, 2, 1, 3, 2, past=True, decay=3, beta=1, chunk_size=16)


def causal_conv(activation):
    def f(x, weight, bias=None, past=None):
        k = weight.shape[2]
        pad = past if past is not None else x.new_zeros(x.shape[0], x.shape[1], k - 1)
        wide = torch.cat([pad, x], 2)
        y = torch.nn.functional.conv1d(wide, weight, bias, groups=x.shape[1])
        y = y * torch.sigmoid(y) if activation != "none" else y
        return y, wide[:, :, wide.shape[2] - (k - 1):]

    return f


def add_causal_conv():
    def one(name, t, k, activation="none", bias=False, past=False):
        inputs = {"x": normal(2, 3, t), "weight": normal(3, 1, k), "bias": normal(3) if bias else None,
                  "past": normal(2, 3, k - 1) if past else None}
        case(name, "CausalConvWithState", 27, inputs, causal_conv(activation), {"activation": activation})

    one("causal_conv", 9, 4)
    one("causal_conv_bias_silu", 9, 4, "silu", True)
    one("causal_conv_past_swish", 5, 3, "swish", True, True)
    one("causal_conv_short", 2, 5, "none", True, True)
    one("causal_conv_shorter_than_state", 1, 4, "silu")


def scatter(axis, circular):
    def f(cache, update, indices=None):
        y, n = cache.clone(), cache.shape[axis]
        for b in range(cache.shape[0]):
            for i in range(update.shape[axis]):
                at = (int(indices[b]) if indices is not None else 0) + i
                y.select(0, b).select(axis - 1, at % n if circular else at).copy_(
                    update.select(0, b).select(axis - 1, i))
        return y

    return f


def add_scatter():
    inputs = {"cache": normal(2, 3, 5, 2), "update": normal(2, 3, 2, 2)}
    case("scatter", "TensorScatter", 24, inputs, scatter(2, False))
    inputs["indices"] = np.array([3, 1], np.int64)
    case("scatter_at", "TensorScatter", 24, inputs, scatter(2, False), {"axis": 2})
    inputs["indices"] = np.array([4, 0], np.int64)
    case("scatter_circular", "TensorScatter", 24, inputs, scatter(2, True), {"mode": "circular"})


def add_deform_conv():
    def one(name, opset, c, m, kernel, attrs, group=1, offsets=1, bias=False, mask=False):
        attrs = {"strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1], "group": group, "offset_group": offsets, **attrs}

        def f(x, w, offset, b=None, mask=None):
            return torchvision.ops.deform_conv2d(x, offset, w, b, attrs["strides"], attrs["pads"][:2], attrs["dilations"], mask)

        x, w, taps = normal(2, c, 6, 7), normal(m, c // group, *kernel), kernel[0] * kernel[1]
        out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(
            x.shape[2:], attrs["pads"], attrs["dilations"], kernel, attrs["strides"])]
        inputs = {"x": x, "w": w, "offset": normal(2, 2 * offsets * taps, *out, scale=1.5), "b": normal(m) if bias else None,
                  "mask": normal(2, offsets * taps, *out) if mask else None}
        case(name, "DeformConv", opset, inputs, f, attrs)

    one("deform_conv", 19, 3, 4, (2, 2), {})
    one("deform_conv_bias_mask", 22, 2, 3, (3, 3), {"pads": [1] * 4}, bias=True, mask=True)
    one("deform_conv_groups", 22, 4, 6, (3, 2), {"pads": [2, 1, 2, 1], "strides": [2, 1], "dilations": [2, 1]}, 2, 4, True, True)
    one("deform_conv_mask_without_bias", 19, 4, 4, (1, 1), {"strides": [2, 2]}, 4, 2, mask=True)


for add in (add_scatter, add_attention, add_rotary, add_elements, add_cum_prod, add_rms, add_group_norm, add_linear_attention, add_causal_conv,
            add_deform_conv):
    add()
with open(sys.argv[1], "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=9) as out:
    out.write(b"".join(records))
print(len(records), "cases")
