#!/usr/bin/python3
"""Checkpoints of dynamic tables: the same bytes with any number of ps tasks, the rows of numpy (ids.py), resumed with any
number of tasks, and after deaths at the fault points."""
import glob
import os
import random
import shutil
import subprocess

import ids
from ids_group import Group, kept_folder, make_data
from kit import GUARD, TRAINERCTL, disturb, few, main, test, use_venv, workdir

use_venv()
import numpy as np  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

EVERY = 550
STEPS = (550, 1100, 1650, 2200)
SAVES = {"directory": "checkpoints", "every_steps": EVERY, "max_to_keep": 0}
NAMES = ("emb/ids", "emb", "emb/sum", "emb/last_step", "emb/count", "emb/candidate_ids", "emb/candidate_last_step", "emb/candidate_count")
_reference = []


def saving(workers, ps, **changes):
    return Group(workers, ps, checkpoint=SAVES, **changes)


def step_folder(group, step):
    return os.path.join(group.folder, "checkpoints", "step-%08d" % step)


def files(folder):
    """{name: bytes} without the manifest, which has the time of writing."""
    out = {}
    for path in glob.glob(os.path.join(folder, "*")):
        with open(path, "rb") as f:
            out[os.path.basename(path)] = f.read()
    out.pop("manifest.json")
    return out


def reference():
    """The group of one worker and one ps that has trained all steps."""
    if not _reference:
        _reference.append(saving(1, 1, folder=kept_folder()).finish())
    return _reference[0]


def expect_equal(group, steps=STEPS, may_lack=False):
    """may_lack: a ps was killed while it wrote its files, so a checkpoint but the last may be that of a later step."""
    expected = {r["step"]: r["loss"] for t in reference().tasks["worker 0"] for r in t.events("step")}
    for step, loss in group.losses().items():
        assert loss == expected[step], "step %d: loss %r, expected %r\n%s" % (step, loss, expected[step], group.logs())
    for step in steps:
        if step != STEPS[-1] and may_lack and not os.path.exists(os.path.join(step_folder(group, step), "manifest.json")):
            continue
        found, wanted = files(step_folder(group, step)), files(step_folder(reference(), step))
        assert sorted(found) == sorted(wanted), (step, sorted(found))
        for name, data in found.items():
            assert data == wanted[name], "step %d: %s differs\n%s" % (step, name, group.logs())
    verify(group)


def trainerctl(*args):
    return subprocess.run([TRAINERCTL, *args], capture_output=True, text=True, timeout=GUARD)


def verify(group):
    p = trainerctl("verify", os.path.join(group.folder, "checkpoints"))
    assert p.returncode == 0, p.stdout + p.stderr


def joined(folder):
    """The tensors of all files, joined in the order of the files."""
    parts = {}
    for path in sorted(glob.glob(os.path.join(folder, "*-of-00016.safetensors"))):
        for name, value in load_file(path).items():
            assert name.split("/rows-")[1] == os.path.basename(path).split("-", 1)[1].split(".")[0], (path, name)
            parts.setdefault(name.split("/rows-")[0], []).append(value)
    return {name: np.concatenate(values) for name, values in parts.items()}


def shard(i):
    return ids.mix64(int(i) & ids.MASK) >> 54


def expect_rows(tensors, oracle):
    assert sorted(tensors) == sorted(NAMES), sorted(tensors)
    for group, wanted in (("", set(oracle.rows)), ("candidate_", set(oracle.seen) - set(oracle.rows))):
        keys = [int(i) for i in tensors["emb/%sids" % group]]
        assert set(keys) == wanted and len(keys) == len(wanted), (group, len(keys), len(wanted))
        assert keys == sorted(keys, key=lambda i: (shard(i), i)), group
        counts, steps = tensors["emb/%scount" % group], tensors["emb/%slast_step" % group]
        assert [(int(c), int(s)) for c, s in zip(counts, steps)] == [tuple(oracle.seen[i]) for i in keys], group
    for i, weights, sums in zip(tensors["emb/ids"], tensors["emb"], tensors["emb/sum"]):
        assert np.allclose(weights, oracle.rows[int(i)][0], rtol=1e-3, atol=1e-5), (i, weights, oracle.rows[int(i)])
        assert np.allclose(sums, oracle.rows[int(i)][1], rtol=1e-3, atol=1e-5), (i, sums, oracle.rows[int(i)])


@test
def rows_counts_and_candidates_of_each_checkpoint_are_those_of_numpy():
    oracle = ids.Numpy(make_data())
    verify(reference())
    for step in STEPS:
        while oracle.step < step:
            oracle.train()
        tensors = joined(step_folder(reference(), step))
        assert len(tensors["emb/candidate_ids"]) > 0 and set(ids.EXTREMES) & set(tensors["emb/ids"].tolist())
        expect_rows(tensors, oracle)


@test
def files_have_the_same_bytes_with_any_number_of_tasks():
    expect_equal(saving(2, 3).finish())
    expect_equal(saving(4, 5, parameter_server={"replicas": 1}).finish())
    expect_equal(saving(1, 2, devices="cpu:2", parameter_server={"replicas": 3}).finish())
    expect_equal(saving(2, 3, parameter_server={"dense": "ps"}).finish())


@test
def optimizers_without_and_with_several_slots_have_the_same_bytes():
    for optimizer, parts in (({"type": "sgd"}, ()), ({"type": "adam", "average": {"decay": 0.9}}, ("m", "v", "average"))):
        groups = [saving(workers, ps, optimizer={"learning_rate": 0.01, **optimizer}).finish() for workers, ps in ((1, 1), (2, 3))]
        for step in STEPS:
            found = [files(step_folder(group, step)) for group in groups]
            assert found[0] == found[1], (optimizer, step, groups[1].logs())
            tensors = joined(step_folder(groups[0], step))
            assert len(tensors) == 7 + len(parts) and len(tensors["emb/ids"]) == len(tensors["emb"]) > 0, sorted(tensors)
        verify(groups[1])


@test
def job_is_stopped_it_resumes_with_other_numbers_of_ps():
    group = saving(4, 1, fault="train.forward=delay:2@1+")
    group.until_step(300)
    group.stop()
    for workers, ps, step, dense in ((2, 3, 900, "workers"), (1, 5, 1300, "ps"), (2, 2, 1700, "ps")):
        before = group.newest()
        group = saving(workers, ps, folder=group.folder, fault="train.forward=delay:1@1+", parameter_server={"dense": dense})
        group.until_step(step)
        assert min(group.losses()) > before - 1, (min(group.losses()), before)
        group.stop()
    expect_equal(saving(1, 4, folder=group.folder).finish())


@test
def job_is_resumed_with_another_admit_after_its_trained_rows_stay_trained():
    """Candidates become rows if the job now trains every row; counts stay below the new number otherwise."""
    source, save = step_folder(reference(), EVERY), {"checkpoint": {**SAVES, "every_steps": EVERY + 100}}
    before = joined(source)
    trained, candidates = set(before["emb/ids"].tolist()), set(before["emb/candidate_ids"].tolist())
    for after in (1, 5):
        folder = workdir()
        shutil.copytree(source, os.path.join(folder, "checkpoints", os.path.basename(source)))
        group = Group(1, 2, folder=folder, fault="train.forward=delay:1@1+", model={"tables": {"emb": {"admit_after": after}}}, **save)
        group.until_step(EVERY + 101)
        group.stop()
        verify(group)
        now = joined(step_folder(group, EVERY + 100))
        assert trained <= set(now["emb/ids"].tolist()), after
        if after == 1:
            assert candidates <= set(now["emb/ids"].tolist()) and len(now["emb/candidate_ids"]) == 0
        else:
            assert now["emb/candidate_count"].max() < after <= now["emb/count"].min()


@test
def all_holders_are_killed_the_group_returns_to_the_newest_checkpoint():
    group = saving(2, 2, fault="train.forward=delay:2@1+", parameter_server={"replicas": 1})
    group.until_step(EVERY + 100)
    group.kill("ps 1")
    group.start("ps 1")
    group.finish()
    steps = [r["step"] for r in group.tasks["worker 0"][0].events("step")]
    assert steps.count(EVERY + 50) == 2 and steps.count(EVERY - 50) == 1, group.logs()
    expect_equal(group)


WAITS = {"elastic": {"min_world": 2, "rejoin_seconds": 0}}


@test
def only_ps_is_killed_at_its_fault_points_all_files_are_equal():
    slow = "train.forward=delay:3@1+"
    alone = ["ps.vote=kill@40", "ps.commit=kill@30", "ps.count=kill@1", "ps.save=kill@9", "ps.vote=kill@700", "ps.load=kill@300", "ps.rows=kill@90"]
    for ends in few(alone):
        expect_equal(saving(2, 1, fault=slow, lives={"ps 0": ends}, **WAITS).finish())


@test
def workers_and_ps_are_killed_at_their_fault_points_all_files_are_equal():
    slow = "train.forward=delay:3@1+"
    lives = {"ps 0": ["ps.push=kill@50", "ps.send=kill@40", "ps.save_sync=kill@3"], "ps 1": ["ps.copy=kill@90", "ps.committed=kill@99"],
             "worker 1": ["train.update=kill@120", "train.commit=kill@50"], "worker 0": ["train.save=kill@1", "ckpt.write=kill@9"]}
    expect_equal(saving(4, 3, fault=slow, lives=lives, elastic={"min_world": 3, "rejoin_seconds": 0}).finish(), may_lack=True)


@test
def random_tasks_are_killed_all_files_are_equal():
    """KILL_SEEDS=n: so many runs; FIRST_SEED=n: from this one on."""
    first = int(os.environ.get("FIRST_SEED", 1))
    for seed in range(first, first + int(os.environ.get("KILL_SEEDS", 1))):
        r = random.Random(seed)
        group = saving(r.choice((2, 4)), r.randint(1, 3), fault="train.forward=delay:2@1+", parameter_server={"replicas": r.randint(1, 2)},
                       elastic={"min_world": 1, "rejoin_seconds": 0})
        try:
            group.now("worker 0").until_step(r.randint(1, 500))
            for _ in range(6):
                running = [name for name in group.names if group.now(name).p.poll() is None]
                names = r.sample(running, min(len(running), r.choice((1, 1, 2, 3))))
                group.kill(*names)
                disturb(r.choice((0, 0.05, 0.3)))
                for name in group.names:
                    if group.now(name).p.poll() not in (None, 0):
                        group.start(name)
                disturb(1)
            expect_equal(group.finish(supervised=True))
        except AssertionError as e:
            raise AssertionError("FIRST_SEED=%d: %s" % (seed, e)) from e


# ---- other programs ----

@test
def converted_checkpoint_has_all_rows_and_is_resumed():
    source, to = step_folder(reference(), 1100), os.path.join(workdir(), "whole")
    p = trainerctl("convert", "--out", to, source)
    assert p.returncode == 0 and "step 1100" in p.stdout, p
    found = {**load_file(os.path.join(to, "model.safetensors")), **load_file(os.path.join(to, "optimizer.safetensors"))}
    expected = joined(source)
    for name in NAMES:
        assert np.array_equal(found[name], expected[name]), name
    folder = workdir()
    shutil.copytree(to, os.path.join(folder, "checkpoints", "step-00001100"))
    group = saving(1, 2, folder=folder).finish()
    assert min(group.losses()) == 1101, group.logs()
    expect_equal(group, (1650, 2200))


@test
def exported_model_gives_onnxruntime_the_rows_of_each_id():
    """Trained ids have their rows, all others a row of zeros; the same file with any number of ps."""
    import onnx
    import onnxruntime
    paths = []
    for workers, ps, dense in ((1, 1, "workers"), (2, 3, "workers"), (2, 2, "ps")):
        group = Group(workers, ps, export={"onnx": "out.onnx"}, parameter_server={"dense": dense}).finish()
        paths.append(os.path.join(group.folder, "out.onnx"))
    for path in paths[1:]:
        with open(paths[0], "rb") as f, open(path, "rb") as g:
            assert f.read() == g.read(), path
    model = onnx.load(paths[0])
    onnx.checker.check_model(model)
    oracle = ids.Numpy(make_data())
    for _ in range(ids.STEPS):
        oracle.train()
    encoder, = [n for n in model.graph.node if n.op_type == "LabelEncoder"]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in encoder.attribute}
    assert list(attributes["keys_int64s"]) == sorted(oracle.rows) and attributes["default_int64"] == len(oracle.rows)
    assert list(attributes["values_int64s"]) == list(range(len(oracle.rows)))
    unknown = [i for i in oracle.seen if i not in oracle.rows][:6] + [123456789, 42]
    some = np.array([[i, k, *ids.EXTREMES[:2]] for i, k in zip(sorted(oracle.rows), unknown * 100)], "i8")
    x = np.array([sum(oracle.rows[int(i)][0] if int(i) in oracle.rows else np.zeros(ids.WIDTH, "f4") for i in s) for s in some], "f4")
    session = onnxruntime.InferenceSession(paths[0], providers=["CPUExecutionProvider"])
    logits, = session.run(None, {"ids": some})
    assert np.allclose(logits, x @ oracle.w + oracle.b, rtol=1e-3, atol=1e-4), np.abs(logits - (x @ oracle.w + oracle.b)).max()


if __name__ == "__main__":
    main()
