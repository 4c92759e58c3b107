#!/usr/bin/python3
"""The scripts that choose and run tests and add their results, in copies with a repository, programs or a `make` of the test."""
import os
import re
import shlex
import shutil
import signal
import subprocess

from kit import GUARD, ROOT, main, need_program, test, wait_until, workdir

MAKE = """#!/bin/sh
case "$1" in
test) printf '%s\\n' 'test/base/test_buf: 3 passed' "$TEST_SAYS" && exit $TEST_CODE ;;
san-units) [ -n "$2" ] || echo '300 passed, 1 failed, 4 skipped' && exit 2 ;;
esac
"""


def executable(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, 0o755)


def copy(*names):
    """Copies scripts to a new folder; returns the folder."""
    folder = workdir()
    for name in names:
        os.makedirs(os.path.join(folder, os.path.dirname(name)), exist_ok=True)
        shutil.copy(os.path.join(ROOT, name), os.path.join(folder, name))
    return folder


def until_written(path):
    """Returns the text of a file once it has one."""
    wait_until(lambda: os.path.exists(path) and os.path.getsize(path))
    with open(path) as f:
        return f.read()


def until_gone(pid):
    wait_until(lambda: not os.path.exists("/proc/%d" % pid), lambda: "process %d still runs" % pid)


def ci(says, code, compiler="exit 0"):
    """Runs .ci/run with a `make test` that prints `says` and exits with `code`. Returns the exit code and the lines."""
    folder = copy(".ci/run", "scripts/supervise.py")
    executable(os.path.join(folder, "scripts", "setup"), "#!/bin/sh\n")
    executable(os.path.join(folder, "bin", "make"), MAKE)
    # the compiler writes a program that does nothing
    executable(os.path.join(folder, "bin", "cc"), "#!/bin/sh\n%s\n" % compiler)
    env = {**os.environ, "PATH": os.path.join(folder, "bin") + ":" + os.environ["PATH"], "CC": "cc", "TEST_SAYS": says,
           "TEST_CODE": str(code)}
    p = subprocess.run([os.path.join(folder, ".ci", "run")], capture_output=True, text=True, env=env, timeout=GUARD)
    return p.returncode, p.stdout.splitlines()


WORKS = 'while [ "$1" != -o ]; do shift; done; cp /bin/true "$2"'


@test
def ci_result_is_the_sum_of_all_parts():
    code, lines = ci("1000 passed, 0 failed, 2 skipped", 0, WORKS)
    assert code == 1 and lines[-1] == "1300 passed, 1 failed, 6 skipped", lines
    assert "make test: 1000 passed, 0 failed, 2 skipped" in lines and "make san-units: 300 passed, 1 failed, 4 skipped" in lines, lines
    results = [line for line in lines if line[0].isdigit()]
    assert results == lines[-1:], results  # a reader of the last result finds no other


@test
def ci_part_that_ends_without_a_result_is_a_failure():
    code, lines = ci("cc: not found", 2, WORKS)
    assert code == 1 and lines[-1] == "300 passed, 2 failed, 4 skipped", lines
    code, lines = ci("nothing", 0, WORKS)
    assert code == 1 and lines[-1] == "300 passed, 2 failed, 4 skipped" and "make test: ended without a result" in lines, lines


@test
def ci_compiler_without_sanitizers_skips_their_part_with_the_reason():
    code, lines = ci("7 passed, 0 failed", 0, "echo 'cc: cannot find -lasan' >&2; exit 1")
    assert code == 0 and lines[-1] == "7 passed, 0 failed, 1 skipped", lines
    skips = [line for line in lines if line.startswith("skip - ")]
    assert len(skips) == 1 and "-fsanitize=address,undefined does not work here: cc: cannot find -lasan" in skips[0], skips


@test
def changed_names_the_folders_of_the_work_or_of_the_last_commit():
    need_program("git")
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


@test
def changed_without_a_repository_counts_all_files():
    """Also inside of another repository, and where git is not installed."""
    need_program("git")
    outer = workdir()
    subprocess.run(["git", "init", "-q", outer], check=True)
    folder = os.path.join(outer, "trainerd")
    for name in ("lib/data/a.c", "lib/op/b.cu", "daemon/c.h", "config/d.json", "proto/e.proto", "test/e2e/test_f.py"):
        executable(os.path.join(folder, name), "")
    executable(os.path.join(folder, "scripts", "changed"), "")
    shutil.copy(os.path.join(ROOT, "scripts", "changed"), os.path.join(folder, "scripts"))
    programs = workdir()
    for name in ("dirname", "find", "grep", "sed", "sort", "sh"):
        os.symlink(shutil.which(name), os.path.join(programs, name))

    def changed(*args, path):
        return subprocess.run([os.path.join(folder, "scripts", "changed"), *args], capture_output=True, text=True, env={"PATH": path})

    for path in (os.environ["PATH"], programs):
        p = changed(path=path)
        assert p.returncode == 0 and p.stdout.split() == ["test/%s/test_" % f for f in ("conf", "daemon", "data", "metrics", "op", "rdzv")], p
        assert p.stderr == "changed: no git, or no git repository here: all files count as changed\n", p
        p = changed("--files", path=path)
        assert sorted(p.stdout.split()) == ["daemon/c.h", "lib/data/a.c", "lib/op/b.cu"], p
        p = changed("HEAD~3", path=path)
        assert p.returncode == 2 and p.stdout == "" and "no revision 'HEAD~3'" in p.stderr, p


class Tree:
    """A copy of scripts/test with programs of this test: shell scripts that print what a test program prints."""

    def __init__(self):
        self.folder = copy("scripts/test", "scripts/supervise.py")

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.folder, name)
        executable(path, text)
        os.chmod(path, mode)

    def unit(self, name, *tests, code=0, then=""):
        """A program of cmocka: a test whose name starts with "bad" fails."""
        self.write("test/%s.c" % name, "".join("cmocka_unit_test(%s)\n" % t for t in tests))
        n_bad = sum(t.startswith("bad") for t in tests)
        lines = ["[ RUN      ] %s\n[  FAILED  ] %s" % (t, t) if t.startswith("bad") else "[ RUN      ] %s\n[       OK ] %s" % (t, t)
                 for t in tests] + ["[  FAILED  ] %d test(s), listed below:" % n_bad] * (n_bad > 0)
        self.write("build/test/" + name, "#!/bin/sh\necho \"$TEST_ONLY:$TEST_EXCEPT\" >>log\ncat <<'E'\n%s\nE\n%s\nexit %d\n" % (
            "\n".join(lines), then, code or any(t.startswith("bad") for t in tests)), 0o755)

    def script(self, name, text):
        self.write("test/e2e/" + name, "#!/bin/sh\n" + text, 0o755)

    def begin(self):
        return subprocess.Popen([os.path.join(self.folder, "scripts", "test")], stdout=subprocess.DEVNULL, env={**os.environ, "BUILD": "build"})

    def run(self, *words):
        """Returns the exit code and the lines of the output."""
        env = {**os.environ, "BUILD": "build"}
        p = subprocess.run([os.path.join(self.folder, "scripts", "test"), *words], capture_output=True, text=True, env=env)
        return p.returncode, (p.stdout + p.stderr).splitlines()


def tree_of_three():
    tree = Tree()
    tree.unit("base/test_good", "one_is_one", "two_is_two")
    tree.unit("base/test_bad", "one_is_one", "bad_is_bad")
    tree.script("test_words.sh", "echo 'ok - a word (0.1 s)'\n")
    return tree


@test
def run_counts_tests_and_states_how_to_repeat_a_failure():
    code, lines = tree_of_three().run()
    assert code == 1 and lines[-1] == "4 passed, 1 failed", lines
    assert lines[-2].startswith("time: tests ") and lines[-3].startswith("machine: "), lines
    assert "test/base/test_good: 2 passed" in lines and "test/base/test_bad: 1 passed, 1 FAILED" in lines, lines
    assert "    repeat: scripts/test -k bad_is_bad test/base/test_bad.c" in lines, lines


@test
def run_within_a_time_takes_the_programs_that_fit_and_a_word_is_no_time():
    tree = tree_of_three()
    assert tree.run("--within", "5")[1][-1] == "4 passed, 1 failed"
    code, lines = tree.run("--within", "soon")
    assert code == 1 and "--within needs a number" in lines[-1], lines


@test
def program_that_ends_in_the_middle_with_0_counts_as_failed():
    tree = Tree()
    tree.unit("base/test_whole", "one_is_one", then="echo '[==========] 1 test(s) run.'")
    tree.write("test/base/test_cut.c", "cmocka_unit_test(one_is_one)\n")
    tree.write("build/test/base/test_cut", "#!/bin/sh\necho '[==========] Running 2 test(s).'\necho '[       OK ] one_is_one'\n", 0o755)
    tree.script("test_cut.py", "echo 'ok - a word (0.1 s)'\n")
    code, lines = tree.run()
    assert code == 1 and lines[-1] == "3 passed, 2 failed", lines
    assert sum("ended with exit code 0 before its last test" in line for line in lines) == 4, lines  # at once, and at the end


@test
def run_of_failed_programs_repeats_these_alone():
    tree = tree_of_three()
    tree.run()
    code, lines = tree.run("--failed")
    assert code == 1 and lines[-1] == "1 passed, 1 failed" and not any("test_good" in line for line in lines), lines
    tree.unit("base/test_bad", "one_is_one")
    assert tree.run("--failed")[1][-1] == "1 passed, 0 failed"
    code, lines = tree.run("--failed")
    assert code == 1 and "0 passed, 0 failed" in lines and any("nothing is selected: no program failed in the last run" in x for x in lines), lines
    code, lines = tree.run("nosuchword")
    assert code == 1 and any("nothing is selected: no test program matches 'nosuchword'" in x for x in lines), lines


@test
def run_of_failed_programs_has_those_of_the_nightly_ring_and_names_other_builds():
    tree = tree_of_three()
    tree.write("test/nightly", "test/base/test_bad * slow\ntest/base/test_good bad_at_night slow\n")
    tree.unit("base/test_good", "one_is_one", "bad_at_night")
    assert tree.run("--ring", "nightly")[1][-1] == "3 passed, 2 failed"
    code, lines = tree.run("--failed")
    assert code == 1 and lines[-1] == "2 passed, 2 failed", lines
    with open(os.path.join(tree.folder, "log")) as f:
        assert f.read() == ":\n" * 4  # with the tests that `make test` leaves out
    assert "    repeat: scripts/test --ring nightly -k bad_at_night test/base/test_good.c" in lines, lines
    os.rename(os.path.join(tree.folder, "build", "test_failed"), os.path.join(tree.folder, "build", "failed"))
    tree.write("build/san/test_failed", "nightly test/base/test_bad\n")
    code, lines = tree.run("--failed")
    assert any("no program failed in the last run in build; BUILD=build/san scripts/test --failed runs the 1 of build/san" in x for x in lines), lines


@test
def run_of_a_pattern_finds_names_that_a_script_makes():
    tree = tree_of_three()
    tree.script("test_made.py", """# run.__name__ = kind + "_trains"
[ -z "$TEST_LIST" ] || exec printf 'small_%s\\n' trains
echo "ok - small trains (0.1 s)" && echo "1 passed, 0 failed"
""")
    code, lines = tree.run("-k", "small trains")
    assert code == 0 and lines[-1] == "1 passed, 0 failed" and not any("test_words" in line for line in lines), lines
    code, lines = tree.run("-k", "large_trains")
    assert code == 1 and any("no test program matches" in line for line in lines), lines


@test
def command_that_repeats_a_failure_selects_its_test():
    tree = Tree()
    tree.unit("base/test_a", "bad_unit", "other_unit")
    tree.unit("base/test_a_b", "other_unit")
    tree.unit("op/test_op", "bad_op", "other_op")
    tree.unit("true/test_true", "bad_graph", "other_graph")
    os.rename(os.path.join(tree.folder, "test/true/test_true.c"), os.path.join(tree.folder, "test/true/test_true.cu"))
    tree.script("test_a.sh", "echo 'not ok - bad script'\nexit 1\n")
    tree.script("test_crash.sh", "kill -SEGV $$\n")
    tree.write("test/fuzz/fuzz_a.c", "")
    tree.write("build/test/fuzz/fuzz_a", "#!/bin/sh\nexit 1\n", 0o755)
    code, lines = tree.run()
    commands = [line.partition("repeat: ")[2] for line in lines if "    repeat: " in line]
    assert code == 1 and len(commands) == 7, lines
    for command in commands:
        code, lines = tree.run(*shlex.split(command)[1:])
        failed = [line for line in lines if "FAILED (exit code" in line]
        assert code == 1 and len(failed) == 1 and "    repeat: " + command in lines, (command, lines)


@test
def run_of_a_pattern_selects_programs_and_passes_it_to_them():
    tree = tree_of_three()
    code, lines = tree.run("-k", "two is")
    assert code == 0 and not any("test_bad" in line or "words" in line for line in lines), lines
    with open(os.path.join(tree.folder, "log")) as f:
        assert f.read() == "two_is:\n"


@test
def run_leaves_out_nightly_tests_and_the_nightly_ring_runs_them():
    tree = tree_of_three()
    tree.write("test/nightly", "# comment\ntest/base/test_good two_is_two slow\ntest/base/test_bad * slow\n")
    code, lines = tree.run()
    assert code == 0 and not any("test_bad" in line for line in lines), lines
    with open(os.path.join(tree.folder, "log")) as f:
        assert f.read() == ":two_is_two\n"
    assert tree.run("--ring", "nightly")[1][-1] == "4 passed, 1 failed"


@test
def run_with_a_program_that_crashes_or_runs_no_test_fails():
    tree = Tree()
    tree.unit("base/test_crash", "one_is_one", then="kill -SEGV $$")
    tree.unit("base/test_none")
    code, lines = tree.run()
    assert code == 1 and lines[-1] == "1 passed, 2 failed", lines
    assert any(line.startswith("test/base/test_crash: 1 passed, 1 FAILED (exit code ") for line in lines), lines


@test
def run_starts_the_longest_program_of_the_last_run_first():
    tree = Tree()
    for name in "abcdefghijkl":
        tree.unit("base/test_" + name, name + "_is_fine", then="echo %s >>order" % name)
    tree.write("build/test_times", "9.000 9.000 test/base/test_k\n")
    tree.run()
    with open(os.path.join(tree.folder, "order")) as f:
        assert "k" in f.read().split()[:len(os.sched_getaffinity(0))]


@test
def run_that_is_ended_ends_its_programs():
    tree = Tree()
    tree.unit("base/test_hang", "one_is_one", then="echo $$ >pid; while :; do read -r line <fifo; done")
    os.mkfifo(os.path.join(tree.folder, "fifo"))
    p = tree.begin()
    pid = int(until_written(os.path.join(tree.folder, "pid")))
    p.terminate()
    assert p.wait() == 1
    until_gone(pid)


# A shell that writes its process id to a file, with a child in a session of its own; both wait until they are killed.
HANGS = """export name=%s
setsid sh -c 'echo $$ >$name.session; exec cat fifo' &
echo $$ >$name
while :; do read -r line <fifo; done
"""


@test
def run_that_is_killed_leaves_no_process_of_its_programs():
    tree = Tree()
    os.mkfifo(os.path.join(tree.folder, "fifo"))
    tree.unit("base/test_hang", "one_is_one", then="trap '' TERM\n" + HANGS % "pid")
    p = tree.begin()
    pids = [int(until_written(os.path.join(tree.folder, name))) for name in ("pid", "pid.session")]
    p.kill()
    p.wait()
    for pid in pids:
        until_gone(pid)


@test
def run_kills_the_processes_that_a_program_leaves_and_names_them():
    tree = Tree()
    os.mkfifo(os.path.join(tree.folder, "fifo"))
    tree.unit("base/test_leaves", "one_is_one",
              then="setsid sh -c 'echo $$ >pid; exec cat fifo' & while ! [ -s pid ]; do read -r line </dev/null; done")
    code, lines = tree.run()
    assert code == 0 and lines[-1] == "1 passed, 0 failed", lines
    until_gone(int(until_written(os.path.join(tree.folder, "pid"))))
    with open(os.path.join(tree.folder, "build", "test_output", "test_base_test_leaves")) as f:
        assert f.read().endswith("supervise: killed what the program left: cat\n")


@test
def ci_ended_by_a_signal_leaves_no_process():
    """In `make test`, and in the build of programs with sanitizers beside it."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        folder = copy(".ci/run", "scripts/supervise.py")
        executable(os.path.join(folder, "scripts", "setup"), "#!/bin/sh\n")
        executable(os.path.join(folder, "bin", "cc"), "#!/bin/sh\n%s\n" % WORKS)
        executable(os.path.join(folder, "bin", "make"), "#!/bin/sh\n" + HANGS % "$1")
        os.mkfifo(os.path.join(folder, "fifo"))
        env = {**os.environ, "PATH": os.path.join(folder, "bin") + ":" + os.environ["PATH"], "CC": "cc"}
        p = subprocess.Popen([os.path.join(folder, ".ci", "run")], stdout=subprocess.DEVNULL, env=env)
        pids = [int(until_written(os.path.join(folder, part + end))) for part in ("test", "san-units") for end in ("", ".session")]
        p.send_signal(signum)
        p.wait()
        for pid in pids:
            until_gone(pid)


@test
def nightly_list_names_existing_tests_with_a_reason():
    with open(os.path.join(ROOT, "test", "nightly")) as f:
        lines = [line for line in f if not line.startswith("#")]
    for line in lines:
        m = re.fullmatch(r"(test/\S+)(?: on gpu)? (\S+) .+\n", line)
        assert m, "expected PROGRAM TEST REASON: " + line
        suffix = {"e2e": "", "true": ".cu"}.get(m[1].split("/")[1], ".c")
        with open(os.path.join(ROOT, m[1] + suffix)) as f:
            assert m[2] == "*" or m[2] in f.read() or m[1].endswith(("test_examples.py", "test_exporters.py")), "no such test: " + line


@test
def help_prints_each_target_of_the_makefile():
    printed = {line.split()[0] for line in subprocess.run(["make", "-C", ROOT, "--no-print-directory", "help"], capture_output=True,
                                                          text=True, check=True).stdout.splitlines()}
    with open(os.path.join(ROOT, "Makefile")) as f:
        phony = next(line for line in f if line.startswith(".PHONY:")).split()[1:]
    assert printed | {"FORCE"} == set(phony), (printed | {"FORCE"}) ^ set(phony)


@test
def help_of_the_demo_has_its_number_of_tasks():
    with open(os.path.join(ROOT, "scripts", "demo")) as f:
        n = int(re.search(r"trainerctl\" local -n (\d+) ", f.read())[1])
    line = next(line for line in make("--no-print-directory", "help").stdout.splitlines() if line.startswith("demo "))
    assert "with %s tasks" % ("one", "two", "three", "four")[n - 1] in line, (n, line)


@test
def nightly_with_an_unknown_part_or_an_invalid_number_is_refused():
    def nightly(*parts, **env):
        p = subprocess.run([os.path.join(ROOT, "scripts", "nightly"), *parts], capture_output=True, text=True, env={**os.environ, **env})
        assert p.returncode == 2 and p.stdout == "", p
        return p.stderr

    for part in ("tes", "te.t", "test san", ".*", ""):
        assert "unknown part '%s'; expected one of: test san tsan " % part in nightly("fuzz", part)
    for number in ("ten", "0", "-1", "1.5", "60 s"):
        assert "SECONDS_EACH='%s': expected a number from 1" % number in nightly("fuzz", SECONDS_EACH=number)
        assert "SEED='%s': expected a number from 1" % number in nightly("fuzz", SEED=number)


@test
def make_without_packages_names_the_command_that_installs_them():
    """Nothing is installed, says a program in the place of dpkg-query, and protoc-c fails."""
    folder = workdir()
    for name in ("dpkg-query", "protoc-c"):
        executable(os.path.join(folder, name), "#!/bin/sh\nexit 1\n")
    p = subprocess.run(["make", "-C", ROOT, "CUDA=", "BUILD=" + os.path.join(folder, "build"), "-j1"], capture_output=True, text=True,
                       env={**os.environ, "PATH": folder + ":" + os.environ["PATH"]})
    assert p.returncode != 0 and "libcjson-dev" in p.stderr and "; scripts/setup build installs what is missing" in p.stderr, p.stderr


def make(*words, env=None):
    """Runs make in the repository, which compiles a file into a build folder of the test. Returns the process."""
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("CCACHE_") and k != "MAKEFLAGS"}, **(env or {})}
    return subprocess.run(["make", "-C", ROOT, "CUDA=", *words], capture_output=True, text=True, env=env)


@test
def make_with_a_cache_that_cannot_be_written_compiles_without_it():
    need_program("ccache")
    for cc in ("gcc", "ccache gcc"):
        for name in ("HOME", "CCACHE_DIR"):
            build = os.path.join(workdir(), "build")
            target = build + "/pic/lib/base/crc32c.c.o"
            p = make("CC=" + cc, "BUILD=" + build, target, env={name: "/proc"})
            assert p.returncode == 0 and os.path.exists(target), p.stderr
            lines = p.stderr.splitlines()
            assert len(lines) == 1 and "compiling without the compiler cache: ccache: error: " in lines[0], lines
    p = make("CC=nosuchcompiler", "-n", "help")
    assert p.returncode == 0 and "compiler cache" not in p.stderr, p.stderr


@test
def make_in_a_path_that_it_does_not_support_names_the_path_and_the_remedy():
    folder = workdir()
    for name in ("two words", "it's", "a$b", "a;b", "a(b", "a#b"):
        path = os.path.join(folder, name)
        os.mkdir(path)
        p = subprocess.run(["make", "-C", path, "-f", os.path.join(ROOT, "Makefile"), "--no-print-directory", "help"],
                           capture_output=True, text=True, env={k: v for k, v in os.environ.items() if k != "MAKEFLAGS"})
        assert p.returncode == 2 and p.stdout == "" and len(p.stderr.splitlines()) == 1, p
        assert path + ": the path of the repository has a " in p.stderr and "move or clone the repository to another folder" in p.stderr, p
    p = make("BUILD=" + folder + "/two words", "help")
    assert p.returncode == 2 and "/two words: the path of BUILD has a space" in p.stderr and "make BUILD=FOLDER" in p.stderr, p


@test
def setup_on_another_release_installs_nothing_and_names_the_supported_ones():
    folder = workdir()
    executable(os.path.join(folder, "dpkg-query"), "#!/bin/sh\nexit 1\n")  # no package is installed
    for name in ("apt-get", "sudo"):
        executable(os.path.join(folder, name), "#!/bin/sh\necho $0 $* >>%s/called\n" % folder)
    for release, text in (("ID=debian\nVERSION_ID=11\nPRETTY_NAME='Debian 11'\n", "Debian 11"),
                          ("ID=debian\nPRETTY_NAME='Debian sid'\n", "Debian sid"),
                          ("ID=ubuntu\nVERSION_ID=12\nPRETTY_NAME='Ubuntu 12'\n", "Ubuntu 12"), ("", "a system without")):
        with open(os.path.join(folder, "os-release"), "w") as f:
            f.write(release)
        p = subprocess.run([os.path.join(ROOT, "scripts", "setup"), "build"], capture_output=True, text=True,
                           env={**os.environ, "PATH": folder + ":" + os.environ["PATH"], "OS_RELEASE": os.path.join(folder, "os-release")})
        assert p.returncode == 1 and "this system is " + text in p.stderr and "Debian 12 and Debian 13" in p.stderr, p.stderr
        assert " libcjson-dev" in p.stderr and not os.path.exists(os.path.join(folder, "called")), p.stderr


@test
def deb_without_dpkg_dev_names_the_package():
    folder = workdir()
    for name in ("dirname", "sh"):
        os.symlink(shutil.which(name), os.path.join(folder, name))
    p = subprocess.run([os.path.join(ROOT, "scripts", "deb")], capture_output=True, text=True, env={"PATH": folder})
    assert p.returncode == 1 and "install the package dpkg-dev" in p.stderr, p.stderr


# the text of a file, and the lines that scripts/untimed refuses
UNTIMED = {
    "test/base/test_a.c": ("""static void nap(void) /* sleep(1) in a comment */
{
    usleep(100);
    log("nanosleep(1)");
    clock_nanosleep(0, 0, &t, NULL);
    asleep(1);
}
static void limits(void)
{
    uint64_t took = clock_ms() - begin;

    assert_true(clock_ns() - begin < 100);
    assert_true(is_well && 5000 > took);
    EXPECT(took <= LIMIT_MS * 2, "%d", 1);
    assert_in_range(clock_ms() - begin, 900,
                    30000);
    assert_true(seconds < 2 * SLOW);
    if (took > 8000)
        fail_msg("slow");
    assert_true(clock_ns() - begin >= 100); /* at least: any machine is slow enough */
    assert_true(took > 100 && n < 3 && before <= clock_ns());
    assert_true(i < 1 << 3 && w->n < 4);
}
""", [3, 5, 12, 13, 14, 15, 17, 18]),
    "test/base/test_wait.c": ("""static void waits(void)
{
    system("sleep 0.5");
    system("cd / && sleep 1; true");
    popen("sh -c 'x'; sleep 2", "r");
    execlp("sleep", "sleep", "3", NULL);
    select(0, NULL, NULL, NULL, &t);
    poll(&p, 1, 100);
    poll(NULL,
         0, 59999);
    epoll_wait(fd, events, 8, 20);
    uv_sleep(10);
    system("sleep 1000"); /* a process that the test ends */
    system("echo asleep 1 && no_sleep 1");
    select(fd + 1, &set, NULL, NULL, NULL);
    poll(&p, 1, WAIT_GUARD_MS);
    poll(&p, 1, 60000);
    poll(&p, 1, 0);
    poll(&p, 1, -1);
    spool(1, 5);
}
""", [3, 4, 5, 6, 7, 8, 9, 11, 12]),
    "test/e2e/test_wait.py": ("""import time
from time import sleep as nap
ended.wait(0.5)
ended.wait(timeout=2)
p.wait(10)
thread.join(5)
subprocess.run(["true"], timeout=3)
subprocess.run(["sleep", "1"])
subprocess.Popen("true; sleep 1", shell=True)
subprocess.run(["sh", "-c", "sleep 1; true"])
os.system("sleep 0.1")
select.select([fd], [], [], 0.2)
poller.poll(100)
s.settimeout(2 * 3)
threading.Timer(2, begin)
queue.get(timeout=1)
ended.wait()
p.wait(GUARD)
p.wait(60)
p.communicate(timeout=10 * GUARD)
select.select([fd], [], [], 0)
poller.poll()
poller.poll(0)
subprocess.Popen(["sleep", "1000"])
", ".join(words)
join(1)
run(["echo", "sleep"])
x.select(0, 5, 1)
""", [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
    "test/harness/wait.h": ("""static void wait_sleep_ns(int ns)
{
    nanosleep(ns);
}
static void other(void)
{
    nanosleep(1);
}
""", [7]),
    "test/e2e/test_a.py": ("""import time
# time.sleep(1)
def a():
    time.sleep(0.1)
    took = time.monotonic() - began
    assert took < 3, "time.sleep(1)"
    assert time.monotonic() - began < 3 and True
    assert 0.3 < took
    assert gap < 5 * SLOW
    assert 2 * SLOW > gap > 1
    assert gap > 1 * SLOW and took >= 3
    while time.monotonic() < end:
        pass
""", [4, 6, 7, 9, 10]),
    "test/e2e/kit.py": ("""import time
def wait_until(what):
    time.sleep(1)
def start():
    time.sleep(1)
""", [5]),
    "test/e2e/a.sh": ("""#!/bin/sh
# sleep 1
while true; do sleep 1; done
sleep 2
echo asleep now
""", [3, 4]),
    "test/bench/bench.py": ("import time\ntime.sleep(1)\n", []),
}


@test
def untimed_refuses_sleep_short_waits_and_upper_limits_of_durations_with_place_and_remedy():
    folder = copy("scripts/untimed")

    def untimed(*args):
        p = subprocess.run([os.path.join(folder, "scripts", "untimed"), *args], capture_output=True, text=True,
                           timeout=GUARD)
        assert p.stderr == "", p.stderr
        return p.returncode, p.stdout.splitlines()

    for name, (text, _) in UNTIMED.items():
        executable(os.path.join(folder, name), text)
    code, lines = untimed()
    expected = sorted("%s:%d" % (name, n) for name, (_, refused) in UNTIMED.items() for n in refused)
    assert code == 1 and sorted(line.split(": ")[0] for line in lines) == expected, lines
    assert all("; " in line and not line.endswith("; ") for line in lines), lines
    for name in UNTIMED:
        executable(os.path.join(folder, name), "")
    assert untimed(folder) == (0, [])


@test
def untimed_finds_nothing_in_the_repository():
    p = subprocess.run([os.path.join(ROOT, "scripts", "untimed")], capture_output=True, text=True)
    assert p.returncode == 0, p.stdout + p.stderr


if __name__ == "__main__":
    main()
