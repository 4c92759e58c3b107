#!/usr/bin/python3
"""The documentation agrees with the program: job keys and their defaults, commands and options, examples, links, and
the names of files, functions and make targets."""
import copy
import glob
import json
import os
import re
import subprocess
import sys

from kit import GUARD, ROOT, TRAINERCTL, TRAINERD, main, merge, test, workdir

MANUALS = ["README.md", "config/README.md", "config/MODELS.md", "config/GPU.md", "config/OPS.md", "config/kubernetes/README.md",
           "systemd/README.md", "lib/README.md",
           "test/README.md"]
CONDITIONAL = "**required**"  # begins the default of a key that the file must have, perhaps under a condition


def read(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def output(*command):
    p = subprocess.run(command, capture_output=True, text=True, timeout=GUARD)
    return p.stdout + p.stderr


def schema():
    return json.loads(output(TRAINERD, "--schema"))


def job_keys():
    """{dotted name: schema} of every key. Keys of model.more_losses are those of model.loss."""
    found = {}

    def walk(node, name):
        for key, value in node.get("properties", {}).items():
            found[name + key] = value
            walk(value, name + key + ".")
        if isinstance(node.get("additionalProperties"), dict):
            walk(node["additionalProperties"], name + "NAME.")
        for option in node.get("anyOf", []):
            if "properties" in option:  # a number or an object
                walk(option, name)
        if isinstance(node.get("items"), dict) and name != "model.more_losses.":
            walk(node["items"], name[:-1] + "[].")

    walk(schema(), "")
    return found


def is_required(keys, key):
    parent, _, name = key.rpartition(".")
    node = schema() if parent == "" else keys[parent.removesuffix("[]").removesuffix(".NAME")]
    node = node["items"] if parent.endswith("[]") else node["additionalProperties"] if parent.endswith(".NAME") else node
    options = node.get("anyOf", [])
    return name in next((option for option in options if "required" in option), node)["required"]


def rows():
    """[(key, default)] of the tables of keys in config/README.md."""
    tables = re.findall(r"^\| key \| default \| meaning \|\n\|[- |]*\|\n((?:\|.*\n)+)", read("config/README.md"), re.M)
    return re.findall(r"^\| `(\S+)` \| (.*?) \| ", "".join(tables), re.M)


def blocks(path, language):
    return re.findall(r"^```%s\n(.*?)^```$" % language, read(path), re.M | re.S)


@test
def every_job_key_has_one_row_in_its_manual():
    keys, documented = job_keys(), [key for key, _ in rows()]
    twice = {key for key in documented if documented.count(key) > 1}
    assert len(keys) > 140, len(keys)
    assert not keys.keys() - set(documented), "no row: %s" % sorted(keys.keys() - set(documented))
    assert not set(documented) - keys.keys(), "no such key: %s" % sorted(set(documented) - keys.keys())
    assert not twice, "more than one row: %s" % sorted(twice)


@test
def every_documented_default_is_that_of_the_schema():
    keys = job_keys()
    for key, default in rows():
        if "default" in keys[key]:
            assert json.loads(default.strip("`")) == keys[key]["default"], "%s: %s" % (key, default)
        elif is_required(keys, key):
            assert default.startswith(CONDITIONAL), "%s is required, not %s" % (key, default)
        else:
            assert not default.startswith("`") or default.strip("`") in keys, "%s has no fixed default: %s" % (key, default)


@test
def job_key_words_are_in_the_manual():
    manual = read("config/README.md")
    for key, node in job_keys().items():
        for word in node.get("enum", []) + node.get("items", {}).get("enum", []):
            assert re.search(r"[`\"]%s[`\"]" % word, manual), "%s: %s" % (key, word)


@test
def every_example_of_a_job_is_valid():
    import jsonschema
    validator = jsonschema.Draft202012Validator(schema())
    minimal = json.loads(read("config/minimal.json"))
    alternatives = (("data", "mixture", "train"), ("train", "steps", "epochs"))
    examples = blocks("config/README.md", "json")
    assert len(examples) >= 20, len(examples)
    for text in examples:
        example = json.loads(text)
        job = merge(copy.deepcopy(minimal), example)
        for section, given, other in alternatives:
            if given in example.get(section, {}):
                job[section].pop(other)
        errors = [e.message for e in validator.iter_errors(job)]
        assert not errors, "%s\n%s" % (errors[0], text)
    for text in blocks("README.md", "json"):
        validator.validate(json.loads(text))


@test
def python_block_that_makes_arrays_runs_as_it_is():
    found = [text for text in blocks("README.md", "python") if "numpy.save" in text]
    assert len(found) == 1, found
    folder = workdir()
    p = subprocess.run([sys.executable, "-c", found[0]], cwd=folder, capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0 and sorted(os.listdir(folder)) == ["eval-label.npy", "eval-x.npy", "train-label.npy", "train-x.npy"], p


@test
def every_job_file_of_config_is_in_its_manual():
    for path in glob.glob(os.path.join(ROOT, "config", "*.json")) + [os.path.join(ROOT, "config", "digits", "digits.json")]:
        name = os.path.relpath(path, os.path.join(ROOT, "config"))
        assert "(%s)" % name in read("config/README.md") + read("systemd/README.md").replace("../config/", ""), name


@test
def every_command_and_option_is_in_a_manual():
    text = "\n".join(read(path) for path in MANUALS)
    commands = re.findall(r"^  trainerctl (\w+)", output(TRAINERCTL, "--help"), re.M)
    assert len(commands) >= 13, commands
    for command in commands:
        assert re.search(r"trainerctl %s\b" % command, text), command
    for program in [(TRAINERD,)] + [(TRAINERCTL, command) for command in commands]:
        for option in re.findall(r"^  (--[a-z-]+)", output(*program, "--help"), re.M):
            assert option == "--help" or re.search(r"%s\b" % option, text), "%s %s" % (program[-1], option)
    for variable in re.findall(r"TRAINERD_\w+", output(TRAINERD, "--help")):
        assert variable in text, variable


@test
def exit_codes_of_the_manual_are_those_of_explain():
    table = re.findall(r"^\| (\d+) \| (.*?) \| (.*?) \| (.*?) \|$", read("systemd/README.md"), re.M)
    known = re.findall(r"^(\d+): (.*)\n +what to do: +(.*)\n +the supervisor: (.*)$", output(TRAINERCTL, "explain"), re.M)
    known = [tuple(text.replace(ROOT + "/", "") for text in row) for row in known]  # of the source tree of the program
    assert len(known) >= 10 and table == known, set(table) ^ set(known)


@test
def every_name_of_the_api_and_of_the_metrics_is_in_the_manual():
    manual = read("systemd/README.md")
    sources = {path: read(path) for path in ("daemon/status_json.c", "daemon/curve.c", "daemon/report.c", "daemon/sensors.c",
                                             "daemon/status_metrics.c", "lib/metrics/process.c")}
    names = set()
    for path in ("daemon/status_json.c", "daemon/curve.c"):
        names |= set(re.findall(r'\\"(\w+)\\"', sources[path]))
        names |= set(re.findall(r'(?:field|number|told)\(out, "(\w+)"', sources[path]))
    names |= set(re.findall(r'\[\w+\] = "(\w+)"', sources["daemon/curve.c"]))
    assert len(names) > 60, names
    series = set(re.findall(r'"((?:trainerd|process)_\w+)"', "".join(sources.values())))
    assert len(series) > 40, series
    for name in names | series:
        assert re.search(r"`%s[`{]" % name, manual), name


def anchors(path):
    """Returns the anchors that GitHub derives from the headings."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", read(path), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


@test
def manual_states_the_number_of_ops():
    n = len(output(TRAINERCTL, "inspect", "--ops").splitlines())
    assert "%d ops of opsets" % n in read("config/MODELS.md"), n


@test
def every_relative_link_leads_to_a_file_and_heading():
    n = 0
    for path in MANUALS:
        plain = re.sub(r"^```.*?^```$", "", read(path), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", plain):
            if re.match(r"[a-z]+:", target):
                continue
            to, _, anchor = target.partition("#")
            to = os.path.normpath(os.path.join(os.path.dirname(path), to)) if to else path
            assert os.path.exists(os.path.join(ROOT, to)), "%s: %s" % (path, target)
            assert anchor == "" or anchor in anchors(to), "%s: %s has no heading #%s" % (path, to, anchor)
            n += 1
    assert n > 30, n


@test
def every_path_in_the_manuals_exists():
    path_of = re.compile(r"`((?:lib|daemon|test|config|systemd|scripts|proto|\.ci)/[\w./*-]+)`")
    for manual in MANUALS:
        for path in path_of.findall(read(manual)):
            assert "NAME" in path or glob.glob(os.path.join(ROOT, path)), "%s: %s" % (manual, path)


@test
def map_of_the_code_has_the_folders_and_rules_of_scripts_layers():
    rules = {}
    for line in re.search(r"^may_include='\n(.*?)^'", read("scripts/layers"), re.M | re.S).group(1).splitlines():
        folder, *allowed = line.split()
        rules.setdefault(folder, set()).update(allowed)
    table = dict(re.findall(r"^\| `(\w+)/?` \| .* \| (.*?) ?\|$", read("lib/README.md"), re.M))
    for folder in os.listdir(os.path.join(ROOT, "lib")) + ["daemon"]:
        if os.path.isdir(os.path.join(ROOT, "lib", folder)) or folder == "daemon":
            assert folder in table, "lib/README.md has no row for %s" % folder
            expected = {"all"} if "*" in rules[folder] else rules[folder]
            assert set(table[folder].replace(",", "").split()) == expected, (folder, table[folder], expected)


@test
def every_make_target_in_the_manuals_exists():
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.M))
    for manual in MANUALS:
        for target in re.findall(r"(?:`|\$ |; )make ([a-z][a-z-]*)", read(manual)):
            assert target in targets, "%s: make %s" % (manual, target)


@test
def every_function_in_the_manuals_exists():
    code = {}
    for folder in ("lib", "daemon", "test"):
        for base, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                if name.endswith((".c", ".h", ".cu", ".cuh", ".py")):
                    code[os.path.join(base, name)] = read(os.path.join(base, name))
    words = set(re.findall(r"\b[a-z]\w+(?=\()", "\n".join(code.values())))
    for manual in ("lib/README.md", "test/README.md"):
        for function in re.findall(r"`([a-z]\w+)\(\)`", read(manual)):
            assert function in words, "%s: %s()" % (manual, function)


if __name__ == "__main__":
    main()
