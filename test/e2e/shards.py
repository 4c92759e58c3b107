"""shards.py - reads checkpoints as documented, without the project: tables in shard files, or whole tensors.

Row r of table t (its number in the order of the data) is in shard (r / 64 + 389 t) mod 1024; file i of 16 has the rows of
shards 64 i to 64 i + 63, ascending."""
import json
import os
import sys

from kit import ROOT

sys.path.insert(0, os.path.join(ROOT, "test", "ckpt"))
from check_safetensors import read  # noqa: E402

FILES = 16


def names(kind):
    return ["%s-%05d-of-%05d.safetensors" % (kind, i, FILES) for i in range(FILES)]


def file_of(row, table):
    return (row // 64 + 389 * table) % 1024 // 64


def join(parts, number):
    """Returns (shape, bytes) of a table from the (shape, bytes) of its rows in each file."""
    rows = sum(shape[0] for shape, _ in parts)
    size = next(len(data) // shape[0] for shape, data in parts if shape[0])
    at, out = [0] * FILES, []
    for row in range(rows):
        i = file_of(row, number)
        out.append(parts[i][1][at[i]:at[i] + size])
        at[i] += size
    assert at == [len(data) for _, data in parts], (number, at)
    return [rows] + parts[0][0][1:], b"".join(out)


def rows_of(folder, kind):
    """Returns {name: [(shape, bytes) in each file]}, in the order of the data."""
    out = {}
    for i, name in enumerate(names(kind)):
        tensors, metadata = read(os.path.join(folder, name))
        assert metadata["rows"].startswith("row r of table t ") and metadata["format"] == "pt", metadata
        for name, dtype, shape, data in tensors:
            ending = "/rows-%05d-of-%05d" % (i, FILES)
            assert dtype == "F32" and name.endswith(ending), name
            out.setdefault(name[:-len(ending)], []).append((shape, data))
    assert all(len(parts) == FILES for parts in out.values())
    return out


def has_shards(folder):
    return os.path.exists(os.path.join(folder, "model.safetensors.index.json"))


def tensors(folder):
    """Returns ({name: (shape, bytes)} of the weights, the same of the optimizer) of a checkpoint folder."""
    out = []
    tables = list(rows_of(folder, "model")) if has_shards(folder) else []
    for kind in ("model", "optimizer"):
        whole, _ = read(os.path.join(folder, kind + ("-dense" if tables else "") + ".safetensors"))
        found = {name: (shape, data) for name, _, shape, data in whole}
        if tables and os.path.exists(os.path.join(folder, names(kind)[0])):
            for name, parts in rows_of(folder, kind).items():
                table = name if kind == "model" else name.rsplit("/", 1)[0]
                assert name not in found
                found[name] = join(parts, tables.index(table))
        out.append(found)
    if tables:
        check_index(folder)
    return out


def check_index(folder):
    """The index names exactly the tensors of the model files, and the file of each."""
    with open(os.path.join(folder, "model.safetensors.index.json")) as f:
        index = json.load(f)
    found, size = {}, 0
    for file in ["model-dense.safetensors"] + names("model"):
        for name, _, _, data in read(os.path.join(folder, file))[0]:
            assert name not in found, name
            found[name] = file
            size += len(data)
    assert index["weight_map"] == found and index["metadata"] == {"total_size": size}, folder
