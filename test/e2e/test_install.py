#!/usr/bin/python3
"""make install, uninstall and deb: what they install, the manual pages and completions, and the life of the Debian package
on a copy of this system."""
import atexit
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

import kit
from kit import (BUILD, GUARD, ROOT, Skip, Task, digits_job, enter_namespaces, expect_codes, free_ports, main, need_namespaces,
                 need_program, test, tf_config, workdir)

EXAMPLE_JOB = "/usr/local/share/trainerd/digits/digits.json"


def sh(*command, **more):
    p = subprocess.run(command, capture_output=True, text=True, timeout=10 * GUARD, **more)
    assert p.returncode == 0, "%s: exit %d: %s" % (" ".join(command), p.returncode, (p.stdout + p.stderr)[-2000:])
    return p.stdout


def make(*words):
    """The programs are built: nothing is compiled here, because the compiler is that of the build, and no GPU code."""
    with open(os.path.join(BUILD, "flags")) as f:
        words = ("CC=" + f.read().partition(" -std=")[0], *words)
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    return sh("make", "-s", "-C", ROOT, "CUDA=", "BUILD=" + os.path.relpath(BUILD, ROOT), *words, env=env)


def tree(folder):
    return sorted(os.path.relpath(os.path.join(base, name), folder) for base, _, names in os.walk(folder) for name in names)


@test
def uninstall_removes_exactly_what_install_installed():
    folder = workdir()
    foreign = os.path.join(folder, "usr/local/share/trainerd/mine.json")
    os.makedirs(os.path.dirname(foreign))
    open(foreign, "w").close()
    make("install", "DESTDIR=" + folder)
    installed = tree(folder)
    for path in ("usr/local/bin/trainerd", "usr/local/bin/trainerctl", "lib/systemd/system/trainerd@.service",
                 "usr/lib/sysusers.d/trainerd.conf", "usr/lib/tmpfiles.d/trainerd.conf", "usr/local/share/man/man1/trainerd.1",
                 "usr/local/share/man/man1/trainerctl.1", "usr/local/share/man/man5/trainerd-job.5",
                 "usr/local/share/bash-completion/completions/trainerd", "usr/local/share/bash-completion/completions/trainerctl",
                 "usr/local/share/trainerd/trainerd.env", "usr/local/share/doc/trainerd/systemd/README.md"):
        assert path in installed, path
    for path in glob.glob(os.path.join(ROOT, "scripts", "trainerd-*")):
        assert "usr/local/bin/" + os.path.basename(path) in installed, path
        assert "usr/local/share/man/man1/%s.1" % os.path.basename(path) in installed, path
    for path in glob.glob(os.path.join(ROOT, "config", "*.json")):
        assert "usr/local/share/trainerd/" + os.path.basename(path) in installed, path
    with open(os.path.join(folder, "lib/systemd/system/trainerd@.service")) as f:
        unit = f.read()
    assert "ExecStart=/usr/local/bin/trainerd\n" in unit and "@" not in unit.replace("trainerd@", "").replace("@system-service", "") \
        .replace("@privileged", ""), unit
    sh(os.path.join(folder, "usr/local/bin/trainerd"), "--job", folder + EXAMPLE_JOB, "--check", "--devices", "cpu:1")
    manual = folder + "/usr/local/share/doc/trainerd/systemd/README.md"
    for words in (("explain", "138"), ("keys", "--help")):
        assert manual in sh(os.path.join(folder, "usr/local/bin/trainerctl"), *words).split() and os.path.exists(manual), words
    with open(os.path.join(BUILD, "daemon", "commit.c")) as f:  # of the build, which may be older than the repository
        commit = re.search(r'build_commit\[\] = "(.*)"', f.read())[1]
    for program in ("trainerd", "trainerctl"):
        version = sh(os.path.join(folder, "usr/local/bin", program), "--version")
        assert re.match(r"%s \d+\.\d+\.\d+ ?\(%s[,)]" % (program, commit) if commit else r"%s [\d.]+( \((?!commit)|\n)" % program, version), version
    make("uninstall", "DESTDIR=" + folder)
    assert tree(folder) == ["usr/local/share/trainerd/mine.json"], tree(folder)
    left = [os.path.join(base, n) for base, names, _ in os.walk(folder) for n in names if n == "trainerd"]
    assert left == [os.path.join(folder, "usr/local/share/trainerd")], left
    p = subprocess.run(["make", "-s", "-C", ROOT, "uninstall", "DESTDIR=" + folder], capture_output=True, text=True)
    assert p.returncode != 0 and "is missing" in p.stderr, p


@test
def commit_is_that_of_the_repository_and_absent_without_one():
    folder = workdir()
    source = os.path.join(folder, "outer", "source")
    os.makedirs(os.path.join(source, "scripts"))
    shutil.copy(os.path.join(ROOT, "scripts", "commit"), os.path.join(source, "scripts"))

    def git(*args, where=source):
        return sh("git", "-C", where, "-c", "user.name=a", "-c", "user.email=a@example.com", *args).strip()

    def commit():
        return sh(os.path.join(source, "scripts", "commit"))
    assert commit() == ""
    git("init", "-q", where=os.path.join(folder, "outer"))
    assert commit() == ""  # an archive that was extracted inside of another repository
    git("init", "-q")
    assert commit() == ""
    git("add", ".")
    git("commit", "-q", "-m", "a")
    assert commit() == git("rev-parse", "--short=12", "HEAD") + "\n"
    with open(os.path.join(source, "scripts", "commit"), "a") as f:
        f.write("\n")
    assert commit() == git("rev-parse", "--short=12", "HEAD") + "-dirty\n"


@test
def every_relative_link_of_an_installed_document_leads_to_an_installed_file():
    for prefix in ("/usr/local", "/opt/trainerd"):
        folder = workdir()
        make("install", "DESTDIR=" + folder, "PREFIX=" + prefix)
        documents = [path for path in tree(folder) if path.endswith(".md")]
        n = 0
        for path in documents:
            with open(os.path.join(folder, path)) as f:
                text = f.read()
            with open(os.path.join(ROOT, path.split("/doc/trainerd/")[1])) as f:
                source = f.read()
            for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
                to = target.partition("#")[0]
                if to and not re.match(r"[a-z]+:", to):
                    assert os.path.isfile(os.path.join(folder, os.path.dirname(path), to)), (path, target)
                    n += 1
            words = re.compile(r"\[|\]\([^)\s]+\)")
            assert words.sub("", text) == words.sub("", source), path  # only links differ
        assert len(documents) >= 7 and n > 60, (documents, n)


def keys_of(node, name):
    for key, value in node.get("properties", {}).items():
        yield name + key
        yield from keys_of(value, name + key + ".")


@test
def manual_pages_have_every_flag_command_and_key():
    folder = workdir()
    make("install", "DESTDIR=" + folder)
    man = os.path.join(folder, "usr/local/share/man")
    text = {}
    for page in ("man1/trainerd.1", "man1/trainerctl.1", "man1/trainerd-keep.1", "man5/trainerd-job.5"):
        with open(os.path.join(man, page)) as f:
            text[page] = f.read().replace("\\-", "-")
        p = subprocess.run([need_program("mandoc"), "-T", "lint", "-W", "warning", os.path.join(man, page)], capture_output=True, text=True)
        assert p.returncode == 0 and not p.stdout, p.stdout
    daemon, ctl = (sh(os.path.join(BUILD, p), "--help") for p in ("trainerd", "trainerctl"))
    flags = re.findall(r"^  (--[a-z-]+)", daemon, re.M)
    assert len(flags) >= 20
    for word in flags + re.findall(r"TRAINERD_\w+", daemon) + ["SIGTERM", "138", "143"]:
        assert word in text["man1/trainerd.1"], word
    assert "TRAINERD_KEEP_RESTARTS" in text["man1/trainerd-keep.1"]
    commands = re.findall(r"^  trainerctl (\w+)", ctl, re.M)
    assert len(commands) >= 14
    for command in commands:
        assert ".SS " + command in text["man1/trainerctl.1"], command
    keys = list(keys_of(json.loads(sh(os.path.join(BUILD, "trainerd"), "--schema")), ""))
    assert len(keys) > 120, len(keys)
    for key in keys:
        assert "\\fB%s\\fR (" % key in text["man5/trainerd-job.5"], key


def complete(folder, *words):
    """Returns what bash offers for the last of the words."""
    script = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "_$1"; printf "%s\\n" "${COMPREPLY[@]}"'
    path = os.path.join(folder, "usr/local/share/bash-completion/completions", words[0])
    return sh("bash", "-c", script, path, *words, cwd=os.path.join(ROOT, "config")).split()


@test
def completion_offers_commands_flags_words_and_files():
    folder = workdir()
    make("install", "DESTDIR=" + folder)
    assert complete(folder, "trainerd", "--log-f") == ["--log-format"]
    assert complete(folder, "trainerd", "--log-level", "") == ["debug", "info", "warn", "error"]
    assert complete(folder, "trainerd", "--job", "mini") == ["minimal.json"]
    assert complete(folder, "trainerd", "--metrics", "") == []
    assert complete(folder, "trainerctl", "re") == ["reload", "restart", "recipe"]
    assert complete(folder, "trainerctl", "status", "--j") == ["--json"]
    assert complete(folder, "trainerctl", "model", "resnet") == ["resnet18", "resnet50"]
    assert complete(folder, "trainerctl", "recipe", "t") == ["tensorflow", "torch"]
    assert complete(folder, "trainerctl", "local", "--ta") == ["--tasks"]
    assert complete(folder, "trainerctl", "data", "mini") == ["minimal.json"]


_packages = {}  # {(version, compression): path}


def packages(*versions, compression="none"):
    """Returns packages of these versions, built once from the same programs."""
    need_program("dpkg-deb", "dpkg-shlibdeps")
    for version in versions:
        if (version, compression) not in _packages:
            folder = tempfile.mkdtemp(prefix="trainerd-test-", dir=kit.FOLDERS)
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            make("deb", "OUT=" + folder, "DEB_VERSION=" + version, "COMPRESSION=" + compression)
            _packages[version, compression] = glob.glob(os.path.join(folder, "*.deb"))[0]
    return [_packages[version, compression] for version in versions]


@test
def package_has_all_files_and_states_that_no_licence_is_chosen():
    deb = packages("0.1.0")[0]
    folder = workdir()
    make("install", "DESTDIR=" + folder, "PREFIX=/usr")
    unpacked = workdir()
    sh("dpkg-deb", "-x", deb, unpacked)
    expected = {re.sub(r"(\.[15])$", r"\1.gz", path) for path in tree(folder)} - {"usr/lib/trainerd/installed"}
    assert set(tree(unpacked)) == expected | {"usr/share/doc/trainerd/copyright", "usr/share/doc/trainerd/changelog.gz"}
    with open(os.path.join(unpacked, "usr/share/doc/trainerd/copyright")) as f:
        assert "The owner has not chosen a licence yet." in f.read()
    depends = sh("dpkg-deb", "-f", deb, "Depends")
    assert "libgrpc" in depends and "libdnnl" in depends and "systemd" in depends, depends


@test
def package_has_no_error_and_no_warning_of_lintian():
    p = subprocess.run([need_program("lintian"), "--allow-root", "--fail-on", "error,warning", packages("0.1.0", compression="gzip")[0]], capture_output=True, text=True, timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr


@test
def packages_from_equal_inputs_are_equal():
    with open(packages("0.1.0", compression="gzip")[0], "rb") as f:
        first = f.read()
    folder = workdir()
    make("deb", "OUT=" + folder, "DEB_VERSION=0.1.0", "COMPRESSION=gzip")
    with open(glob.glob(os.path.join(folder, "*.deb"))[0], "rb") as f:
        assert f.read() == first


DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}  # minor numbers


@contextlib.contextmanager
def copy_of_this_system():
    """Mounts a copy of / in which every change is lost at the end; yields its path. No folder of the machine is writable
    through it: the copy has a /dev, /run and /tmp of its own."""
    base = workdir()
    root = os.path.join(base, "root")
    os.mkdir(root)
    sh("mount", "-t", "tmpfs", "none", base)
    try:
        for name in ("upper", "work", "root"):
            os.mkdir(os.path.join(base, name))
        p = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", "lowerdir=/,upperdir=%s/upper,workdir=%s/work" % (base, base),
                            root], capture_output=True, text=True)
        if p.returncode != 0:
            raise Skip("no overlay file system: " + p.stderr.strip())
        for name in ("dev", "run", "tmp"):
            sh("mount", "-t", "tmpfs", "none", os.path.join(root, name))
        sh("mount", "-t", "proc", "proc", os.path.join(root, "proc"))
        for name, minor in DEVICES.items():
            p = subprocess.run(["mknod", "-m", "666", os.path.join(root, "dev", name), "c", "1", str(minor)])
            if p.returncode != 0:
                raise Skip("device files cannot be created")
        yield root
    finally:
        sh("umount", "--recursive", "--lazy", base)


def files_of(chroot):
    """Returns the paths in the folders in which the package has files."""
    folders = "/usr/bin /usr/lib/trainerd /usr/lib/sysusers.d /usr/lib/tmpfiles.d /usr/share/trainerd /usr/share/doc /usr/share/man " \
        "/usr/share/bash-completion /lib/systemd/system /etc/trainerd /var/lib/trainerd"
    return set(sh(*chroot, "sh", "-c", "find %s 2>/dev/null; true" % folders).split("\n"))


def folder_with_job(root):
    """Writes a job below root; returns its path inside."""
    folder = os.path.join(root, "srv", "training")
    os.makedirs(folder)
    digits_job(folder, train={"epochs": 100000, "log_every_steps": 1})
    for name in os.listdir(folder):  # links lead out of root
        path = os.path.join(folder, name)
        if os.path.islink(path):
            source = os.path.realpath(path)
            os.unlink(path)
            shutil.copy(source, path)
    return "/srv/training/job.json"


def check_package(root, old, new):
    for deb in (old, new):
        shutil.copy(deb, os.path.join(root, "tmp"))
    chroot = ("chroot", root)
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive", LC_ALL="C")
    before = files_of(chroot)
    sh(*chroot, "dpkg", "-i", "/tmp/" + os.path.basename(old), env=env)
    assert "trainerd" in sh(*chroot, "getent", "passwd", "trainerd") and "/var/lib/trainerd" in sh(*chroot, "getent", "passwd", "trainerd")
    assert sh(*chroot, "stat", "-c", "%a %U", "/etc/trainerd", "/var/lib/trainerd").split("\n")[:2] == ["700 root", "750 trainerd"]

    kit.TRAINERD, program = "/usr/bin/trainerd", kit.TRAINERD
    try:
        job = folder_with_job(root)
        slow = {"TRAINERD_FAULT": "train.forward=delay:3@1+"}
        port = free_ports(1)[0]
        task = Task(job, tf_config([port], 0), ("--devices", "cpu:1"), slow, "worker 0", prefix=chroot)
        task.until_step(5)
        said = sh(*chroot, "dpkg", "-i", "/tmp/" + os.path.basename(new), env=env)
        assert "running tasks continue with version 0.1.0; to change a job to 0.1.0+1" in said, said
        assert os.readlink("/proc/%d/exe" % task.p.pid).endswith(" (deleted)"), os.readlink("/proc/%d/exe" % task.p.pid)
        task.until_step(max(task.steps()) + 20)  # the upgrade did not disturb it
        assert "worker 0" in sh(*chroot, "trainerctl", "status", "127.0.0.1:%d" % port)
        task.signal(signal.SIGTERM)
        expect_codes([task], [143])
        again = Task(job, tf_config([port], 0), ("--devices", "cpu:1"), slow, "worker 0", prefix=chroot)
        again.until_step(max(task.steps()) + 1)
        again.signal(signal.SIGTERM)
        expect_codes([again], [143])
    finally:
        kit.TRAINERD = program

    open(os.path.join(root, "etc/trainerd/mine.env"), "w").close()
    sh(*chroot, "dpkg", "-r", "trainerd", env=env)
    assert os.path.exists(os.path.join(root, "etc/trainerd/mine.env"))
    sh(*chroot, "dpkg", "-P", "trainerd", env=env)
    assert os.path.exists(os.path.join(root, "etc/trainerd/mine.env"))  # a file of the administrator
    os.unlink(os.path.join(root, "etc/trainerd/mine.env"))
    sh(*chroot, "dpkg", "-i", "/tmp/" + os.path.basename(new), env=env)
    sh(*chroot, "dpkg", "-P", "trainerd", env=env)
    after = files_of(chroot)
    assert after == before, after ^ before


@test
def package_installs_upgrades_while_a_job_runs_and_is_removed():
    need_namespaces()
    need_program("systemd-sysusers")
    if os.geteuid() != 0:
        raise Skip("only root can install a package")
    old, new = packages("0.1.0", "0.1.0+1")
    with copy_of_this_system() as root:
        check_package(root, old, new)


@test
def package_trains_a_model_after_its_installation():
    need_namespaces()
    need_program("systemd-sysusers")
    if os.geteuid() != 0:
        raise Skip("only root can install a package")
    [deb] = packages("0.1.0")
    with copy_of_this_system() as root:
        shutil.copy(deb, os.path.join(root, "tmp"))
        chroot = ("chroot", root)
        env = dict(os.environ, DEBIAN_FRONTEND="noninteractive", LC_ALL="C")
        sh(*chroot, "dpkg", "-i", "/tmp/" + os.path.basename(deb), env=env)
        sh(*chroot, "sh", "-c", "cp -r /usr/share/trainerd/digits /srv/digits && cd /srv/digits && "
           "sed -i 's/\"epochs\": [0-9]*/\"epochs\": 1/' digits.json && trainerctl local -n 2 digits.json")
        assert os.path.getsize(os.path.join(root, "srv/digits/run/digits.onnx")) > 0


if __name__ == "__main__":
    enter_namespaces()
    main()
