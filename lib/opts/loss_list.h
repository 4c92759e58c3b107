/* loss_list.h - a row for each loss, and one for each metric.
 *
 * A new loss needs its row here, its op in lib/op/loss (for an element-wise loss a row in
 * op/loss/loss_formula.h), the op's line in op/op_list.h and a test. From the row come the
 * enumerator (opts/train.h), the word in the job file and the keys that it uses (conf/job_keys.c),
 * the metrics that apply to it (conf/job_check.c), and the op (daemon/settle_loss.c). A metric is a
 * row here and an op. */
#ifndef OPTS_LOSS_LIST_H
#define OPTS_LOSS_LIST_H

/* Columns:
 *   op        name of the row of domain trainerd; NULL: the graph computes the loss
 *   compares  the labels: CLASSES int64, SIDES float32 from 0 to 1, NUMBERS float32, NOTHING
 *   tensor    the key that names the tensor of the graph
 *   the others: whether the loss uses the key. classes: class_weights and ignore_index */
/* clang-format off */
#define TRAIN_LOSS_LIST(ROW)                                                                               \
/*  enumerator               word                     op                       compares tensor             smoothing classes pos_weight delta */ \
ROW(SOFTMAX_CROSS_ENTROPY,   softmax_cross_entropy,   "SoftmaxCrossEntropy",   CLASSES, LOGITS,            1, 1, 0, 0) \
ROW(NEGATIVE_LOG_LIKELIHOOD, negative_log_likelihood, "NegativeLogLikelihood", CLASSES, LOG_PROBABILITIES, 0, 1, 0, 0) \
ROW(BINARY_CROSS_ENTROPY,    binary_cross_entropy,    "BinaryCrossEntropy",    SIDES,   LOGITS,            0, 0, 1, 0) \
ROW(MEAN_SQUARED_ERROR,      mean_squared_error,      "MeanSquaredError",      NUMBERS, PREDICTIONS,       0, 0, 0, 0) \
ROW(MEAN_ABSOLUTE_ERROR,     mean_absolute_error,     "MeanAbsoluteError",     NUMBERS, PREDICTIONS,       0, 0, 0, 0) \
ROW(HUBER,                   huber,                   "Huber",                 NUMBERS, PREDICTIONS,       0, 0, 0, 1) \
ROW(GRAPH,                   graph,                   NULL,                    NOTHING, OUTPUT,            0, 0, 0, 0)

#define TRAIN_LOSS_LIST_DOC                                                                                \
    "softmax_cross_entropy: class scores against integer class labels; negative_log_likelihood: the same " \
    "for logarithms of probabilities; binary_cross_entropy: scores against labels from 0 to 1; "           \
    "mean_squared_error, mean_absolute_error, huber: numbers against numbers; graph: the graph computes "  \
    "the loss."

/* Columns:
 *   figure            what the weighted sums become (enum train_figure)
 *   of classes, ...   the op, by what the first loss compares; NULL: the metric does not apply;
 *                     TRAIN_OP_OF_LOSS: the op of that loss */
#define TRAIN_OP_OF_LOSS ""
#define TRAIN_METRIC_LIST(ROW)                                                                             \
/*  enumerator           word                 figure    of classes        of sides          of numbers */  \
ROW(ACCURACY,            accuracy,            MEAN,     "Accuracy",       "BinaryAccuracy", NULL)          \
ROW(TOP_K_ACCURACY,      top_k_accuracy,      MEAN,     "Accuracy",       NULL,             NULL)          \
ROW(PERPLEXITY,          perplexity,          EXP_MEAN, TRAIN_OP_OF_LOSS, NULL,             NULL)          \
ROW(AUC,                 auc,                 AREA,     NULL,             "AreaUnderCurve", NULL)          \
ROW(MEAN_ABSOLUTE_ERROR, mean_absolute_error, MEAN,     NULL,             NULL,             "MeanAbsoluteError") \
ROW(MEAN_SQUARED_ERROR,  mean_squared_error,  MEAN,     NULL,             NULL,             "MeanSquaredError")

#define TRAIN_METRIC_LIST_DOC                                                                              \
    "accuracy: the share of samples whose highest score is that of the label (binary_cross_entropy: "      \
    "whose score is on the label's side of 0); top_k_accuracy: whose label is among the k highest "        \
    "scores; perplexity: e to the cross entropy; auc: the area under the ROC curve; "                      \
    "mean_absolute_error, mean_squared_error."
/* clang-format on */

#endif
