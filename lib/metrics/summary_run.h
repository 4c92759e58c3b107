/* summary_run.h - describes a run for TensorBoard: hyper-parameters and metrics for its plugin hparams,
 * and the graph of the model.
 *
 * The strings are copied. When memory is exhausted, summary_run_failed() returns true and the
 * description must not be used. Threads: one at a time; read-only once it is complete. */
#ifndef METRICS_SUMMARY_RUN_H
#define METRICS_SUMMARY_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct summary_run;

/* Returns NULL if memory is exhausted. `name`: of the run. The caller frees the result. */
struct summary_run *summary_run_new(const char *name);
void summary_run_free(struct summary_run *run); /* NULL is allowed */
bool summary_run_failed(const struct summary_run *run);

/* Hyper-parameters; each name once. */
void summary_run_number(struct summary_run *run, const char *name, double value);
void summary_run_text(struct summary_run *run, const char *name, const char *value);
void summary_run_flag(struct summary_run *run, const char *name, bool value);
/* A curve by which runs are compared; tag as in summary_scalar(). */
void summary_run_metric(struct summary_run *run, const char *tag, bool is_of_evaluation);

struct summary_node {
    const char *name;          /* unique; slashes make groups */
    const char *op;
    const char *const *inputs; /* [n_inputs] NODE, or NODE:OUTPUT */
    uint32_t n_inputs;
    const char *dtype;         /* NULL: unknown */
    bool has_shape;
    const int64_t *dims;       /* [rank] of the first output; -1: unknown */
    uint32_t rank;
};
void summary_run_node(struct summary_run *run, const struct summary_node *node);

#endif
