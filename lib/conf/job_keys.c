/* job_keys.c - all keys of the job file, in the order in which they are printed. A key that
 * determines whether others apply (a type, a rule) precedes them. */
#include "conf/job_keys.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

#define AT(field_) offsetof(struct conf, field_)
#define FEATURE_AT(field_) offsetof(struct conf_feature, field_)
#define MAP_AT(field_) offsetof(struct conf_map, field_)
#define GROUP_AT(field_) offsetof(struct conf_group, field_)
#define WORDS(words_) .words = words_, .n_words = COUNT_OF(words_)
#define BIT(word_) (1u << (word_))

/* Every enum is stored and read as an unsigned; an item of a map starts with its name. */
static_assert(sizeof(enum optim_type) == sizeof(unsigned), "enums are unsigned");
static_assert(offsetof(struct conf_feature, data.name) == 0, "the name comes first");
static_assert(offsetof(struct train_input, feature) == 0, "the name comes first");
static_assert(offsetof(struct graph_rename, graph) == 0, "the name comes first");

static const struct conf_word dtypes[] = {
    { "float32", TENSOR_F32 }, { "int64", TENSOR_I64 },  { "int32", TENSOR_I32 },
    { "uint8", TENSOR_U8 },    { "uint16", TENSOR_U16 }, { "uint32", TENSOR_U32 },
};
static const struct conf_word formats[] = {
    { "tfrecord", DATA_TFRECORD },
    { "csv", DATA_CSV },
    { "npy", DATA_NPY },
    { "tokens", DATA_TOKENS },
};
static const struct conf_word layouts[] = {
    { "channels_first", false },
    { "channels_last", true },
};
static const struct conf_word bad_records[] = { { "stop", false }, { "skip", true } };
static const struct conf_word map_ops[] = {
    { "random_resized_crop", DATA_RANDOM_RESIZED_CROP },
    { "random_crop", DATA_RANDOM_CROP },
    { "center_crop", DATA_CENTER_CROP },
    { "flip", DATA_FLIP },
    { "color_jitter", DATA_COLOR_JITTER },
    { "normalize", DATA_NORMALIZE },
};
static const struct conf_word map_whens[] = {
    { "training", CONF_MAP_TRAINING },
    { "evaluation", CONF_MAP_EVALUATION },
    { "always", CONF_MAP_ALWAYS },
};
#define LOSS_WORD(NAME, word, ...) { #word, TRAIN_LOSS_##NAME },
static const struct conf_word losses[] = { TRAIN_LOSS_LIST(LOSS_WORD) };
static const struct conf_word batch_norms[] = {
    { "ask", GRAPH_NORM_ASK },
    { "train", GRAPH_NORM_TRAIN },
    { "frozen", GRAPH_NORM_FROZEN },
};
#define METRIC_WORD(NAME, word, ...) { #word, TRAIN_METRIC_##NAME },
static const struct conf_word metrics[] = { TRAIN_METRIC_LIST(METRIC_WORD) };
static const struct conf_word caches[] = {
    { "none", DATA_CACHE_NONE },
    { "memory", DATA_CACHE_MEMORY },
    { "disk", DATA_CACHE_DISK },
};
static const struct conf_word remainders[] = {
    { "drop", false },
    { "pad", true },
};
static const struct conf_word precisions[] = {
    { "float32", PLAN_FLOAT32 },
    { "tf32", PLAN_TF32 },
    { "bfloat16", PLAN_BFLOAT16 },
    { "float16", PLAN_FLOAT16 },
};
#define OPTIM_WORD(NAME, word, ...) { #word, OPTIM_##NAME },
static const struct conf_word optimizers[] = { OPTIM_LIST(OPTIM_WORD) };
static const struct conf_word schedules[] = { OPTIM_SCHEDULE_LIST(OPTIM_WORD) };
static const struct conf_word scalings[] = {
    { "none", OPTIM_SCALING_NONE },
    { "linear", OPTIM_SCALING_LINEAR },
    { "square_root", OPTIM_SCALING_SQUARE_ROOT },
};
static const struct conf_word export_dtypes[] = {
    { "float32", TENSOR_F32 },
    { "bfloat16", TENSOR_BF16 },
    { "float16", TENSOR_F16 },
};
static const struct conf_word comms[] = {
    { "auto", CONF_COMM_AUTO },
    { "cpu", CONF_COMM_CPU },
    { "nccl", CONF_COMM_NCCL },
};
static const struct conf_word non_finites[] = {
    { "skip", TRAIN_SKIP },
    { "stop", TRAIN_STOP },
    { "restore", TRAIN_RESTORE },
};
static const struct conf_word log_levels[] = {
    { "debug", LOG_DEBUG },
    { "info", LOG_INFO },
    { "warn", LOG_WARN },
    { "error", LOG_ERROR },
};

/* Short names for the table below. */
#define OBJECT CONF_KEY_OBJECT
#define STRING CONF_KEY_STRING
#define PATH CONF_KEY_PATH
#define BOOL CONF_KEY_BOOL
#define ENUM CONF_KEY_ENUM
#define EITHER CONF_KEY_EITHER
#define U32 CONF_KEY_U32
#define U64 CONF_KEY_U64
#define F64 CONF_KEY_F64
#define PORTS CONF_KEY_PORTS
#define LIST CONF_KEY_LIST
#define MAP CONF_KEY_MAP
#define REQUIRED CONF_KEY_REQUIRED
#define NULLABLE CONF_KEY_NULLABLE
#define ABOVE_MIN CONF_KEY_ABOVE_MIN
#define BELOW_MAX CONF_KEY_BELOW_MAX
#define UNIQUE CONF_KEY_UNIQUE
#define ALLOCATED CONF_KEY_ALLOCATED
#define FREE CONF_KEY_FREE
#define LIVE (CONF_KEY_FREE | CONF_KEY_LIVE)

/* The optimizers, and the schedules, that use a key, as bits for `when`: columns of their lists. */
/* clang-format off */
#define HAS_MOMENTUM(N, w, momentum, ...) | (unsigned)((momentum) != OPTIM_UNUSED) << OPTIM_##N
#define HAS_BETA2(N, w, momentum, beta2, ...) | (unsigned)((beta2) != OPTIM_UNUSED) << OPTIM_##N
#define HAS_EPSILON(N, w, momentum, beta2, epsilon, ...) \
    | (unsigned)((epsilon) != OPTIM_UNUSED) << OPTIM_##N
#define HAS_BETA1(N, w, m, b, e, decay, beta1, ...) | beta1##u << OPTIM_##N
#define HAS_TRUST(N, w, m, b, e, decay, beta1, trust, ...) | trust##u << OPTIM_##N
#define HAS_NESTEROV(N, w, m, b, e, decay, beta1, trust, nesterov, ...) | nesterov##u << OPTIM_##N
#define HAS_CENTERED(N, w, m, b, e, decay, beta1, trust, nesterov, centered) \
    | centered##u << OPTIM_##N
#define OPTIMIZERS(has_) .when = { "type", 0u OPTIM_LIST(has_) }
#define HAS_WARMUP(N, w, warmup, ...) | warmup##u << OPTIM_##N
#define HAS_STEP_SIZE(N, w, warmup, step, ...) | step##u << OPTIM_##N
#define HAS_GAMMA(N, w, warmup, step, gamma, ...) | gamma##u << OPTIM_##N
#define HAS_FINAL(N, w, warmup, step, gamma, final, ...) | final##u << OPTIM_##N
#define HAS_POWER(N, w, warmup, step, gamma, final, power, ...) | power##u << OPTIM_##N
#define HAS_CYCLE(N, w, warmup, step, gamma, final, power, cycle, ...) | cycle##u << OPTIM_##N
#define HAS_PATIENCE(N, w, warmup, step, gamma, final, power, cycle, patience) \
    | patience##u << OPTIM_##N
#define SCHEDULES(has_) .when = { "type", 0u OPTIM_SCHEDULE_LIST(has_) }
/* clang-format on */

/* clang-format off */
/* The losses that use a key: a column of the list, or a word of the column "tensor". */
#define USES_TENSOR(N, tensor, wanted) | (unsigned)(TRAIN_##tensor == wanted) << TRAIN_LOSS_##N
#define USES_LOGITS(N, w, op, labels, tensor, ...) USES_TENSOR(N, tensor, TRAIN_LOGITS)
#define USES_LOG_PROBABILITIES(N, w, op, labels, tensor, ...) USES_TENSOR(N, tensor, TRAIN_LOG_PROBABILITIES)
#define USES_PREDICTIONS(N, w, op, labels, tensor, ...) USES_TENSOR(N, tensor, TRAIN_PREDICTIONS)
#define USES_OUTPUT(N, w, op, labels, tensor, ...) USES_TENSOR(N, tensor, TRAIN_OUTPUT)
#define USES_SMOOTHING(N, w, op, labels, tensor, smoothing, ...) | smoothing##u << TRAIN_LOSS_##N
#define USES_CLASSES(N, w, op, labels, tensor, smoothing, classes, ...) | classes##u << TRAIN_LOSS_##N
#define USES_POS_WEIGHT(N, w, op, labels, tensor, smoothing, classes, pos_weight, ...) \
    | pos_weight##u << TRAIN_LOSS_##N
#define USES_DELTA(N, w, op, labels, tensor, smoothing, classes, pos_weight, delta) \
    | delta##u << TRAIN_LOSS_##N
#define LOSSES(uses_) .when = { "type", 0u TRAIN_LOSS_LIST(uses_) }

/* The keys of a loss: of model.loss (base_: its offset in struct conf) and of an item of
 * more_losses (0). */
#define LOSS_AT(base_, field_) ((base_) + offsetof(struct conf_objective, field_))
#define LOSS_KEYS(parent_, base_)                                                                  \
{ parent_, "type", ENUM, LOSS_AT(base_, type), REQUIRED, WORDS(losses),                            \
  .doc = TRAIN_LOSS_LIST_DOC },                                                                    \
{ parent_, "logits", STRING, LOSS_AT(base_, tensor), REQUIRED, LOSSES(USES_LOGITS),                \
  .doc = "The graph output, or any tensor of the graph, with the scores before softmax or sigmoid." },\
{ parent_, "log_probabilities", STRING, LOSS_AT(base_, tensor), REQUIRED,                          \
  LOSSES(USES_LOG_PROBABILITIES),                                                                  \
  .doc = "The graph output, or any tensor of the graph, with the logarithms after softmax." },     \
{ parent_, "predictions", STRING, LOSS_AT(base_, tensor), REQUIRED,                                \
  LOSSES(USES_PREDICTIONS),                                                                        \
  .doc = "The graph output, or any tensor of the graph, with the predicted numbers." },            \
{ parent_, "output", STRING, LOSS_AT(base_, tensor), REQUIRED,                                     \
  LOSSES(USES_OUTPUT),                                                                             \
  .doc = "The graph output with the loss: a scalar, the mean over the samples of a lane's batch. If "\
         "labels have different weights (class weights, ignored labels), the mean over the lanes " \
         "differs from the mean over the batch: with several lanes use another type, which "       \
         "computes the mean over the batch." },                                                    \
{ parent_, "labels", STRING, LOSS_AT(base_, labels), REQUIRED,                                     \
  .when = { "type", ~BIT(TRAIN_LOSS_GRAPH) },                                                      \
  .doc = "The feature of data.features with the labels." },                                        \
{ parent_, "weight", F64, LOSS_AT(base_, weight), ABOVE_MIN, .max = 1e30, .fallback = "1",         \
  .doc = "The factor of this loss in the sum of all losses." },                                    \
{ parent_, "label_smoothing", F64, LOSS_AT(base_, label_smoothing), BELOW_MAX, .max = 1,           \
  .fallback = "0", LOSSES(USES_SMOOTHING),                                                         \
  .doc = "The share of each label that is spread evenly over all classes." },                      \
{ parent_, "class_weights", LIST, LOSS_AT(base_, class_weights), ALLOCATED, .hi = 1 << 20,         \
  .count = LOSS_AT(base_, n_class_weights), .stride = sizeof(double), .fallback = "[]",            \
  LOSSES(USES_CLASSES),                                                                            \
  .doc = "The weight of each class in the weighted mean. []: every weight is 1." },                \
{ parent_ "/class_weights", "*", F64, .max = 1e30,                                                 \
  .doc = "The weight of one class." },                                                             \
{ parent_, "ignore_index", F64, LOSS_AT(base_, ignore_index), NULLABLE, .min = -2147483648.0,      \
  .max = 2147483647.0, .fallback = "null", LOSSES(USES_CLASSES),                                   \
  .doc = "A label that is ignored, also in the mean, such as -100; null: no label is ignored." },  \
{ parent_, "pos_weight", F64, LOSS_AT(base_, pos_weight), ABOVE_MIN, .max = 1e30, .fallback = "1", \
  LOSSES(USES_POS_WEIGHT),                                                                         \
  .doc = "The weight of a label of 1; a label of 0 has the weight 1." },                           \
{ parent_, "delta", F64, LOSS_AT(base_, delta), ABOVE_MIN, .max = 1e30, .fallback = "1",           \
  LOSSES(USES_DELTA),                                                                              \
  .doc = "The error at which the loss changes from quadratic to linear." },
/* clang-format on */

/* Ranges: real numbers must be valid as float32 (1e-30 to 1e30), and products of counts (steps
 * times batch, epochs times records) must fit in 64 bits. */
/* clang-format off */
static const struct conf_key keys[] = {
{ "", "name", STRING, AT(name), FREE,
  .doc = "The name of the run in logs and summaries; default: the name of the job file without .json." },

{ "", "model", OBJECT, 0, REQUIRED,
  .doc = "The network, its inputs, and the loss that training minimises." },
{ "/model", "onnx", PATH, AT(model.onnx), REQUIRED,
  .doc = "The ONNX file to train, relative to the job file." },
{ "/model", "inputs", MAP, AT(model.inputs), REQUIRED | ALLOCATED, .lo = 1, .hi = CONF_MAX_FEATURES,
  .count = AT(model.n_inputs), .stride = sizeof(struct train_input),
  .doc = "Which feature of data.features feeds which input of the graph." },
{ "/model/inputs", "*", STRING, offsetof(struct train_input, input),
  .doc = "The graph input that the feature of this name feeds." },
{ "/model", "loss", OBJECT, 0, REQUIRED,
  .doc = "The loss that training minimises." },
LOSS_KEYS("/model/loss", AT(objective.loss))
{ "/model", "more_losses", LIST, AT(objective.more_losses), .hi = CONF_MAX_LOSSES,
  .count = AT(objective.n_more_losses), .stride = sizeof(struct conf_objective), .fallback = "[]",
  .doc = "Losses that are added to the first, each multiplied by its weight." },
{ "/model/more_losses", "*", OBJECT,
  .doc = "A loss." },
LOSS_KEYS("/model/more_losses/*", 0)
{ "/model", "top_k", U32, AT(objective.top_k), .lo = 1, .hi = 1000000, .fallback = "5",
  .doc = "The k of the metric top_k_accuracy." },
{ "/model", "metrics", LIST, AT(objective.metrics), UNIQUE, .hi = CONF_MAX_METRICS,
  .count = AT(objective.n_metrics), .stride = sizeof(enum train_metric_type), .fallback = "[]",
  .doc = "Metrics that evaluation computes in addition to the loss; needs data.eval." },
{ "/model/metrics", "*", ENUM, WORDS(metrics),
  .doc = TRAIN_METRIC_LIST_DOC },
{ "/model", "weights", PATH, AT(model.weights), NULLABLE, .fallback = "null",
  .doc = "A safetensors file with the initial weights, the index of several (model.safetensors.index.json), or "
         "the folder of either; relative to the job file. Its tensors are matched by name; float16, bfloat16 and "
         "float64 are converted to float32. It is read at every start; if a checkpoint exists, the trained values "
         "are read from the checkpoint. null: the weights of the ONNX file." },
{ "/model", "weights_names", MAP, AT(model.weights_names), ALLOCATED, .hi = CONF_MAX_RENAMES,
  .count = AT(model.n_weights_names), .stride = sizeof(struct graph_rename), .fallback = "{}",
  .doc = "Tensors that have another name in model.weights: the name in the graph, and the name in the file. One * "
         "on each side stands for the same text: {\"*\": \"model.*\"} if the names in the file start with model., "
         "{\"bert.*\": \"*\"} if the names in the graph start with bert. The longest matching name or pattern is "
         "used." },
{ "/model/weights_names", "*", STRING, offsetof(struct graph_rename, file),
  .doc = "The name in the file of the tensor or tensors that match this name or pattern in the graph." },
{ "/model", "weights_fresh", LIST, AT(model.weights_fresh), ALLOCATED, .hi = 1024,
  .count = AT(model.n_weights_fresh), .stride = sizeof(const char *), .fallback = "[]",
  .doc = "Parameters that may be absent from model.weights, as patterns with *, ? and [...], such as layers that "
         "are added for fine-tuning: they start with the values of the ONNX file." },
{ "/model/weights_fresh", "*", STRING,
  .doc = "A pattern over initializer names." },
{ "/model", "trainable", LIST, AT(model.trainable), ALLOCATED, .hi = 1024,
  .count = AT(model.n_trainable), .stride = sizeof(const char *), .fallback = "[]",
  .doc = "Tensors that are trained regardless of the file, as patterns with *, ? and [...]: parameters that the "
         "file does not mark as such, and exceptions from frozen: {\"frozen\": [\"*\"], \"trainable\": "
         "[\"head.*\"]} trains only the head. trainerctl inspect prints what is trained and why." },
{ "/model/trainable", "*", STRING,
  .doc = "A pattern that matches the parameter names of the module, or the names in the file." },
{ "/model", "frozen", LIST, AT(model.frozen), ALLOCATED, .hi = 1024,
  .count = AT(model.n_frozen), .stride = sizeof(const char *), .fallback = "[]",
  .doc = "Tensors that are not trained, as patterns with *, ? and [...]." },
{ "/model/frozen", "*", STRING,
  .doc = "A pattern that matches the parameter names of the module, or the names in the file." },
{ "/model", "padding_idx", MAP, AT(model.padding), ALLOCATED, .hi = CONF_MAX_TABLES,
  .count = AT(model.n_padding), .stride = sizeof(struct graph_padding), .fallback = "{}",
  .doc = "The padding row of embedding tables, by a pattern over initializer names: as in "
         "torch.nn.Embedding(padding_idx) no Gather adds a gradient to it, while weight decay and other users of "
         "the table (such as a tied projection) change it. Files of PyTorch's current exporter state it in their "
         "metadata; other files need this key." },
{ "/model/padding_idx", "*", U64, offsetof(struct graph_padding, row), .hi = INT32_MAX,
  .doc = "The row, from 0." },
{ "/model", "frozen_rows", MAP, AT(model.frozen_rows), ALLOCATED, .hi = CONF_MAX_TABLES,
  .count = AT(model.n_frozen_rows), .stride = sizeof(struct train_rows), .fallback = "{}",
  .doc = "Rows (along dimension 0) of trained tensors, by a pattern over initializer names, that never change: "
         "their gradient is not used, not even in the norm for clipping, and neither weight decay nor momentum "
         "changes them." },
{ "/model/frozen_rows", "*", LIST, offsetof(struct train_rows, rows), ALLOCATED,
  .lo = 1, .hi = 4096,
  .count = offsetof(struct train_rows, n), .stride = sizeof(uint32_t),
  .doc = "The rows." },
{ "/model/frozen_rows/*", "*", U32, .hi = INT32_MAX,
  .doc = "A row, from 0." },
{ "/model", "batch_norm", ENUM, AT(model.batch_norm), WORDS(batch_norms), .fallback = "ask",
  .doc = "How a BatchNormalization in inference form is trained; exporters write this form also for a module in "
         "train(). train: the statistics of the batch normalise, the running averages are updated, and the "
         "exported model has the inference form again; frozen: the running averages of the file normalise and "
         "stay constant, also in nodes in training form, and scale and bias are trained unless model.frozen names "
         "them; ask: a model in which such a node would be trained is refused; nodes in training form are "
         "trained." },

{ "", "data", OBJECT, 0, REQUIRED,
  .doc = "Where the samples are and how they are read." },
{ "/data", "format", ENUM, AT(data.origin.format), WORDS(formats), .fallback = "tfrecord",
  .doc = "tfrecord: files of tf.train.Example, plain or gzip; csv: each line is a sample; npy: a NumPy array for "
         "each feature, where {feature} in the path is the name of the feature; tokens: raw uint16 or uint32, "
         "split into windows with the features \"tokens\" and \"labels\"; labels are shifted by one token." },
{ "/data", "train", PATH, AT(data.train), 0, .instead = "mixture",
  .doc = "Files to train on, a path or a pattern with *, ? and [...]." },
{ "/data", "mixture", LIST, AT(data.origin.parts), ALLOCATED, .lo = 1, .hi = 64,
  .count = AT(data.origin.n_parts), .stride = sizeof(struct data_part), .instead = "train",
  .doc = "Several sets of files to train on, mixed by weight; an epoch has as many samples as all sets together, "
         "and a set that is exhausted starts again." },
{ "/data/mixture", "*", OBJECT,
  .doc = "One set of files." },
{ "/data/mixture/*", "files", PATH, offsetof(struct data_part, glob), REQUIRED,
  .doc = "A path or a pattern with *, ? and [...]." },
{ "/data/mixture/*", "weight", U32, offsetof(struct data_part, weight), .lo = 1, .hi = 1000000,
  .fallback = "1",
  .doc = "The number of samples from this set among as many samples as the sum of all weights." },
{ "/data", "eval", PATH, AT(data.eval), NULLABLE, .fallback = "null",
  .doc = "Files to evaluate on, a path or a pattern; null: no evaluation." },
{ "/data", "csv", OBJECT, .fallback = "{}", .when = { "format", BIT(DATA_CSV) },
  .doc = "The format of CSV files." },
{ "/data/csv", "header", BOOL, AT(data.origin.csv_header), .fallback = "true",
  .doc = "Whether the first line has the names of the columns; without it the names are 0, 1, 2 ..." },
{ "/data/csv", "delimiter", STRING, AT(samples.csv_delimiter),
  .doc = "The character between two fields; default: a comma." },
{ "/data", "features", MAP, AT(samples.features), REQUIRED, .lo = 1, .hi = CONF_MAX_FEATURES,
  .count = AT(samples.n_features), .stride = sizeof(struct conf_feature),
  .doc = "The features of each sample that are used, by their name in the sample." },
{ "/data/features", "*", OBJECT,
  .doc = "How the feature of this name is stored." },
{ "/data/features/*", "dtype", ENUM, FEATURE_AT(data.stored), REQUIRED, WORDS(dtypes),
  .doc = "In a tf.train.Example, uint8: raw bytes in a bytes list; float32: a float list or raw little-endian "
         "bytes; int64, int32: an int64 list; uint16, uint32: token files." },
{ "/data/features/*", "shape", LIST, FEATURE_AT(data.shape.dim), REQUIRED, .hi = TENSOR_MAX_RANK,
  .count = FEATURE_AT(data.shape.rank), .stride = sizeof(int64_t),
  .doc = "The dimensions of one sample without the batch; [] for a scalar." },
{ "/data/features/*/shape", "*", U64, .lo = 1, .hi = INT32_MAX,
  .doc = "The size of one dimension." },
{ "/data/features/*", "scale", F64, FEATURE_AT(data.scale), .min = -1e30, .max = 1e30,
  .fallback = "1",
  .doc = "Float graph inputs receive stored * scale + offset." },
{ "/data/features/*", "offset", F64, FEATURE_AT(data.offset), .min = -1e30, .max = 1e30,
  .fallback = "0",
  .doc = "Added after scale." },
{ "/data/features/*", "encoded", BOOL, FEATURE_AT(data.encoded), .fallback = "false",
  .doc = "uint8: a JPEG or PNG file in a bytes list, decoded and resized to the shape." },
{ "/data/features/*", "layout", EITHER, FEATURE_AT(data.channels_last), WORDS(layouts),
  .fallback = "channels_first",
  .doc = "The order of the shape of an image: [channels, height, width] or [height, width, channels]." },
{ "/data/features/*", "pad", BOOL, FEATURE_AT(data.pad), .fallback = "false",
  .doc = "Whether a list with fewer values than the shape, or none at all, is padded." },
{ "/data/features/*", "pad_value", F64, FEATURE_AT(data.pad_value), .min = -1e30, .max = 1e30,
  .fallback = "0",
  .doc = "The value of the padding." },
{ "/data/features/*", "truncate", BOOL, FEATURE_AT(data.truncate), .fallback = "false",
  .doc = "Whether a list with more values than the shape is truncated." },
{ "/data/features/*", "length_of", STRING, FEATURE_AT(length_of), NULLABLE, .fallback = "null",
  .doc = "This int64 is not stored: it is the number of values that the named feature had." },
{ "/data/features/*", "segment_of", STRING, FEATURE_AT(segment_of), NULLABLE, .fallback = "null",
  .doc = "This int64 list is not stored: it is 1 for each item that the named feature has and 0 for the padding; "
         "with data.pack it is 1, 2, 3 ... for the records of the sample. The graph can compute an attention mask "
         "from it." },
{ "/data/features/*", "position_of", STRING, FEATURE_AT(position_of), NULLABLE, .fallback = "null",
  .doc = "This int64 list is not stored: it is the index of each item of the named feature; with data.pack the "
         "index restarts at 0 for each record." },
{ "/data/features/*", "row_lengths", STRING, FEATURE_AT(row_lengths), NULLABLE, .fallback = "null",
  .doc = "For a shape [rows, items, ...]: the feature stores rows of different lengths one after the other; the "
         "named feature, int64 [rows], has the number of items of each row. Rows are padded with pad_value." },
{ "/data/features/*", "row_splits", STRING, FEATURE_AT(row_splits), NULLABLE, .fallback = "null",
  .doc = "The same with a named feature, int64 [rows + 1], that has the first item of each row, and the end of "
         "the last row." },
{ "/data/features/*", "column", STRING, FEATURE_AT(data.column), NULLABLE, .fallback = "null",
  .doc = "For a CSV file: the first of as many columns as the shape has elements; null: the column with the name "
         "of the feature." },
{ "/data", "pack", STRING, AT(data.origin.pack), NULLABLE, .fallback = "null",
  .doc = "A feature of shape [T, ...]: a sample has as many records as fit into T items, one after the other; all "
         "stored features are lists of the same length as this one. The lengths of the records, in the order of "
         "the files, determine the records of each sample; an epoch has each record once, and as many steps as "
         "the packed samples need." },
{ "/data", "map", LIST, AT(samples.map), ALLOCATED, .hi = 64, .count = AT(samples.n_map),
  .stride = sizeof(struct conf_map), .fallback = "[]",
  .doc = "Operations on images, in this order; random values depend on seed, epoch and sample." },
{ "/data/map", "*", OBJECT,
  .doc = "One operation." },
{ "/data/map/*", "op", ENUM, MAP_AT(step.op), REQUIRED, WORDS(map_ops),
  .doc = "random_resized_crop: a random part, resized to the shape; random_crop: a random part of the shape's "
         "size; center_crop: the middle, resized; flip: exchanges left and right; color_jitter; normalize." },
{ "/data/map/*", "feature", STRING, MAP_AT(feature), REQUIRED,
  .doc = "The feature of data.features that is the image." },
{ "/data/map/*", "when", ENUM, MAP_AT(when), WORDS(map_whens),
  .doc = "When the operation applies; default: normalize always, center_crop in evaluation, random operations in "
         "training." },
{ "/data/map/*", "min_area", F64, MAP_AT(step.scale[0]), ABOVE_MIN, .max = 1, .fallback = "0.08",
  .when = { "op", BIT(DATA_RANDOM_RESIZED_CROP) },
  .doc = "The smallest share of the image's area." },
{ "/data/map/*", "max_area", F64, MAP_AT(step.scale[1]), ABOVE_MIN, .max = 1, .fallback = "1",
  .when = { "op", BIT(DATA_RANDOM_RESIZED_CROP) },
  .doc = "The largest share of the image's area." },
{ "/data/map/*", "min_ratio", F64, MAP_AT(step.ratio[0]), .min = 0.001, .max = 1000,
  .fallback = "0.75", .when = { "op", BIT(DATA_RANDOM_RESIZED_CROP) },
  .doc = "The smallest width of the part divided by its height." },
{ "/data/map/*", "max_ratio", F64, MAP_AT(step.ratio[1]), .min = 0.001, .max = 1000,
  .fallback = "1.3333333333333333", .when = { "op", BIT(DATA_RANDOM_RESIZED_CROP) },
  .doc = "The largest width of the part divided by its height." },
{ "/data/map/*", "padding", U32, MAP_AT(step.padding), .hi = 65500, .fallback = "0",
  .when = { "op", BIT(DATA_RANDOM_CROP) },
  .doc = "Black pixels that are added around the image before the part is chosen." },
{ "/data/map/*", "fraction", F64, MAP_AT(step.fraction), ABOVE_MIN, .max = 1, .fallback = "0.875",
  .when = { "op", BIT(DATA_CENTER_CROP) },
  .doc = "The share of the largest part in the middle that has the shape's proportions." },
{ "/data/map/*", "probability", F64, MAP_AT(step.probability), .max = 1, .fallback = "0.5",
  .when = { "op", BIT(DATA_FLIP) },
  .doc = "The probability that the image is flipped." },
{ "/data/map/*", "brightness", F64, MAP_AT(step.brightness), .max = 100, .fallback = "0",
  .when = { "op", BIT(DATA_COLOR_JITTER) },
  .doc = "Values are multiplied by a factor from 1 - brightness to 1 + brightness." },
{ "/data/map/*", "contrast", F64, MAP_AT(step.contrast), .max = 100, .fallback = "0",
  .when = { "op", BIT(DATA_COLOR_JITTER) },
  .doc = "The difference from the mean is multiplied by a factor from 1 - contrast to 1 + contrast." },
{ "/data/map/*", "saturation", F64, MAP_AT(step.saturation), .max = 100, .fallback = "0",
  .when = { "op", BIT(DATA_COLOR_JITTER) },
  .doc = "The difference from grey is multiplied by a factor from 1 - saturation to 1 + saturation." },
{ "/data/map/*", "hue", F64, MAP_AT(step.hue), .max = 0.5, .fallback = "0",
  .when = { "op", BIT(DATA_COLOR_JITTER) },
  .doc = "The hue is rotated by at most this share of the colour circle, in either direction." },
{ "/data/map/*", "mean", LIST, MAP_AT(step.mean), REQUIRED,
  .lo = 1, .hi = 4, .count = MAP_AT(n_mean),
  .stride = sizeof(double), .when = { "op", BIT(DATA_NORMALIZE) },
  .doc = "The mean of each channel, for pixels from 0 to 1; the graph receives (pixel - mean) / std." },
{ "/data/map/*/mean", "*", F64, .min = -1000, .max = 1000,
  .doc = "The mean of one channel." },
{ "/data/map/*", "std", LIST, MAP_AT(step.std), REQUIRED, .lo = 1, .hi = 4, .count = MAP_AT(n_std),
  .stride = sizeof(double), .when = { "op", BIT(DATA_NORMALIZE) },
  .doc = "The divisor of each channel." },
{ "/data/map/*/std", "*", F64, .min = 0.000001, .max = 1000,
  .doc = "The divisor of one channel." },
{ "/data", "shuffle", BOOL, AT(data.shuffle), .fallback = "true",
  .doc = "Whether every epoch has its own order, drawn from train.seed." },
{ "/data", "on_bad_record", EITHER, AT(data.origin.skip_bad), WORDS(bad_records),
  .fallback = "stop",
  .doc = "stop: a damaged or unreadable sample ends the run; skip: the next valid sample replaces it, and the "
         "skipped samples are counted." },
{ "/data", "cache", ENUM, AT(data.origin.cache), FREE, WORDS(caches), .fallback = "none",
  .doc = "memory: samples are kept in memory after the first epoch; disk: files are first copied to "
         "cache_directory, and decompressed." },
{ "/data", "cache_directory", PATH, AT(data.origin.cache_directory), FREE | REQUIRED,
  .when = { "cache", BIT(DATA_CACHE_DISK) },
  .doc = "A folder on a disk of this machine." },
{ "/data", "remainder", EITHER, AT(data.pad), WORDS(remainders), .fallback = "drop",
  .doc = "The samples at the end of an epoch that do not fill a global batch: drop skips them, pad trains on them "
         "and adds missing samples with weight 0." },
{ "/data", "threads", U32, AT(data.threads), FREE, .hi = 1024, .fallback = "0",
  .doc = "Decoding threads of a task; 0: depends on its number of processors." },
{ "/data", "prefetch", U32, AT(data.prefetch), FREE, .lo = 1, .hi = 1024, .fallback = "2",
  .doc = "Global batches that are decoded in advance." },
{ "/data", "index_directory", PATH, AT(data.origin.index_directory), FREE | NULLABLE,
  .fallback = "null",
  .doc = "The folder that keeps the indexes of the record files between runs; null: they are only in memory." },

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

{ "", "optimizer", OBJECT, 0, REQUIRED,
  .doc = "How updates are computed from gradients." },
{ "/optimizer", "type", ENUM, AT(optimizer.type), REQUIRED, WORDS(optimizers),
  .doc = OPTIM_LIST_DOC },
{ "/optimizer", "learning_rate", F64, AT(optimizer.schedule.learning_rate), REQUIRED, .min = 1e-30,
  .max = 1e6,
  .doc = "The highest learning rate of the schedule, before scaling." },
{ "/optimizer", "momentum", F64, AT(optimizer.hyper.momentum), BELOW_MAX, .max = 1,
  OPTIMIZERS(HAS_MOMENTUM),
  .doc = "The share of the last update that is kept; default: 0.9, for rmsprop 0." },
{ "/optimizer", "nesterov", BOOL, AT(optimizer.hyper.nesterov), .fallback = "false",
  OPTIMIZERS(HAS_NESTEROV),
  .doc = "Whether the momentum is Nesterov's." },
{ "/optimizer", "centered", BOOL, AT(optimizer.hyper.centered), .fallback = "false",
  OPTIMIZERS(HAS_CENTERED),
  .doc = "Whether gradients are divided by their standard deviation in place of their root mean square." },
{ "/optimizer", "beta1", F64, AT(optimizer.hyper.beta1), BELOW_MAX, .max = 1, .fallback = "0.9",
  OPTIMIZERS(HAS_BETA1),
  .doc = "Decay of the average of gradients." },
{ "/optimizer", "beta2", F64, AT(optimizer.hyper.beta2), BELOW_MAX, .max = 1,
  OPTIMIZERS(HAS_BETA2),
  .doc = "Decay of the average of squared gradients (lion: of the average that is kept); default: "
         "0.999, for rmsprop and lion 0.99." },
{ "/optimizer", "epsilon", F64, AT(optimizer.hyper.epsilon), .min = 1e-30, .max = 1,
  OPTIMIZERS(HAS_EPSILON),
  .doc = "Added to the divisor; default: 1e-8, for adagrad 1e-10, for lamb 1e-6." },
{ "/optimizer", "trust_coefficient", F64, AT(optimizer.hyper.trust_coefficient), ABOVE_MIN, .max = 1e6,
  .fallback = "0.001", OPTIMIZERS(HAS_TRUST),
  .doc = "The norm of an update is this share of the parameter's norm, times the learning rate." },
{ "/optimizer", "weight_decay", F64, AT(optimizer.hyper.weight_decay), .max = 1e6,
  .doc = "This share of the weight is added to its gradient; adamw, lamb, lion: subtracted from the weight "
         "itself, multiplied by the learning rate; default: 0.01 for adamw, else 0." },
{ "/optimizer", "groups", LIST, AT(groups), ALLOCATED, .hi = CONF_MAX_GROUPS,
  .count = AT(n_groups), .stride = sizeof(struct conf_group), .fallback = "[]",
  .doc = "Parameters with their own settings; the first group that matches a name applies." },
{ "/optimizer/groups", "*", OBJECT,
  .doc = "A group of parameters, and the settings that differ for them." },
{ "/optimizer/groups/*", "match", LIST, GROUP_AT(params.match), REQUIRED | ALLOCATED,
  .lo = 1, .hi = 1024,
  .count = GROUP_AT(params.n_match), .stride = sizeof(const char *),
  .doc = "Names of initializers, as patterns with *, ? and [...]." },
{ "/optimizer/groups/*/match", "*", STRING,
  .doc = "A pattern over initializer names." },
{ "/optimizer/groups/*", "learning_rate_factor", F64, GROUP_AT(params.rate_factor), .max = 1e6,
  .fallback = "1",
  .doc = "The factor of the learning rate." },
{ "/optimizer/groups/*", "weight_decay", F64, GROUP_AT(params.weight_decay), .max = 1e6,
  .doc = "Replaces optimizer.weight_decay, which is the default." },
{ "/optimizer/groups/*", "layer_adaptation", BOOL, GROUP_AT(params.adapts), .fallback = "true",
  .doc = "lars, lamb: whether steps are scaled with the norm of the parameter; often false for biases and "
         "normalisation." },
{ "/optimizer/groups/*", "lazy_rows", BOOL, GROUP_AT(params.lazy), .fallback = "false",
  .doc = "Embedding tables: a row that a step does not read keeps its weight and its optimizer state in this "
         "step. By default momentum, moments and decay change it in every step." },
{ "/optimizer/groups/*", "frozen", BOOL, GROUP_AT(frozen), .fallback = "false",
  .doc = "Whether the parameters are excluded from training, as by model.frozen; not allowed with other settings "
         "of the group." },
{ "/optimizer", "average", OBJECT, .fallback = "{}",
  .doc = "An exponential moving average of the weights, stored with them in every checkpoint." },
{ "/optimizer/average", "decay", F64, AT(optimizer.average.decay), BELOW_MAX, .max = 1,
  .fallback = "0",
  .doc = "The share of the average that is kept at each step, such as 0.999; 0: no average." },
{ "/optimizer/average", "evaluate", BOOL, AT(optimizer.average.evaluate), .fallback = "true",
  .doc = "Whether evaluation uses the average in place of the weights, if there is one." },
{ "/optimizer/average", "export", BOOL, AT(optimizer.average.exported), .fallback = "true",
  .doc = "Whether the export has the average in place of the weights, if there is one." },
{ "/optimizer", "schedule", OBJECT, .fallback = "{}",
  .doc = "The learning rate over the steps." },
{ "/optimizer/schedule", "type", ENUM, AT(optimizer.schedule.type), WORDS(schedules),
  .fallback = "constant",
  .doc = OPTIM_SCHEDULE_LIST_DOC },
{ "/optimizer/schedule", "warmup_steps", U64, AT(optimizer.schedule.warmup_steps),
  .hi = 1000000000000, .fallback = "0", SCHEDULES(HAS_WARMUP),
  .doc = "Steps in which the learning rate first rises linearly." },
{ "/optimizer/schedule", "step_size", U64, AT(optimizer.schedule.step_size), REQUIRED, .lo = 1,
  .hi = 1000000000000,
  SCHEDULES(HAS_STEP_SIZE),
  .doc = "Steps from one reduction to the next." },
{ "/optimizer/schedule", "gamma", F64, AT(optimizer.schedule.gamma), ABOVE_MIN, .max = 1,
  .fallback = "0.1",
  SCHEDULES(HAS_GAMMA),
  .doc = "The factor of each reduction." },
{ "/optimizer/schedule", "final_fraction", F64, AT(optimizer.schedule.final_fraction), .max = 1,
  .fallback = "0",
  SCHEDULES(HAS_FINAL),
  .doc = "The share of learning_rate at the last step, which is also its minimum." },
{ "/optimizer/schedule", "power", F64, AT(optimizer.schedule.power), ABOVE_MIN, .max = 100,
  .fallback = "1", SCHEDULES(HAS_POWER),
  .doc = "The exponent of the share of remaining steps; 1: linear." },
{ "/optimizer/schedule", "initial_fraction", F64, AT(optimizer.schedule.initial_fraction),
  .max = 1, .fallback = "0.04", SCHEDULES(HAS_CYCLE),
  .doc = "The share of learning_rate at the first step." },
{ "/optimizer/schedule", "rise_fraction", F64, AT(optimizer.schedule.rise),
  ABOVE_MIN | BELOW_MAX, .max = 1, .fallback = "0.3",
  SCHEDULES(HAS_CYCLE),
  .doc = "The share of all steps in which the rate rises." },
{ "/optimizer/schedule", "base_momentum", F64, AT(optimizer.schedule.base_momentum), BELOW_MAX,
  .max = 1, .fallback = "0", SCHEDULES(HAS_CYCLE),
  .doc = "The momentum (adam and similar optimizers: beta1) falls from the optimizer's value to this one while "
         "the rate rises, and rises again while the rate falls; 0: it is constant." },
{ "/optimizer/schedule", "patience", U32, AT(optimizer.schedule.patience), .hi = 1000000000,
  .fallback = "10", SCHEDULES(HAS_PATIENCE),
  .doc = "The number of evaluations in a row that may show no improvement; the next one reduces the rate." },
{ "/optimizer/schedule", "threshold", F64, AT(optimizer.schedule.threshold), BELOW_MAX, .max = 1,
  .fallback = "1e-4", SCHEDULES(HAS_PATIENCE),
  .doc = "An improvement is a loss that is below the best one by more than this share of it." },
{ "/optimizer", "scaling", OBJECT, .fallback = "{}",
  .doc = "Whether the learning rate depends on the batch size." },
{ "/optimizer/scaling", "rule", ENUM, AT(optimizer.scaling.rule), WORDS(scalings),
  .fallback = "none",
  .doc = "learning_rate is for reference_batch_size and grows with the global batch (linear) or "
         "with its square root (square_root)." },
{ "/optimizer/scaling", "reference_batch_size", U32, AT(optimizer.scaling.reference_batch_size),
  REQUIRED, .lo = 1, .hi = 16777216, .when = { "rule", BIT(OPTIM_SCALING_LINEAR) | BIT(OPTIM_SCALING_SQUARE_ROOT) },
  .doc = "The global batch size for which learning_rate is chosen." },

{ "", "communication", OBJECT, .fallback = "{}",
  .doc = "How tasks exchange gradients." },
{ "/communication", "implementation", ENUM, AT(communication.implementation), WORDS(comms),
  .fallback = "auto",
  .doc = "auto: nccl between GPUs, cpu between processors; cpu and nccl select one of them." },
{ "/communication", "shared_memory", BOOL, AT(communication.shared_memory), FREE,
  .fallback = "true",
  .doc = "Whether tasks of one host use shared memory; false: they use TCP." },
{ "/communication", "token_file", PATH, AT(communication.token_file), FREE | NULLABLE,
  .fallback = "null",
  .doc = "A file with the secret by which tasks authenticate each other; null: the environment variable "
         "TRAINERD_TOKEN, or none." },
{ "/communication", "data_port", PORTS, AT(communication.data_port), FREE | NULLABLE, .lo = 1, .hi = 65535,
  .fallback = "null",
  .doc = "The TCP port on which this task receives tensors from its peers, for firewalls: a port, or a range as "
         "in \"7000-7010\" or [7000, 7010], whose first free port is used; one port for each task of a host. "
         "null: the system chooses a port. NCCL opens its own ports." },

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

const struct conf_key *conf_key_next(const char *parent, const struct conf_key *after)
{
    for (size_t i = after == NULL ? 0 : (size_t)(after - keys) + 1; i < COUNT_OF(keys); i++)
        if (strcmp(keys[i].parent, parent) == 0)
            return &keys[i];
    return NULL;
}

const struct conf_key *conf_key_find(const char *parent, const char *name)
{
    const struct conf_key *k = NULL;

    while ((k = conf_key_next(parent, k)) != NULL)
        if (strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

const struct conf_key *conf_key_anywhere(const char *name)
{
    const struct conf_key *found = NULL;

    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        if (strcmp(keys[i].name, name) != 0)
            continue;
        if (found != NULL)
            return NULL;
        found = &keys[i];
    }
    return found;
}

void conf_key_path(const struct conf_key *k, char out[CONF_KEY_PATH_BYTES])
{
    int n = snprintf(out, CONF_KEY_PATH_BYTES, "%s/%s", k->parent, k->name);

    CHECK(n > 0 && n < CONF_KEY_PATH_BYTES);
}

const char *conf_key_word(const struct conf_key *k, unsigned value)
{
    for (uint32_t i = 0; i < k->n_words; i++)
        if (k->words[i].value == value)
            return k->words[i].word;
    CHECK(!"a value without a word");
    return "";
}

bool conf_key_value(const struct conf_key *k, const char *word, unsigned *value)
{
    for (uint32_t i = 0; i < k->n_words; i++) {
        if (strcmp(k->words[i].word, word) == 0) {
            *value = k->words[i].value;
            return true;
        }
    }
    return false;
}

bool conf_key_applies(const struct conf_key *k, const void *base)
{
    const struct conf_key *on;

    if (k->when.key == NULL)
        return true;
    on = conf_key_find(k->parent, k->when.key);
    CHECK(on != NULL && on < k);
    return (k->when.words >> *(const unsigned *)((const char *)base + on->at) & 1u) != 0;
}
