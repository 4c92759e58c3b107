#!/usr/bin/env python3
"""Fine-tunes three networks of this folder in PyTorch from weights files, and stores files and results in finetune/.

    generate_finetune.py [--out FOLDER]          writes the files
    generate_finetune.py --load NAME FILE        loads an exported FILE into the module of NAME, strictly

bert    the base model in two files with an index, in bfloat16, float16 and float64, with the names of transformers without
        the head; the head is initialized with the values of the ONNX file; the embeddings are frozen; the file has a surplus tensor
gpt2    one file in float32 that has the tied embedding once, under the name that the graph does not use
conv3d  one file in float16 with the running averages of its BatchNorm layers

NAME.json contains the job's keys and the losses of STEPS steps, NAME.trained.safetensors the state_dict() after them.
"""
import argparse
import gzip
import json
import os
import sys

import numpy as np
import onnx
import torch
from safetensors.torch import load_file, save_file

import generate_torch
from registry import NETWORKS
from spec import FILES, batch_of, read_case, samples, versions

STEPS = 20
FINETUNE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "finetune")


def exported_values(name):
    with gzip.open(os.path.join(FILES, name + ".recipe.net.onnx.gz")) as f:
        model = onnx.load_from_string(f.read())
    return {i.name: torch.from_numpy(onnx.numpy_helper.to_array(i).copy()) for i in model.graph.initializer}


def base_weights(name):
    """A module whose weights differ from those in the ONNX file."""
    net = generate_torch.build(NETWORKS[name])
    torch.manual_seed(11)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.05 * torch.randn_like(p)
        for key, b in net.named_buffers():
            if key.endswith("running_mean"):
                b += 0.1 * torch.randn_like(b)
    return net


def write_bert(folder, net):
    """Returns the tensors of the files by their names in the module."""
    names = [k for k in net.state_dict() if k.startswith("bert.")]
    types = {"pooler.dense.weight": torch.float16, "pooler.dense.bias": torch.float64}
    file = {k[5:]: net.state_dict()[k].to(types.get(k[5:], torch.bfloat16)).contiguous() for k in names}
    half = len(file) // 2
    shards = [dict(list(file.items())[:half]), dict(list(file.items())[half:])]
    shards[1]["cls.predictions.bias"] = torch.zeros(30)
    index = {}
    for i, shard in enumerate(shards):
        part = "model-%05d-of-00002.safetensors" % (i + 1)
        save_file(shard, os.path.join(folder, part), metadata={"format": "pt"})
        index.update({k: part for k in shard})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": sum(t.nbytes for s in shards for t in s.values())}, "weight_map": index}, f, indent=1)
    return {"bert." + k: v for k, v in file.items()}


def write_gpt2(folder, net):
    file = {k: v.contiguous() for k, v in net.state_dict().items() if k != "lm_head.weight"}
    save_file(file, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    return {**file, "lm_head.weight": file["transformer.wte.weight"]}


def write_conv3d(folder, net):
    file = {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in net.state_dict().items()}
    save_file(file, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    return file


CASES = {
    "bert": {"write": write_bert, "optimizer": "momentum",
             "job": {"weights": "bert", "weights_names": {"bert.*": "*"}, "weights_fresh": ["classifier.*"],
                     "frozen": ["bert.embeddings.*"]}},
    "gpt2": {"write": write_gpt2, "optimizer": "adamw",
             "job": {"weights": "gpt2/model.safetensors"}},
    "conv3d": {"write": write_conv3d, "optimizer": "gentle_momentum", "job": {"weights": "conv3d", "batch_norm": "train"}},
}


def finetune(name, out):
    case, row, network = read_case(name), CASES[name], NETWORKS[name]
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    file = row["write"](folder, base_weights(name))
    onnx_values = exported_values(name)
    net = generate_torch.build(network)
    state = {k: file[k].to(v.dtype) if k in file else onnx_values.get(k, v) for k, v in net.state_dict().items()}
    net.load_state_dict(state, strict=True)
    for key, p in net.named_parameters():
        p.requires_grad_(not any(key.startswith(f[:-1]) for f in row["job"].get("frozen", [])))
    data = generate_torch.tensors(samples(case))
    opt = generate_torch.optimizer_of(net.train(), generate_torch.OPTIMIZERS[row["optimizer"]])
    losses = []
    for k in range(STEPS):
        batch = batch_of(data, k)
        loss = generate_torch.loss_of(network, generate_torch.first(generate_torch.run(network, net, batch)), batch["label"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(float("%.9g" % loss.item()))
    save_file({k: v.clone().contiguous() for k, v in net.state_dict().items()}, os.path.join(out, name + ".trained.safetensors"))
    with open(os.path.join(out, name + ".json"), "w") as f:
        json.dump({"model": row["job"], "optimizer": row["optimizer"], "losses": losses, "versions": versions("torch")}, f, indent=1)
        f.write("\n")
    print("%s: loss %.6f to %.6f" % (name, losses[0], losses[-1]))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", default=FINETUNE)
    p.add_argument("--load", nargs=2, metavar=("NAME", "FILE"))
    o = p.parse_args()
    torch.set_num_threads(1)
    if o.load:
        net = generate_torch.build(NETWORKS[o.load[0]])
        print(net.load_state_dict(load_file(o.load[1]), strict=True))
        return
    for name in CASES:
        finetune(name, os.path.abspath(o.out))


if __name__ == "__main__":
    main()
