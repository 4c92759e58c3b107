#!/usr/bin/python3
"""`trainerctl recipe` prints the scripts of config/recipes, which generate the networks of test/exporters."""
import ast
import contextlib
import glob
import io
import json
import os
import re
import subprocess
import sys
import types

from kit import ROOT, TRAINERCTL, main, test

NAMES = ["huggingface", "jax", "keras", "tensorflow", "torch"]
MAX_LINES = 15


def run(*args):
    return subprocess.run([TRAINERCTL, "recipe", *args], capture_output=True, text=True)


def recipe(name):
    p = run(name)
    assert p.returncode == 0 and p.stderr == "", p
    return p.stdout


@test
def printed_script_is_the_file_of_the_repository():
    files = sorted(os.path.basename(f)[:-3] for f in glob.glob(os.path.join(ROOT, "config", "recipes", "*.py")))
    assert files == NAMES, files
    for name in NAMES:
        with open(os.path.join(ROOT, "config", "recipes", name + ".py")) as f:
            assert recipe(name) == f.read(), name


@test
def script_has_at_most_15_lines_and_compiles():
    for name in NAMES:
        text = recipe(name)
        assert len(text.splitlines()) <= MAX_LINES, "%s has %d lines" % (name, len(text.splitlines()))
        assert max(map(len, text.splitlines())) <= 128, name
        ast.parse(text, name)


@test
def script_states_the_versions_it_was_tested_with():
    """Checks every package that the script imports, except the standard library and dependencies of other packages."""
    package = {"jax": "jax", "keras": "keras", "onnx": "onnx", "tensorflow": "tensorflow", "tf2onnx": "tf2onnx",
               "torch": "torch", "torchvision": "torchvision", "transformers": "transformers", "flax": "flax", "jax2onnx": "jax2onnx"}
    for name in NAMES:
        text = recipe(name)
        first = text.splitlines()[0]
        assert re.match(r"# [^:]+: tested with ([a-z0-9]+ \d+(\.\d+)+( \([a-z]+\))?, )+", first), first
        imported = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imported |= {a.name.split(".")[0] for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
        for module in imported & set(package):
            if name == "tensorflow" and module == "onnx":
                continue  # tf2onnx requires a fixed version
            if name == "jax" and module == "onnx":
                continue  # jax2onnx requires a fixed version
            assert re.search(r"\b%s \d" % package[module], first), "%s: no version of %s in: %s" % (name, module, first)


class Network:
    """What the scripts read of a network: a decoder with a configuration of its own, and a tensor under two names."""

    class Config:
        use_cache = True

    def __init__(self, config=None, children=()):
        self.config, self.children, self.mode = config, children, None
        self.tensor, self.frozen = types.SimpleNamespace(requires_grad=True), types.SimpleNamespace(requires_grad=False)

    def modules(self):
        return [self, *self.children]

    def train(self):
        self.mode = "train"
        return self

    def named_parameters(self):
        return [("a.weight", self.tensor), ("scale", self.frozen)]

    def state_dict(self, keep_vars):
        assert keep_vars
        return {"a.weight": Key(self.tensor), "scale": Key(self.frozen), "b.weight": Key(self.tensor)}


class Key:
    """Compares by identity, as the tensors of PyTorch do in a dictionary."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __hash__(self):
        return id(self.tensor)

    def __eq__(self, other):
        return self.tensor is other.tensor


def run_script(name, net, exported):
    """Runs the script with `net` as its network; returns what it prints as lines of the job."""
    torch = types.ModuleType("torch")
    torch.onnx = types.SimpleNamespace(export=exported)
    for attribute in ("ones", "rand"):
        setattr(torch, attribute, lambda *args, **kwargs: None)
    torch.int64 = torch.float32 = None
    text, n = re.subn(r"^net = .*yours$", "net = _net", recipe(name), flags=re.M)
    assert n == 1, text
    text = re.sub(r"^(import torchvision.*|from transformers import .*)$", "", text, flags=re.M)
    printed, previous = io.StringIO(), sys.modules.get("torch")
    sys.modules["torch"] = torch
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(text, name, "exec"), {"_net": net})
    finally:
        sys.modules.pop("torch")
        if previous is not None:
            sys.modules["torch"] = previous
    return json.loads("{%s}" % ",".join(printed.getvalue().splitlines()))


@test
def scripts_print_frozen_parameters_and_second_names():
    for name in ("torch", "huggingface"):
        lines = run_script(name, Network(), lambda net, *args, **kwargs: None)
        assert lines == {"frozen": ["scale"], "tied": {"a.weight": "b.weight"}}, lines


@test
def huggingface_script_turns_off_the_cache_of_every_configuration():
    net = Network(Network.Config(), [Network(Network.Config()), Network()])

    def exported(module, *args, **kwargs):
        assert module.mode == "train" and [m.config.use_cache for m in net.modules() if m.config] == [False, False]
        net.is_exported = True

    run_script("huggingface", net, exported)
    assert net.is_exported


@test
def scripts_of_files_without_metadata_print_the_trained_parameters():
    """Without the list, a scalar parameter is a constant of the formula."""
    for name in ("jax", "keras", "tensorflow"):
        assert '"trainable":' in recipe(name).splitlines()[-1], name


@test
def manual_shows_the_recipe_for_torch():
    with open(os.path.join(ROOT, "config", "MODELS.md")) as f:
        manual = f.read()
    assert "```python\n" + recipe("torch") + "```\n" in manual


@test
def help_lists_every_recipe_with_its_versions():
    p = run("--help")
    assert p.returncode == 0
    for name in NAMES:
        assert re.search(r"^  %s +.*tested with .*\d$" % name, p.stdout, re.M), p.stdout
    assert run().returncode == 2


@test
def unknown_recipe_is_refused_with_the_nearest_name():
    p = run("tensorflw")
    assert p.returncode == 2 and p.stdout == "" and "did you mean tensorflow?" in p.stderr, p
    assert "--help" in run("caffe").stderr


if __name__ == "__main__":
    main()
