#!/usr/bin/python3
"""Silent errors from the view of a user: tasks that diverge, and non-finite numbers."""
# san: yes
import os

from kit import Task, digits_job, expect_codes, free_ports, main, read_tree, start, test, tf_config, workdir

STEPS = {"epochs": None, "steps": 40, "eval_every_epochs": 0}
SLOWLY = "train.forward=delay:20@1+"


def say(tasks, what):
    for t in tasks:
        assert any(what in r.get("message", "") for r in t.records), "%s does not say '%s':\n%s" % (
            t.name, what, t.log())


def weights(folder, step):
    files = read_tree(os.path.join(folder, "run", "checkpoints", "step-%08d" % step))
    return {name: data for name, data in files.items() if name.endswith(".safetensors")}


@test
def divergence_of_two_tasks_ends_both_and_the_next_start_resumes():
    d, undisturbed, ports = workdir(), workdir(), free_ports(2)
    expect_codes([Task(digits_job(undisturbed, train=STEPS), args=("--devices", "cpu:2"))], [0])
    job = digits_job(d, train=STEPS, checkpoint={"every_steps": 10})
    faults = [SLOWLY, SLOWLY + ",health.flip_gradient@25"]
    tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1"), {"TRAINERD_FAULT": faults[i]}, "worker %d" % i)
             for i in range(2)]
    expect_codes(tasks, [138, 138])
    say(tasks, "no majority shows which are right: the reduced gradient of step 25")
    tasks = start(job, 2, ports=ports)
    expect_codes(tasks, [0, 0])
    assert tasks[0].events("resume")[0]["step"] in (10, 20), tasks[0].log()
    assert len(weights(d, 40)) == 2 and weights(d, 40) == weights(undisturbed, 40)


@test
def divergence_repeated_on_one_task_ends_it_and_the_others_complete():
    d, ports = workdir(), free_ports(3)
    job = digits_job(d, train=dict(STEPS, lanes=3, global_batch_size=48), elastic={"min_world": 2, "rejoin_seconds": 0})
    faults = [SLOWLY, SLOWLY, SLOWLY + ",health.flip_gradient@5+"]
    tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1"), {"TRAINERD_FAULT": faults[i]}, "worker %d" % i)
             for i in range(3)]
    expect_codes(tasks, [0, 0, 138])
    say(tasks, "worker 2 differs from the others: its reduced gradient of step ")
    say(tasks[2:], "the results of this task diverged 3 times; check the hardware of its host")
    assert len(tasks[2].events("differs")) == 3, tasks[2].log()

    alone = Task(digits_job(workdir(), train=dict(STEPS, log_every_steps=1)), args=("--devices", "cpu:2"),
                 env={"TRAINERD_FAULT": "health.flip_gradient@5+"})
    expect_codes([alone], [138])
    say([alone], "its replicas 0 and 1 hold different reduced gradients")
    say([alone], "the results of this task diverged 3 times; check the hardware of its host")
    assert max(alone.steps()) == 4


@test
def non_finite_numbers_end_the_job_with_their_origin_on_every_task():
    d = workdir()
    # A variance of 1e30 squared is above the largest float.
    features = {"image": {"dtype": "uint8", "shape": [1, 8, 8], "scale": 1e30}}
    tasks = start(digits_job(d, train=STEPS, data={"features": features}), 2)
    expect_codes(tasks, [2, 2])
    say(tasks, "step 1: the reduced statistic of 'bn1.running_var' holds NaN or infinity; first in lane 0 (positions 0 "
               "to 15 of epoch 0): backward of BatchNormRelu '/bn1/BatchNormalization': the batch's 'bn1.running_var' "
               "float32 [16] holds inf, 16 of 16 numbers; it read '/conv1/Conv_output_0' from -")


@test
def skipped_steps_are_counted_and_too_many_in_a_row_end_the_job():
    d = workdir()
    features = {"image": {"dtype": "uint8", "shape": [1, 8, 8], "scale": 1e30}}
    tasks = start(digits_job(d, train=STEPS, data={"features": features}, health={"non_finite": "skip"}), 2)
    expect_codes(tasks, [2, 2])
    for t in tasks:
        assert len(t.events("skipped")) == 10, t.log()
    say(tasks, "the step is skipped, weights and optimizer state stay as they are (10 in a row")
    say(tasks, "step 11: the reduced statistic of 'bn1.running_var' holds NaN or infinity; first in lane 0")
    say(tasks, "10 steps in a row were skipped before it, so the job stops")


main()
