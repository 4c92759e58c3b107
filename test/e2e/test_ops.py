#!/usr/bin/python3
"""The program `ops` (test/ops): its table is the documentation, and no op is without a case."""
# needs: emulated test/ops/ops
import math
import os
import re
import subprocess

from kit import BUILD, ROOT, main, test, workdir

OPS = os.path.join(BUILD, "test/ops/ops")


def ops(*args, program=OPS, code=0):
    env = dict(os.environ, LD_LIBRARY_PATH=os.path.join(BUILD, "emulated"))
    p = subprocess.run([program, *args], capture_output=True, text=True, timeout=600, env=env)
    assert p.returncode == code, (p.returncode, p.stdout[-2000:], p.stderr)
    return p.stdout if code != 2 else p.stderr


@test
def ops_table_of_the_manual_is_the_output_of_supported():
    with open(os.path.join(ROOT, "config/OPS.md")) as f:
        manual = f.read()
    table = ops("supported")
    assert manual.endswith("\n\n" + table), "config/OPS.md: expected at its end the output of `ops supported`"
    with open(os.path.join(ROOT, "lib/op/op_list.h")) as f:
        assert len(re.findall(r"^OP\(", f.read(), re.M)) == len(table.splitlines()) - 2


@test
def ops_row_of_every_op_has_a_case_and_a_gradient():
    lines = ops("gradient").splitlines()
    assert len(lines) > 200 and not [line for line in lines if "ERROR" in line], lines
    assert re.search(r"^Relu +from 6 +\d+ cases$", ops("gradient", "Relu"))
    assert re.search(r"^And +from 7 +no gradient$", ops("gradient", "And"))


@test
def ops_op_without_a_case_and_failed_program_are_errors():
    folder = workdir()
    os.makedirs(os.path.join(folder, "op"))
    os.makedirs(os.path.join(folder, "ops"))
    os.symlink(OPS, os.path.join(folder, "ops", "ops"))
    os.symlink("/bin/true", os.path.join(folder, "op", "test_true"))
    program = os.path.join(folder, "ops", "ops")
    said = ops("gradient", "Relu", program=program, code=1)
    assert "ERROR: no case" in said and "0 programs failed, 1 ops without a case" in said, said
    os.symlink("/bin/false", os.path.join(folder, "op", "test_false"))
    said = ops("test", "Relu", program=program, code=1)
    assert "FAILED" in said and "test_false" in said and "1 programs failed" in said, said


@test
def ops_gradient_of_one_op_is_checked_on_the_gpu():
    assert re.search(r"^Softsign +from 1 +\d+ cases$", ops("gradient", "--device", "cuda", "Softsign"))


SPEED = re.compile(r"(\S+) +(forward|backward|update|scan) +(float32|bfloat16) +\[[\d,]+\] +([\d.]+) us +[\d.]+ "
                   r"(GB/s +([\d.e+-]+) % of a copy, [\d.]+ GB/s|GFLOP/s +([\d.e+-]+) % of a product, [\d.]+ GFLOP/s)")
NO_CASE = re.compile(r"(\S+) +(?:from \d+|\d+(?: to \d+)?) +(?:no case|computed while planning|no kernels for GPUs)")


def speeds(*args):
    """Returns the matches of the measured lines; any other line names an op without a case."""
    lines = ops("speed", "--quick", *args).splitlines()
    found = [SPEED.fullmatch(line) for line in lines]
    for line, m in zip(lines, found):
        assert m or NO_CASE.fullmatch(line), line
        assert not m or 0 < float(m[4]) < math.inf and 0 < float(m[6] or m[7]) < math.inf, line
    return [m for m in found if m], {NO_CASE.fullmatch(line)[1] for line, m in zip(lines, found) if not m}


@test
def ops_speed_measures_each_case_and_names_ops_without_one():
    measured, without = speeds()
    assert len(measured) > 250 and "ScatterND" in without, (len(measured), without)
    assert {m[2] for m in measured} == {"forward", "backward", "update", "scan"}
    assert {m[1] for m in measured if m[7]} >= {"MatMul", "Conv", "LSTM", "trainerd.Attention"}, measured
    names = {row.split("|")[1].strip() for row in ops("supported").splitlines()[2:]}
    assert names <= {m[1] for m in measured} | without


@test
def ops_speed_measures_chosen_ops_and_optimizers_on_the_gpu():
    measured, without = speeds("--device", "cuda", "Softsign", "Gemm", "momentum")
    assert not without and {(m[1], m[2]) for m in measured} == {
        ("Softsign", "forward"), ("Softsign", "backward"), ("Gemm", "forward"), ("Gemm", "backward"),
        ("momentum", "update")}, measured


@test
def ops_unknown_op_is_refused():
    assert "'Rel': expected the name of an op" in ops("test", "Rel", code=2)
    assert "'Rel': expected the name of an op" in ops("speed", "Relu", "Rel", code=2)
    assert "usage: ops" in ops("test", "Relu", "Add", code=2)


if __name__ == "__main__":
    main()
