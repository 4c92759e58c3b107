#!/usr/bin/python3
"""Runs a short version of each part of scripts/gpu, which is for machines with a GPU, on the emulated GPU."""
# needs: emulated
import os
import re
import subprocess
import sys

import kit
from kit import BUILD, GUARD, ROOT, main, test, workdir

sys.path.insert(1, os.path.join(ROOT, "test", "gpu"))
import pack  # noqa: E402


def script(*args, **env):
    out = workdir()
    p = subprocess.run([os.path.join(ROOT, "scripts", "gpu"), "--emulated", "--out", out, *args], capture_output=True,
                       text=True, timeout=10 * GUARD, env=dict(os.environ, **env))
    return p.returncode, p.stdout + p.stderr, out


@test
def gpu_script_checks_trains_and_measures():
    code, said, out = script("check:test_softmax", "train:checkpoint_of_cpu_continues_on_gpu_and_back",
                             "bench:kernels:momentum")
    assert code == 0, said
    for name, words in (("check", "1 programs, .* passed, 0 failed"), ("train", "1 passed, 0 failed"), ("bench", "")):
        assert re.search("^%s +ok +.*%s" % (name, words), said, re.M), said
        assert os.path.getsize(os.path.join(out, name + ".log")) > 0
    assert re.search(r"^momentum +update .*GB/s.* copy", said, re.M), said


@test
def gpu_script_failure_is_named_and_sets_the_exit_code():
    code, said, _ = script("train:checkpoint_of_cpu_continues_on_gpu_and_back", EMULATED_CAPABILITY="75")
    assert code == 2 and "has compute capability 7.5" in said, said
    code, said, _ = script("--seconds", "1", "check:test_softmax")
    assert code == 1 and re.search("^check +FAILED", said, re.M) and "no time left" in said, said


@test
def gpu_script_pack_contains_only_files_that_other_machines_lack():
    libraries = pack.needed_libraries([os.path.join(BUILD, "trainerd")])
    assert {"libgrpc.so.29", "libuv.so.1"} <= set(libraries) and any(n.startswith("libdnnl.so.") for n in libraries), libraries
    assert not [n for n in libraries if re.match(r"lib(c|m|stdc\+\+|gcc_s)\.so|ld-linux", n)], libraries


if __name__ == "__main__":
    main()
