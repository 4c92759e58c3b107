#include "op/conv/pass.cuh"

#include <stdlib.h>

#include "op/conv/copy.cuh"
#include "op/op_cuda.cuh"

static constexpr size_t ALIGN = 256;

/* An operand that is copied to another form for cuDNN. */
struct stage {
    bool is_needed;
    struct conv_form ours, theirs;
    int64_t shift[CONV_AXES], back[CONV_AXES]; /* theirs[i] = ours[i + shift], ours[i] = theirs[i +
                                                  back] */
    size_t at, bytes;                          /* offset in scratch, size */
};

struct conv_pass {
    enum conv_operand computed;
    struct cudnn_conv *conv, *conv_add; /* owned; NULL: no images; the operation cannot
                                           accumulate */
    struct stage stages[CONV_OPERANDS];
    bool has_room;                     /* the result is computed in scratch */
    size_t work_at, scratch_bytes;     /* offset of cuDNN's scratch; total size */
};

/* The layouts offered to cuDNN, in this order. A weight gradient has the type of the images: for
 * 16-bit images it is rounded to 16 bits once, as in PyTorch's autocast, and converted. (The
 * heuristics of cuDNN 9.14 have no engine with a float32 result; the fall-back takes 4.2 ms instead
 * of 0.13 ms for a 3 x 3 convolution of ResNet-50 on an H100.) Few engines for float32 images
 * support channels-last; all support plain. */
static const enum tensor_layout layouts[] = { TENSOR_CHANNELS_LAST, TENSOR_PLAIN };

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- pads ---- */

/* Returns the extent of all windows along axis k, in elements. */
static int64_t reach(const struct op_window *w, uint32_t k)
{
    return (w->out[k] - 1) * w->stride[k] + (w->kernel[k] - 1) * w->dilation[k] + 1;
}

/* Returns true if an upper padding equal to the lower one would give the same number of windows.
 * Some engines do not support a padding as wide as the window. */
static bool is_even(const struct op_window *w, uint32_t k)
{
    /* required upper padding; negative: the windows do not reach the last elements */
    int64_t behind = reach(w, k) - w->in[k] - w->pad_lo[k];

    return w->pad_lo[k] >= behind && w->pad_lo[k] < behind + w->stride[k] &&
           w->pad_lo[k] <= (w->kernel[k] - 1) * w->dilation[k];
}

/* Returns the window over x with the padding included in x, exactly as far as the windows reach. */
static struct op_window without_pads(const struct op_window *w)
{
    struct op_window bare = *w;

    for (uint32_t k = 0; k < w->spatial; k++) {
        bare.in[k] = reach(w, k);
        bare.pad_lo[k] = bare.pad_hi[k] = 0;
    }
    return bare;
}

/* ---- forms ---- */

static void sizes(const struct conv_pass_spec *spec, const struct op_window *w,
                  enum conv_operand which, int64_t *size)
{
    const struct op_window l = op_window_lift(w, OP_SPATIAL_MAX);
    const int64_t *space = which == CONV_X ? l.in : which == CONV_W ? l.kernel : l.out;

    size[0] = which == CONV_W ? spec->o : spec->n;
    size[1] = which == CONV_X ? spec->c : which == CONV_W ? spec->c / spec->group : spec->o;
    for (int k = 0; k < OP_SPATIAL_MAX; k++)
        size[2 + k] = space[k];
}

/* Prepares the copies of an operand. `seen`: the window passed to cuDNN. */
static void plan_stage(struct stage *st, const struct conv_pass_spec *spec,
                       const struct op_window *seen, const struct cudnn_conv_spec *theirs,
                       enum conv_operand which)
{
    const struct op_window ours = op_window_lift(spec->window, OP_SPATIAL_MAX);
    const struct op_window lifted = op_window_lift(seen, OP_SPATIAL_MAX);
    int64_t size[CONV_AXES];

    *st = {};
    sizes(spec, spec->window, which, size);
    st->ours = which == CONV_W ? conv_form_of(TENSOR_F32, TENSOR_PLAIN, size)
                               : conv_form_of(spec->images, TENSOR_CHANNELS_LAST, size);
    sizes(spec, seen, which, size);
    st->theirs =
        conv_form_of(which == CONV_W ? theirs->weights : theirs->images, theirs->layout, size);
    for (int k = 0; k < OP_SPATIAL_MAX && which == CONV_X; k++) {
        st->back[2 + k] = ours.pad_lo[k] - lifted.pad_lo[k];
        st->shift[2 + k] = -st->back[2 + k];
    }
    st->is_needed = !conv_form_equal(&st->ours, &st->theirs);
}

/* ---- one layout ---- */

static int open_layout(struct conv_pass *p, const struct conv_pass_spec *spec,
                       const struct op_window *seen, enum tensor_layout layout, struct err *err)
{
    struct cudnn_conv_spec theirs = {
        spec->computed, layout,      spec->images, spec->images, spec->n,    spec->c,
        spec->o,        spec->group, seen,         false,        spec->tf32,
    };
    struct err ignored;
    int rc = cudnn_conv_open(&theirs, &p->conv, err);

    if (rc < 0)
        return rc;
    for (int k = 0; k < CONV_OPERANDS; k++)
        plan_stage(&p->stages[k], spec, seen, &theirs, (enum conv_operand)k);
    if (!spec->may_add || p->stages[spec->computed].is_needed)
        return 0;
    theirs.add = true;
    rc = cudnn_conv_open(&theirs, &p->conv_add, &ignored);
    return rc == ERR_UNSUPPORTED ? 0 : rc < 0 ? err_set(err, rc, "%s", ignored.text) : 0;
}

static void plan_scratch(struct conv_pass *p, bool may_add)
{
    size_t at = 0, work = cudnn_conv_scratch_bytes(p->conv),
           work_add = cudnn_conv_scratch_bytes(p->conv_add);

    p->has_room = p->stages[p->computed].is_needed || (may_add && p->conv_add == NULL);
    for (int k = 0; k < CONV_OPERANDS; k++) {
        struct stage *st = &p->stages[k];

        if (!st->is_needed && !(k == p->computed && p->has_room))
            continue;
        st->at = at;
        st->bytes = conv_form_bytes(&st->theirs);
        at += round_up(st->bytes);
    }
    p->work_at = at;
    p->scratch_bytes = at + round_up(work > work_add ? work : work_add);
}

/* Returns the window passed to cuDNN: at least two axes, and a padding that cuDNN supports. */
static struct op_window seen_window(const struct op_window *w)
{
    struct op_window l = op_window_lift(w, w->spatial < 2 ? 2 : w->spatial);

    for (uint32_t k = 0; k < l.spatial; k++)
        if (!is_even(&l, k))
            return without_pads(&l);
    return l;
}

int conv_pass_open(const struct conv_pass_spec *spec, struct conv_pass **out, struct err *err)
{
    struct op_window seen = seen_window(spec->window);
    struct conv_pass *p = (struct conv_pass *)calloc(1, sizeof(*p));
    int rc = ERR_UNSUPPORTED;

    if (p == NULL)
        return err_set(err, ERR_NOMEM, "convolution: out of memory");
    p->computed = spec->computed;
    if (spec->n == 0) {
        int64_t size[CONV_AXES];

        sizes(spec, spec->window, CONV_W, size);
        p->stages[CONV_W].ours = conv_form_of(TENSOR_F32, TENSOR_PLAIN, size);
        *out = p;
        return 0;
    }
    for (size_t i = 0; rc == ERR_UNSUPPORTED && i < sizeof(layouts) / sizeof(layouts[0]); i++)
        rc = open_layout(p, spec, &seen, layouts[i], err);
    if (rc < 0) {
        conv_pass_close(p);
        return rc;
    }
    plan_scratch(p, spec->may_add);
    *out = p;
    return 0;
}

void conv_pass_close(struct conv_pass *p)
{
    if (p == NULL)
        return;
    cudnn_conv_close(p->conv);
    cudnn_conv_close(p->conv_add);
    free(p);
}

size_t conv_pass_scratch_bytes(const struct conv_pass *p)
{
    return p == NULL ? 0 : p->scratch_bytes;
}

/* ---- a call ---- */

int conv_pass_run(struct conv_pass *p, void *const at[CONV_OPERANDS], bool add, void *scratch,
                  cudaStream_t s, struct err *err)
{
    const struct stage *result = &p->stages[p->computed];
    bool is_apart = p->has_room && (result->is_needed || add);
    void *seen[CONV_OPERANDS];
    int rc = 0;

    if (p->conv == NULL) /* no images: the sum is empty */
        return p->computed != CONV_W || add
                   ? 0
                   : cuda_check(cudaMemsetAsync(at[CONV_W], 0, conv_form_bytes(&result->ours), s),
                                err, "clear a gradient");
    for (int k = 0; rc == 0 && k < CONV_OPERANDS; k++) {
        const struct stage *st = &p->stages[k];
        bool is_result = k == p->computed;

        seen[k] = (is_result ? is_apart : st->is_needed) ? (char *)scratch + st->at : at[k];
        if (!is_result && st->is_needed)
            rc = conv_copy(&st->ours, at[k], st->shift, &st->theirs, seen[k], false, s, err);
    }
    if (rc == 0)
        rc = cudnn_conv_run(add && !is_apart ? p->conv_add : p->conv, seen,
                            (char *)scratch + p->work_at, s, err);
    if (rc == 0 && is_apart)
        rc = conv_copy(&result->theirs, seen[p->computed], result->back, &result->ours,
                       at[p->computed], add, s, err);
    return rc;
}
