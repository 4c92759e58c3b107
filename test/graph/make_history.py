#!/usr/bin/env python3
"""make_history.py: writes test/graph/onnx_history.h, the versions of every op of ai.onnx, to standard output.

Run with the release of the `onnx` package whose newest opset the importer knows:
    python3 -m venv /tmp/onnx && /tmp/onnx/bin/pip install onnx==1.23.2
    /tmp/onnx/bin/python test/graph/make_history.py >test/graph/onnx_history.h
"""
from collections import defaultdict

import onnx
import onnx.defs


def attribute(name, a):
    value = onnx.helper.get_attribute_value(a.default_value) if a.default_value.type else None
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, float):
        value = f"{value:.9g}"
    return f"{name}={value}" if value is not None else name


def main():
    history = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            history[schema.name].append(schema)
    print(f"/* onnx_history.h - made by make_history.py with onnx {onnx.__version__}. Do not edit. */")
    print(f"enum {{ HISTORY_NEWEST = {onnx.defs.onnx_opset_version()} }};\n")
    print("static const struct history history[] = {")
    for name in sorted(history):
        print(f'    {{ "{name}", {{')
        for schema in sorted(history[name], key=lambda s: s.since_version):
            attrs = " ".join(attribute(n, a) for n, a in sorted(schema.attributes.items())) + " "
            print(f'        {{ {schema.since_version}, "{attrs if attrs != " " else ""}" }},')
        print("    } },")
    print("};")


if __name__ == "__main__":
    main()
