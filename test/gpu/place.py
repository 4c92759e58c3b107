"""place.py - what is run and where it was built: a build tree, or a pack (pack.py) unpacked on another machine.

In a pack build/X is a script that starts build/real/X with the libraries of build/lib."""
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
        """It looks for the plugin beside itself."""
        return os.path.join(self.plugins, "trainerd")

    def env(self, **more):
        """Of whatever is to find the plugin on its library path."""
        env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG" and not k.startswith("TRAINERD_")}
        if not self.is_packed:
            env["LD_LIBRARY_PATH"] = ":".join(p for p in (self.plugins.rstrip("/"), env.get("LD_LIBRARY_PATH")) if p)
        return dict(env, **more)

    def tests(self):
        """Names of test programs that compute on a GPU: of all ops, and those that say so."""
        if self.is_packed:
            found = [os.path.join(os.path.relpath(base, self.build), name)
                     for base, _, names in os.walk(os.path.join(self.build, "test")) for name in names]
            return sorted(name for name in found if os.path.basename(name).startswith("test_"))
        out = []
        for base, _, names in os.walk(os.path.join(ROOT, "test")):
            for name in names:
                path = os.path.join(base, name)
                if name.startswith("test_") and name.endswith(".c") and (
                        os.path.basename(base) == "op" or says(path, "TRAINERD_TEST_CUDA")):
                    out.append(os.path.relpath(path, ROOT)[:-2])
        return sorted(out)


def says(path, word):
    with open(path, errors="replace") as f:
        return word in f.read()


def end(process):
    """By asking, then by force: a script of tests ends what it started."""
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
