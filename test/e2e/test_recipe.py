#!/usr/bin/python3
"""`trainerctl recipe` prints the scripts of config/recipes, which generate the networks of test/exporters."""
import ast
import glob
import os
import re
import subprocess

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
