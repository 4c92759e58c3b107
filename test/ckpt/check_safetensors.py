#!/usr/bin/env python3
"""Reads a safetensors file as specified, without a library, and prints a line per tensor:

    name <tab> dtype <tab> shape <tab> SHA-256 of its bytes

in data order. Any violation of the format is an error (exit code 1).
"""
import hashlib
import json
import struct
import sys

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8,
         "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}


def no_duplicates(pairs):
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError("duplicate keys: %s" % names)
    return dict(pairs)


def is_count(x):
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def read(path):
    """Returns [(name, dtype, shape, bytes)] in data order, and the metadata."""
    with open(path, "rb") as f:
        blob = f.read()
    if len(blob) < 8:
        raise ValueError("shorter than its length field")
    (n,) = struct.unpack("<Q", blob[:8])
    if n > 100_000_000 or 8 + n > len(blob):
        raise ValueError("header of %d bytes in a file of %d" % (n, len(blob)))
    text = blob[8:8 + n].decode("utf-8")
    if not text.startswith("{"):
        raise ValueError("the header does not start with {")
    header = json.loads(text.rstrip(" "), object_pairs_hook=no_duplicates)
    metadata = header.pop("__metadata__", {})
    if not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("metadata that is no text")
    data = blob[8 + n:]
    tensors = []
    for name, entry in header.items():
        if set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ValueError("%s: members %s" % (name, sorted(entry)))
        begin, end = entry["data_offsets"]
        size = SIZES[entry["dtype"]]
        for dim in entry["shape"]:
            if not is_count(dim):
                raise ValueError("%s: dimension %r" % (name, dim))
            size *= dim
        if not is_count(begin) or not is_count(end) or end - begin != size or end > len(data):
            raise ValueError("%s: offsets [%r, %r], %d bytes" % (name, begin, end, size))
        tensors.append((begin, end, name, entry))
    tensors.sort(key=lambda t: t[:2])
    at = 0
    for begin, end, name, _ in tensors:
        if begin != at:
            raise ValueError("%s starts at %d, the one before ended at %d" % (name, begin, at))
        at = end
    if at != len(data):
        raise ValueError("the tensors end at %d, the data at %d" % (at, len(data)))
    return [(name, e["dtype"], e["shape"], data[b:end]) for b, end, name, e in tensors], metadata


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        tensors, _ = read(sys.argv[1])
    except (ValueError, KeyError, TypeError, OSError) as e:
        print("%s: %s" % (sys.argv[1], e), file=sys.stderr)
        sys.exit(1)
    for name, dtype, shape, data in tensors:
        print("%s\t%s\t%s\t%s" % (name, dtype, json.dumps(shape), hashlib.sha256(data).hexdigest()))


if __name__ == "__main__":
    main()
