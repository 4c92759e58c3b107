#!/usr/bin/python3
"""The scripts that choose tests and add their results, in copies with a repository or a `make` of the test."""
import os
import shutil
import subprocess

from kit import ROOT, SLOW, Skip, main, test, workdir

MAKE = """#!/bin/sh
case "$1" in
test) printf '%s\\n' 'test/base/test_buf: 3 passed' "$TEST_SAYS" && exit $TEST_CODE ;;
san-units) echo '20 passed, 0 failed' ;;
tsan) echo '300 passed, 1 failed, 4 skipped' && exit 2 ;;
esac
"""


def executable(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, 0o755)


def copy(name):
    """Copies a script to a new folder; returns the folder."""
    folder = workdir()
    os.makedirs(os.path.join(folder, os.path.dirname(name)))
    shutil.copy(os.path.join(ROOT, name), os.path.join(folder, name))
    return folder


def ci(says, code, compiler="exit 0"):
    """Runs .ci/run with a `make test` that prints `says` and exits with `code`. Returns the exit code and the lines."""
    folder = copy(".ci/run")
    executable(os.path.join(folder, "bin", "make"), MAKE)
    # the compiler writes a program that does nothing
    executable(os.path.join(folder, "bin", "cc"), "#!/bin/sh\n%s\n" % compiler)
    env = {**os.environ, "PATH": os.path.join(folder, "bin") + ":" + os.environ["PATH"], "CC": "cc", "TEST_SAYS": says,
           "TEST_CODE": str(code)}
    p = subprocess.run([os.path.join(folder, ".ci", "run")], capture_output=True, text=True, env=env, timeout=60 * SLOW)
    return p.returncode, p.stdout.splitlines()


WORKS = 'while [ "$1" != -o ]; do shift; done; cp /bin/true "$2"'


@test
def ci_result_is_the_sum_of_all_parts():
    code, lines = ci("1000 passed, 0 failed, 2 skipped", 0, WORKS)
    assert code == 1 and lines[-1] == "1320 passed, 1 failed, 6 skipped", lines
    assert "make test: 1000 passed, 0 failed, 2 skipped" in lines and "make san-units: 20 passed, 0 failed" in lines, lines
    results = [line for line in lines if line[0].isdigit()]
    assert results == lines[-1:], results  # a reader of the last result finds no other


@test
def ci_part_that_ends_without_a_result_is_a_failure():
    code, lines = ci("cc: not found", 2, WORKS)
    assert code == 1 and lines[-1] == "320 passed, 2 failed, 4 skipped", lines
    code, lines = ci("nothing", 0, WORKS)
    assert code == 1 and lines[-1] == "320 passed, 2 failed, 4 skipped" and "make test: ended without a result" in lines, lines


@test
def ci_compiler_without_sanitizers_skips_these_parts_with_the_reason():
    code, lines = ci("7 passed, 0 failed", 0, "echo 'cc: cannot find -lasan' >&2; exit 1")
    assert code == 0 and lines[-1] == "7 passed, 0 failed, 2 skipped", lines
    skips = [line for line in lines if line.startswith("skip - ")]
    assert len(skips) == 2 and "-fsanitize=address,undefined does not work here: cc: cannot find -lasan" in skips[0], skips


@test
def changed_names_the_folders_of_the_work_or_of_the_last_commit():
    if not shutil.which("git"):
        raise Skip("git is not installed")
    folder = copy("scripts/changed")

    def git(*args):
        identity = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", folder, *identity, *args], check=True, capture_output=True)

    def changed():
        p = subprocess.run([os.path.join(folder, "scripts", "changed")], capture_output=True, text=True, check=True)
        return p.stdout.split()

    git("init")
    for name in ("data", "ckpt", "loop"):
        executable(os.path.join(folder, "lib", name, "a.c"), "")
        git("add", "-A")
        git("commit", "-m", name)
    assert changed() == ["test/loop/test_", "-gpu"], changed()
    executable(os.path.join(folder, "lib", "data", "b.c"), "")
    assert changed() == ["test/data/test_", "-gpu"], changed()
    executable(os.path.join(folder, "lib", "op", "x.cu"), "")
    assert changed() == ["test/data/test_", "test/op/test_"], changed()


if __name__ == "__main__":
    main()
