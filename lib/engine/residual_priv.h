/* residual_priv.h - what the files of codes with residuals share: the work memory of a replica, and one table of
 * functions for each code. See residual.h. */
#ifndef ENGINE_RESIDUAL_PRIV_H
#define ENGINE_RESIDUAL_PRIV_H

#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/residual_layout.h"

struct residual_code;

struct residual_work { /* of a replica in a generation */
    const struct residual_code *code;
    const struct residual_layout *layout;
    uint32_t first_group, n_groups; /* of the replica */
    float *left; /* owned [n_groups][floats]: the sums x; after the reduction, what was not sent */
    /* top_k */
    uint8_t **messages; /* owned [groups]: places in the exchange floats */
    size_t slot;        /* floats of the messages of a rank */
    float *partial;     /* owned [levels of the tree over groups][TOP_K_BLOCK] */
    /* power_sgd */
    float *p, *q;   /* owned [n_groups][p_floats], [n_groups][q_floats]; those of the first group become the sums */
    float *begin_q; /* owned [q_floats]: Q of this step */
};

struct residual_code {
    /* Allocates and sets the fields of the code. Errors: ERR_NOMEM. */
    int (*begin)(const struct engine_replica *r, struct residual_work *w, struct err *err);
    /* left [i] has the sum x of the replica's i-th group. */
    void (*take_group)(struct engine_replica *r, struct residual_work *w, uint32_t i);
    /* As residual_reduce(). */
    int (*reduce)(struct engine_replica *r, struct residual_work *w, size_t end, struct err *err);
    /* Floats that a node sends in a step, with n nodes. */
    double (*sent)(const struct residual_work *w, uint32_t ranks_of_node, uint32_t n);
};

extern const struct residual_code residual_top_k, residual_power_sgd;

static inline float *residual_left(const struct residual_work *w, uint32_t i)
{
    return w->left + i * w->layout->floats;
}

/* All-reduces `count` exchange floats, if there are other replicas. */
int residual_exchange(struct engine_replica *r, size_t count, struct err *err);
/* Copies the floats [0, end) of the gradient that are not coded to `to`. Returns their number. */
size_t residual_pack(const struct residual_layout *l, const float *grads, size_t end, float *to);
void residual_unpack(const struct residual_layout *l, const float *from, size_t end, float *grads);

#endif
