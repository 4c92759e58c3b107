"""pack.py - an archive of all that a machine with a GPU needs to check, train and time: programs, the plugin, the
libraries they need, the scripts. There the driver, CUDA's libraries and python3 are; for `bench` PyTorch and ONNX.

The libraries are those that the loader names here, without the C and C++ runtime and CUDA's. Everything is
stripped."""
import os
import re
import shutil
import subprocess
import tempfile

from place import ROOT, Place

NAME = "trainerd-gpu"
MOST_BYTES = 60 << 20
# What every Linux with CUDA's libraries has, in a version of its own that must not be replaced.
OF_THE_SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s)|"
                           r"lib(cuda|cudart|cublas|cublasLt|cudnn.*|nccl|nvrtc.*|nvidia-ml))\.so.*")
SCRIPTS = ("scripts/gpu", "scripts/bench", "test/gpu", "test/bench", "test/data/tfrecord.py", "test/e2e/kit.py",
           "config/digits")

STARTER = """#!/bin/sh
# The program of the same name in real/, with the libraries that came along.
build=$(cd "$(dirname "$0")/%s" && pwd) || exit 1
LD_LIBRARY_PATH="$build/lib:$build/real${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$build/real/%s" "$@"
"""


class Trouble(Exception):
    pass


def run(cmd, **more):
    p = subprocess.run(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if p.returncode != 0:
        raise Trouble("%s: exit code %d:\n%s" % (" ".join(cmd[:4]), p.returncode, p.stdout[-2000:]))
    return p.stdout


def make(place, goals, log):
    """`goals`: relative to the build directory, or words of the Makefile."""
    cmd = ["make", "BUILD=" + os.path.relpath(place.build, ROOT)] + (["CUDA="] if place.emulated else []) + goals
    log.write(run(cmd, cwd=ROOT))


def build(place, log):
    """All that the other parts run."""
    if not place.emulated and shutil.which("nvcc") is None:
        raise Trouble("nvcc is not here: the plugin cannot be built (install CUDA 13, or put its bin/ on the PATH)")
    programs = place.tests() + ["test/bench/bench_gpu_kernels"]
    files = [os.path.relpath(place.program(p), ROOT) for p in programs]
    if place.emulated:
        files += [os.path.relpath(os.path.join(place.build, "emulated", f), ROOT) for f in ("trainerd", "trainerd-cuda.so")]
    make(place, ["all"] + files, log)
    return ["trainerd", "trainerctl"] + programs


def needed(programs):
    """{name: path} of the libraries, as the loader finds them here."""
    out = {}
    for path in programs:
        for line in run(["ldd", path]).splitlines():
            m = re.match(r"\s+(\S+) => (\S+) \(", line)
            if m and not OF_THE_SYSTEM.fullmatch(m.group(1)):
                out[m.group(1)] = m.group(2)
            elif "not found" in line and not OF_THE_SYSTEM.fullmatch(line.split()[0]):
                raise Trouble("%s needs %s, which is not here either" % (path, line.strip()))
    return out


def put(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    run(["strip", "--strip-unneeded", "-o", target, os.path.realpath(source)])


def put_program(place, name, folder):
    put(place.program(name), os.path.join(folder, "real", name))
    starter = os.path.join(folder, name)
    os.makedirs(os.path.dirname(starter), exist_ok=True)
    with open(starter, "w") as f:
        f.write(STARTER % ("/".join([".."] * name.count("/")) or ".", name))
    os.chmod(starter, 0o755)


def put_scripts(folder):
    wanted = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *SCRIPTS], cwd=ROOT).split("\n")
    for name in filter(None, wanted):
        target = os.path.join(folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.exists(os.path.join(ROOT, name)):  # else it was deleted, but not committed yet
            shutil.copy2(os.path.join(ROOT, name), target)


def pack(place, folder, log):
    """The path of the archive, in `folder`."""
    programs = build(place, log)
    archive = os.path.join(folder, NAME + ".tar.xz")
    with tempfile.TemporaryDirectory() as d:
        top = os.path.join(d, NAME)
        target = os.path.join(top, "build")
        for name in programs:
            put_program(place, name, target)
        plugin = os.path.join(place.plugins, "trainerd-cuda.so")
        put(plugin, os.path.join(target, "real", "trainerd-cuda.so"))
        for name, path in needed([place.program(p) for p in programs] + [plugin]).items():
            put(path, os.path.join(target, "lib", name))
        put_scripts(top)
        run(["tar", "-I", "xz -T0 --lzma2=preset=1,dict=64MiB", "--owner=0", "--group=0", "-cf", archive, "-C", d, NAME])
    size = os.path.getsize(archive)
    if size > MOST_BYTES:
        raise Trouble("%s has %.1f MiB, more than %d" % (archive, size / (1 << 20), MOST_BYTES >> 20))
    return archive, "%s: %.1f MiB, %d programs" % (archive, size / (1 << 20), len(programs))
