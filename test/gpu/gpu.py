"""gpu.py - runs all tests and benchmarks that need a real GPU, with one command.

    scripts/gpu [--out DIR] [--seconds N] [--from PACK] [--emulated] [PART...]    default: check sanitize train bench

    pack      needs nvcc, but no GPU: builds everything and writes DIR/trainerd-gpu.tar.xz (less than 60 MiB). The archive
              runs on a Linux machine of the same processor architecture with the driver, CUDA's libraries and python3,
              either unpacked or with --from
    check     every test of an op, of optimizers and of replicas, on the GPU; in a source tree with nvcc it builds first
    sanitize  some of these tests under compute-sanitizer: memory errors, data races
    train     digits in every precision, after a kill and a restart, from CPU to GPU and back, two processes on one GPU
    bench     scripts/bench gpu: kernels compared with copies and products, ResNet-50 and GPT-2 with PyTorch, losses with PyTorch's

cuBLASLt, cuDNN and NCCL may come from Python packages (nvidia-*). DIR (default build/gpu) receives the full log of each
part in its own file; the last output is a table. --seconds limits all parts together (1500); a part that is not finished
by then has failed. A part may be restricted to some of its tests:
check:softmax,test_loss train:run_repeated_is_bitwise_equal bench:kernels:Relu.
--emulated uses the emulated GPU of test/cuda; `pack --emulated` packs the emulator.
Exit code 0: all parts passed (a missed target of bench is not a failure); 1: a part failed; 2: there is no GPU."""
import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

sys.dont_write_bytecode = True

import check  # noqa: E402
import libraries  # noqa: E402
import pack  # noqa: E402
from place import ROOT, Place, terminate  # noqa: E402

SHARE = {"check": 0.4, "sanitize": 0.4, "train": 0.6, "bench": 1.0}  # maximum share of the remaining time


# ---- parts: each returns (passed, summary, lines about the failures) ----

def run_check(place, deadline, log, words):
    return check.check(place, deadline, log, words)


def run_sanitize(place, deadline, log, words):
    return check.sanitize(place, deadline, log, words)


def run_script(cmd, env, deadline, log, show):
    """Runs a command with its output in `log`. Returns its exit code (None: the deadline ended it) and its lines."""
    p = subprocess.Popen(cmd, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    code = None
    try:
        code = p.wait(max(1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        if p.poll() is None:
            terminate(p)
    with open(log.name, errors="replace") as f:
        lines = f.read().splitlines()
    if show:
        print("\n".join(lines), flush=True)
    return code, lines


def run_train(place, deadline, log, words):
    cmd = [sys.executable, os.path.join(ROOT, "test", "gpu", "train.py")] + (["--emulated"] if place.emulated else []) + words
    code, lines = run_script(cmd, place.env(), deadline, log, False)
    bad = [line for line in lines if line.startswith("not ok - ")]
    good = sum(line.startswith("ok - ") for line in lines)
    for line in lines:
        if line.startswith(("ok - ", "not ok - ")):
            print(line[:160], flush=True)
    return (code == 0, "%d passed, %d failed%s" % (good, len(bad), "" if code is not None else ", ended by the time limit"),
            bad or (lines[-3:] if code else []))


def run_bench(place, deadline, log, words):
    left = int(deadline - time.monotonic())
    cmd = [os.path.join(ROOT, "scripts", "bench"), "gpu", "--seconds", str(left - 20)]
    code, lines = run_script(cmd + (["--emulated"] if place.emulated else []) + words, place.env(), deadline, log, True)
    if code == 2 and "neither python3" in "\n".join(lines):  # the kernels can run without PyTorch
        cmd = [place.program("test/ops/ops"), "speed", "--device", "cuda"] + (["--quick"] if place.emulated else [])
        cmd += [row for word in words if word.startswith("kernels:") for row in word.split(":")[1:]]
        code, lines = run_script(cmd, place.env(), deadline, log, True)
        return code == 0, "kernels alone: there is no Python with torch, onnx and numpy", [
            line for line in lines if " ERROR: " in line]
    return code == 0, lines[-1] if lines else "no output", [] if code == 0 else ["exit code %s" % code] + [
        line for line in lines if "cannot run" in line or "not begun" in line]


PARTS = {"check": run_check, "sanitize": run_sanitize, "train": run_train, "bench": run_bench}


# ---- the machine ----

def require_gpu(place, where):
    p = subprocess.run([place.trainerd(), "--check", "--devices", "cuda"], env=place.env(), stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=120)
    if p.returncode != 0:
        print("gpu: no usable GPU: %s\nlibraries: %s" % (" ".join(p.stderr.split()), libraries.text(where)))
        sys.exit(2)
    found = json.loads(p.stdout)
    print("%s; kernels %s; NCCL %s" % (", ".join("%s %s, compute capability %s" % (
        d["name"], d["gpu"], d["compute_capability"]) for d in found["devices"]), found["kernels"], found["nccl"]))
    if where:
        print("libraries: %s" % libraries.text(where))


def run_packed(options):
    """Unpacks the archive, runs the parts with its copy of this run_script, and returns the exit code."""
    folder = tempfile.mkdtemp(prefix="trainerd-gpu-")
    try:
        with tarfile.open(options.source) as archive:  # the tar command would need the xz program
            archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        cmd = [os.path.join(folder, pack.NAME, "scripts", "gpu"), "--out", options.out, "--seconds", str(options.seconds)]
        cmd += ["--emulated"] if options.emulated else []
        p = subprocess.Popen(cmd + options.parts, stdin=subprocess.DEVNULL)
        try:
            return p.wait()
        finally:
            if p.poll() is None:
                terminate(p)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "gpu"))
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument("--from", dest="source")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    options.out = os.path.abspath(options.out)
    for name in [part.split(":")[0] for part in options.parts]:
        if name != "pack" and name not in PARTS:
            parser.exit(2, "gpu: unknown part '%s'; expected one of: pack %s\n" % (name, " ".join(PARTS)))
    return options


def run_parts(place, options, until):
    rows = []
    for part in options.parts or PARTS:
        name, _, words = part.partition(":")
        begin = time.monotonic()
        deadline = begin + (until - begin) * SHARE[name]
        print("-- %s, at most %d s" % (name, deadline - begin), flush=True)
        with open(os.path.join(options.out, name + ".log"), "w") as log:
            try:
                well, text, more = PARTS[name](place, deadline, log, words.split(",") if words else [])
            except (pack.PackError, OSError, subprocess.SubprocessError) as e:
                well, text, more = False, "could not run", str(e).splitlines()[-12:]
        rows.append((name, well, text, more, time.monotonic() - begin))
    return rows


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs(options.out, exist_ok=True)
    until = time.monotonic() + options.seconds
    if options.source is not None:
        return run_packed(options)
    place = Place(options.emulated)
    if options.parts == ["pack"]:
        with open(os.path.join(options.out, "pack.log"), "w") as log:
            try:
                print(pack.pack(place, options.out, log)[1])
            except pack.PackError as e:
                sys.exit("gpu: pack: %s" % e)
        return 0
    where = {} if place.emulated else libraries.add_to_library_path()
    if not place.is_packed and (place.emulated or shutil.which("nvcc")):
        with open(os.path.join(options.out, "build.log"), "w") as log:
            try:
                pack.build(place, log)
            except pack.PackError as e:
                sys.exit("gpu: build: %s" % e)
    require_gpu(place, where)
    rows = run_parts(place, options, until)
    print("\n%-9s %-7s %7s  %s" % ("part", "", "seconds", "what"))
    for name, well, text, more, seconds in rows:
        print("%-9s %-7s %7.0f  %s" % (name, "ok" if well else "FAILED", seconds, text))
        for line in more[:24]:
            print("    " + line[:300])
    print("logs: %s" % options.out)
    return 0 if all(row[1] for row in rows) else 1


sys.exit(main())
