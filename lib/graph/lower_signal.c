/* lower_signal.c - lowers windows and the transform of frames to other rows.
 *
 *   HannWindow, HammingWindow, BlackmanWindow (17)   constants
 *   STFT (17)       Gather of the frames, times the window, times the matrix of the transform;
 *                   passes gradients to the signal and the window */
#include "graph/lower_kit.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"

enum { LONGEST = 2048 /* maximum length of a transform; its matrix has the square of it */ };

/* ---- windows ---- */

static double window_at(const char *op, double turn)
{
    double c = cos(2 * M_PI * turn);

    if (strcmp(op, "HannWindow") == 0)
        return 0.5 - 0.5 * c;
    if (strcmp(op, "HammingWindow") == 0)
        return (25 - 21 * c) / 46;
    return 0.42 - 0.5 * c + 0.08 * cos(4 * M_PI * turn);
}

void lower_window(struct lowering *l)
{
    const int64_t *size = NULL;
    int64_t periodic = 1, type = TENSOR_F32, i, steps;
    struct shape shape;
    uint32_t y;
    void *data;
    size_t n = 0;

    if (kit_input(l, 0, TENSOR_NONE) == NULL || !kit_known(l, 0, &size, &n))
        return;
    l->rc = op_attr_i(&l->attrs, "periodic", 1, &periodic, l->err);
    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, "output_datatype", TENSOR_F32, &type, l->err);
    if (l->rc == 0 && (n != 1 || size[0] < 1 || size[0] > 1 << 24))
        LOWER_ERROR(l, ERR_INPUT, "size is %" PRId64 "; expected 1 to %d", n > 0 ? size[0] : 0,
                    1 << 24);
    if (l->rc < 0)
        return;
    shape = shape_of(1, size[0]);
    steps = periodic != 0 ? size[0] : size[0] - 1;
    y = lower_constant(l, TENSOR_F32, &shape, &data);
    for (i = 0; l->rc == 0 && i < size[0]; i++)
        ((float *)data)[i] =
            steps == 0 ? 1 : (float)window_at(l->from->def->name, (double)i / (double)steps);
    if (type != TENSOR_F32)
        y = kit_op_int(l, "Cast", y, GRAPH_NONE, GRAPH_NONE, "to", type);
    lower_out(l, 0, y);
}

/* ---- STFT ---- */

struct dft {
    int64_t n, parts; /* of a frame: number of elements, and 1 (real) or 2 (complex) numbers per
                         element */
    int64_t m;        /* number of elements of its spectrum, each of 2 numbers */
};

/* Fills the matrix [n, parts, m, 2]. */
static void fill_matrix(const struct dft *d, float *to)
{
    int64_t i, part, k;

    for (i = 0; i < d->n; i++)
        for (part = 0; part < d->parts; part++)
            for (k = 0; k < d->m; k++) {
                double turn = (double)(i * k % d->n) / (double)d->n * 2 * M_PI;

                *to++ = (float)(part == 0 ? cos(turn) : sin(turn));
                *to++ = (float)(part == 0 ? -sin(turn) : cos(turn));
            }
}

/* Transforms x [..., n, parts] to [..., m, 2]. */
static uint32_t transform(struct lowering *l, uint32_t x, const struct dft *d)
{
    struct shape rows, shape, matrix = shape_of(2, d->n * d->parts, d->m * 2);
    uint32_t rank;
    void *data;
    uint32_t w;

    if (l->rc < 0)
        return GRAPH_NONE;
    shape = lower_tensor(l, x)->shape;
    rank = shape.rank;
    rows = shape;
    rows.rank = rank - 1;
    rows.dim[rank - 2] = d->n * d->parts;
    shape.dim[rank - 2] = d->m;
    shape.dim[rank - 1] = 2;
    w = lower_constant(l, TENSOR_F32, &matrix, &data);
    if (l->rc == 0)
        fill_matrix(d, data);
    return kit_reshape(l, kit_op(l, "MatMul", kit_reshape(l, x, &rows), w, GRAPH_NONE), &shape);
}

/* Indices [frames * length] of the elements of all frames; GRAPH_NONE: rc is set. */
static uint32_t frame_places(struct lowering *l, int64_t frames, int64_t step, int64_t length)
{
    int64_t *at = arena_array(&l->p->mem, (size_t)(frames * length), sizeof(*at)), i;

    if (at == NULL) {
        l->rc = plan_no_memory(l->err);
        return GRAPH_NONE;
    }
    for (i = 0; i < frames * length; i++)
        at[i] = i / length * step + i % length;
    return kit_ints(l, at, (uint32_t)(frames * length));
}

void lower_stft(struct lowering *l)
{
    const struct tensor *x = kit_input(l, 0, TENSOR_F32), *window;
    const int64_t *step = NULL, *given = NULL;
    size_t n_step = 0, n_given = 0;
    int64_t onesided = 1, length, frames;
    struct shape shape, column;
    struct dft d;
    uint32_t y;

    if (x == NULL || !kit_known(l, 1, &step, &n_step) || !kit_known(l, 3, &given, &n_given))
        return;
    l->rc = op_attr_i(&l->attrs, "onesided", 1, &onesided, l->err);
    window = lower_in(l, 2) != GRAPH_NONE ? kit_input(l, 2, TENSOR_F32) : NULL;
    if (l->rc < 0)
        return;
    length = n_given > 0 ? given[0] : window != NULL ? tensor_elements(window) : 0;
    if (x->shape.rank != 3 || x->shape.dim[2] < 1 || x->shape.dim[2] > 2 || n_step != 1 ||
        step[0] < 1 || length < 1 || length > LONGEST || length > x->shape.dim[1] ||
        (window != NULL && tensor_elements(window) != length) ||
        (onesided != 0 && x->shape.dim[2] != 1)) {
        LOWER_ERROR(l, ERR_UNSUPPORTED, "expected signals [n, length, 1 or 2], a step of at least 1, and frames (and "
                    "window) of 1 to %d elements that fit them", LONGEST);
        return;
    }
    frames = (x->shape.dim[1] - length) / step[0] + 1;
    if (frames * length > 1 << 24) {
        LOWER_ERROR(l, ERR_UNSUPPORTED, "%" PRId64 " frames of %" PRId64 " elements are too many",
                    frames, length);
        return;
    }
    shape = shape_of(4, x->shape.dim[0], frames, length, x->shape.dim[2]);
    column = shape_of(2, length, (int64_t)1);
    d = (struct dft){ .n = length, .parts = shape.dim[3], .m = onesided != 0 ? length / 2 + 1 : length };
    y = kit_op_int(l, "Gather", lower_in(l, 0), frame_places(l, frames, step[0], length),
                   GRAPH_NONE, "axis", 1);
    y = kit_reshape(l, y, &shape);
    if (window != NULL)
        y = kit_op(l, "Mul", y, kit_reshape(l, lower_in(l, 2), &column), GRAPH_NONE);
    lower_out(l, 0, transform(l, y, &d));
}
