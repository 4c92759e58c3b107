"""pack.py - writes an archive for scripts/gpu on another machine: programs, plugin, the libraries they need, scripts.

The other machine must have the driver, CUDA's libraries and python3; for `bench` also PyTorch and ONNX. The libraries in
the archive are those that the loader finds on this machine, except the C and C++ runtime and the libraries of CUDA.
All binaries are stripped."""
import os
import re
import shutil
import subprocess
import tempfile

from place import ROOT, Place

NAME = "trainerd-gpu"
MAX_BYTES = 60 << 20
# Libraries that every Linux with CUDA provides. The archive must not replace their versions.
SYSTEM_LIBRARIES = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s)|"
                           r"lib(cuda|cudart|cublas|cublasLt|cudnn.*|nccl|nvrtc.*|nvidia-ml))\.so.*")
SCRIPTS = ("scripts/gpu", "scripts/bench", "test/gpu", "test/bench", "test/data/tfrecord.py", "test/e2e/kit.py",
           "config/digits")

START_SCRIPT = """#!/bin/sh
# Runs the program of the same name in real/ with the libraries of this archive.
build=$(cd "$(dirname "$0")/%s" && pwd) || exit 1
LD_LIBRARY_PATH="$build/lib:$build/real${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$build/real/%s" "$@"
"""


class PackError(Exception):
    pass


def run(cmd, **more):
    p = subprocess.run(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if p.returncode != 0:
        raise PackError("%s: exit code %d:\n%s" % (" ".join(cmd[:4]), p.returncode, p.stdout[-2000:]))
    return p.stdout


def make(place, goals, log):
    """Runs make. `goals`: files with their path from ROOT, or targets of the Makefile."""
    cmd = ["make", "BUILD=" + os.path.relpath(place.build, ROOT)] + (["CUDA="] if place.emulated else []) + goals
    log.write(run(cmd, cwd=ROOT))


def build(place, log):
    """Builds everything that the other parts run. Returns the names of the programs."""
    if not place.emulated and shutil.which("nvcc") is None:
        raise PackError("nvcc not found: the plugin cannot be built; install CUDA 13 or add its bin/ to the PATH")
    programs = place.tests() + ["test/ops/ops"]
    files = [os.path.relpath(place.program(p), ROOT) for p in programs]
    if place.emulated:
        files += [os.path.relpath(os.path.join(place.build, "emulated", f), ROOT) for f in ("trainerd", "trainerd-cuda.so")]
    make(place, ["all"] + files, log)
    return ["trainerd", "trainerctl"] + programs


def needed_libraries(programs):
    """Returns {name: path} of the libraries that the programs need, as the loader of this machine finds them."""
    out = {}
    for path in programs:
        for line in run(["ldd", path]).splitlines():
            m = re.match(r"\s+(\S+) => (\S+) \(", line)
            if m and not SYSTEM_LIBRARIES.fullmatch(m.group(1)):
                out[m.group(1)] = m.group(2)
            elif "not found" in line and not SYSTEM_LIBRARIES.fullmatch(line.split()[0]):
                raise PackError("%s: library not found: %s" % (path, line.strip()))
    return out


def copy_stripped(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    run(["strip", "--strip-unneeded", "-o", target, os.path.realpath(source)])


def copy_program(place, name, folder):
    copy_stripped(place.program(name), os.path.join(folder, "real", name))
    start_script = os.path.join(folder, name)
    os.makedirs(os.path.dirname(start_script), exist_ok=True)
    with open(start_script, "w") as f:
        f.write(START_SCRIPT % ("/".join([".."] * name.count("/")) or ".", name))
    os.chmod(start_script, 0o755)


def copy_scripts(folder):
    wanted = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *SCRIPTS], cwd=ROOT).split("\n")
    for name in filter(None, wanted):
        target = os.path.join(folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.exists(os.path.join(ROOT, name)):  # git also lists a file whose deletion is not committed
            shutil.copy2(os.path.join(ROOT, name), target)


def pack(place, folder, log):
    """Writes the archive into `folder`. Returns its path and a summary."""
    programs = build(place, log)
    archive = os.path.join(folder, NAME + ".tar.xz")
    with tempfile.TemporaryDirectory() as d:
        top = os.path.join(d, NAME)
        target = os.path.join(top, "build")
        for name in programs:
            copy_program(place, name, target)
        plugin = os.path.join(place.plugins, "trainerd-cuda.so")
        copy_stripped(plugin, os.path.join(target, "real", "trainerd-cuda.so"))
        for name, path in needed_libraries([place.program(p) for p in programs] + [plugin]).items():
            copy_stripped(path, os.path.join(target, "lib", name))
        copy_scripts(top)
        run(["tar", "-I", "xz -T0 --lzma2=preset=1,dict=64MiB", "--owner=0", "--group=0", "-cf", archive, "-C", d, NAME])
    size = os.path.getsize(archive)
    if size > MAX_BYTES:
        raise PackError("%s has %.1f MiB; expected at most %d" % (archive, size / (1 << 20), MAX_BYTES >> 20))
    return archive, "%s: %.1f MiB, %d programs" % (archive, size / (1 << 20), len(programs))
