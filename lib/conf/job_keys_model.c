/* job_keys_model.c - the keys of /name and /model. */
#include "conf/job_keys_priv.h"

#define LOSS_WORD(NAME, word, ...) { #word, TRAIN_LOSS_##NAME },
static const struct conf_word losses[] = { TRAIN_LOSS_LIST(LOSS_WORD) };
static const struct conf_word fills[] = {
    { "uniform", TABLE_UNIFORM },
    { "normal", TABLE_NORMAL },
    { "zeros", TABLE_ZEROS },
};
static const struct conf_word sizes[] = {
    { "dynamic", TABLE_DYNAMIC },
};
static const struct conf_word batch_norms[] = {
    { "ask", GRAPH_NORM_ASK },
    { "train", GRAPH_NORM_TRAIN },
    { "frozen", GRAPH_NORM_FROZEN },
};
static const struct conf_word class_axes[] = {
    { "auto", TRAIN_AXIS_AUTO },
    { "second", TRAIN_AXIS_SECOND },
    { "last", TRAIN_AXIS_LAST },
};
#define METRIC_WORD(NAME, word, ...) { #word, TRAIN_METRIC_##NAME },
static const struct conf_word metrics[] = { TRAIN_METRIC_LIST(METRIC_WORD) };

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
{ parent_, "class_axis", ENUM, LOSS_AT(base_, class_axis), WORDS(class_axes), .fallback = "auto",  \
  LOSSES(USES_CLASSES),                                                                            \
  .doc = "The axis of the classes in a tensor with several positions per sample. second: [batch, " \
         "classes, positions..]; last: [batch, positions.., classes]; auto: the axis without which "\
         "the tensor has the shape of the labels. If that is true of both axes, only a dynamic "    \
         "dimension that the model declares for the positions determines the axis, and any other "  \
         "model is refused." },                                                                     \
{ parent_, "pos_weight", F64, LOSS_AT(base_, pos_weight), ABOVE_MIN, .max = 1e30, .fallback = "1", \
  LOSSES(USES_POS_WEIGHT),                                                                         \
  .doc = "The weight of a label of 1; a label of 0 has the weight 1." },                           \
{ parent_, "delta", F64, LOSS_AT(base_, delta), ABOVE_MIN, .max = 1e30, .fallback = "1",           \
  LOSSES(USES_DELTA),                                                                              \
  .doc = "The error at which the loss changes from quadratic to linear." },
/* clang-format on */

/* clang-format off */
static const struct conf_key rows[] = {
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
{ "/model", "tables", MAP, AT(model.tables), ALLOCATED, .hi = CONF_MAX_TABLES,
  .count = AT(model.n_tables), .stride = sizeof(struct graph_table), .fallback = "{}",
  .doc = "Embedding tables whose size the job decides, by the name of the initializer, which has one row in the "
         "file, [1, width] of float32, and which only Gather nodes along axis 0 read. The initial rows are "
         "functions of train.seed, the name, the row and the column: with parameter servers every ps task "
         "generates its rows, and no file or task contains the whole table. A checkpoint and an export contain "
         "all rows." },
{ "/model/tables", "*", OBJECT,
  .doc = "The table of this name." },
{ "/model/tables/*", "rows", COUNT_OR_WORD, offsetof(struct graph_table, rows), REQUIRED, .lo = 1, .hi = UINT32_MAX,
  WORDS(sizes), .chosen = offsetof(struct graph_table, size),
  .doc = "The number of rows. dynamic: the indices are any 64-bit ids, and a row is added when a step trains it first; "
         "needs ps tasks, and the section parameter_server. A row changes only in steps in which it has a gradient, as "
         "with lazy_rows." },
{ "/model/tables/*", "admit_after", U32, offsetof(struct graph_table, admit_after), .lo = 1, .hi = INT32_MAX,
  .fallback = "1", .when = { "rows", BIT(TABLE_DYNAMIC) },
  .doc = "A row is trained from the step on that is the n-th in which it has a gradient; until then it has its initial "
         "value, and its gradients are dropped." },
{ "/model/tables/*", "expire_steps", U64, offsetof(struct graph_table, expire_steps), .hi = 1000000000000,
  .fallback = "0", .when = { "rows", BIT(TABLE_DYNAMIC) },
  .doc = "At each step that 1000 divides, rows that had no gradient in so many steps are removed; 0: none." },
{ "/model/tables/*", "max_rows", U64, offsetof(struct graph_table, max_rows), .hi = (uint64_t)1 << 40,
  .fallback = "0", .when = { "rows", BIT(TABLE_DYNAMIC) },
  .doc = "At each step that 1000 divides, the rows whose last gradient is oldest are removed until so many are left; of "
         "equally old ones those with the lowest ids. Each of the 1024 shards has an equal part of the limit. Ids that "
         "are not admitted yet have the same limit of their own. 0: no limit; else at least 1024." },
{ "/model/tables/*", "initializer", OBJECT,
  .doc = "The initial values." },
{ "/model/tables/*/initializer", "type", ENUM, offsetof(struct graph_table, fill), WORDS(fills),
  .fallback = "uniform",
  .doc = "uniform: from -range to range; normal: with mean 0 and standard deviation stddev; zeros." },
{ "/model/tables/*/initializer", "range", F64, offsetof(struct graph_table, range), ABOVE_MIN, .max = 1e6,
  .fallback = "0.05", .when = { "type", BIT(TABLE_UNIFORM) },
  .doc = "The largest absolute value." },
{ "/model/tables/*/initializer", "stddev", F64, offsetof(struct graph_table, stddev), ABOVE_MIN, .max = 1e6,
  .fallback = "0.01", .when = { "type", BIT(TABLE_NORMAL) },
  .doc = "The standard deviation." },
{ "/model", "tied", MAP, AT(model.tied), ALLOCATED, .hi = CONF_MAX_RENAMES,
  .count = AT(model.n_tied), .stride = sizeof(struct graph_rename), .fallback = "{}",
  .doc = "Second names of parameters and buffers that the module has under several names, as the scripts of "
         "trainerctl recipe print them: checkpoints and exports list the tensor under each name. Names under which a "
         "module is called are found without this key." },
{ "/model/tied", "*", STRING, offsetof(struct graph_rename, file),
  .doc = "The name in the file of the tensor that has this second name." },
{ "/model", "batch_norm", ENUM, AT(model.batch_norm), WORDS(batch_norms), .fallback = "ask",
  .doc = "How a BatchNormalization in inference form is trained; exporters write this form also for a module in "
         "train(). train: the statistics of the batch normalise, the running averages are updated, and the "
         "exported model has the inference form again, except in nodes whose module was in eval() by the metadata "
         "of the file: they stay as with frozen; frozen: the running averages of the file normalise and "
         "stay constant, also in nodes in training form, and scale and bias are trained unless model.frozen names "
         "them; ask: a model in which such a node would be trained is refused; nodes in training form are "
         "trained." },
};
/* clang-format on */

const struct conf_key_table conf_keys_model = { rows, COUNT_OF(rows) };
