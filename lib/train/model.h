/* model.h - the graph, its initial weights, the data sets, and the number of steps.
 *
 * The protocol between tasks reads only the plain fields below (digests, counts, the layout of the
 * state as named tensors), so that a test can fill them in without a graph or data.
 * Threads: one at a time opens; afterwards it is read-only, apart from model_fill() and export. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/graph.h"
#include "train/agree_message.h"
#include "train/tensors.h"
#include "train/weights.h"
#include "train/parts.h"

struct cancel;
struct data_set;
struct err;
struct memory;
struct events;
struct train_opts;

struct model {
    const struct train_opts *opts; /* borrowed */
    const struct events *events;   /* borrowed */

    char digest[65], data_digest[65];
    /* data_content() of the training data, then of the evaluation data (zeros: the job has none) */
    uint32_t content[2][AGREE_CONTENT_PARTS];
    struct weights_file weights;    /* the initial weights, if a separate file has them */
    uint32_t initial_crc;           /* of the initial parameters */
    uint64_t samples, eval_samples; /* eval_samples 0: there are no evaluations */
    uint64_t steps_per_epoch, total_steps, eval_steps;
    uint32_t lane_batch;
    struct parts parts;     /* of the state */
    struct tensors tensors; /* the content of a checkpoint as named tensors */
    /* Writes the initial parameters, the same as before. NULL: they are zero. */
    int (*fill)(struct model *m, float *params, struct err *err);

    struct graph *graph;               /* owned; NULL in a test without one */
    struct data_set *data, *eval_data; /* owned */
    uint32_t *features;                /* owned; of each input of the plans, then of each target */
    struct plan_feed *feeds;           /* owned; the same for the plans */
    struct plan_measure *metrics;      /* owned */
    struct plan_opts plan;             /* of the plans of an engine */
};

/* Reads the model and indexes the data. Reports the phases "import" and "index". On failure the
 * caller calls model_close(). Errors: as train_open(). */
int model_open(struct model *m, const struct train_opts *opts, const struct events *events,
               const struct cancel *cancel, struct err *err);
void model_close(struct model *m); /* a zeroed one is allowed */
/* Writes the initial parameters for the first time, releases their memory, and sets initial_crc. */
int model_fill_first(struct model *m, const struct memory *mem, struct err *err);
/* After the engine was opened: the parts of the state, and the tensors of a checkpoint. Errors: as
 * tensors_name(). */
int model_name_tensors(struct model *m, const struct memory *mem, struct err *err);
/* Reads the model again, for graph_fill_remote(). On success the caller owns *out, and calls
 * model_close_initial() before the initial parameters are needed otherwise. Errors: as model_open(). */
int model_open_initial(struct model *m, struct graph **out, struct err *err);
void model_close_initial(struct model *m, struct graph *graph);
/* Reads the model without data and writes its digest. Errors: as train_open(). */
int model_read_digest(const struct train_opts *opts, char out[65], struct err *err);

/* Returns the first part of data_content() that differs; AGREE_CONTENT_PARTS: none. */
uint32_t model_differing_part(const uint32_t *a, const uint32_t *b);
/* Returns the number of samples of weight 1 in the global batch of a step. */
uint64_t model_samples_of(const struct model *m, uint64_t step);
/* Is an evaluation due after one of the steps (before, step]? */
bool model_evaluates_since(const struct model *m, uint64_t before, uint64_t step);
/* Returns the number of invalid records that were skipped. */
uint64_t model_skipped(const struct model *m);

#endif
