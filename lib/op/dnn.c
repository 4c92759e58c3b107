/* dnn.c - runs kernels. A kernel is a oneDNN primitive, its memory objects and at most one reorder:
 * before the primitive (converts weights to its layout) or after it (converts a weight gradient to
 * the caller's layout).
 *
 * The scratch area of a kernel: [reordered operand][scratchpad of primitive and reorder]
 *
 * A call sets addresses and executes. In dnnl_primitive_execute(), oneDNN itself builds a small
 * hash table of the arguments, which allocates a few short-lived heap nodes. */
#include "op/dnn_priv.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl_debug.h>

#include "base/check.h"
#include "base/err.h"
#include "base/memory_room.h"
#include "op/op_priv.h"

/* A function of libgomp, which oneDNN uses; only one of our compilers has its header. */
extern void omp_set_num_threads(int n);

/* oneDNN crashes where it cannot map the code of a kernel. */
enum { ROOM_BYTES = 32 << 20 };

/* ---- the library ---- */

static pthread_once_t library_once = PTHREAD_ONCE_INIT;
static dnnl_engine_t engine;              /* never freed */
static dnnl_primitive_attr_t own_scratch; /* primitive attribute: the caller provides the
                                             scratchpad */
static dnnl_primitive_attr_t own_scratch_add; /* the same, and the primitive accumulates into its
                                                 output */
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
        status = dnn_append_sum(ops);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(*attr, ops); /* copies ops */
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
    /* Prevent an environment variable from turning float32 products into bfloat16 ones. */
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

bool dnn_has_bfloat16(void)
{
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa(), need = dnnl_cpu_isa_avx512_core_bf16;

    return (isa & need) == need;
}

void dnn_thread_init(void)
{
    omp_set_num_threads(1);
}

static int dnn_error(struct err *err, dnnl_status_t status, const char *what)
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
    int n; /* number of arguments, including the scratchpad (last) if the primitive uses one */
    dnnl_exec_arg_t arg[DNN_ARGS + 1];    /* owned memory objects; each call sets their addresses */
    void *at[DNN_ARGS + 1];               /* current addresses of the memory objects */
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

static dnnl_status_t prim_arg(struct prim *p, int arg, dnn_md md)
{
    dnnl_status_t status = dnnl_memory_create(&p->arg[p->n].memory, md, engine, DNNL_MEMORY_NONE);

    if (status == dnnl_success)
        p->arg[p->n++].arg = arg;
    return status;
}

static dnn_md md_of(const_dnnl_primitive_desc_t pd, int arg)
{
    return dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, arg);
}

/* Does not take ownership of `pd`. On failure *p is empty. */
static dnnl_status_t prim_init(struct prim *p, const_dnnl_primitive_desc_t pd, const int *args,
                               int n)
{
    dnn_md scratch = md_of(pd, DNNL_ARG_SCRATCHPAD);
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

/* Runs the primitive. at[i]: address of each argument given to prim_init(). An address is set only
 * if it has changed, because setting it also writes zeros into the padding of a padded layout. */
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

struct dnn {
    dnnl_stream_t stream;
    struct prim main;
    struct prim reorder;
    int reordered;          /* index of the argument that the reorder converts; DNN_NO_ARG: none */
    bool is_after;          /* the argument is an output: the reorder runs after the primitive */
    size_t reordered_bytes; /* size of the reordered operand at the start of scratch, rounded */
    size_t bytes[DNN_ARGS]; /* size of each argument in the caller's layout */
    uint32_t outputs;       /* bits: arguments that are zeroed if an operand has no elements */
    bool is_empty;          /* an operand has no elements: no primitive; outputs are zeroed */
    struct dnn_panels panels; /* n > 0: run these instead of a primitive */
};

void dnn_free(struct dnn *d)
{
    if (d == NULL)
        return;
    dnn_free(d->panels.first);
    dnn_free(d->panels.rest);
    prim_fini(&d->main);
    prim_fini(&d->reorder);
    if (d->stream != NULL)
        dnnl_stream_destroy(d->stream);
    free(d);
}

static dnnl_status_t make_reorder(struct prim *p, dnn_md from, dnn_md to)
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

/* Creates the primitive of a reorder between two layouts of the caller. */
static dnnl_status_t make_own_reorder(struct prim *p, const struct dnn_layout *from,
                                      const struct dnn_layout *to)
{
    dnn_md a = NULL, b = NULL;
    dnnl_status_t status = dnn_md_new(from, &a);

    if (status == dnnl_success)
        status = dnn_md_new(to, &b);
    if (status == dnnl_success)
        status = make_reorder(p, a, b);
    dnn_md_free(a);
    dnn_md_free(b);
    return status;
}

/* Creates the reorder of argument `i` of the main primitive if the layout of the caller differs from `its`. */
static dnnl_status_t make_arg_reorder(struct dnn *d, const struct dnn_recipe *r, int i, dnn_md its)
{
    dnn_md own = NULL;
    dnnl_status_t status = dnn_md_new(&r->own[i], &own);

    if (status == dnnl_success && !dnnl_memory_desc_equal(own, its)) {
        CHECK(i == r->reordered);
        d->reordered = i;
        d->is_after = (r->outputs & (1u << i)) != 0;
        d->reordered_bytes = op_round(dnnl_memory_desc_get_size(its));
        status =
            d->is_after ? make_reorder(&d->reorder, its, own) : make_reorder(&d->reorder, own, its);
    }
    dnn_md_free(own);
    return status;
}

/* Creates the main primitive, and the reorder if its layout differs from the caller's. */
static dnnl_status_t make_main(struct dnn *d, const struct dnn_recipe *r,
                               const_dnnl_primitive_desc_t pd)
{
    dnnl_status_t status = prim_init(&d->main, pd, r->arg, r->n);
    int i;

    for (i = 0; status == dnnl_success && i < r->n; i++) {
        dnn_md its = md_of(pd, r->arg[i]);

        if (r->arg[i] == DNNL_ARG_WORKSPACE || (r->packed && i == 1))
            d->bytes[i] = dnnl_memory_desc_get_size(its);
        else
            status = make_arg_reorder(d, r, i, its);
    }
    return status;
}

/* ---- the primitive descriptor of an operation ---- */

/* Creates a layout of the library, or none. */
static dnnl_status_t new_md(bool is_used, const struct dnn_layout *l, dnn_md *out)
{
    return is_used ? dnn_md_new(l, out) : dnnl_success;
}

static dnnl_status_t new_pd(const struct dnn_op *op, const_dnnl_primitive_attr_t attr,
                            const_dnnl_primitive_desc_t fwd, unsigned implementation,
                            dnnl_primitive_desc_t *pd)
{
    bool is_pool = op->kind >= DNN_POOL;
    dnn_md x = NULL, w = NULL, bias = NULL, y = NULL;
    dnnl_status_t status = dnn_md_new(&op->x, &x);

    if (status == dnnl_success)
        status = new_md(!is_pool, op->kind == DNN_CONV_DW ? &op->dw : &op->w, &w);
    if (status == dnnl_success)
        status = new_md(op->has_bias, &op->bias, &bias);
    if (status == dnnl_success)
        status = dnn_md_new(&op->y, &y);
    if (status == dnnl_success)
        status = dnn_pd_new(op, x, w, bias, y, engine, attr, fwd, implementation, pd);
    dnn_md_free(x);
    dnn_md_free(w);
    dnn_md_free(bias);
    dnn_md_free(y);
    return status;
}

/* Creates in *pd the descriptor of the forward operation that the gradient `op` needs; another operation needs none. */
static dnnl_status_t new_forward_pd(const struct dnn_op *op, dnnl_primitive_desc_t *pd)
{
    struct dnn_op fwd = *op;

    if (op->kind != DNN_CONV_DX && op->kind != DNN_CONV_DW && op->kind != DNN_POOL_DX)
        return dnnl_success;
    fwd.kind = op->kind == DNN_POOL_DX ? DNN_POOL : DNN_CONV;
    return new_pd(&fwd, own_scratch, NULL, 0, pd);
}

static bool pd_is(const_dnnl_primitive_desc_t pd, const char *prefix)
{
    const char *name = "";

    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name) ==
               dnnl_success &&
           strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Chooses the implementation: the first choice of the library, with one exception. In float32 and
 * with few input channels, its batch-reduce kernel is up to six times slower than the direct kernel
 * that follows in its list (measured for 3x3, 5x5 and 7x7 kernels: slower or equal from 1 to 16
 * channels, faster from 17 on). */
static dnnl_status_t choose_primitive(const struct dnn_recipe *r, const_dnnl_primitive_desc_t fwd,
                                      dnnl_primitive_desc_t *pd)
{
    dnnl_primitive_desc_t second;
    dnnl_status_t status = new_pd(&r->op, r->add ? own_scratch_add : own_scratch, fwd, 0, pd);

    if (status != dnnl_success || !r->few_channels || !pd_is(*pd, "brgconv:") ||
        new_pd(&r->op, own_scratch, fwd, 1, &second) != dnnl_success)
        return status;
    if (pd_is(second, "jit:avx512")) {
        dnnl_primitive_desc_destroy(*pd);
        *pd = second;
    } else {
        dnnl_primitive_desc_destroy(second);
    }
    return dnnl_success;
}

/* Creates the reorder from the caller's layout of the second factor to the one that the product chooses. */
static dnnl_status_t make_pack(struct dnn *d, const struct dnn_recipe *r)
{
    dnnl_primitive_desc_t pd = NULL;
    dnn_md own = NULL;
    dnnl_status_t status = dnn_md_new(&r->own[0], &own);

    if (status == dnnl_success)
        status = choose_primitive(r, NULL, &pd);
    if (status == dnnl_success) {
        dnn_md packed = md_of(pd, DNNL_ARG_WEIGHTS);

        d->bytes[1] = dnnl_memory_desc_get_size(packed);
        status = make_reorder(&d->main, own, packed);
    }
    dnn_md_free(own);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    return status;
}

/* Creates the primitives of *d. */
static dnnl_status_t make_primitives(struct dnn *d, const struct dnn_recipe *r)
{
    dnnl_primitive_desc_t pd = NULL, fwd = NULL;
    dnnl_status_t status = dnnl_stream_create(&d->stream, engine, dnnl_stream_default_flags);

    if (status == dnnl_success && r->is_pack)
        return make_pack(d, r);
    if (status == dnnl_success && r->op.kind == DNN_REORDER)
        return make_own_reorder(&d->main, &r->own[0], &r->own[1]);
    if (status == dnnl_success)
        status = new_forward_pd(&r->op, &fwd);
    if (status == dnnl_success)
        status = choose_primitive(r, fwd, &pd);
    if (status == dnnl_success)
        status = make_main(d, r, pd);
    if (fwd != NULL)
        dnnl_primitive_desc_destroy(fwd);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    return status;
}

/* Bytes from the first element to the last. */
static size_t layout_bytes(const struct dnn_layout *l)
{
    int64_t last = 0;

    for (int i = 0; i < l->n; i++) {
        if (l->dim[i] == 0)
            return 0;
        last += (l->dim[i] - 1) * l->stride[i];
    }
    return l->n == 0 ? 0 : (size_t)(last + 1) * (l->type == dnnl_bf16 ? 2 : sizeof(float));
}

int dnn_new(const struct dnn_recipe *r, struct dnn **out, struct err *err)
{
    struct dnn *d;
    int i, rc = 0;

    (void)dnn_id();
    if (library_status != dnnl_success)
        return dnn_error(err, library_status, "open the kernel library");
    dnn_thread_init(); /* the primitive uses as many threads as the thread that creates it */

    d = calloc(1, sizeof(*d));
    if (d == NULL)
        return err_set(err, ERR_NOMEM, "%s: out of memory", r->what);
    d->outputs = r->add ? 0 : r->outputs;
    d->reordered = DNN_NO_ARG;
    for (i = 0; i < r->n; i++) {
        d->bytes[i] = layout_bytes(&r->own[i]);
        d->is_empty = d->is_empty || (d->bytes[i] == 0 && r->arg[i] != DNNL_ARG_WORKSPACE);
    }
    if (!d->is_empty)
        rc = memory_room_check(ROOM_BYTES, r->what, err);
    if (!d->is_empty && rc == 0) {
        dnnl_status_t status = make_primitives(d, r);

        rc = status == dnnl_success ? 0 : dnn_error(err, status, r->what);
    }
    if (rc == 0)
        *out = d;
    else
        dnn_free(d);
    return rc;
}

size_t dnn_scratch_bytes(const struct dnn *d)
{
    size_t pad;

    if (d == NULL)
        return 0;
    if (d->panels.n > 0)
        return op_max(dnn_scratch_bytes(d->panels.first), dnn_scratch_bytes(d->panels.rest));
    pad = d->main.scratch_bytes > d->reorder.scratch_bytes ? d->main.scratch_bytes
                                                           : d->reorder.scratch_bytes;
    return d->reordered_bytes + op_round(pad);
}

size_t dnn_arg_bytes(const struct dnn *d, uint32_t i)
{
    CHECK(i < DNN_ARGS);
    return d->bytes[i];
}

int dnn_new_panels(const struct dnn_panels *p, struct dnn **out, struct err *err)
{
    struct dnn *d = calloc(1, sizeof(*d));

    if (d == NULL) {
        dnn_free(p->first);
        dnn_free(p->rest);
        return err_set(err, ERR_NOMEM, "kernel in panels: out of memory");
    }
    d->panels = *p;
    d->reordered = DNN_NO_ARG;
    memcpy(d->bytes, p->bytes, sizeof(d->bytes));
    *out = d;
    return 0;
}

static int run_panels(const struct dnn *d, void *const args[DNN_ARGS], void *scratch,
                      struct err *err)
{
    const struct dnn_panels *p = &d->panels;
    uint32_t n = p->n + (p->rest != NULL), i;
    int rc = 0;

    for (i = 0; i < n && rc == 0; i++) {
        void *at[DNN_ARGS];
        int k;

        for (k = 0; k < DNN_ARGS; k++) /* unused arguments may be NULL */
            at[k] = args[k] != NULL ? (char *)args[k] + i * p->step[k] : NULL;
        rc = dnn_run(i < p->n ? p->first : p->rest, at, scratch, err);
    }
    return rc;
}

int dnn_run(struct dnn *d, void *const args[DNN_ARGS], void *scratch, struct err *err)
{
    void *at[DNN_ARGS], *pad = op_at(scratch, d->reordered_bytes), *pair[2];
    dnnl_status_t status = dnnl_success;
    int i;

    if (d->panels.n > 0)
        return run_panels(d, args, scratch, err);
    if (d->is_empty) {
        for (i = 0; i < DNN_ARGS; i++)
            if ((d->outputs & (1u << i)) != 0 && d->bytes[i] > 0)
                memset(args[i], 0, d->bytes[i]);
        return 0;
    }
    memcpy(at, args, sizeof(at));
    if (d->reordered != DNN_NO_ARG) {
        pair[d->is_after] = args[d->reordered]; /* from, to */
        pair[!d->is_after] = at[d->reordered] = scratch;
    }
    if (d->reordered != DNN_NO_ARG && !d->is_after)
        status = prim_run(&d->reorder, d->stream, pair, pad);
    if (status == dnnl_success)
        status = prim_run(&d->main, d->stream, at, pad);
    if (status == dnnl_success && d->is_after)
        status = prim_run(&d->reorder, d->stream, pair, pad);
    return status == dnnl_success ? 0 : dnn_error(err, status, "run");
}
