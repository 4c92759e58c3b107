/* job_keys_train.c - the keys of /train, /elastic, /detection and /health. */
#include "conf/job_keys_priv.h"

static const struct conf_word precisions[] = {
    { "float32", PLAN_FLOAT32 },
    { "tf32", PLAN_TF32 },
    { "bfloat16", PLAN_BFLOAT16 },
    { "float16", PLAN_FLOAT16 },
};
static const struct conf_word spares[] = { { "off", SPARE_OFF }, { "auto", SPARE_AUTO }, { "always", SPARE_ALWAYS } };
static const struct conf_word balances[] = { { "auto", CONF_BALANCE_AUTO }, { "off", CONF_BALANCE_OFF } };
static const struct conf_word non_finites[] = {
    { "skip", TRAIN_SKIP },
    { "stop", TRAIN_STOP },
    { "restore", TRAIN_RESTORE },
};

/* clang-format off */
static const struct conf_key rows[] = {
{ "", "train", OBJECT, 0, REQUIRED,
  .doc = "The length of the run, its batch size, seed and precision." },
{ "/train", "seed", U64, AT(run.seed), .hi = UINT64_MAX, .fallback = "0",
  .doc = "The seed of every random number of the run." },
{ "/train", "epochs", U64, AT(run.epochs), .lo = 1, .hi = 1000000000, .instead = "steps",
  .doc = "Passes over the training data." },
{ "/train", "steps", U64, AT(run.steps), .lo = 1, .hi = 1000000000000, .instead = "epochs",
  .doc = "Optimizer updates." },
{ "/train", "global_batch_size", U32, AT(train.global_batch_size), .lo = 1, .hi = 16777216,
  .instead = "batch_size_per_replica",
  .doc = "Samples of one step over all replicas, independent of their number; a multiple of lanes." },
{ "/train", "batch_size_per_replica", U32, AT(train.batch_size_per_replica), .lo = 1,
  .hi = 16777216, .instead = "global_batch_size",
  .doc = "Samples of one step for each replica of the full cluster." },
{ "/train", "lanes", U32, AT(train.lanes), .hi = 65536, .fallback = "0",
  .doc = "Fixed slices of every global batch (micro-batches), distributed over the replicas; 0: the number of "
         "replicas of the full cluster. A multiple of the replicas; if it is not 1, 2, 4, 8, ... times their "
         "number, the parts are unequal, and a warning is logged." },
{ "/train", "lane_tree", LIST, AT(train.lane_tree), OPTIONAL, .hi = LANE_TREE_FACTORS,
  .count = AT(train.n_lane_tree), .stride = sizeof(uint32_t), .fallback = "[]",
  .doc = "The branching factors of the tree along which the gradients of lanes are added, from the top: their product "
         "is lanes, which may then be absent. [3, 3]: each third of 9 lanes is a subtree, as 3 racks of 3 hosts need to "
         "send the least possible to each other, and [6, 3] divides 18 lanes equally among 6 replicas. Absent or empty: a "
         "plain binary tree, as also if every factor but the first is a power of two. Results depend on this key in the "
         "last bits; lanes do not move between tasks (elastic.balance, elastic.spare) if the tree is not plain." },
{ "/train/lane_tree", "*", U32, .lo = 1, .hi = 65536,
  .doc = "The parts into which each part of the level above is divided." },
{ "/train", "precision", ENUM, AT(run.precision), WORDS(precisions), .fallback = "float32",
  .doc = "The precision of the computation. bfloat16: products and convolutions multiply bfloat16, and "
         "activations between them are stored as bfloat16; weights, their gradients, sums, statistics and losses "
         "stay float32. On CPUs it needs processors with avx512_bf16. float16, only on GPUs: the same with "
         "float16, whose range is small: see loss_scale. tf32, only on GPUs: everything is float32, but products "
         "and convolutions may round their inputs to 10 bits of fraction." },
{ "/train", "loss_scale", OBJECT, .fallback = "{}", .when = { "precision", BIT(PLAN_FLOAT16) },
  .doc = "The loss is multiplied by a power of two before the gradients are computed, so that small gradients are "
         "not lost in float16; the gradients are divided by it before they are used. If the gradient of a step is "
         "not finite but its loss is, all tasks skip the step and the scale is halved; growth_interval steps in a "
         "row without overflow double it. Checkpoints contain the scale." },
{ "/train/loss_scale", "initial_scale", F64, AT(run.loss_scale.initial),
  .min = 0x1p-24, .max = 0x1p32,
  .fallback = "65536",
  .doc = "The scale of the first step; like all scales a power of two." },
{ "/train/loss_scale", "growth_interval", U32, AT(run.loss_scale.growth_interval), .hi = 1000000000,
  .fallback = "2000",
  .doc = "Steps in a row without overflow after which the scale is doubled; 0: it is never doubled." },
{ "/train/loss_scale", "min_scale", F64, AT(run.loss_scale.min), .min = 0x1p-24, .max = 0x1p32,
  .fallback = "1",
  .doc = "The scale is not halved below this; health.non_finite handles gradients that still overflow." },
{ "/train/loss_scale", "max_scale", F64, AT(run.loss_scale.max), .min = 0x1p-24, .max = 0x1p32,
  .fallback = "16777216",
  .doc = "The scale is not doubled above this." },
{ "/train", "clip_norm", F64, AT(run.clip_norm), .max = 1e30, .fallback = "0",
  .doc = "Gradients whose global L2 norm is above this are scaled down to it; 0: never." },
{ "/train", "clip_value", F64, AT(run.clip_value), .max = 1e30, .fallback = "0",
  .doc = "Elements of the gradient are first clipped to the range from -clip_value to clip_value; 0: never." },
{ "/train", "eval_every_epochs", U32, AT(run.eval_every_epochs), .hi = 1000000000,
  .doc = "Evaluate after every so many epochs, 0: only at the end; default: 1 if data.eval is "
         "given, else 0." },
{ "/train", "log_every_steps", U32, AT(run.log_every_steps), LIVE, .lo = 1, .hi = 1000000000,
  .fallback = "10",
  .doc = "Steps between two lines of progress." },
{ "/train", "deadline_seconds", F64, AT(train.deadline_seconds), FREE, .min = 1, .max = 86400,
  .fallback = "30",
  .doc = "The time after which any operation is aborted with a reason, also the read of a checkpoint at the "
         "start; every other deadline derives from it." },
{ "/train", "grace_seconds", F64, AT(train.grace_seconds), FREE, .max = 3600, .fallback = "8",
  .doc = "The time that the running step and the save may take together after SIGTERM; then the step is aborted, "
         "and the state before it is saved. Must be less than the time after which a supervisor kills the "
         "process: by default 30 s in Kubernetes, 90 s in systemd." },

{ "", "elastic", OBJECT, 0, FREE, .fallback = "{}",
  .doc = "The behaviour while tasks are missing. Their lanes move to the remaining tasks; batch and results do "
         "not change." },
{ "/elastic", "min_world", U32, AT(elastic.min_world), FREE, .hi = 65536, .fallback = "0",
  .doc = "The number of tasks that may continue without the others; 0: all tasks of the cluster, so that they "
         "wait for a lost task until train.deadline_seconds. Half of the tasks or fewer need a "
         "checkpoint.directory that all tasks share: it contains the lease that prevents two parts of a cluster "
         "from training at the same time." },
{ "/elastic", "rejoin_seconds", F64, AT(elastic.rejoin_seconds), FREE, .max = 86400,
  .doc = "The time that the remaining tasks wait for a lost task before they continue, if there are at least "
         "min_world of them; a task that returns later joins between two steps. At most train.deadline_seconds. "
         "Default: 10, at most half of train.deadline_seconds." },
{ "/elastic", "balance", ENUM, AT(elastic.balance), FREE, WORDS(balances), .fallback = "auto",
  .doc = "auto: if tasks compute lanes at unequal speeds, the leader moves lanes from slow to fast tasks between "
         "two steps; results do not change. It needs several lanes for each replica: at least 4 are useful. Only "
         "on CPUs, without parameter_server, communication.compression and local SGD. off: equal shares." },
{ "/elastic", "balance_gain", F64, AT(elastic.balance_gain), FREE, .min = 0.01, .max = 1, .fallback = "0.1",
  .doc = "Lanes move if that is predicted to save at least this part of a step, in each of three successive "
         "windows (health.advice.window_steps, window_seconds)." },
{ "/elastic", "balance_seconds", F64, AT(elastic.balance_seconds), FREE, .max = 86400, .fallback = "60",
  .doc = "The least time between two moves. It doubles, up to 16 minutes, whenever less than half of the "
         "predicted gain came." },
{ "/elastic", "spare", ENUM, AT(elastic.spare), FREE, WORDS(spares), .fallback = "off",
  .doc = "auto: a task that waits for a late one computes the last lanes of that task, too, and the copy that is "
         "ready first counts; results do not change. On CPUs with one task for each host and at least 2 lanes for "
         "each task, without parameter_server, communication.compression and local SGD, where gradients are not "
         "reduced while backward computes: those of at most 1 MiB. always: also for larger gradients, which are "
         "then reduced after backward. The same on all tasks." },

{ "", "detection", OBJECT, 0, FREE, .fallback = "{}",
  .doc = "The detection of failures. The death of a process is detected at once, independent of these keys: its "
         "connections close, and its address refuses new ones (so does a firewall that REJECTs: let it DROP "
         "between tasks)." },
{ "/detection", "silent_seconds", F64, AT(detection.silent_seconds), FREE, .min = 0.2, .max = 60,
  .doc = "A task that has sent nothing for this time is lost; heartbeats are several times as frequent. Less than "
         "train.deadline_seconds. Default: 1.2, at most half of train.deadline_seconds." },
{ "/detection", "stuck_factor", F64, AT(health.stuck_factor), FREE, .max = 1e6, .fallback = "10",
  .doc = "A task is stuck if it is alive but a phase of its step takes this many times as long as before, without "
         "the time of waiting for other tasks: the task is reported, and the others continue without it. At least "
         "2; the limit is never below 3 seconds. 0, and until a phase has run a few times: train.deadline_seconds "
         "applies." },

{ "", "preflight_seconds", F64, AT(preflight_seconds), FREE, .max = 3600, .fallback = "0",
  .doc = "The longest time that a task of a cluster measures every pair of tasks before the first generation, as "
         "`trainerctl preflight` does; warnings name the task that differs, and training starts in any case. At once "
         "over if a task already trains. 0: nothing is measured." },

{ "", "health", OBJECT, .fallback = "{}",
  .doc = "The detection of wrong numbers, and the reaction to them." },
{ "/health", "check_gradients", BOOL, AT(health.check_gradients), FREE, .fallback = "true",
  .doc = "Whether replicas compare a checksum of each reduced gradient: a replica that differs is reported and "
         "receives the state of the majority; without a majority all replicas return to the newest checkpoint." },
{ "/health", "check_weights_every_steps", U64, AT(health.check_weights_every_steps), FREE,
  .hi = 1000000000000, .fallback = "100",
  .doc = "Steps between two comparisons of a checksum of all weights; 0: never." },
{ "/health", "non_finite", ENUM, AT(health.non_finite), WORDS(non_finites), .fallback = "stop",
  .doc = "NaN or infinity in a loss or gradient is reported with lane, samples and first node. stop: the job "
         "stops with the state before that step; skip: the step is counted and changes nothing, but more than 10 "
         "in a row stop the job; restore: all tasks return to the newest checkpoint, and stop when it happens "
         "again." },
{ "/health", "advice", OBJECT, 0, FREE, .fallback = "{}",
  .doc = "Limits of the time of steps. The leader compares the windows of all tasks with them; a value beyond its "
         "limit in two successive windows is a warning on every task, with the cause and the remedy." },
{ "/health/advice", "reduce_share", F64, AT(advice.at[ADVICE_REDUCE_SHARE]), FREE, .max = 1, .fallback = "0.2",
  .doc = "The part of a step that a task waits for the all-reduce; 0: no warning." },
{ "/health/advice", "data_share", F64, AT(advice.at[ADVICE_DATA_SHARE]), FREE, .max = 1, .fallback = "0.1",
  .doc = "The part of a step that a task waits for samples; 0: no warning." },
{ "/health/advice", "h2d_ms", F64, AT(advice.at[ADVICE_H2D_MS]), FREE, .max = 1e6, .fallback = "5",
  .doc = "Milliseconds to copy the samples of a lane to the GPU, of the slowest of 100 copies; 0: no warning." },
{ "/health/advice", "device_use", F64, AT(advice.at[ADVICE_DEVICE_USE]), FREE, .max = 1, .fallback = "0.7",
  .doc = "The part of a step in which the GPUs of a task have work; less is a warning; 0: no warning." },
{ "/health/advice", "lane_spread", F64, AT(advice.at[ADVICE_LANE_SPREAD]), FREE, .max = 1e6, .fallback = "1.25",
  .doc = "The time to compute a lane on the slowest task, divided by that on the median task: more than 1; 0: no "
         "warning." },
{ "/health/advice", "window_steps", U64, AT(advice.window_steps), FREE, .lo = 1, .hi = 1000000000,
  .fallback = "50", .doc = "The least number of steps in a window." },
{ "/health/advice", "window_seconds", F64, AT(advice.window_seconds), FREE, .max = 86400, .fallback = "10",
  .doc = "The shortest duration of a window." },
{ "/health/advice", "repeat_seconds", F64, AT(advice.repeat_seconds), FREE, .max = 1e9, .fallback = "600",
  .doc = "The shortest time between two log lines of the same kind and culprit." },
};
/* clang-format on */

const struct conf_key_table conf_keys_train = { rows, COUNT_OF(rows) };
