#!/usr/bin/env python3
"""Reads TensorBoard event files without a library, as an independent implementation of the public
format (TFRecord frames, protocol buffer wire format, tensorflow.Event).

    read_events.py DIRECTORY    prints a JSON object per event of every event file, files by name

Exits with an error if a checksum, a length or a field violates the format.
"""
import json
import os
import struct
import sys

POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def check(data, crc):
    value = crc32c(data)
    masked = (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    if masked != crc:
        raise ValueError("checksum %08x, expected %08x" % (crc, masked))


def records(blob):
    at = 0
    while at < len(blob):
        length, crc = struct.unpack_from("<QI", blob, at)
        check(blob[at:at + 8], crc)
        data = blob[at + 12:at + 12 + length]
        (crc,) = struct.unpack_from("<I", blob, at + 12 + length)
        check(data, crc)
        yield data
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) in order: int for varints, bytes for the rest."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        else:
            n = {1: 8, 5: 4}.get(wire)
            if n is None and wire != 2:
                raise ValueError("wire type %d" % wire)
            if n is None:
                n, at = varint(data, at)
            if at + n > len(data):
                raise ValueError("a field of %d bytes in a message of %d" % (n, len(data)))
            value, at = data[at:at + n], at + n
        yield key >> 3, value


def every(data, number):
    """The values of a repeated field."""
    return [value for n, value in fields(data) if n == number]


def hparam_value(data):
    (kind, value), = fields(data)  # google.protobuf.Value
    return {2: lambda: struct.unpack("<d", value)[0], 3: lambda: value.decode(), 4: lambda: bool(value)}[kind]()


def entries(data, number, read):
    """A map: key 1, value 2; absent means the default of the type, which no key of ours has."""
    out = {}
    for entry in every(data, number):
        entry = dict(fields(entry))
        key = entry[1].decode()
        assert key not in out, key
        out[key] = read(entry[2])
    return out


def experiment(data):
    single = dict(fields(data))
    types = {1: "string", 2: "bool", 3: "number"}
    columns = [dict(fields(i)) for i in every(data, 4)]
    metrics = [dict(fields(i)) for i in every(data, 5)]
    assert set(single) <= {3, 4, 5, 6}, single
    return {"name": single[6].decode(), "time": struct.unpack("<d", single[3])[0],
            "hparams": {c[1].decode(): types[c[4]] for c in columns},
            "metrics": [[dict(fields(m[1]))[2].decode(), {1: "training", 2: "validation"}[m[5]]] for m in metrics]}


def session_start(data):
    single = dict(fields(data))
    assert set(single) <= {1, 5}, single
    return {"time": struct.unpack("<d", single[5])[0], "hparams": entries(data, 1, hparam_value)}


def hparams(tag, point):
    """A summary of the plugin hparams: the content is in the metadata, and the tensor is empty."""
    plugin = dict(fields(dict(fields(point[9]))[1]))
    content = dict(fields(plugin[2]))
    assert plugin[1] == b"hparams" and point[8] == b"\x08\x01\x12\x02\x12\x00", (plugin[1], point[8])
    (number, value), = content.items()  # the version is 0
    return {"_hparams_/experiment": {2: experiment}, "_hparams_/session_start_info": {3: session_start}}[tag][number](value)


def summary(data):
    points = {}
    for number, value in fields(data):
        assert number == 1, number
        point = dict(fields(value))
        tag = point[1].decode()
        if 9 in point:
            assert set(point) == {1, 8, 9}, point
            points[tag] = hparams(tag, point)
        else:
            assert set(point) == {1, 2}, point
            points[tag] = struct.unpack("<f", point[2])[0]
    return points


def shape(data):
    sizes = [dict(fields(d)).get(1, 0) for d in every(data, 2)]
    return [s - (1 << 64) if s >> 63 else s for s in sizes]


def attribute(data):
    (kind, value), = fields(data)
    if kind == 2:
        return value.decode()
    assert kind == 1, kind
    return [shape(s) for s in every(value, 7)]


def node(data):
    single = dict(fields(data))
    assert set(single) <= {1, 2, 3, 5}, single
    return {"name": single[1].decode(), "op": single[2].decode(), "inputs": [i.decode() for i in every(data, 3)],
            **entries(data, 5, attribute)}


def graph(data):
    assert dict(fields(data))[4] == b"\x08\x16"  # versions: producer 22
    return [node(n) for n in every(data, 1)]


READERS = {
    1: ("wall_time", lambda v: struct.unpack("<d", v)[0]),
    2: ("step", int),
    3: ("file_version", bytes.decode),
    4: ("graph", graph),
    5: ("summary", summary),
    7: ("session_log", lambda v: dict(fields(v))),
}


def event(data):
    return {READERS[n][0]: READERS[n][1](v) for n, v in fields(data)}


def main():
    directory = sys.argv[1]
    for name in sorted(os.listdir(directory)):
        if os.path.isdir(os.path.join(directory, name)):  # of another run
            continue
        if ".tfevents." not in name:
            raise ValueError("'%s' is no name of an event file" % name)
        with open(os.path.join(directory, name), "rb") as f:
            for data in records(f.read()):
                print(json.dumps(event(data)))


main()
