#!/usr/bin/env python3
"""make_cases.py OUT VERSION=FOLDER...: packs the node tests of several releases of ONNX into one archive.

FOLDER holds one folder per case, as the `onnx` package ships them in backend/test/data/node: model.onnx
and test_data_set_0 with input_<i>.pb and output_<i>.pb. A case whose bytes are equal in several releases
is stored once, under the newest of them. test/harness/onnx_case.h describes the format of the archive.
The program needs only the standard library.
  --only FILE      keep only the cases whose names are lines of FILE
  --choose FILE    keep only the smallest passing case for each op, opset and list of types; FILE is the
                   output of run_cases. test/conformance/cases.gz, which `make test` runs, was made with it
"""
import argparse
import gzip
import hashlib
import re
import struct
from pathlib import Path


def numbered(folder, kind):
    files = [(int(re.search(r"_(\d+)\.pb$", f.name).group(1)), f) for f in folder.glob(kind + "_*.pb")]
    return [f.read_bytes() for _, f in sorted(files)]


def record(name, model, inputs, outputs):
    text = name.encode()
    parts = [struct.pack("<3I", len(text), len(inputs), len(outputs)), text]
    for blob in [model, *inputs, *outputs]:
        parts += [struct.pack("<I", len(blob)), blob]
    return b"".join(parts)


def cases(releases):
    seen = set()
    for release in reversed(releases):
        version, folder = release.split("=", 1)
        for case in sorted(Path(folder).iterdir()):
            model = case / "model.onnx"
            data = case / "test_data_set_0"
            if not model.exists() or not data.exists():
                continue
            content = record("", model.read_bytes(), numbered(data, "input"), numbered(data, "output"))
            digest = hashlib.sha256(content).digest()
            if digest in seen:
                continue
            seen.add(digest)
            name = f"{version}/{case.name}"
            yield name, record(name, model.read_bytes(), numbered(data, "input"), numbered(data, "output"))


def choose(results, releases):
    """Returns the names of the smallest passing case of at most 4 KiB for each op, opset and list of types."""
    sizes = {name: len(content) for name, content in cases(releases)}
    best = {}
    for line in Path(results).read_text().splitlines():
        name, verdict, opset, ops, types, _ = line.split("\t")
        if verdict != "pass" or sizes.get(name, 1 << 30) > 4096:
            continue
        key = (ops if "expanded" not in name else "", opset, types if "cast" not in name else "")
        if key not in best or sizes[name] < sizes[best[key]]:
            best[key] = name
    return set(best.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("releases", nargs="+", metavar="VERSION=FOLDER")
    parser.add_argument("--choose")
    parser.add_argument("--only")
    args = parser.parse_args()
    only = set(Path(args.only).read_text().split()) if args.only else None
    if args.choose:
        only = choose(args.choose, args.releases)
    with open(args.out, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0,
                                                     compresslevel=9 if only else 1) as out:
        for name, content in cases(args.releases):
            if only is None or name in only:
                out.write(content)


if __name__ == "__main__":
    main()
