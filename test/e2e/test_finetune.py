#!/usr/bin/python3
"""Fine-tuning: from safetensors files of PyTorch and back.

Networks of test/exporters start with the weights of files that PyTorch and transformers wrote (test/exporters/finetune, by
generate_finetune.py), train, and are exported as safetensors. Compared with PyTorch: the losses of 20 steps, and in the
exported file the names, shapes, types and values of state_dict(), read by an independent reader of the format."""
import json
import os
import shutil
import subprocess
import sys

import numpy as np

from kit import ROOT, TRAINERD, Task, expect_codes, free_ports, main, test, tf_config, use_venv, workdir

EXPORTERS = os.path.join(ROOT, "test", "exporters")
FINETUNE = os.path.join(EXPORTERS, "finetune")
sys.path[:0] = [EXPORTERS, os.path.join(ROOT, "test", "ckpt")]
use_venv()

from check import relative, run_trainerd, write_job  # noqa: E402
from check_safetensors import read  # noqa: E402
from spec import read_case, unpack  # noqa: E402

STEPS, LOSS, WEIGHT = 20, 1e-5, 1e-4
TYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I64": "<i8"}


def tensors(path):
    """Returns {name: (type, array in float64)} and the metadata."""
    rows, metadata = read(path)
    out = {}
    for name, dtype, shape, data in rows:
        if dtype == "BF16":
            array = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        else:
            array = np.frombuffer(data, TYPES[dtype])
        out[name] = dtype, array.reshape(shape).astype(np.float64)
    return out, metadata


def prepare(name, folder, export="recipe", **changes):
    """Writes the job of a case to `folder`, with its network and weights files; `changes` replace keys of "model"."""
    with open(os.path.join(FINETUNE, name + ".json")) as f:
        reference = json.load(f)
    case = read_case(name)
    unpack(case, export, folder)
    shutil.copytree(os.path.join(FINETUNE, name), os.path.join(folder, name))
    path = write_job(case, export, reference["optimizer"], folder, model={**reference["model"], **changes})
    with open(path) as f:
        job = json.load(f)
    job["train"]["steps"] = STEPS
    job["export"]["safetensors"] = "trained.safetensors"
    with open(path, "w") as f:
        json.dump(job, f)
    return path, job, reference


def change(path, job, **sections):
    for section, keys in sections.items():
        job.setdefault(section, {}).update(keys)
    with open(path, "w") as f:
        json.dump(job, f)


def losses_of(records):
    return [r["loss"] for r in sorted((r for r in records if r.get("event") == "step"), key=lambda r: r["step"])]


def plan(path):
    p = subprocess.run([TRAINERD, "--job", path, "--check", "--devices", "cpu:1"], capture_output=True, text=True)
    return p.returncode, json.loads(p.stdout)


def compare(name, folder, reference, records):
    ours = losses_of(records)
    assert len(ours) == STEPS and relative(ours, reference["losses"]) <= LOSS, (ours, reference["losses"])
    got, metadata = tensors(os.path.join(folder, "trained.safetensors"))
    expected, _ = tensors(os.path.join(FINETUNE, name + ".trained.safetensors"))
    assert metadata == {"format": "pt"}, metadata
    absent = {k for k in expected if k.endswith(".num_batches_tracked")}  # not in ONNX; load_state_dict() accepts its absence
    assert set(got) == set(expected) - absent, set(got) ^ (set(expected) - absent)
    for key, (dtype, array) in got.items():
        assert dtype == "F32" and array.shape == expected[key][1].shape, (key, dtype, array.shape)
        error = np.abs(array - expected[key][1]).max()
        assert error <= WEIGHT * max(1e-2, np.abs(expected[key][1]).max()), "%s differs by %.1e" % (key, error)


def finetune(name, export="recipe"):
    folder = workdir()
    path, _, reference = prepare(name, folder, export)
    code, records, message = run_trainerd(TRAINERD, path)
    assert code == 0, message
    compare(name, folder, reference, records)
    return folder, records


def notes(records):
    return [r["message"] for r in records if "tensors loaded" in r.get("message", "")]


@test
def bert_with_a_new_head_and_frozen_embeddings_trains_as_in_pytorch():
    folder, records = finetune("bert")
    assert "39 tensors loaded, 2 keep the values of the model, 1 of the file are not in the model: 'cls.predictions.bias'" in notes(records)[0], notes(records)
    got, _ = tensors(os.path.join(folder, "trained.safetensors"))
    index = json.load(open(os.path.join(folder, "bert", "model.safetensors.index.json")))["weight_map"]
    for key, part in index.items():  # frozen: equal to the bfloat16 values of the file
        if key.startswith("embeddings."):
            base, _ = tensors(os.path.join(folder, "bert", part))
            assert np.array_equal(got["bert." + key][1], base[key][1]), key


@test
def gpt2_whose_file_has_the_tied_embedding_once_trains_as_in_pytorch():
    finetune("gpt2")


@test
def network_with_running_averages_in_float16_trains_as_in_pytorch():
    finetune("conv3d")


@test
def tensor_that_the_exporter_computed_from_parameters_is_refused():
    """A default export cuts the positions to the exported length; they are frozen here, so that the cut would have no
    effect on training."""
    path, _, _ = prepare("bert", workdir(), "default")
    code, _, message = run_trainerd(TRAINERD, path)
    assert code == 2 and "bert.embeddings.position_embeddings.weight" in message and "optimize=False" in message, message


@test
def default_export_with_transposed_weights_loads_them_from_the_file():
    """Both exports of one network train equally from one weights file, whose values neither export contains."""
    case, random = read_case("llama"), np.random.RandomState(5)
    names = [k for k, e in case["state"].items() if e["kind"] == "parameter" and "same_as" not in e]
    header, data = {}, b""
    for k in names:
        array = (0.2 * random.standard_normal(case["state"][k]["shape"])).astype("<f4")
        header[k] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    losses, weights = [], []
    for export in ("recipe", "default"):
        folder = workdir()
        unpack(case, export, folder)
        save_shard(os.path.join(folder, "w.safetensors"), header, data)
        path = write_job(case, export, "momentum", folder, model={"weights": "w.safetensors"})
        with open(path) as f:
            job = json.load(f)
        change(path, job, train={"steps": STEPS}, export={"safetensors": "trained.safetensors"})
        code, records, message = run_trainerd(TRAINERD, path)
        assert code == 0, message
        losses.append(losses_of(records))
        weights.append(tensors(os.path.join(folder, "trained.safetensors"))[0])
    assert relative(losses[1], losses[0]) <= LOSS and losses[0][-1] < losses[0][0], losses
    assert set(weights[0]) == set(weights[1]) == set(names), (set(weights[0]) ^ set(names), set(weights[1]) ^ set(names))
    for k in names:
        assert weights[0][k][1].shape == weights[1][k][1].shape == tuple(case["state"][k]["shape"]), k
        assert np.abs(weights[0][k][1] - weights[1][k][1]).max() <= WEIGHT, k


def load_shard(path):
    with open(path, "rb") as f:
        blob = f.read()
    n = int.from_bytes(blob[:8], "little")
    return json.loads(blob[8:8 + n]), blob[8 + n:]


def save_shard(path, header, data):
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)


@test
def tied_parameter_under_both_names_needs_equal_values():
    folder = workdir()
    path, _, reference = prepare("gpt2", folder)
    file = os.path.join(folder, "gpt2", "model.safetensors")
    header, data = load_shard(file)
    begin, end = header["transformer.wte.weight"]["data_offsets"]
    header["lm_head.weight"] = {**header["transformer.wte.weight"], "data_offsets": [len(data), len(data) + end - begin]}
    save_shard(file, header, data + data[begin:end])
    code, records, message = run_trainerd(TRAINERD, path)
    assert code == 0 and " 0 of the file are not in the model" in notes(records)[0], (message, notes(records))
    compare("gpt2", folder, reference, records)
    shutil.rmtree(os.path.join(folder, "checkpoints"))
    save_shard(file, header, data + data[begin:end - 1] + bytes([data[end - 1] ^ 1]))
    code, records, message = run_trainerd(TRAINERD, path)
    assert code == 2 and "ties 'transformer.wte.weight' to 'lm_head.weight'" in message, message


@test
def check_prints_what_was_loaded():
    path, job, _ = prepare("bert", workdir())
    code, got = plan(path)
    assert code == 0 and got["weights"] == {"file": os.path.join(os.path.dirname(path), "bert"), "loaded": 39, "fresh": 2, "surplus": 1}, got["weights"]


@test
def missing_name_is_refused_with_the_line_of_json():
    path, job, reference = prepare("bert", workdir(), weights_names={})
    code, records, message = run_trainerd(TRAINERD, path)
    assert code == 2 and '"weights_names": {"bert.*": "*"}' in message and "39 parameters of the model are not in the file" in message, message
    change(path, job, model={"weights_names": {"bert.*": "*"}, "weights_fresh": ["classifier.weight"]})
    code, records, message = run_trainerd(TRAINERD, path)
    assert code == 2 and '"weights_fresh": ["classifier.bias"]' in message and "1 parameters" in message, message


@test
def checkpoint_has_priority_over_the_weights_file():
    folder = workdir()
    path, job, reference = prepare("gpt2", folder)
    change(path, job, train={"steps": STEPS // 2})
    code, first, message = run_trainerd(TRAINERD, path)
    assert code == 0, message
    change(path, job, train={"steps": STEPS})
    code, second, message = run_trainerd(TRAINERD, path)
    assert code == 0, message
    assert relative(losses_of(first) + losses_of(second), reference["losses"]) <= LOSS
    assert len(losses_of(second)) == STEPS // 2


@test
def rollback_to_step_0_reads_the_weights_file_again():
    folder = workdir()
    path, job, reference = prepare("gpt2", folder)
    change(path, job, health={"non_finite": "restore"})
    t = Task(path, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "health.not_finite@5"})
    assert t.wait() == 0, t.final_message()
    assert [r["step"] for r in t.events("step")][:5] == [1, 2, 3, 4, 1], t.log()
    compare("gpt2", folder, reference, t.records[[r.get("step") for r in t.records].index(4) + 1:])


@test
def export_in_bfloat16_is_the_rounded_export():
    folder = workdir()
    path, job, _ = prepare("conv3d", folder)
    change(path, job, export={"dtype": "bfloat16"})
    code, _, message = run_trainerd(TRAINERD, path)
    assert code == 0, message
    got, _ = tensors(os.path.join(folder, "trained.safetensors"))
    expected, _ = tensors(os.path.join(FINETUNE, "conv3d.trained.safetensors"))
    for key, (dtype, array) in got.items():
        assert dtype == "BF16", (key, dtype)
        assert np.all(np.abs(array - expected[key][1]) <= 2 ** -8 * np.abs(expected[key][1]) + 1e-4), key


@test
def tasks_with_different_weights_files_reject_each_other():
    folders, ports = [workdir(), workdir()], free_ports(2)
    paths = [prepare("gpt2", f)[0] for f in folders]
    weights = os.path.join(folders[1], "gpt2", "model.safetensors")
    with open(weights, "r+b") as f:  # flip one bit of the last number
        f.seek(-1, os.SEEK_END)
        last = f.read(1)[0]
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last ^ 1]))
    for path in paths:
        with open(path) as f:
            job = json.load(f)
        change(path, job, train={"lanes": 2, "global_batch_size": 8})
    tasks = [Task(p, tf_config(ports, i), ("--devices", "cpu:1"), None, "worker %d" % i) for i, p in enumerate(paths)]
    expect_codes(tasks, [2, 2])
    assert any("file of weights" in t.final_message() and "give every task the same file" in t.final_message() for t in tasks), [t.final_message() for t in tasks]


@test
def file_truncated_before_the_start_is_refused():
    folder = workdir()
    path, _, _ = prepare("gpt2", folder)
    os.truncate(os.path.join(folder, "gpt2", "model.safetensors"), 20000)
    code, _, message = run_trainerd(TRAINERD, path)
    assert code == 2 and "model.safetensors" in message and "the tensors need" in message, message


if __name__ == "__main__":
    main()
