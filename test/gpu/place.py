"""place.py - the location of the programs: a build tree, or an archive of pack.py that was unpacked.

In an unpacked archive, build/X is a script that runs build/real/X with the libraries of build/lib."""
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Place:
    def __init__(self, emulated=False):
        self.build = os.path.join(ROOT, os.environ.get("BUILD", "build"))
        self.is_packed = os.path.isdir(os.path.join(self.build, "real"))
        self.emulated = emulated
        self.plugins = os.path.join(self.build, "emulated" if emulated and not self.is_packed else "")

    def program(self, name):
        return os.path.join(self.build, name)

    def trainerd(self):
        """Returns the path of trainerd, which loads the plugin from its own folder."""
        return os.path.join(self.plugins, "trainerd")

    def env(self, **more):
        """Returns the environment of a program that loads the plugin from its library path."""
        env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG" and not k.startswith("TRAINERD_")}
        if not self.is_packed:
            env["LD_LIBRARY_PATH"] = ":".join(p for p in (self.plugins.rstrip("/"), env.get("LD_LIBRARY_PATH")) if p)
        return dict(env, **more)

    def without_start_script(self, name):
        """Returns (path, environment) of a program without its start script: for tools that start programs themselves."""
        if not self.is_packed:
            return self.program(name), self.env()
        folders = [os.path.join(self.build, "lib"), os.path.join(self.build, "real"), os.environ.get("LD_LIBRARY_PATH")]
        return os.path.join(self.build, "real", name), self.env(LD_LIBRARY_PATH=":".join(filter(None, folders)))

    def tests(self):
        """Returns the names of the test programs that compute on a GPU: those of test/op, and those whose source
        contains TRAINERD_TEST_CUDA."""
        if self.is_packed:
            found = [os.path.join(os.path.relpath(base, self.build), name)
                     for base, _, names in os.walk(os.path.join(self.build, "test")) for name in names]
            return sorted(name for name in found if os.path.basename(name).startswith("test_"))
        out = []
        for base, _, names in os.walk(os.path.join(ROOT, "test")):
            for name in names:
                path = os.path.join(base, name)
                if name.startswith("test_") and name.endswith(".c") and (
                        os.path.basename(base) == "op" or contains(path, "TRAINERD_TEST_CUDA")):
                    out.append(os.path.relpath(path, ROOT)[:-2])
        return sorted(out)


def contains(path, word):
    with open(path, errors="replace") as f:
        return word in f.read()


def terminate(process):
    """Ends a process with SIGTERM, so that a test script can terminate its own children, and after 15 s with SIGKILL."""
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
