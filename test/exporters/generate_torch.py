#!/usr/bin/env python3
"""Exports the networks of torch_*.py and trains them in PyTorch: writes the files and the case of each into --out.

    generate_torch.py [--out FOLDER] [NAME...]

Each network is exported twice: `default`, the call of PyTorch's tutorials, and `recipe`, the text of config/recipes with the
lines that end in "yours" replaced. All parameters and statistics are initialized with different random numbers, because exporters
merge equal values. The reference is PyTorch in float32 on one thread, with the batches in the order of spec.py.
"""
import argparse
import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch.nn import functional as F

import torch_plain  # noqa: F401
from registry import NETWORKS
from spec import FILES, OPTIMIZERS, RECIPES, STEPS, batch_of, fingerprint, pack, samples, versions, write_case

try:
    import torch_transformers  # noqa: F401
    import torch_vision  # noqa: F401
except ImportError as e:
    sys.exit("generate_torch: %s; install test/exporters/requirements/torch.txt" % e)


def build(network):
    torch.manual_seed(7)
    net = network.make()
    with torch.no_grad():
        for p in net.parameters():
            if p.is_floating_point() and p.requires_grad and bool((p == p.flatten()[0]).all()):
                p += 0.1 * torch.randn_like(p)
        for name, b in net.named_buffers():
            if name.endswith("running_mean"):
                b += 0.1 * torch.randn_like(b)
            if name.endswith("running_var"):
                b *= 0.5 + torch.rand_like(b)
    return net


def tensors(data):
    return {k: torch.from_numpy(v) for k, v in data.items()}


def examples(network, case):
    data = samples(case)
    return {k: torch.from_numpy(data[k][:2]) for k in network.inputs}


def export_default(network, net, inputs):
    if network.recipe == "huggingface":
        call, shapes = {"args": (), "kwargs": inputs}, {k: {0: "batch"} for k in inputs}
    else:
        call, shapes = {"args": tuple(inputs.values())}, tuple({0: "batch"} for _ in inputs)
    torch.onnx.export(net, f="net.onnx", input_names=list(inputs), output_names=["logits"], dynamic_shapes=shapes, **call)


def export_recipe(network, net, inputs):
    """Runs the recipe's text. Its three lines for the user become the same assignments with this network's values."""
    with open(os.path.join(RECIPES, network.recipe + ".py")) as f:
        text = f.read()
    mine = {"net": net, "inputs": inputs, "outputs": ["logits"]}
    text, n = re.subn(r"^(net|inputs|outputs) = .*yours$", lambda m: "%s = _mine['%s']" % (m[1], m[1]), text, flags=re.M)
    assert n >= 2, "the recipe has no lines for the network and its inputs"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, network.recipe + ".py", "exec"), {"_mine": mine})
    frozen = [line for line in printed.getvalue().splitlines() if line.startswith('"frozen": ')]
    assert len(frozen) == 1, printed.getvalue()
    return json.loads("{%s}" % frozen[0])


def run(network, net, batch):
    if network.recipe == "huggingface":
        return net(**{k: batch[k] for k in network.inputs})
    return net(*(batch[k] for k in network.inputs))


def first(output):
    return output if torch.is_tensor(output) else next(iter(output.values() if hasattr(output, "values") else output))


def loss_of(network, output, label):
    if network.loss == "graph":
        return output
    if network.loss == "mean_squared_error":
        return F.mse_loss(output, label)
    if output.ndim == label.ndim + 1 and output.shape[:-1] == label.shape:
        output = output.movedim(-1, 1)
    return F.cross_entropy(output, label)


def optimizer_of(net, o):
    if o["type"] == "momentum":
        return torch.optim.SGD(net.parameters(), o["learning_rate"], o["momentum"])
    return torch.optim.AdamW(net.parameters(), o["learning_rate"], eps=o["epsilon"], weight_decay=o["weight_decay"])


def train(network, net, case, optimizer):
    """The losses of STEPS steps, the loss over all samples in evaluation mode afterwards, and the final weights."""
    data = tensors(samples(case))
    opt = optimizer_of(net.train(), OPTIMIZERS[optimizer])
    losses = []
    for k in range(STEPS):
        batch = batch_of(data, k)
        loss = loss_of(network, first(run(network, net, batch)), batch["label"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(float("%.9g" % loss.item()))
    return losses, fingerprints(net)


def fingerprints(net):
    return {k: fingerprint(k, v.detach().numpy()) for k, v in net.state_dict().items() if v.is_floating_point()}


def describe(net):
    """Each tensor of state_dict: its shape, whether it is a parameter, and the parameter that it shares memory with."""
    trained = {k for k, p in net.named_parameters(remove_duplicate=False) if p.requires_grad}
    seen, out = {}, {}
    for k, v in net.state_dict(keep_vars=True).items():
        owner = seen.setdefault(id(v), k)
        out[k] = {"shape": list(v.shape), "kind": "parameter" if k in trained else "buffer"}
        if owner != k:
            out[k]["same_as"] = owner
    return out


def generate(network, out):
    case = {"name": network.name, "generator": "torch", "inputs": network.inputs, "label": network.label, "loss": network.loss,
            "model": network.job, "recipe": network.recipe, "exports": {}, "versions": versions("torch"), "reference": {}}
    net = build(network)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    case["state"] = describe(net)
    for export, how in (("default", export_default), ("recipe", export_recipe)):
        folder, before = tempfile.mkdtemp(), os.getcwd()
        os.chdir(folder)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                printed = how(network, build(network), examples(network, case))
            if printed and printed["frozen"]:
                case["model"] = {**network.job, **printed}  # for either export: no file states it
            case["exports"][export] = sorted(os.listdir("."))
            for name in case["exports"][export]:
                pack(name, out, "%s.%s.%s" % (network.name, export, name))
        except Exception as e:  # a failure of the exporter is a result
            case.setdefault("not_exported", {})[export] = "%s: %s" % (type(e).__name__, str(e).strip().splitlines()[0][:200])
        finally:
            os.chdir(before)
            shutil.rmtree(folder)
    for optimizer in network.optimizers:
        net = build(network)
        assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
        losses, weights = train(network, net, case, optimizer)
        case["reference"][optimizer] = {"optimizer": OPTIMIZERS[optimizer], "losses": losses, "weights": weights}
    write_case(case, out)
    return case


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", default=FILES)
    p.add_argument("names", nargs="*")
    o = p.parse_args()
    torch.set_num_threads(1)
    os.makedirs(o.out, exist_ok=True)
    failed = 0
    for name in o.names or NETWORKS:
        try:
            case = generate(NETWORKS[name], os.path.abspath(o.out))
            failures = case.get("not_exported", {})
            losses = next(iter(case["reference"].values()))["losses"]
            print("%s: loss %.6f to %.6f; %s" % (name, losses[0], losses[-1], failures or "exported"), flush=True)
        except Exception as e:  # a failure must not end the other networks
            failed += 1
            print("%s: FAILED: %s: %s" % (name, type(e).__name__, str(e)[:300]), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
