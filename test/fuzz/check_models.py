#!/usr/bin/env python3
"""check_models.py FUZZ_MODELS RUNS SEED: checks that onnx.checker accepts each model that import and a plan accept.

Runs the fuzz program test/fuzz/fuzz_models, which writes each accepted model to a file, and runs onnx.checker on these
files. Prints the models that the checker refuses for a reason that is not in the table below, and then exits with 1."""
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile

import onnx

# The message of the checker (a regular expression), and the reason why such a model is accepted here.
EXCEPTIONS = [
    (r"ir_version.* is higher than the checker's", "the versions of the opsets define the meaning of a model; and the "
                                                   "installed onnx may be older than the model"),
    (r"Unrecognized attribute: (antialias|layout|axes) ", "the installed onnx is older than the op, or the attribute has the "
                                                     "meaning of the later version of the op"),
    (r"No Op registered for", "the installed onnx is older than the op"),
    (r"No opset import for domain", "'' and 'ai.onnx' are one domain; a function is found by its domain and name"),
    (r"No Opset registered for domain|Opset import for domain .*in function op", "an op of a function is looked up in the "
                                                                                  "opset of the model, if both mean the same"),
    (r"Field 'type' of 'attr' is required", "the oldest exporters omit it: the present field defines the type"),
    (r"Field 'name' of 'graph' is required", "nothing depends on the name of a graph"),
    (r"Field 'shape' of 'type' is required", "a tensor of unknown rank: newer checkers accept it"),
    (r"Unrecognized type value case|Field 'type' of 'value_info' is required|Field 'elem_type' of 'type' is required",
     "the types of outputs and inner values follow from the nodes; an input has a type"),
    (r"duplicate keys in metadata_props", "the metadata of the model are not read"),
    (r"in initializer but not in graph input", "a rule of IR 3, in which inputs may override initializers: trainerd has no such inputs"),
    (r"should contain one and only one value field|is 0-element but contains data",
     "a tensor without elements: older checkers require a field, newer checkers reject it"),
    (r"has input size \d+ not in range", "the inputs of the later version of the op are accepted: a Gemm without a bias, axes "
                                         "as an input"),
    (r"Required attribute .* is missing.* OpType: (If|Loop|Scan)", "the node is in a branch that is not executed; nodes are "
                                                                   "inferred when they are planned"),
    (r"Mismatched attribute type in|Unrecognized attribute: \w+ for operator (LeakyRelu|Tanh)$", "an attribute of a function that the call does not set"),
    (r"Graph output '.*' is not an output of any node", "a body may return a value of the enclosing graph"),
    (r"(must be topologically sorted, .* input '.*' of node|used as output names multiple times).* OpType: (If|Loop|Scan)",
     "the graph is in an attribute that a function does not read, in the body of that node"),
    (r"output 0 is marked single but has an empty string", "an output that is not read is computed anyway"),
    (r"not in allowed output sizes", "BatchNormalization with one of its two optional outputs"),
    (r"Field '(name|domain)' of 'function' is required|Field 'op_type' of 'node' is required", "the function is not called"),
]


def reason_to_refuse(data):
    try:
        model = onnx.load_model_from_string(data)
    except Exception as e:
        return "does not parse: %s" % e
    try:
        onnx.checker.check_model(model)
    except Exception as e:
        return str(e)
    return None


def main(program, runs, seed):
    folder = tempfile.mkdtemp(prefix="models-")
    home = os.getcwd()
    subprocess.run([os.path.abspath(program), "-runs=" + runs, "-seed=" + seed, "-accepted=" + folder], check=True,
                   stdout=subprocess.DEVNULL, timeout=900)
    shutil.copy(os.path.join(home, "test/graph/data/mlp_external.bin"), folder)
    os.chdir(folder)  # the checker reads external data relative to the working directory
    known, wrong, files = collections.Counter(), [], [f for f in sorted(os.listdir(folder)) if "." not in f]
    for name in files:
        with open(name, "rb") as f:
            reason = reason_to_refuse(f.read())
        if reason is None:
            continue
        reason = " ".join(reason.split())
        rows = [i for i, (pattern, _) in enumerate(EXCEPTIONS) if re.search(pattern, reason)]
        if rows:
            known[rows[0]] += 1
        else:
            wrong.append("%s/%s: %s" % (folder, name, reason[:400]))
    os.chdir(home)
    print("%d models are accepted, %d of them refused by onnx.checker %s for a known reason"
          % (len(files), sum(known.values()), onnx.__version__))
    for i, n in known.most_common():
        print("  %5d  %s: %s" % (n, EXCEPTIONS[i][0], EXCEPTIONS[i][1]))
    for line in wrong:
        print("accepted, but refused by onnx.checker: " + line)
    if not wrong:
        shutil.rmtree(folder)
    return 1 if wrong or not files else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__.splitlines()[0])
    sys.exit(main(*sys.argv[1:]))
