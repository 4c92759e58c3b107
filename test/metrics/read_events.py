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


def summary(data):
    points = {}
    for number, value in fields(data):
        assert number == 1, number
        point = dict(fields(value))
        assert set(point) == {1, 2}, point
        points[point[1].decode()] = struct.unpack("<f", point[2])[0]
    return points


READERS = {
    1: ("wall_time", lambda v: struct.unpack("<d", v)[0]),
    2: ("step", int),
    3: ("file_version", bytes.decode),
    5: ("summary", summary),
    7: ("session_log", lambda v: dict(fields(v))),
}


def event(data):
    return {READERS[n][0]: READERS[n][1](v) for n, v in fields(data)}


def main():
    directory = sys.argv[1]
    for name in sorted(os.listdir(directory)):
        if ".tfevents." not in name:
            raise ValueError("'%s' is no name of an event file" % name)
        with open(os.path.join(directory, name), "rb") as f:
            for data in records(f.read()):
                print(json.dumps(event(data)))


main()
