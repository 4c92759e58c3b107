#!/usr/bin/env python3
"""Compares newly generated networks with the committed ones, and trains each: shows what changed in the exporters.

    compare.py --new FOLDER [--old FOLDER] [--trainerd PATH]

Prints a line per difference: versions, exports that fail or succeed now, opset and operators, names of initializers, the
framework's own losses, and trainerd's verdict. Exit code 0: every verdict is that of the committed file; 1: one differs.
"""
import argparse
import collections
import os
import shutil
import sys
import tempfile

import onnx

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from check import relative, train_and_compare  # noqa: E402
from expected import EXPECTED  # noqa: E402
from spec import FILES, HERE, read_case, unpack  # noqa: E402


class Form:
    """The properties of a file that this program compares."""

    def __init__(self, case, export, files):
        folder = tempfile.mkdtemp()
        try:
            model = onnx.load(unpack(case, export, folder, files), load_external_data=False)
        finally:
            shutil.rmtree(folder)
        self.opset = {o.domain or "ai.onnx": o.version for o in model.opset_import}
        self.ir = model.ir_version
        self.ops = collections.Counter(n.op_type for g in (model.graph, *model.functions) for n in getattr(g, "node"))
        self.names = {t.name for t in model.graph.initializer}


def few(names):
    names = sorted(names)
    return ", ".join(names[:6]) + (" and %d more" % (len(names) - 6) if len(names) > 6 else "")


def differences(old, new):
    if old.opset != new.opset or old.ir != new.ir:
        yield "opset %s, IR %d; was %s, IR %d" % (new.opset, new.ir, old.opset, old.ir)
    for text, ops in (("new operators", new.ops - old.ops), ("removed operators", old.ops - new.ops)):
        if ops:
            yield "%s: %s" % (text, few("%s x %d" % pair for pair in ops.items()))
    for text, names in (("new initializers", new.names - old.names), ("removed initializers", old.names - new.names)):
        if names:
            yield "%s: %s" % (text, few(names))


def verdict_of(trainerd, case, export, files):
    """The worst verdict over the optimizers."""
    verdicts = []
    for optimizer in case["reference"]:
        folder = tempfile.mkdtemp()
        try:
            verdicts.append(train_and_compare(trainerd, case, export, optimizer, folder, files=files))
        finally:
            shutil.rmtree(folder)
    return max(verdicts, key=lambda v: ["trains", "refused", "failed", "wrong"].index(v[0]))


def compare_case(name, o):
    """Prints the differences of a network; returns the number of verdicts that changed."""
    old, new, changed = read_case(name, o.old), read_case(name, o.new), 0
    for package, version in sorted(new["versions"].items()):
        if old.get("versions", {}).get(package) != version:
            o.packages.add("%s %s, was %s" % (package, version, old.get("versions", {}).get(package)))
    for optimizer, reference in new["reference"].items():
        if optimizer in old["reference"]:
            moved = relative(reference["losses"], old["reference"][optimizer]["losses"])
            if moved > 1e-5:
                print("%s: the framework's own losses (%s) differ by %.1e" % (name, optimizer, moved))
    for export in sorted({*old["exports"], *old.get("not_exported", {}), *new["exports"], *new.get("not_exported", {})}):
        where = "%s %s" % (name, export)
        if export not in new["exports"]:
            if export in old["exports"]:
                print("%s: can no longer be exported: %s" % (where, new.get("not_exported", {}).get(export)))
                changed += 1
            continue
        if export not in old["exports"]:
            print("%s: can be exported now" % where)
        else:
            for line in differences(Form(old, export, o.old), Form(new, export, o.new)):
                print("%s: %s" % (where, line))
        verdict, message = verdict_of(o.trainerd, new, export, o.new)
        if (name, export) in EXPECTED:
            remedy = EXPECTED[name, export]
            good = verdict == "trains" if remedy is None else verdict == "refused" and remedy in message
            wanted = "trains" if remedy is None else "refused: ... %s ..." % remedy
        else:  # not part of the test: the committed file is trained now
            wanted = verdict_of(o.trainerd, old, export, o.old)[0] if export in old["exports"] else "trains"
            good = verdict == wanted
        if not good:
            changed += 1
            print("%s: VERDICT %s: %s; expected: %s" % (where, verdict, message[:400], wanted))
    return changed


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--new", required=True)
    p.add_argument("--old", default=FILES)
    p.add_argument("--trainerd", default=os.path.join(HERE, "..", "..", "build", "trainerd"))
    o = p.parse_args()
    o.packages = set()
    here, there = ({n[:-5] for n in os.listdir(f) if n.endswith(".json")} for f in (o.new, o.old))
    changed = 0
    for name in sorted(here & there):
        changed += compare_case(name, o)
    for name in sorted(here - there):
        print("%s: not among the committed networks" % name)
    for line in sorted(o.packages):
        print("version: %s" % line)
    print("%d networks compared, %d verdicts changed" % (len(here & there), changed))
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
