"""bench_data.py - the group `data`: reading and decoding samples from a file to a batch, on one core."""
import os
import re
import shutil

import kit
from peers import Unavailable, run_checked
from table import Side

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS = 3
KINDS = (("picture", "3 KiB and a label"), ("tokens", "2 lists of 512"), ("columns", "40 lists of 1"))
SHUFFLED = ((784, 0.4), (3072, 0.6), (150528, 0.9))


def program(name):
    return os.path.join(kit.BUILD, "test", "bench", name)


def protobuf_peer(folder):
    """Builds decode_peer.cc with the parser that protoc generates from example.proto; returns its path."""
    if shutil.which("g++") is None or shutil.which("protoc") is None:
        raise Unavailable("g++ and protoc are not installed: g++, protobuf-compiler, libprotobuf-dev")
    path = os.path.join(folder, "decode_peer")
    if not os.path.exists(path):
        run_checked(["protoc", "-I" + HERE, "--cpp_out=" + folder, os.path.join(HERE, "example.proto")])
        run_checked(["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-I" + HERE, "-I" + folder, "-o", path,
                     os.path.join(HERE, "decode_peer.cc"), os.path.join(folder, "example.pb.cc"),
                     "-lprotobuf", "-lpthread"])
    return path


def nanoseconds(text):
    return {name: float(ns) * 1e-9 for name, ns in re.findall(r"^(\w+) ([\d.]+) ns", text, re.M)}


def decode(table, folder):
    """Both sides read the same files, which bench_decode writes."""
    us = Side("trainerd", lambda: nanoseconds(run_checked([program("bench_decode"), "examples", folder])))
    protobuf = Side("libprotobuf", lambda: nanoseconds(run_checked([protobuf_peer(folder), folder])))
    table.interleave(ROUNDS, us, protobuf)
    for kind, what in KINDS:
        table.faster("Example parsed, " + what, us, protobuf, kind, at_least=5)


def images(table, folder):
    """The program measures both sides in alternation."""
    figures = {}

    def measure():
        text = run_checked([program("bench_decode"), "images", folder])
        figures["ours"], figures["plain"] = (float(us) * 1e-6 for us in
                                             re.search(r"^ours ([\d.]+) us, plain ([\d.]+) us", text, re.M).groups())
        return {None: figures["ours"]}

    us, plain = Side("trainerd", measure), Side("libjpeg and a loop", lambda: {None: figures["plain"]})
    table.interleave(ROUNDS, us, plain)
    table.faster("JPEG, random crop, flip, normalise, 224x224", us, plain, at_least=1.3)


def shuffled(table, folder):
    line = re.compile(r"^records of +(\d+) bytes: bare read and CRC ([\d.]+) GB/s.*shuffled ([\d.]+) ", re.M)

    def measure():
        out = {}
        for n, bare, ours in line.findall(run_checked([program("bench_tfrecord")], env=dict(os.environ, TMPDIR=folder))):
            out["bare loop", int(n)], out["shuffled", int(n)] = float(bare), float(ours)
        return out

    records = Side("bench_tfrecord", measure)
    table.interleave(ROUNDS, records)
    for n, share in SHUFFLED:
        table.share("TFRecord read shuffled, %d bytes" % n, records, ("shuffled", n), ("bare loop", n), share)


def data(table, folder):
    decode(table, folder)
    images(table, folder)
    shuffled(table, folder)
