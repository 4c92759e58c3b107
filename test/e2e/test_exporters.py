#!/usr/bin/python3
"""Networks of current exporters train as in their framework, or are refused with a remedy.

test/exporters/files holds each network as exported by default and by the recipe of config/recipes, with the losses and weights
of the framework; generate_*.py in test/exporters wrote them. Compared are the losses of 50 steps, every weight, the names and
shapes in model.safetensors, and the loss that ONNX Runtime computes with the exported model."""
import os
import sys

from kit import ROOT, TRAINERD, main, test, use_venv, workdir

sys.path.insert(0, os.path.join(ROOT, "test", "exporters"))
use_venv()

from check import train_and_compare  # noqa: E402
from expected import EXPECTED  # noqa: E402
from spec import read_case  # noqa: E402


def check(name, export, remedy):
    """Trains the file. `remedy`: None if training must succeed; else a text that the refusal must contain."""
    case = read_case(name)
    for optimizer in case["reference"]:
        verdict, message = train_and_compare(TRAINERD, case, export, optimizer, workdir())
        if remedy is None:
            assert verdict == "trains", "%s, %s: %s" % (optimizer, verdict, message)
        else:
            assert verdict == "refused" and remedy in message, "%s in place of a refusal with '%s': %s" % (verdict, remedy, message)


def add(name, export, remedy):
    def run():
        check(name, export, remedy)
    run.__name__ = "%s_%s_%s" % (name, export, "trains" if remedy is None else "is_refused_with_a_remedy")
    test(run)


for (network, how), text in sorted(EXPECTED.items()):
    add(network, how, text)

if __name__ == "__main__":
    main()
