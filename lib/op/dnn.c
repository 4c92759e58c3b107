/* dnn.c - a kernel is a oneDNN primitive with its memory objects and, at most, one reorder in
 * front of it (weights into the primitive's layout) or behind it (a weight gradient out of it).
 *
 * The scratch area of a kernel:   [reordered operand][scratchpad of primitive and reorder]
 *
 * A call sets addresses and executes. What oneDNN 2.6 itself does in dnnl_primitive_execute() is
 * build a small hash table of the arguments: a few short-lived heap nodes, no more. */
#include "op/dnn.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include "base/check.h"
#include "base/err.h"
#include "op/op_priv.h"
#include "op/window.h"

/* Of libgomp, which the library runs on; its header comes only with one of our compilers. */
extern void omp_set_num_threads(int n);

/* ---- the library ---- */

static pthread_once_t library_once = PTHREAD_ONCE_INIT;
static dnnl_engine_t engine; /* lives with the process */
static dnnl_primitive_attr_t own_scratch; /* attribute: scratchpads are the caller's */
static dnnl_primitive_attr_t own_scratch_add; /* and: onto what is in the output */
static dnnl_status_t library_status;
static char id[96];

static dnnl_status_t make_attr(dnnl_primitive_attr_t *attr, bool add)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);

    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !add)
        return status;
    status = dnnl_post_ops_create(&ops);
    if (status == dnnl_success)
        status = dnnl_post_ops_append_sum(ops, 1.0f);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(*attr, ops); /* a copy */
    if (ops != NULL)
        dnnl_post_ops_destroy(ops);
    return status;
}

static void library_open(void)
{
    const dnnl_version_t *v = dnnl_version();
    const char *isa = dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa());

    snprintf(id, sizeof(id), "onednn %d.%d.%d %s", v->major, v->minor, v->patch,
             strncmp(isa, "cpu_isa_", 8) == 0 ? isa + 8 : isa);
    /* An environment variable must not turn float32 products into bfloat16 ones. */
    library_status = dnnl_set_default_fpmath_mode(dnnl_fpmath_mode_strict);
    if (library_status == dnnl_success)
        library_status = dnnl_engine_create(&engine, dnnl_cpu, 0);
    if (library_status == dnnl_success)
        library_status = make_attr(&own_scratch, false);
    if (library_status == dnnl_success)
        library_status = make_attr(&own_scratch_add, true);
}

const char *dnn_id(void)
{
    (void)pthread_once(&library_once, library_open); /* cannot fail with a valid control */
    return id;
}

void dnn_thread_init(void)
{
    omp_set_num_threads(1);
}

static int complain(struct err *err, dnnl_status_t status, const char *what)
{
    switch (status) {
    case dnnl_out_of_memory:
        return err_set(err, ERR_NOMEM, "%s: %s is out of memory", what, dnn_id());
    case dnnl_unimplemented:
    case dnnl_invalid_arguments:
        return err_set(err, ERR_UNSUPPORTED, "%s: %s has no kernel for these shapes (%s)", what,
                       dnn_id(), dnnl_status2str(status));
    default:
        return err_set(err, ERR_DEVICE, "%s: %s failed (%s)", what, dnn_id(),
                       dnnl_status2str(status));
    }
}

/* ---- one primitive ---- */

struct prim {
    dnnl_primitive_t run;
    int n; /* arguments, with the scratchpad (last) if there is one */
    dnnl_exec_arg_t arg[DNN_ARGS + 1];    /* owned memory objects, addresses set by each call */
    void *at[DNN_ARGS + 1];               /* addresses they have */
    size_t scratch_bytes;
};

static void prim_fini(struct prim *p)
{
    int i;

    for (i = 0; i < p->n; i++)
        dnnl_memory_destroy(p->arg[i].memory);
    if (p->run != NULL)
        dnnl_primitive_destroy(p->run);
    memset(p, 0, sizeof(*p));
}

static dnnl_status_t prim_arg(struct prim *p, int arg, const dnnl_memory_desc_t *md)
{
    dnnl_status_t status = dnnl_memory_create(&p->arg[p->n].memory, md, engine, DNNL_MEMORY_NONE);

    if (status == dnnl_success)
        p->arg[p->n++].arg = arg;
    return status;
}

static const dnnl_memory_desc_t *md_of(const_dnnl_primitive_desc_t pd, int arg)
{
    return dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, arg);
}

/* `pd` stays the caller's. On failure *p is empty. */
static dnnl_status_t prim_init(struct prim *p, const_dnnl_primitive_desc_t pd, const int *args,
                               int n)
{
    const dnnl_memory_desc_t *scratch = md_of(pd, DNNL_ARG_SCRATCHPAD);
    dnnl_status_t status = dnnl_primitive_create(&p->run, pd);
    int i;

    for (i = 0; status == dnnl_success && i < n; i++)
        status = prim_arg(p, args[i], md_of(pd, args[i]));
    p->scratch_bytes = scratch != NULL ? dnnl_memory_desc_get_size(scratch) : 0;
    if (status == dnnl_success && p->scratch_bytes > 0)
        status = prim_arg(p, DNNL_ARG_SCRATCHPAD, scratch);
    if (status != dnnl_success)
        prim_fini(p);
    return status;
}

/* at[i] for each argument given to prim_init(). An address is set only when it has changed: for a
 * padded layout setting it also writes zeros into the padding. */
static dnnl_status_t prim_run(struct prim *p, dnnl_stream_t stream, void *const *at, void *scratch)
{
    dnnl_status_t status = dnnl_success;
    int i;

    for (i = 0; i < p->n && status == dnnl_success; i++) {
        void *data = p->arg[i].arg == DNNL_ARG_SCRATCHPAD ? scratch : at[i];

        if (p->at[i] != data)
            status = dnnl_memory_set_data_handle(p->arg[i].memory, data);
        p->at[i] = data;
    }
    if (status == dnnl_success)
        status = dnnl_primitive_execute(p->run, stream, p->n, p->arg);
    return status;
}

/* ---- a kernel ---- */

enum { NO_ARG = -1 };

struct dnn {
    dnnl_stream_t stream;
    struct prim main;
    struct prim reorder;
    int reordered;          /* argument that goes through it; NO_ARG: none */
    bool behind;            /* it is an output: the reorder runs after */
    size_t reordered_bytes; /* rounded, at the start of scratch */
    size_t bytes[DNN_ARGS]; /* of the arguments as the caller sees them */
    uint32_t outputs;       /* bits: arguments that are zero if nothing adds to them */
    bool nothing;           /* an operand has no elements: no primitive, outputs are zeroed */
};

/* What it takes to make a kernel. */
struct recipe {
    const char *what; /* for messages */
    int n;
    int arg[DNN_ARGS];                  /* DNNL_ARG_... in the caller's order */
    dnnl_memory_desc_t md[DNN_ARGS];    /* as the caller lays them out; workspace: the library's */
    uint32_t outputs;
    int reordered;                      /* the argument whose layout the library may choose */
    bool few_channels;                  /* a convolution with little to sum over */
    bool add;                           /* onto what is in the output */
    bool packed;                        /* argument 1 comes in the library's layout */
};

void dnn_free(struct dnn *d)
{
    if (d == NULL)
        return;
    prim_fini(&d->main);
    prim_fini(&d->reorder);
    if (d->stream != NULL)
        dnnl_stream_destroy(d->stream);
    free(d);
}

static dnnl_status_t make_reorder(struct prim *p, const dnnl_memory_desc_t *from,
                                  const dnnl_memory_desc_t *to)
{
    static const int args[] = { DNNL_ARG_FROM, DNNL_ARG_TO };
    dnnl_primitive_desc_t pd;
    dnnl_status_t status =
        dnnl_reorder_primitive_desc_create(&pd, from, engine, to, engine, own_scratch);

    if (status != dnnl_success)
        return status;
    status = prim_init(p, pd, args, 2);
    dnnl_primitive_desc_destroy(pd);
    return status;
}

/* The main primitive, and the reorder where its layout is not the caller's. */
static dnnl_status_t make_main(struct dnn *d, const struct recipe *r,
                               const_dnnl_primitive_desc_t pd)
{
    dnnl_status_t status = prim_init(&d->main, pd, r->arg, r->n);
    int i;

    for (i = 0; status == dnnl_success && i < r->n; i++) {
        const dnnl_memory_desc_t *own = &r->md[i], *its = md_of(pd, r->arg[i]);

        bool is_its = r->arg[i] == DNNL_ARG_WORKSPACE || (r->packed && i == 1);

        if (is_its)
            d->bytes[i] = dnnl_memory_desc_get_size(its);
        if (is_its || dnnl_memory_desc_equal(own, its))
            continue;
        CHECK(i == r->reordered);
        d->reordered = i;
        d->behind = (r->outputs & (1u << i)) != 0;
        d->reordered_bytes = op_round(dnnl_memory_desc_get_size(its));
        status = d->behind ? make_reorder(&d->reorder, its, own)
                           : make_reorder(&d->reorder, own, its);
    }
    return status;
}

static bool pd_is(const_dnnl_primitive_desc_t pd, const char *prefix)
{
    const char *name = "";

    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name) ==
               dnnl_success &&
           strncmp(name, prefix, strlen(prefix)) == 0;
}

/* The library's first choice. One exception: for few input channels its batch-reduce kernel is up
 * to six times slower than the direct one that follows in its list (at 1 to 16 channels always
 * slower or equal, from 17 on faster: measured for 3x3, 5x5 and 7x7 kernels). */
static dnnl_status_t choose(const struct recipe *r, const_dnnl_op_desc_t op,
                            const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *pd)
{
    dnnl_primitive_desc_iterator_t it;
    dnnl_primitive_desc_t second = NULL;
    dnnl_status_t status = dnnl_primitive_desc_create(
        pd, op, r->add ? own_scratch_add : own_scratch, engine, hint);

    if (status != dnnl_success || !r->few_channels || !pd_is(*pd, "brgconv:"))
        return status;
    if (dnnl_primitive_desc_iterator_create(&it, op, own_scratch, engine, hint) != dnnl_success)
        return status;
    if (dnnl_primitive_desc_iterator_next(it) == dnnl_success)
        second = dnnl_primitive_desc_iterator_fetch(it);
    dnnl_primitive_desc_iterator_destroy(it);
    if (second != NULL && pd_is(second, "jit:avx512")) {
        dnnl_primitive_desc_destroy(*pd);
        *pd = second;
    } else if (second != NULL) {
        dnnl_primitive_desc_destroy(second);
    }
    return status;
}

/* `op`: descriptor of the kernel; NULL: it is a reorder of md[0] to md[1]. `fwd`: of the forward
 * kernel where `op` is a backward one, else NULL. */
static dnnl_status_t make(struct dnn *d, const struct recipe *r, const_dnnl_op_desc_t op,
                          const_dnnl_op_desc_t fwd)
{
    dnnl_primitive_desc_t pd = NULL, hint = NULL;
    dnnl_status_t status = dnnl_stream_create(&d->stream, engine, dnnl_stream_default_flags);

    if (status == dnnl_success && op == NULL)
        return make_reorder(&d->main, &r->md[0], &r->md[1]);
    if (status == dnnl_success && fwd != NULL)
        status = dnnl_primitive_desc_create(&hint, fwd, own_scratch, engine, NULL);
    if (status == dnnl_success)
        status = choose(r, op, hint, &pd);
    if (status == dnnl_success)
        status = make_main(d, r, pd);
    if (hint != NULL)
        dnnl_primitive_desc_destroy(hint);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    return status;
}

/* `status`: of making the descriptors `op` and `fwd`; what it says about an operand without
 * elements does not matter. */
static int dnn_new(const struct recipe *r, dnnl_status_t status, const_dnnl_op_desc_t op,
                   const_dnnl_op_desc_t fwd, struct dnn **out, struct err *err)
{
    struct dnn *d;
    int i;

    (void)dnn_id();
    if (library_status != dnnl_success)
        return complain(err, library_status, "open the kernel library");
    dnn_thread_init(); /* a kernel is made for as many threads as its maker has */

    d = calloc(1, sizeof(*d));
    if (d == NULL)
        return err_set(err, ERR_NOMEM, "%s: out of memory", r->what);
    d->outputs = r->add ? 0 : r->outputs;
    d->reordered = NO_ARG;
    for (i = 0; i < r->n; i++) {
        d->bytes[i] = dnnl_memory_desc_get_size(&r->md[i]);
        d->nothing = d->nothing || (d->bytes[i] == 0 && r->arg[i] != DNNL_ARG_WORKSPACE);
    }
    if (!d->nothing && status == dnnl_success)
        status = make(d, r, op, fwd);
    if (!d->nothing && status != dnnl_success) {
        dnn_free(d);
        return complain(err, status, r->what);
    }
    *out = d;
    return 0;
}

size_t dnn_scratch_bytes(const struct dnn *d)
{
    size_t pad;

    if (d == NULL)
        return 0;
    pad = d->main.scratch_bytes > d->reorder.scratch_bytes ? d->main.scratch_bytes
                                                           : d->reorder.scratch_bytes;
    return d->reordered_bytes + op_round(pad);
}

size_t dnn_arg_bytes(const struct dnn *d, uint32_t i)
{
    CHECK(i < DNN_ARGS);
    return d->bytes[i];
}

int dnn_run(struct dnn *d, void *const args[DNN_ARGS], void *scratch, struct err *err)
{
    void *at[DNN_ARGS], *pad = op_at(scratch, d->reordered_bytes), *pair[2];
    dnnl_status_t status = dnnl_success;
    int i;

    if (d->nothing) {
        for (i = 0; i < DNN_ARGS; i++)
            if ((d->outputs & (1u << i)) != 0 && d->bytes[i] > 0)
                memset(args[i], 0, d->bytes[i]);
        return 0;
    }
    memcpy(at, args, sizeof(at));
    if (d->reordered != NO_ARG) {
        pair[d->behind] = args[d->reordered]; /* from, to */
        pair[!d->behind] = at[d->reordered] = scratch;
    }
    if (d->reordered != NO_ARG && !d->behind)
        status = prim_run(&d->reorder, d->stream, pair, pad);
    if (status == dnnl_success)
        status = prim_run(&d->main, d->stream, at, pad);
    if (status == dnnl_success && d->behind)
        status = prim_run(&d->reorder, d->stream, pair, pad);
    return status == dnnl_success ? 0 : complain(err, status, "run");
}

/* ---- memory descriptors ---- */

static void md_by_strides(dnnl_memory_desc_t *md, int n, const int64_t *dim, const int64_t *stride)
{
    dnnl_dims_t d = { 0 }, step = { 0 };

    memcpy(d, dim, (size_t)n * sizeof(*d));
    memcpy(step, stride, (size_t)n * sizeof(*d));
    /* The only errors are a rank or a negative size that our callers never give. */
    CHECK(dnnl_memory_desc_init_by_strides(md, n, d, dnnl_f32, step) == dnnl_success);
}

static void md_plain(dnnl_memory_desc_t *md, int n, const int64_t *dim)
{
    dnnl_dims_t stride;
    int i;

    for (i = n - 1; i >= 0; i--)
        stride[i] = i == n - 1 ? 1 : stride[i + 1] * (dim[i + 1] > 0 ? dim[i + 1] : 1);
    md_by_strides(md, n, dim, stride);
}

static void md_channels_last(dnnl_memory_desc_t *md, int n, const int64_t *dim)
{
    dnnl_dims_t stride;
    int64_t step = dim[1];
    int i;

    stride[1] = 1;
    for (i = n - 1; i >= 2; i--) {
        stride[i] = step;
        step *= dim[i];
    }
    stride[0] = step;
    md_by_strides(md, n, dim, stride);
}

static void md_image(dnnl_memory_desc_t *md, enum tensor_layout layout, int64_t n, int64_t c,
                     const int64_t *spatial, uint32_t n_spatial)
{
    dnnl_dims_t dim = { n, c };
    uint32_t k;

    for (k = 0; k < n_spatial; k++)
        dim[2 + k] = spatial[k];
    (layout == TENSOR_PLAIN ? md_plain : md_channels_last)(md, (int)n_spatial + 2, dim);
}

/* One axis of space is two of which the first is 1: the library's best kernels are for images. */
static struct op_window as_image(const struct op_window *w)
{
    return w->spatial == 1 ? op_window_lift(w, 2) : *w;
}

/* A window in the library's terms. */
struct slide {
    dnnl_dims_t kernel, stride, pad_lo, pad_hi;
    dnnl_dims_t dilate; /* 0: dense */
};

static void slide_init(struct slide *s, const struct op_window *w)
{
    uint32_t k;

    for (k = 0; k < w->spatial; k++) {
        s->kernel[k] = w->kernel[k];
        s->stride[k] = w->stride[k];
        s->pad_lo[k] = w->pad_lo[k];
        s->pad_hi[k] = w->pad_hi[k];
        s->dilate[k] = w->dilation[k] - 1;
    }
}

/* ---- matrix product ---- */

/* Fills r->md. */
static dnnl_status_t matmul_describe(const struct dnn_matmul *s, struct recipe *r,
                                     dnnl_matmul_desc_t *op)
{
    int rank = s->batch == 1 ? 2 : 3, skip = 3 - rank; /* without the batch axis if it is 1 */
    const int64_t a[] = { s->batch, s->m, s->k }, b[] = { s->batch, s->k, s->n };
    const int64_t y[] = { s->batch, s->m, s->n }, bias[] = { 1, 1, s->n };
    const int64_t a_step[] = { s->m * s->k, s->trans_a ? 1 : s->k, s->trans_a ? s->m : 1 };
    const int64_t b_step[] = { s->k * s->n, s->trans_b ? 1 : s->n, s->trans_b ? s->k : 1 };
    dnnl_memory_desc_t any;

    md_by_strides(&r->md[0], rank, a + skip, a_step + skip);
    md_by_strides(&r->md[1], rank, b + skip, b_step + skip);
    md_plain(&r->md[2], rank, y + skip);
    md_plain(&r->md[3], rank, bias + skip);
    CHECK(dnnl_memory_desc_init_by_tag(&any, rank, r->md[1].dims, dnnl_f32,
                                       dnnl_format_tag_any) == dnnl_success);
    return dnnl_matmul_desc_init(op, &r->md[0], s->packed ? &any : &r->md[1],
                                 s->bias ? &r->md[3] : NULL, &r->md[2]);
}

int dnn_matmul(const struct dnn_matmul *s, struct dnn **out, struct err *err)
{
    struct recipe r = { .what = "matrix product",
                        .n = s->bias ? 4 : 3,
                        .arg = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS },
                        .outputs = 1u << 2,
                        .reordered = NO_ARG,
                        .add = s->add,
                        .packed = s->packed };
    dnnl_matmul_desc_t op;
    dnnl_status_t status = matmul_describe(s, &r, &op);

    return dnn_new(&r, status, &op, NULL, out, err);
}

int dnn_matmul_pack(const struct dnn_matmul *s, struct dnn **out, struct err *err)
{
    struct recipe product = { .what = "matrix product", .add = s->add };
    struct recipe r = { .what = "packing of a matrix", .n = 2, .outputs = 1u << 1,
                        .reordered = NO_ARG };
    dnnl_primitive_desc_t pd = NULL;
    dnnl_matmul_desc_t op;
    dnnl_status_t status = matmul_describe(s, &product, &op);

    (void)dnn_id();
    dnn_thread_init();
    r.md[0] = r.md[1] = product.md[1];
    if (library_status == dnnl_success && status == dnnl_success &&
        dnnl_memory_desc_get_size(&r.md[0]) > 0 &&
        dnnl_memory_desc_get_size(&product.md[0]) > 0) {
        status = choose(&product, &op, NULL, &pd);
        if (status == dnnl_success)
            r.md[1] = *md_of(pd, DNNL_ARG_WEIGHTS);
        if (pd != NULL)
            dnnl_primitive_desc_destroy(pd);
    }
    return dnn_new(&r, status, NULL, NULL, out, err);
}

/* ---- convolution ---- */

struct conv_md {
    dnnl_memory_desc_t x, w, bias, y;
    dnnl_memory_desc_t any_w; /* w in a layout of the library's choice */
    struct slide slide;
    dnnl_convolution_desc_t fwd;
    dnnl_status_t status; /* of fwd */
};

static void conv_describe(const struct dnn_conv *s, struct conv_md *m)
{
    const struct op_window image = as_image(s->window), *win = &image;
    int64_t w[OP_SPATIAL_MAX + 3] = { s->group, s->o / s->group, s->c / s->group };
    int skip = s->group == 1; /* without the group axis if it is 1 */
    uint32_t k;

    for (k = 0; k < win->spatial; k++)
        w[3 + k] = win->kernel[k];
    slide_init(&m->slide, win);
    md_image(&m->x, s->layout, s->n, s->c, win->in, win->spatial);
    md_image(&m->y, s->layout, s->n, s->o, win->out, win->spatial);
    md_plain(&m->w, (int)win->spatial + 3 - skip, w + skip);
    md_plain(&m->bias, 1, &s->o);
    CHECK(dnnl_memory_desc_init_by_tag(&m->any_w, m->w.ndims, m->w.dims, dnnl_f32,
                                       dnnl_format_tag_any) == dnnl_success);
    m->status = dnnl_dilated_convolution_forward_desc_init(
        &m->fwd, dnnl_forward_training, dnnl_convolution_direct, &m->x, &m->any_w,
        s->bias ? &m->bias : NULL, &m->y, m->slide.stride, m->slide.dilate, m->slide.pad_lo,
        m->slide.pad_hi);
}

int dnn_conv_fwd(const struct dnn_conv *s, struct dnn **out, struct err *err)
{
    struct recipe r = { .what = "convolution",
                        .n = s->bias ? 4 : 3,
                        .arg = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS },
                        .outputs = 1u << 2,
                        .reordered = 1,
                        .few_channels = s->c / s->group <= 16 };
    struct conv_md m;

    conv_describe(s, &m);
    r.md[0] = m.x, r.md[1] = m.w, r.md[2] = m.y, r.md[3] = m.bias;
    return dnn_new(&r, m.status, &m.fwd, NULL, out, err);
}

int dnn_conv_bwd_x(const struct dnn_conv *s, struct dnn **out, struct err *err)
{
    struct recipe r = { .what = "convolution, gradient of the input",
                        .n = 3,
                        .arg = { DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC },
                        .outputs = 1u << 2,
                        .reordered = 1 };
    dnnl_convolution_desc_t op;
    struct conv_md m;

    conv_describe(s, &m);
    r.md[0] = m.y, r.md[1] = m.w, r.md[2] = m.x;
    if (m.status == dnnl_success)
        m.status = dnnl_dilated_convolution_backward_data_desc_init(
            &op, dnnl_convolution_direct, &m.x, &m.any_w, &m.y, m.slide.stride, m.slide.dilate,
            m.slide.pad_lo, m.slide.pad_hi);
    return dnn_new(&r, m.status, &op, &m.fwd, out, err);
}

int dnn_conv_bwd_w(const struct dnn_conv *s, struct dnn **out, struct err *err)
{
    struct recipe r = { .what = "convolution, gradient of the weights",
                        .n = s->bias ? 4 : 3,
                        .arg = { DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS,
                                 DNNL_ARG_DIFF_BIAS },
                        .outputs = 1u << 2 | (s->bias ? 1u << 3 : 0),
                        .reordered = 2 };
    dnnl_convolution_desc_t op;
    struct conv_md m;

    conv_describe(s, &m);
    r.md[0] = m.x, r.md[1] = m.y, r.md[2] = m.w, r.md[3] = m.bias;
    if (m.status == dnnl_success)
        m.status = dnnl_dilated_convolution_backward_weights_desc_init(
            &op, dnnl_convolution_direct, &m.x, &m.any_w, s->bias ? &m.bias : NULL, &m.y,
            m.slide.stride, m.slide.dilate, m.slide.pad_lo, m.slide.pad_hi);
    return dnn_new(&r, m.status, &op, &m.fwd, out, err);
}

/* ---- max pooling ---- */

static int max_pool(const struct dnn_pool *s, struct recipe *r, uint32_t x, uint32_t y, bool bwd,
                    struct dnn **out, struct err *err)
{
    const struct op_window image = as_image(s->window), *w = &image;
    dnnl_pooling_v2_desc_t fwd, op;
    dnnl_status_t status;
    struct slide sl;

    slide_init(&sl, w);
    md_image(&r->md[x], s->layout, s->n, s->c, w->in, w->spatial);
    md_image(&r->md[y], s->layout, s->n, s->c, w->out, w->spatial);
    status = dnnl_pooling_v2_forward_desc_init(
        &fwd, s->training ? dnnl_forward_training : dnnl_forward_inference, dnnl_pooling_max,
        &r->md[x], &r->md[y], sl.stride, sl.kernel, sl.dilate, sl.pad_lo, sl.pad_hi);
    if (status == dnnl_success && bwd)
        status = dnnl_pooling_v2_backward_desc_init(&op, dnnl_pooling_max, &r->md[x], &r->md[y],
                                                    sl.stride, sl.kernel, sl.dilate, sl.pad_lo,
                                                    sl.pad_hi);
    return bwd ? dnn_new(r, status, &op, &fwd, out, err)
               : dnn_new(r, status, &fwd, NULL, out, err);
}

int dnn_max_pool_fwd(const struct dnn_pool *s, struct dnn **out, struct err *err)
{
    struct recipe r = { .what = "max pooling",
                        .n = s->training ? 3 : 2,
                        .arg = { DNNL_ARG_SRC, DNNL_ARG_DST, DNNL_ARG_WORKSPACE },
                        .outputs = 1u << 1,
                        .reordered = NO_ARG };

    return max_pool(s, &r, 0, 1, false, out, err);
}

int dnn_max_pool_bwd(const struct dnn_pool *s, struct dnn **out, struct err *err)
{
    struct recipe r = { .what = "max pooling, gradient",
                        .n = 3,
                        .arg = { DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC, DNNL_ARG_WORKSPACE },
                        .outputs = 1u << 1,
                        .reordered = NO_ARG };

    CHECK(s->training);
    return max_pool(s, &r, 1, 0, true, out, err);
}

/* ---- reorder ---- */

int dnn_reorder(const struct tensor *from, const struct tensor *to, struct dnn **out,
                struct err *err)
{
    struct recipe r = { .what = "reorder", .n = 2, .outputs = 1u << 1, .reordered = NO_ARG };
    const struct shape *s = &from->shape;

    CHECK(s->rank >= 3 && shape_equal(s, &to->shape));
    md_image(&r.md[0], from->layout, s->dim[0], s->dim[1], s->dim + 2, s->rank - 2);
    md_image(&r.md[1], to->layout, s->dim[0], s->dim[1], s->dim + 2, s->rank - 2);
    return dnn_new(&r, dnnl_success, NULL, NULL, out, err);
}
