/* box.h - the elements (taps) of one window in channels-last memory: up to three axes of lines of c
 * floats. */
#ifndef OP_POOL_BOX_H
#define OP_POOL_BOX_H

#include <stddef.h>

#include "op/window.h"

struct box {
    size_t first;           /* floats from the image's start to the first line */
    size_t n[3], step[3];   /* lines along each axis, floats from one to the next */
};

/* Images of [n, in.., c] and the windows of each, one after another; w is of three axes. */
struct boxes {
    const struct op_window *w;
    size_t c;
    size_t n, image;  /* images, floats of each */
    int64_t e[3];     /* the window of the next box_next() */
    size_t i;         /* the image of that window */
};

static inline struct boxes boxes_of(const struct op_window *w, const struct tensor *x)
{
    size_t c = (size_t)x->shape.dim[1];

    return (struct boxes){ .w = w, .c = c, .n = (size_t)x->shape.dim[0],
                           .image = (size_t)(w->in[0] * w->in[1] * w->in[2]) * c };
}

/* Returns false after the last window. `first` counts from the start of x. */
static inline bool box_next(struct boxes *s, struct box *b)
{
    const struct op_window *w = s->w;
    size_t line = s->c;
    uint32_t k;

    if (s->i == s->n)
        return false;
    b->first = s->i * s->image;
    for (k = 3; k-- > 0;) {
        struct op_taps t = op_window_taps(w, k, s->e[k]);

        b->n[k] = (size_t)t.n;
        b->step[k] = (size_t)w->dilation[k] * line;
        b->first += (size_t)t.at * line;
        line *= (size_t)w->in[k];
    }
    for (k = 3; k-- > 0;) {
        if (++s->e[k] < w->out[k])
            return true;
        s->e[k] = 0;
    }
    s->i++;
    return true;
}

#endif
