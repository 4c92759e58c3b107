/* rnn_layout.h - where a recurrent node keeps what, on CPUs and GPUs alike.
 *
 * Forward keeps, for each direction, the gates [T, B, k] of each part and all states h and c
 * [T + 1, B, H] in the order of time: the states before and after step t are neighbours, and the
 * initial one is at the end from which the direction comes. */
#ifndef OP_RNN_RNN_LAYOUT_H
#define OP_RNN_RNN_LAYOUT_H

#include "op/op_priv.h"
#include "op/rnn/rnn_priv.h"

/* The next piece of a block of memory; NULL if `at` is NULL, to count bytes only. */
static inline float *rnn_take(char *at, size_t *bytes, size_t floats)
{
    float *piece = at != NULL ? (float *)(void *)(at + *bytes) : NULL;

    *bytes += op_round(floats * sizeof(float));
    return piece;
}

struct rnn_kept {            /* of one direction */
    float *gates[RNN_PARTS]; /* [T, B, k] */
    float *h, *c;            /* [T + 1, B, H] */
    float *e;                /* [T, B, H] */
};

static inline struct rnn_kept rnn_kept_at(const struct rnn_param *p, char *at, size_t *bytes)
{
    size_t rows = p->steps * p->batch, states = rows + p->batch;
    struct rnn_kept k;
    uint32_t i;

    memset(&k, 0, sizeof(k));
    *bytes = 0;
    for (i = 0; i < RNN_PARTS && p->cell->part[i] > 0; i++)
        k.gates[i] = rnn_take(at, bytes, rows * p->cell->part[i] * p->hidden);
    k.h = rnn_take(at, bytes, states * p->hidden);
    if (p->cell->has_c)
        k.c = rnn_take(at, bytes, states * p->hidden);
    if (p->cell->has_e)
        k.e = rnn_take(at, bytes, rows * p->hidden);
    return k;
}

struct rnn_work {  /* the head of the scratch; the backend's own pieces follow */
    char *kept;    /* of all directions, if forward keeps nothing for backward; else NULL */
    float *x, *dx; /* [T, B, I], if x comes batch first */
    float *bias;   /* [G H] of W and R */
    float *dh, *dc, *spare; /* [B, H]; backward */
};

/* kept_bytes: of a direction; 0: the save area has it. */
static inline struct rnn_work rnn_work_at(const struct rnn_param *p, size_t kept_bytes, bool bwd,
                                          char *at, size_t *bytes)
{
    size_t state = p->batch * p->hidden, x = p->batch_first ? p->steps * p->batch * p->inputs : 0;
    struct rnn_work w;

    memset(&w, 0, sizeof(w));
    *bytes = 0;
    if (kept_bytes > 0)
        w.kept = (char *)rnn_take(at, bytes, p->dirs * kept_bytes / sizeof(float));
    w.x = rnn_take(at, bytes, x);
    w.bias = rnn_take(at, bytes, p->cell->gates * p->hidden);
    if (bwd) {
        w.dx = rnn_take(at, bytes, x);
        w.dh = rnn_take(at, bytes, state);
        w.dc = rnn_take(at, bytes, state);
        w.spare = rnn_take(at, bytes, state);
    }
    return w;
}

/* ---- rows of tensors that a direction reads and writes ---- */

struct rnn_slice {
    float *at;   /* NULL: the tensor is absent */
    size_t step; /* floats from one row of the batch to the next */
};

static inline struct rnn_slice rnn_slice_of(const struct rnn_param *p, const struct tensor *t,
                                            size_t first, size_t step)
{
    struct rnn_slice s = { NULL, 0 };

    if (t == NULL)
        return s;
    s.at = (float *)t->data + first * p->hidden * (p->batch_first ? 1 : p->batch);
    s.step = p->batch_first ? step * p->hidden : p->hidden;
    return s;
}

/* The state h or c of direction d, and its y of step t. */
static inline struct rnn_slice rnn_state_of(const struct rnn_param *p, const struct tensor *t,
                                            uint32_t d)
{
    return rnn_slice_of(p, t, d, p->dirs);
}

static inline struct rnn_slice rnn_y_of(const struct rnn_param *p, const struct tensor *y,
                                        uint32_t d, size_t t)
{
    return rnn_slice_of(p, y, t * p->dirs + d, p->steps * p->dirs);
}

static inline bool rnn_is_reverse(const struct rnn_param *p, uint32_t d)
{
    return p->reverse || d == 1;
}

static inline void rnn_at_step(const struct rnn_param *p, const struct rnn_kept *k, bool reverse,
                               size_t t, struct rnn_at *at)
{
    size_t state = p->batch * p->hidden, before = t + (reverse ? 1 : 0);
    size_t after = t + (reverse ? 0 : 1);
    uint32_t i;

    at->t = t;
    for (i = 0; i < RNN_PARTS && k->gates[i] != NULL; i++)
        at->gates[i] = k->gates[i] + t * state * p->cell->part[i];
    at->h_prev = k->h + before * state;
    at->h = k->h + after * state;
    if (k->c != NULL) {
        at->c_prev = k->c + before * state;
        at->c = k->c + after * state;
    }
    if (k->e != NULL)
        at->e = k->e + t * state;
}

static inline const struct tensor *rnn_input(const struct op_call *c, uint32_t i)
{
    return i < c->n_in ? c->in[i] : NULL;
}

#endif
