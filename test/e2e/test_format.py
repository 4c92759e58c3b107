#!/usr/bin/python3
"""scripts/format formats code, keeps the lines that are laid out by hand, and names the version of clang-format."""
import os
import shutil
import subprocess

from kit import ROOT, Skip, main, test, workdir

FORMAT = os.path.join(ROOT, "scripts", "format")
KEPT = """\
static const struct row rows[] = {
    { "a",   1 },
    { "bcd", 2 },
};

struct pair {
    int   a;  /* the first number, whose comment
               * has two lines */
    int   bc; /* the second */
};

enum { RED,  /* a color */
       BLUE };

#define TWICE(a_)  \\
    do {           \\
        call(a_);  \\
    } while (0)

ROW(a,  (float)x * y)
ROW(bc, (float)x * y)

static struct {
    int a;
} *pointer;

static int one(void) { return 1; }

static void f(int a)
{
    call("the first line "
         "the second line", a,
         one());
    set((struct pair){ .a = 1,
                       .bc = 2 });
    switch (a) {
    case 1:  call(1); break;
    default: call(22);
    }
    /* clang-format off */
    call(a,
         a);
    /* clang-format on */
}
"""


def run(text, *options):
    path = os.path.join(workdir(), "x.c")
    with open(path, "w") as f:
        f.write(text)
    # The file is outside the repository; clang-format looks for the options in the folders above it.
    os.symlink(os.path.join(ROOT, ".clang-format"), os.path.join(os.path.dirname(path), ".clang-format"))
    p = subprocess.run([FORMAT, *options, path], capture_output=True, text=True, timeout=60)
    with open(path) as f:
        return p.returncode, p.stdout + p.stderr, f.read()


@test
def format_code_is_formatted():
    code, said, text = run("int f( int a ){\n  if(a) return g(a,\n    2);\n  return  1; }\n")
    assert code == 0, said
    assert text == "int f(int a)\n{\n    if (a)\n        return g(a, 2);\n    return 1;\n}\n", text


@test
def format_lines_laid_out_by_hand_are_kept():
    code, said, text = run(KEPT)
    assert code == 0 and text == KEPT, said + text


@test
def format_code_next_to_kept_lines_is_formatted():
    code, said, text = run(KEPT.replace("    switch (a)", "    call( a );\n    switch (a)"))
    assert code == 0 and text == KEPT.replace("    switch (a)", "    call(a);\n    switch (a)"), text


@test
def format_generated_file_is_kept():
    text = "/* x.h - printed by test/op/make_resize.py. */\nint  a;\n"
    assert run(text)[2] == text


@test
def format_check_names_the_line_and_writes_nothing():
    code, said, text = run("int a;\nint  b;\n", "--check")
    assert code == 1 and "x.c:2: not formatted" in said and "-int  b;\n+int b;" in said, said
    assert text == "int a;\nint  b;\n", text
    code, said, _ = run("int a;\n\n\n\n", "--check")
    assert code == 1 and "x.c:3: not formatted" in said, said
    code, said, _ = run("int a;\n", "--check")
    assert (code, said) == (0, ""), said


@test
def format_other_version_of_clang_format_is_refused():
    folder = workdir()
    for name in ("clang-format-14", "clang-format"):
        with open(os.path.join(folder, name), "w") as f:
            f.write("#!/bin/sh\necho clang-format version 19.1.7\n")
        os.chmod(os.path.join(folder, name), 0o755)
    os.mkdir(os.path.join(folder, "scripts"))  # beside no build/venv
    script = shutil.copy(FORMAT, os.path.join(folder, "scripts"))
    p = subprocess.run([script, "--check"], capture_output=True, text=True, timeout=60,
                       env=dict(os.environ, PATH=folder + ":" + os.environ["PATH"]))
    assert p.returncode == 2 and "expected version 14, found clang-format version 19.1.7" in p.stderr, p.stderr


@test
def format_is_applied_to_the_files_of_the_last_commits():
    p = subprocess.run([os.path.join(ROOT, "scripts", "changed"), "--files", "HEAD~20"], capture_output=True, text=True)
    if p.returncode:
        raise Skip("no history of 20 commits: " + (p.stderr.strip().splitlines() or ["?"])[-1])
    files = [os.path.join(ROOT, name) for name in p.stdout.split()]
    p = subprocess.run([FORMAT, "--check", *files], capture_output=True, text=True, timeout=300)
    assert not files or p.returncode == 0, "run `make format`\n" + p.stdout + p.stderr


@test
def format_is_applied_to_all_files():
    p = subprocess.run([FORMAT, "--check"], capture_output=True, text=True, timeout=300)
    assert p.returncode == 0, "run `make format`\n" + p.stdout + p.stderr


if __name__ == "__main__":
    main()
