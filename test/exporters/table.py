#!/usr/bin/env python3
"""Prints the verdict of every network, export and optimizer: table.py [--files FOLDER] [--trainerd PATH] [NAME...]"""
import argparse
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from check import train_and_compare  # noqa: E402
from spec import FILES, HERE, read_case  # noqa: E402


def rows(files, trainerd, names):
    for name in names or sorted(n[:-5] for n in os.listdir(files) if n.endswith(".json")):
        case = read_case(name, files)
        for export in sorted({*case["exports"], *case.get("not_exported", {})}):
            if export in case.get("not_exported", {}):
                yield name, export, "-", "not exported", case["not_exported"][export]
            else:
                for optimizer in case["reference"]:
                    folder = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
                    try:
                        yield (name, export, optimizer, *train_and_compare(trainerd, case, export, optimizer, folder, files=files))
                    finally:
                        shutil.rmtree(folder)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--files", default=FILES)
    p.add_argument("--trainerd", default=os.path.join(HERE, "..", "..", "build", "trainerd"))
    p.add_argument("names", nargs="*")
    o = p.parse_args()
    for row in rows(o.files, o.trainerd, o.names):
        print("%-16s %-18s %-16s %-12s %s" % row, flush=True)


if __name__ == "__main__":
    main()
