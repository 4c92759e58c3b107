/* kit.h - shared by the tests of optimizers. */
#ifndef TEST_OPTIM_KIT_H
#define TEST_OPTIM_KIT_H

#include "optim/optim.h"

/* The generator of make_reference.py. */
static inline float draw(uint32_t *x)
{
    *x = 1664525 * *x + 1013904223;
    return (float)(*x >> 8) / (1 << 24) - 0.5f;
}

static inline void draw_all(uint32_t *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = draw(x);
}

static inline struct optim *optim_of(const struct optim_def *def, const struct optim_param *params,
                                     uint32_t n, uint32_t n_parts, double average)
{
    struct optim_opts opts = { .def = def, .params = params, .n_params = n, .n_parts = n_parts,
                               .average = average };
    struct optim *o = NULL;

    assert_int_equal(optim_new(&opts, &o, NULL), 0);
    return o;
}

#endif
