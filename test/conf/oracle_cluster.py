#!/usr/bin/env python3
"""oracle_cluster.py: prints random TF_CONFIG texts and the outcome that the tf profile must have for each.

tensorflow() is an independent model of what TensorFlow 2's resolver, its ClusterSpec and the checks of
MultiWorkerMirroredStrategy accept and compute. trainerd() adds the rules in which trainerd differs on
purpose, also in the tf profile; each has the number of its rule. The model shares no code with the
library.

The program prints two lines per case: the expected outcome, then the text.
usage: oracle_cluster.py COUNT SEED
"""
import json
import random
import re
import sys

TYPES = ("chief", "worker", "ps", "evaluator")
INT32 = 2**31


class Refused(Exception):
    """TensorFlow raises an exception, or trainerd rejects the text."""


def refuse_if(condition, why):
    if condition:
        raise Refused(why)


# ---- TensorFlow -------------------------------------------------------------------------------

def jobs_of(spec):
    """Returns the ClusterSpec: {job: {index: address}}."""
    refuse_if(not isinstance(spec, dict), "cluster is no dictionary")
    jobs = {}
    for job, tasks in spec.items():
        if isinstance(tasks, dict):
            jobs[job] = {int(key): address for key, address in tasks.items()}
        elif isinstance(tasks, list):
            jobs[job] = dict(enumerate(tasks))
        else:
            raise Refused("job is neither list nor dictionary")
        for index, address in jobs[job].items():
            refuse_if(not isinstance(address, str), "address is no text")
            refuse_if(not -INT32 <= index < INT32, "index is no int32")
    return jobs


def resolver(root):
    """Returns the properties of TensorFlow's resolver, which uses Python's `in` for every type of value."""
    jobs = jobs_of(root["cluster"]) if "cluster" in root else {}
    task = root["task"] if "task" in root else {}
    kind = str(task["type"]) if "type" in task else None
    index = int(task["index"]) if "index" in task else None
    rpc_layer = root["rpc_layer"] if "rpc_layer" in root else None
    return jobs, kind, index, rpc_layer


def validate(jobs, kind, index):
    refuse_if(any(job not in TYPES for job in jobs), "disallowed job")
    refuse_if(kind not in TYPES, "unknown task type")
    refuse_if(kind not in jobs and kind != "evaluator", "type is not in the cluster")
    refuse_if(len(jobs.get("chief", ())) > 1, "two chiefs")
    refuse_if(len(jobs.get("evaluator", ())) > 1, "two evaluators")
    refuse_if(kind in jobs and index >= len(jobs[kind]), "index beyond the count")


def strategy(jobs, kind, index):
    """Returns (type, index, rank, world, is_chief) of the multi-worker strategy; None: local."""
    if not jobs:
        return None
    refuse_if(kind is None or index is None, "type or index is missing")
    validate(jobs, kind, index)
    refuse_if(kind == "ps", "no id for a ps")
    chiefs, workers = len(jobs.get("chief", ())), len(jobs.get("worker", ()))
    if kind == "evaluator":
        refuse_if(kind not in jobs, "the evaluators of a cluster without them are counted")
        return kind, index, index, len(jobs[kind]), True
    refuse_if("chief" not in jobs and "worker" not in jobs, "no leader")
    is_chief = kind == "chief" or ("chief" not in jobs and index == 0)
    rank = 0 if kind == "chief" else index + chiefs
    return kind, index, rank, chiefs + workers, is_chief


def tensorflow(text):
    try:
        jobs, kind, index, _ = resolver(json.loads(text))
        return strategy(jobs, kind, index)
    except (ValueError, TypeError, OverflowError) as e:  # json's errors are ValueErrors
        raise Refused(str(e)) from e


# ---- intended differences of trainerd ----------------------------------------------------------

def is_valid_address(address, alone):
    """G-3 to G-9, G-13, S-12: whether the address is host:port and another task can reach it."""
    match = re.fullmatch(r"(\[[0-9a-f:]+\]|[^\s/:\[\]]*):([0-9]+)", address)
    return match is not None and (alone or int(match[2]) > 0) and int(match[2]) <= 65535


def is_local(address):
    return address.startswith((":", "localhost:", "127.", "[::1]:"))


def check_addresses(jobs, kind, index):
    listed = [(job, i, address) for job, tasks in jobs.items() for i, address in tasks.items()]
    for job, i, address in listed:
        refuse_if(not is_valid_address(address, len(listed) == 1), "G-3: no host:port")
    for job, i, address in listed:
        refuse_if(address.startswith("[::]:") and (job, i) != (kind, index), "G-2: any address")
        refuse_if(address.startswith(":") and not all(is_local(a) for _, _, a in listed), "G-5")


def check_refused(root, jobs):
    """Rejects the forms that TensorFlow accepts, or may accept, and trainerd does not."""
    if not isinstance(root, dict):
        return
    cluster = root.get("cluster", {})
    for tasks in cluster.values():
        if isinstance(tasks, dict):
            refuse_if(len({int(key) for key in tasks}) < len(tasks), "S-7: an index twice")
            refuse_if(any(int(key) < 0 for key in tasks), "S-9: a negative index")
    refuse_if(root.get("rpc_layer") and root["rpc_layer"] != "grpc", "M-5: rpc_layer")


def dynamic(root, jobs, kind, index):
    """KF-8 and KF-9: a task whose list has only itself and the parameter servers."""
    cluster = root.get("cluster", {}) if isinstance(root, dict) else {}
    if kind == "worker" and isinstance(cluster.get("worker"), dict) and "chief" not in jobs \
            and "ps" in jobs and list(jobs["worker"]) == [index]:
        return kind, index, 0, 1, index == 0
    if kind == "ps" and cluster.get("worker") == {} and isinstance(cluster["worker"], dict) \
            and isinstance(cluster.get("ps"), list) and len(cluster["ps"]) == 1 \
            and "chief" not in jobs and "evaluator" not in jobs:
        jobs["ps"] = {index: cluster["ps"][0]}
        return kind, index, None, 0, False
    return None


def trainerd(text):
    """Returns the outcome of trainerd's tf profile, or raises Refused."""
    def no_constant(name):
        raise Refused("R-9: " + name)

    try:
        root = json.loads(text, parse_constant=no_constant)
        if isinstance(root, dict) and isinstance(root.get("cluster"), dict) \
                and "master" in root["cluster"]:  # decision 4: another name of the chief
            refuse_if("chief" in root["cluster"], "E-4: master and chief")
            root["cluster"]["chief"] = root["cluster"].pop("master")
        if isinstance(root, dict) and isinstance(root.get("task"), dict) \
                and root["task"].get("type") == "master":
            root["task"]["type"] = "chief"
        jobs, kind, index, _ = resolver(root)
        check_refused(root, jobs)
        if not jobs:
            return None
        if kind is None and index is None and sum(map(len, jobs.values())) == 1:  # S-17
            for job in ("chief", "worker"):
                for only in jobs.get(job, ()):
                    kind, index = job, only
        refuse_if(kind is None or index is None, "R-18, R-21: no task")
        refuse_if(kind not in TYPES, "U-2")
        refuse_if(not 0 <= index < INT32, "U-7, EV-5: index out of range")
        refuse_if(any(job not in TYPES for job in jobs), "U-1")
        refuse_if(len(jobs.get("chief", ())) > 1 or len(jobs.get("evaluator", ())) > 1, "U-4, U-5")

        outcome = dynamic(root, jobs, kind, index)
        if outcome is None:
            chiefs, workers = len(jobs.get("chief", ())), len(jobs.get("worker", ()))
            refuse_if(chiefs + workers == 0, "C-14: nobody trains")
            refuse_if(sorted(jobs.get("worker", ())) != list(range(workers)), "U-8, U-9: sparse")
            if jobs.get(kind):  # U-6: the index is in the set; EV-3, EV-4: any index if not listed
                refuse_if(index not in jobs[kind], "U-6")
            else:
                refuse_if(kind != "evaluator", "U-3")
            if kind in ("ps", "evaluator"):  # C-7, C-8: not in the training group
                outcome = kind, index, None, chiefs + workers, False
            elif kind == "chief":  # the only one, with any index
                outcome = kind, index, 0, chiefs + workers, True
            else:  # C-11: with an empty job "chief", no task is the chief
                outcome = strategy(jobs, kind, index)
        check_addresses(jobs, kind, index)
        return outcome
    except (ValueError, TypeError, OverflowError) as e:
        raise Refused(str(e)) from e


# ---- cases -------------------------------------------------------------------------------------

class Cases:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def pick(self, *weighted):
        """Returns one of the weighted values: pick((9, a), (1, b)) is a with probability 0.9. Calls the value
        if it is callable."""
        values, weights = [v for _, v in weighted], [w for w, _ in weighted]
        value = self.rng.choices(values, weights)[0]
        return value() if callable(value) else value

    def odd(self):
        return self.rng.choice([None, True, False, 0, 1, -1, 1.9, "", "x", [], {}, ["type"], 2**40])

    def address(self):
        host = self.pick((12, lambda: self.rng.choice("abcdefgh") + str(self.rng.randrange(40))),
                         (1, "h.example.com."), (1, "10.0.0.1"), (1, "[2002::1]"), (1, "localhost"))
        odd = ["", ":1", "2222", "[::]:1", "a:", "a:0", "a:65536", "a:-1", "grpc://a:1", "a/b:1",
               "::1:1", "[::1]:1", "a b:1", "127.0.0.1:1/", "a:x", "a:0080", "0.0.0.0:1", "A:1"]
        return self.pick((60, lambda: f"{host}:{self.rng.randrange(1, 65536)}"),
                         (1, lambda: self.rng.choice(odd)))

    def key(self, i):
        return self.pick((30, str(i)), (1, f" {i} "), (1, f"0{i}"), (1, f"+{i}"), (1, f"{i}_0"),
                         (1, f"-{i + 1}"), (1, "x"), (1, str(i + 1)), (1, "2147483648"))

    def job(self, most):
        n = self.rng.randint(0 if self.rng.random() < .1 else 1, most)
        entries = [self.address() if self.rng.random() < .995 else self.odd() for _ in range(n)]
        first = self.pick((4, 0), (1, lambda: self.rng.randrange(4)))
        return self.pick((6, entries), (3, {self.key(i + first): a for i, a in enumerate(entries)}),
                         (.1, self.odd))

    def cluster(self):
        jobs = {}
        if self.rng.random() < .95:
            jobs["worker"] = self.job(4)
        if self.rng.random() < .4:
            jobs[self.pick((9, "chief"), (1, "master"))] = self.job(self.pick((9, 1), (1, 2)))
        if self.rng.random() < .3:
            jobs["ps"] = self.job(3)
        if self.rng.random() < .3:
            jobs["evaluator"] = self.job(self.pick((9, 1), (1, 2)))
        if self.rng.random() < .02:
            jobs[self.rng.choice(["tensorboard", "Worker", ""])] = self.job(1)
        items = list(jobs.items())
        self.rng.shuffle(items)
        return dict(items)

    def index(self):
        i = self.rng.randrange(4) if self.rng.random() < .5 else 0
        return self.pick((20, i), (2, str(i)), (1, f"\t{i} "), (1, i + .7), (1, True), (1, False),
                         (1, f"+{i}"), (1, f"0_{i}"), (1, "\u0661"), (1, f"\u2003{i}"),
                         (1, f"{i}_"), (1, -1), (1, -.3), (1, f"{i}.0"), (1, 10**25), (1, self.odd))

    def task(self):
        kind = self.pick((10, "worker"), (5, "chief"), (2, "ps"), (3, "evaluator"), (1, "master"),
                         (.5, "Worker"), (.5, self.odd))
        task = {"type": kind, "index": self.index()}
        if self.rng.random() < .05:
            del task[self.rng.choice(["type", "index"])]
        return self.pick((50, task), (1, {}), (1, self.odd))

    def text(self):
        root = {}
        if self.rng.random() < .95:
            root["cluster"] = self.pick((80, self.cluster), (1, {}), (1, self.odd))
        if self.rng.random() < .95:
            root["task"] = self.task()
        if self.rng.random() < .1:
            root["rpc_layer"] = self.pick((3, "grpc"), (2, self.odd))
        if self.rng.random() < .1:
            root["environment"] = "cloud"
        text = json.dumps(self.pick((300, root), (1, self.odd), (1, ["task"]), (1, "a cluster")))
        if self.rng.random() < .02:  # a duplicate key: the last one wins
            text = text.replace("{", '{"cluster":{"worker":["dup:1"]},', 1)
        if self.rng.random() < .02:  # invalid JSON
            cut = self.rng.randrange(len(text) + 1)
            text = text[:cut] + self.rng.choice(["", ",", "}", "'", "NaN", "x"]) + text[cut + 1:]
        return text


def describe(outcome):
    if outcome is None:
        return "worker 0 rank 0 of 1 chief local"
    kind, index, rank, world, is_chief = outcome
    return (f"{kind} {index} rank {'-' if rank is None else rank} of {world}"
            + (" chief" if is_chief else ""))


def check_difference(text, reason):
    """Checks that a text which TensorFlow accepts and trainerd rejects is covered by a rule."""
    try:
        tensorflow(text)
    except Refused:
        return
    assert re.match(r"[A-Z]+-[0-9]+", reason), f"{text}: refused without a rule: {reason}"


def main(count, seed):
    cases = Cases(seed)
    for _ in range(count):
        text = cases.text()
        try:
            line = describe(trainerd(text))
        except Refused as e:
            check_difference(text, str(e))
            line = "refused"
        print(line)
        print(text or " ")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
