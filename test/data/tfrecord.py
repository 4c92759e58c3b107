#!/usr/bin/env python3
"""Writes and reads TFRecord files of tf.train.Example without a library, as an independent
implementation of the specified formats.

    tfrecord.py read FILE...    prints a JSON object per record: {feature: [kind, values]}
    tfrecord.py fixture         prints test/data/fixture.h

As a module: write(path, examples), read(path), with an example a dict {name: (kind, values)}, kind
"bytes" (list of bytes), "float" or "int64".
"""
import json
import struct
import sys

POLYNOMIAL = 0x82F63B78
TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = (_byte >> 1) ^ (POLYNOMIAL if _byte & 1 else 0)
    TABLE.append(_byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data):
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked(head)) + data + struct.pack("<I", masked(data))


def frames(blob):
    at = 0
    while at < len(blob):
        head = blob[at:at + 8]
        (n,) = struct.unpack("<Q", head)
        (crc,) = struct.unpack("<I", blob[at + 8:at + 12])
        if crc != masked(head):
            raise ValueError("bad length checksum at %d" % at)
        data = blob[at + 12:at + 12 + n]
        (crc,) = struct.unpack("<I", blob[at + 12 + n:at + 16 + n])
        if len(data) != n or crc != masked(data):
            raise ValueError("bad data checksum at %d" % at)
        yield data
        at += 16 + n


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def member(number, body):
    return varint(number << 3 | 2) + varint(len(body)) + body


KINDS = {"bytes": 1, "float": 2, "int64": 3}


def feature(kind, values, packed=True):
    if kind == "bytes":
        body = b"".join(member(1, value) for value in values)
    elif kind == "float":
        parts = [struct.pack("<f", value) for value in values]
        body = member(1, b"".join(parts)) if packed else b"".join(b"\x0d" + p for p in parts)
    else:
        parts = [varint(value) for value in values]
        body = member(1, b"".join(parts)) if packed else b"".join(b"\x08" + p for p in parts)
    return member(KINDS[kind], body)


def example(features, packed=True):
    entries = b""
    for name, (kind, values) in features.items():
        entry = member(1, name.encode()) + member(2, feature(kind, values, packed))
        entries += member(1, entry)
    return member(1, entries)


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & ((1 << 64) - 1), at


def members(data):
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value, at = read_varint(data, at)
        else:
            n = {1: 8, 5: 4}.get(tag & 7)
            if n is None:
                n, at = read_varint(data, at)
            value = data[at:at + n]
            at += n
        yield tag >> 3, tag & 7, value


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def values_of(kind, body):
    out = []
    for number, wire, value in members(body):
        if number != 1:
            continue
        if kind == "bytes":
            out.append(value)
        elif kind == "float":
            out.extend(x for (x,) in struct.iter_unpack("<f", value))
        elif wire == 0:
            out.append(signed(value))
        else:
            at = 0
            while at < len(value):
                x, at = read_varint(value, at)
                out.append(signed(x))
    return out


def parse(data):
    out = {}
    for number, _, features in members(data):
        for number, _, entry in members(features):
            parts = {n: v for n, _, v in members(entry)}
            name = parts.get(1, b"").decode()
            out[name] = ("none", [])
            for number, _, body in members(parts.get(2, b"")):
                kind = {v: k for k, v in KINDS.items()}[number]
                out[name] = (kind, values_of(kind, body))
    return out


def write(path, examples):
    with open(path, "wb") as f:
        for one in examples:
            f.write(frame(example(one)))


def read(path):
    with open(path, "rb") as f:
        return [parse(data) for data in frames(f.read())]


def fixture_examples():
    for i in range(3):
        yield {
            "image": ("bytes", [bytes((i * 50 + k * 7) & 255 for k in range(12))]),
            "weight": ("float", [i + 0.5, -2.0 * i, 1e-3]),
            "label": ("int64", [i - 1]),
            "token": ("int64", [1, 127, 128, -(1 << 63), (1 << 63) - 1]),
        }


def print_array(name, data):
    print("static const uint8_t %s[%d] = {" % (name, len(data)))
    for at in range(0, len(data), 16):
        print("    " + " ".join("0x%02x," % b for b in data[at:at + 16]))
    print("};\n")


def main():
    if sys.argv[1:2] == ["read"]:
        for path in sys.argv[2:]:
            for one in read(path):
                print(json.dumps({
                    k: [kind, [v.hex() if kind == "bytes" else v for v in values]]
                    for k, (kind, values) in one.items()
                }))
    elif sys.argv[1:] == ["fixture"]:
        print("/* fixture.h - printed by test/data/tfrecord.py fixture: three records, image (12 "
              "bytes),")
        print(" * weight (3 floats), label and token (1 and 5 int64), packed and not packed. */")
        print("#include <stdint.h>\n")
        packed = b"".join(frame(example(one)) for one in fixture_examples())
        loose = b"".join(frame(example(one, False)) for one in fixture_examples())
        print_array("fixture_packed", packed)
        print_array("fixture_loose", loose)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
