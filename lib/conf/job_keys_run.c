/* job_keys_run.c - the keys of /communication, /checkpoint, /evaluator, /summary, /log and /export. */
#include "conf/job_keys_priv.h"

static const struct conf_word comms[] = {
    { "auto", CONF_COMM_AUTO },
    { "cpu", CONF_COMM_CPU },
    { "nccl", CONF_COMM_NCCL },
};
static const struct conf_word topologies[] = {
    { "auto", CONF_TOPOLOGY_AUTO },
    { "labels", CONF_TOPOLOGY_LABELS },
    { "flat", CONF_TOPOLOGY_FLAT },
};
static const struct conf_word codes[] = {
    { "none", CODE_NONE },
    { "bfloat16", CODE_BFLOAT16 },
    { "float16", CODE_FLOAT16 },
    { "int8", CODE_INT8 },
    { "int4", CODE_INT4 },
    { "top_k", CODE_TOP_K },
    { "power_sgd", CODE_POWER_SGD },
};
static const struct conf_word code_whens[] = {
    { "always", CODE_ALWAYS },
    { "network", CODE_NETWORK },
};
static const struct conf_word log_levels[] = {
    { "debug", LOG_DEBUG },
    { "info", LOG_INFO },
    { "warn", LOG_WARN },
    { "error", LOG_ERROR },
};
static const struct conf_word export_dtypes[] = {
    { "float32", TENSOR_F32 },
    { "bfloat16", TENSOR_BF16 },
    { "float16", TENSOR_F16 },
};

#define METRIC_WORD(NAME, word, ...) { #word, TRAIN_METRIC_##NAME },
static const struct conf_word best_metrics[] = { { "loss", TRAIN_METRICS }, TRAIN_METRIC_LIST(METRIC_WORD) };
#undef METRIC_WORD
static const struct conf_word best_modes[] = {
    { "auto", CONF_BEST_AUTO },
    { "min", CONF_BEST_MIN },
    { "max", CONF_BEST_MAX },
};

#define IS_CODED                                                                                   \
    .when = { "code",                                                                              \
              BIT(CODE_BFLOAT16) | BIT(CODE_FLOAT16) | BIT(CODE_INT8) | BIT(CODE_INT4) |           \
                  BIT(CODE_TOP_K) | BIT(CODE_POWER_SGD) }
#define KEEPS_RESIDUALS .when = { "code", BIT(CODE_TOP_K) | BIT(CODE_POWER_SGD) }

/* clang-format off */
static const struct conf_key rows[] = {
{ "", "communication", OBJECT, .fallback = "{}",
  .doc = "How tasks exchange gradients." },
{ "/communication", "implementation", ENUM, AT(communication.implementation), WORDS(comms),
  .fallback = "auto",
  .doc = "auto: nccl between GPUs, cpu between processors; cpu and nccl select one of them." },
{ "/communication", "topology", ENUM, AT(communication.topology), FREE, WORDS(topologies), .fallback = "auto",
  .doc = "auto: if all training tasks have a location (the environment variable TRAINERD_LOCATION, or "
         "SLURM_TOPOLOGY_ADDR), tasks of a rack are neighbours in the order of ranks; and if links are slow between groups of "
         "tasks and a step is predicted to take 20 % less, the leader places these groups in racks. labels: by locations "
         "only. flat: this task states no location, and the order is that of the cluster. Results do not depend on it." },
{ "/communication", "deterministic", BOOL, AT(communication.deterministic), .fallback = "false",
  .doc = "Whether GPUs add gradients along the tree over lanes, so that results do not depend on their number; false: in "
         "an order that NCCL chooses. CPUs always add along the tree." },
{ "/communication", "shared_memory", BOOL, AT(communication.shared_memory), FREE,
  .fallback = "true",
  .doc = "Whether tasks of one host, workers and ps, use shared memory; false: they use TCP." },
{ "/communication", "token_file", PATH, AT(communication.token_file), FREE | NULLABLE,
  .fallback = "null",
  .doc = "A file with the secret by which tasks authenticate each other; null: the environment variable "
         "TRAINERD_TOKEN, or none." },
{ "/communication", "tls", PATH, AT(communication.tls), FREE | NULLABLE, .fallback = "null",
  .doc = "A folder with tls.crt, tls.key and ca.crt: the certificate of this task, its key, and the authority of the "
         "cluster; they are read again when they change. null: the environment variable TRAINERD_TLS, or certificates "
         "that follow from the token, or clear text without a token." },
{ "/communication", "encrypt", BOOL, AT(communication.encrypt), FREE, .fallback = "true",
  .doc = "Whether tensors between hosts are encrypted and authenticated (TLS 1.3, AES-128-GCM) if the cluster has a "
         "token or certificates; false: in clear text. The same value is required on all tasks. NCCL's own connections "
         "are never encrypted." },
{ "/communication", "data_port", PORTS, AT(communication.data_port), FREE | NULLABLE, .lo = 1, .hi = 65535,
  .fallback = "null",
  .doc = "The TCP port on which this task receives tensors from its peers, for firewalls: a port, or a range as "
         "in \"7000-7010\" or [7000, 7010], whose first free port is used; one port for each task of a host. "
         "null: the system chooses a port. NCCL opens its own ports." },
{ "/communication", "compression", OBJECT, AT(communication.has_compression), OPTIONAL,
  .doc = "How gradients are compressed between groups of lanes. Results depend on these keys, and not on the number of "
         "tasks or GPUs. Absent: gradients are float32." },
{ "/communication/compression", "code", ENUM, AT(communication.code.kind), REQUIRED, WORDS(codes),
  .doc = "bfloat16: 2 bytes for each number, rounded to nearest. float16: 2.02 bytes, with a scale for each 256 numbers. "
         "int8: 1.02 bytes, with a scale for each 256 numbers. int4: 0.56 bytes, with a scale for each 64 numbers, rounded "
         "up or down at random. top_k: the largest numbers of each 4096 as float32, 5.5 bytes for each of them. "
         "power_sgd: a matrix as the product of two with few columns. These two keep what they do not send, and add it "
         "to the gradient of the next step. none: float32." },
{ "/communication/compression", "groups", U32, AT(communication.code.groups), REQUIRED, .lo = 1, .hi = 65536, IS_CODED,
  .doc = "The number of groups; a power of two that is at most train.lanes. The sum of the gradients of a group is "
         "compressed once, and the sum of all groups once; inside a group gradients are float32. top_k and power_sgd "
         "compress the sum of a group alone, and need at least one group for each replica." },
{ "/communication/compression", "min_bytes", U64, AT(communication.code.min_bytes), .hi = 1000000000000,
  .fallback = "65536", IS_CODED,
  .doc = "Gradients of parameters with fewer bytes stay float32; embedding tables always do, and with power_sgd "
         "parameters of one dimension." },
{ "/communication/compression", "fraction", F64, AT(communication.code.fraction), ABOVE_MIN, .max = 1,
  .fallback = "0.01", .when = { "code", BIT(CODE_TOP_K) },
  .doc = "The share of the numbers of each 4096 that top_k sends, rounded up." },
{ "/communication/compression", "rank", U32, AT(communication.code.rank), .lo = 1, .hi = CODE_MAX_RANK,
  .fallback = "4", .when = { "code", BIT(CODE_POWER_SGD) },
  .doc = "The number of columns of each factor of power_sgd." },
{ "/communication/compression", "copy_every_steps", U32, AT(communication.code.copy_every_steps), FREE, .lo = 1,
  .hi = 1000000000, .fallback = "100", KEEPS_RESIDUALS,
  .doc = "Each task keeps a copy of the whole state after every so many steps, and after each step with a checkpoint. "
         "When a task is lost, the others return to the newest copy and train the steps after it again." },
{ "/communication/compression", "when", ENUM, AT(communication.code.when), WORDS(code_whens), .fallback = "always", IS_CODED,
  .doc = "always: also in tasks that send nothing, with the same results. network: if the first step of the job is "
         "reduced between hosts; decided once and kept in checkpoints." },

{ "", "checkpoint", OBJECT, 0, FREE, .fallback = "{}",
  .doc = "When the state of the run is saved; it is always saved at the end." },
{ "/checkpoint", "directory", PATH, AT(checkpoint.directory), FREE | NULLABLE, .fallback = "null",
  .doc = "A folder that every task can reach; null: no checkpoints." },
{ "/checkpoint", "every_steps", U64, AT(checkpoint.every_steps), LIVE, .hi = 1000000000000,
  .fallback = "0",
  .doc = "Save after every so many steps; 0: not by steps." },
{ "/checkpoint", "every_seconds", F64, AT(checkpoint.every_seconds), LIVE, .max = 1e9,
  .fallback = "0",
  .doc = "Save when the last checkpoint is this old; 0: not by time." },
{ "/checkpoint", "max_to_keep", U32, AT(checkpoint.max_to_keep), LIVE, .hi = 1000000000,
  .fallback = "5",
  .doc = "The number of checkpoints to keep: older ones are deleted after a newer one is verified; 0: all are "
         "kept." },
{ "/checkpoint", "restart_from_scratch", BOOL, AT(checkpoint.restart_from_scratch), FREE, .fallback = "false",
  .doc = "Whether training begins at step 0 if checkpoints exist and all of them are damaged; false: the job ends "
         "with exit code 2 and lists them." },

{ "", "evaluator", OBJECT, 0, FREE, .fallback = "{}",
  .doc = "What evaluator tasks do, which follow checkpoint.directory; chief and workers ignore it." },
{ "/evaluator", "metric", ENUM, AT(evaluator.metric), FREE, WORDS(best_metrics), .fallback = "loss",
  .doc = "Decides which checkpoint is the best: the loss on data.eval, or one of model.metrics." },
{ "/evaluator", "mode", ENUM, AT(evaluator.mode), FREE, WORDS(best_modes), .fallback = "auto",
  .doc = "Whether a lower (min) or a higher (max) value of the metric is better; auto: max for accuracy, "
         "top_k_accuracy and auc, else min." },
{ "/evaluator", "keep_best", BOOL, AT(evaluator.keep_best), FREE, .fallback = "true",
  .doc = "Whether the best checkpoint is kept in the directory of the evaluator, where no retention removes it." },
{ "/evaluator", "directory", PATH, AT(evaluator.directory), FREE | NULLABLE, .fallback = "null",
  .doc = "The folder of evaluator 0: its state and the best checkpoint; evaluator N adds -N to the name. null: \"best\" "
         "beside checkpoint.directory." },

{ "", "summary", OBJECT, 0, FREE, .fallback = "{}",
  .doc = "Curves for TensorBoard." },
{ "/summary", "directory", PATH, AT(summary.directory), LIVE | NULLABLE, .fallback = "null",
  .doc = "The folder in which the chief writes event files; null: none are written." },

{ "", "log", OBJECT, 0, FREE, .fallback = "{}",
  .doc = "What is logged." },
{ "/log", "level", ENUM, AT(log.level), LIVE, WORDS(log_levels), .fallback = "info",
  .doc = "The least important records that are written; --log-level takes precedence." },

{ "", "export", OBJECT, 0, FREE, .fallback = "{}",
  .doc = "The trained model." },
{ "/export", "onnx", PATH, AT(export.onnx), FREE | NULLABLE, .fallback = "null",
  .doc = "The file to which the chief writes the trained graph at the end; null: it is not written." },
{ "/export", "safetensors", PATH, AT(export.safetensors), FREE | NULLABLE, .fallback = "null",
  .doc = "The file to which the chief writes the trained weights at the end, in the safetensors format with the "
         "names of the module: load_state_dict(load_file(...)) reads it; null: they are not written." },
{ "/export", "dtype", ENUM, AT(export.dtype), FREE, WORDS(export_dtypes), .fallback = "float32",
  .doc = "The type of floating-point tensors in export.safetensors." },
};
/* clang-format on */

const struct conf_key_table conf_keys_run = { rows, COUNT_OF(rows) };
