/* residual_layout.h - which numbers of the gradient a code with residuals codes, and where they are in the residual
 * of a group, in factors and in messages. A function of the graph and of the job.
 *
 *   code        codes the trained parameters
 *   top_k       of at least min_bytes
 *   power_sgd   of at least min_bytes, with two dimensions or more, whose factors have fewer numbers. The matrix of
 *               a parameter has a row for each index of the first dimension
 *
 * The gradient of an embedding table is never coded.
 *
 *     gradient   ... | parameter a ... | small one | parameter b ... |      by graph_param.offset
 *     residual   | a ... | b ... |                                          by residual_part.at
 *
 * In the state of a task: the residual of each group, in order; then the factor Q of each matrix.
 *
 * Threads: any; nothing changes a layout. */
#ifndef ENGINE_RESIDUAL_LAYOUT_H
#define ENGINE_RESIDUAL_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "code/power_sgd.h"

struct code_settings;
struct err;
struct graph;

struct residual_part { /* a coded parameter */
    uint32_t param; /* index in graph_params() */
    size_t offset, elements; /* in the gradient */
    size_t at;      /* in the residual of a group */
    size_t code_at; /* top_k: bytes before its code in the message of a group */
    struct power_sgd matrix; /* power_sgd; without a seed */
    size_t p_at, q_at;       /* likewise: in the factors of all matrices */
};

struct residual_layout {
    const struct code_settings *code; /* borrowed; NULL: the job keeps no residuals, and the rest is 0 */
    struct residual_part *parts;      /* owned [n] */
    uint32_t n;
    size_t floats;             /* of the residual of a group */
    size_t p_floats, q_floats; /* power_sgd: of all factors */
    size_t message; /* top_k: floats of the message of a group; a multiple of RESIDUAL_GRAIN */
};

enum { RESIDUAL_GRAIN = 16 };

/* `code` is borrowed; NULL is allowed. On failure the layout is empty. Errors: ERR_NOMEM. */
int residual_layout_open(struct residual_layout *l, const struct graph *graph,
                         const struct code_settings *code, struct err *err);
void residual_layout_close(struct residual_layout *l); /* a zeroed one is allowed */

/* Returns the end of the numbers of a gradient [end] that are not coded and lie in front of coded part k; k == n:
 * after the last one. *next: where those after the part begin. The first ones begin at 0. */
size_t residual_gap(const struct residual_layout *l, uint32_t k, size_t end, size_t *next);

/* Floats in the state. */
size_t residual_layout_state(const struct residual_layout *l);

#endif
