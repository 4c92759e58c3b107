#include "harness/op_rig.h"
#include "harness/op_record.h"
#include "harness/op_rig_priv.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "device/cuda.h"

enum { GUARD_BYTE = 0xC3 };

/* ---- guarded memory: [guard][bytes][guard], 64-byte aligned ---- */

static void *block_open(struct block *b, size_t bytes, int fill)
{
    size_t whole = (bytes + 2 * RIG_GUARD + RIG_GUARD - 1) / RIG_GUARD * RIG_GUARD;

    b->bytes = bytes;
    b->device = NULL;
    b->raw = aligned_alloc(RIG_GUARD, whole);
    assert_non_null(b->raw);
    memset(b->raw, GUARD_BYTE, whole);
    memset(b->raw + RIG_GUARD, fill, bytes);
    return b->raw + RIG_GUARD;
}

static void block_check(const struct block *b, const char *name, const char *what, uint32_t i)
{
    size_t k;

    if (b->raw == NULL)
        return;
    for (k = 0; k < RIG_GUARD; k++) {
        if (b->raw[k] != GUARD_BYTE)
            fail_msg("%s: wrote %zu bytes before %s %u", name, RIG_GUARD - k, what, i);
        if (b->raw[RIG_GUARD + b->bytes + k] != GUARD_BYTE)
            fail_msg("%s: wrote %zu bytes after %s %u", name, k + 1, what, i);
    }
}

static void block_close(struct block *b)
{
    free(b->raw);
    b->raw = NULL;
}

int rig_call(struct rig *r, bool backward, struct err *err)
{
    int (*kernel)(const struct op_call *c, struct err *err) =
        backward ? r->kernels->bwd : r->kernels->fwd;

    return r->cuda != NULL ? rig_call_gpu(r, kernel, err) : kernel(&r->call, err);
}

/* ---- data ---- */

static uint64_t next_random(uint64_t *s) /* splitmix64 */
{
    uint64_t z = (*s += 0x9E3779B97F4A7C15u);

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double next_unit(uint64_t *s)
{
    return (double)(next_random(s) >> 11) * 0x1p-53;
}

static void store(enum tensor_dtype t, void *data, size_t i, double v)
{
    switch (t) {
    case TENSOR_F32: ((float *)data)[i] = (float)v; return;
    case TENSOR_F64: ((double *)data)[i] = v; return;
    case TENSOR_I64: ((int64_t *)data)[i] = (int64_t)floor(v); return;
    case TENSOR_I32: ((int32_t *)data)[i] = (int32_t)floor(v); return;
    case TENSOR_U8: ((uint8_t *)data)[i] = (uint8_t)(int64_t)floor(v); return;
    case TENSOR_BOOL: ((uint8_t *)data)[i] = v >= 0; return;
    default: fail_msg("gradcheck cannot make random %s", tensor_dtype_name(t));
    }
}

void rig_random(const struct gradcheck_tensor *gt, enum tensor_dtype dtype, void *data, size_t n,
                uint64_t seed)
{
    double lo = gt->lo, hi = gt->hi;
    size_t *at, i;

    if (lo == 0 && hi == 0)
        lo = -1, hi = 1;
    if (!gt->apart) {
        for (i = 0; i < n; i++)
            store(dtype, data, i, lo + (hi - lo) * next_unit(&seed));
        return;
    }
    /* An evenly spaced grid, a quarter step off the middle, in shuffled order. */
    at = calloc(n + 1, sizeof(*at));
    assert_non_null(at);
    for (i = 0; i < n; i++) {
        size_t j = (size_t)(next_random(&seed) % (i + 1));

        at[i] = at[j];
        at[j] = i;
    }
    for (i = 0; i < n; i++)
        store(dtype, data, i, lo + (hi - lo) * ((double)at[i] + 0.75) / (double)n);
    free(at);
}

size_t rig_place(const struct tensor *t, size_t i)
{
    size_t c, inner = 1, k;

    if (t->layout == TENSOR_PLAIN || t->shape.rank < 3)
        return i;
    c = (size_t)t->shape.dim[1];
    for (k = 2; k < t->shape.rank; k++)
        inner *= (size_t)t->shape.dim[k];
    return (i / (c * inner) * inner + i % inner) * c + i / inner % c;
}

static void to_layout(const struct tensor *t, const void *plain)
{
    size_t size = tensor_dtype_bytes(t->dtype), n = (size_t)tensor_elements(t), i;

    for (i = 0; i < n; i++)
        memcpy((char *)t->data + rig_place(t, i) * size, (const char *)plain + i * size, size);
}

double rig_round_half(double v)
{
    int e;
    double m = frexp(v, &e); /* 8 bits of fraction, including the leading 1 */

    return isfinite(v) && v != 0 ? ldexp(rint(ldexp(m, 8)), e - 8) : v;
}

/* Converts to float16: sign, 5 bits of exponent, 10 of fraction. */
static uint16_t float16_of(float v)
{
    double size = fabs((double)v), digits;
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    int e;

    if (isnan(v))
        return 0x7e00;
    if (size >= 65520)
        return sign | 0x7c00;
    (void)frexp(size, &e);
    e = e - 1 < -14 ? -14 : e - 1;
    digits = rint(ldexp(size, 10 - e)); /* 2048 carries into the exponent */
    return sign | (uint16_t)(digits < 1024 ? digits : (e + 15) * 1024 + (digits - 1024));
}

static uint16_t half_of(float v, bool float16)
{
    float rounded = (float)rig_round_half((double)v);
    uint32_t bits;

    if (float16)
        return float16_of(v);
    memcpy(&bits, &rounded, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

static float float_of(uint16_t half, bool float16)
{
    uint32_t bits = (uint32_t)half << 16;
    int e = half >> 10 & 31, digits = half & 1023;
    float v;

    if (float16) {
        v = e == 31  ? (digits != 0 ? NAN : INFINITY)
            : e == 0 ? ldexpf((float)digits, -24)
                     : ldexpf((float)(1024 + digits), e - 25);
        return (half & 0x8000) != 0 ? -v : v;
    }
    memcpy(&v, &bits, sizeof(v));
    return v;
}

static bool is_half(enum tensor_dtype t)
{
    return t == TENSOR_BF16 || t == TENSOR_F16;
}

static void read_half(const struct tensor *t, struct tensor *out)
{
    size_t n = (size_t)tensor_elements(t), i;
    float *to = malloc(n * sizeof(*to) + 1);

    assert_non_null(to);
    for (i = 0; i < n; i++)
        to[i] = float_of(((const uint16_t *)t->data)[rig_place(t, i)], t->dtype == TENSOR_F16);
    *out = *t;
    out->layout = TENSOR_PLAIN;
    out->dtype = TENSOR_F32;
    out->data = to;
}

void rig_take(const struct tensor *t, struct tensor *out, bool wide)
{
    size_t size = tensor_dtype_bytes(t->dtype), n = (size_t)tensor_elements(t), i;

    if (wide && is_half(t->dtype)) {
        read_half(t, out);
        return;
    }
    *out = *t;
    out->layout = TENSOR_PLAIN;
    out->data = malloc(n * size + 1);
    assert_non_null(out->data);
    for (i = 0; i < n; i++)
        memcpy((char *)out->data + i * size, (char *)t->data + rig_place(t, i) * size, size);
}

/* ---- the rig ---- */

void rig_close(struct rig *r)
{
    uint32_t i;

    if (r->has_run)
        op_record(r->def, OP_RECORD_FORWARD);
    if (r->state != NULL && r->kernels->free_state != NULL)
        r->kernels->free_state(r->state);
    rig_free_gpu(r);
    for (i = 0; i < GRADCHECK_MAX; i++) {
        block_close(&r->in_mem[i]);
        block_close(&r->out_mem[i]);
        block_close(&r->din_mem[i]);
        block_close(&r->dout_mem[i]);
        free(r->kept[i]);
    }
    block_close(&r->save);
    block_close(&r->scratch);
    free(r->param);
    arena_fini(&r->mem);
}

static enum tensor_layout layout_for(const struct rig *r, const struct shape *s, bool is_first)
{
    if (r->def->layout == OP_LAYOUT_ANY)
        return s->rank >= 3 ? r->gc->layout : TENSOR_PLAIN;
    if (r->def->layout == OP_LAYOUT_CHANNELS)
        return s->rank >= 3 && is_first ? TENSOR_CHANNELS_LAST : TENSOR_PLAIN;
    return TENSOR_PLAIN;
}

static void rig_feed(struct rig *r, uint32_t i)
{
    const struct gradcheck_tensor *gt = &r->gc->in[i];
    struct tensor *t = &r->in[i];
    size_t n, bytes;
    void *plain;

    t->dtype = gt->dtype == TENSOR_NONE ? TENSOR_F32 : gt->dtype;
    t->shape = gt->shape;
    t->layout = gt->plain ? TENSOR_PLAIN
                          : layout_for(r, &t->shape,
                                       i == 0 || (i < 16 && (r->def->channels_in & OP_IN(i)) != 0));
    n = (size_t)tensor_elements(t);
    bytes = tensor_bytes(t);
    plain = malloc(bytes + 1);
    assert_non_null(plain);
    if (gt->data != NULL)
        memcpy(plain, gt->data, bytes);
    else
        rig_random(gt, t->dtype, plain, n, r->gc->seed * 1000 + i + 1);
    t->data = block_open(&r->in_mem[i], bytes, 0);
    to_layout(t, plain);
    free(plain);
    r->kept[i] = malloc(bytes + 1);
    assert_non_null(r->kept[i]);
    memcpy(r->kept[i], t->data, bytes);
    r->in_at[i] = t;
}

/* Converts float32 data to a 16-bit type, or (as_float) rounds it to that precision. */
static void make_half(struct tensor *t, struct block *b, bool as_float, bool float16)
{
    size_t n = (size_t)tensor_elements(t), i;
    float *old = t->data;
    struct block was = *b;

    for (i = 0; i < n; i++)
        old[i] = float_of(half_of(old[i], float16), float16);
    if (as_float)
        return;
    t->dtype = float16 ? TENSOR_F16 : TENSOR_BF16;
    t->data = block_open(b, n * sizeof(uint16_t), 0);
    for (i = 0; i < n; i++)
        ((uint16_t *)t->data)[i] = half_of(old[i], float16);
    block_close(&was);
}

/* Called after infer, which requires float32. */
static void rig_halve(struct rig *r)
{
    uint32_t i;

    if ((r->gc->half & ~r->def->half_of) != 0 || (r->gc->half != 0 && r->def->half == OP_HALF_NO))
        fail_msg("%s: the op does not support bfloat16 for that operand", r->name);
    if (r->gc->float16 && r->cuda == NULL)
        fail_msg("%s: float16 is for GPUs", r->name);
    for (i = 0; i < r->n_in; i++)
        if (((r->gc->half | r->gc->rounded) & OP_IN(i)) != 0) {
            make_half(&r->in[i], &r->in_mem[i], (r->gc->half & OP_IN(i)) == 0, r->gc->float16);
            memcpy(r->kept[i], r->in[i].data, r->in_mem[i].bytes);
        }
    for (i = 0; i < r->n_out; i++)
        if ((r->gc->half & OP_OUT(i)) != 0)
            r->out[i].dtype = r->gc->float16 ? TENSOR_F16 : TENSOR_BF16;
}

static int rig_infer(struct rig *r, struct err *err)
{
    const struct gradcheck_case *gc = r->gc;
    struct tensor seen[GRADCHECK_MAX];
    const struct tensor *seen_at[GRADCHECK_MAX] = { NULL };
    struct op_infer f = { .def = r->def, .node = "checked", .opset = gc->opset,
                          .training = !gc->eval, .attrs = gc->attrs, .n_attrs = gc->n_attrs,
                          .n_in = r->n_in, .in = seen_at, .n_out = r->n_out, .out = r->out,
                          .mem = &r->mem };
    uint32_t i;

    for (i = 0; i < r->n_in; i++) {
        if (gc->in[i].absent)
            continue;
        seen[i] = r->in[i];
        seen[i].layout = TENSOR_PLAIN;
        if (!gc->in[i].constant)
            seen[i].data = NULL;
        else if (gc->in[i].data != NULL)
            seen[i].data = (void *)(uintptr_t)gc->in[i].data;
        else if (r->in[i].layout != TENSOR_PLAIN)
            fail_msg("%s: a random constant of rank >= 3 is not supported by gradcheck", r->name);
        seen_at[i] = &seen[i];
    }
    r->param = calloc(1, r->def->param_bytes + 1);
    assert_non_null(r->param);
    f.param = r->param;
    return r->def->infer(&f, err);
}

static int rig_plan(struct rig *r, struct err *err)
{
    struct tensor bare[2 * GRADCHECK_MAX];
    const struct tensor *bare_at[GRADCHECK_MAX] = { NULL };
    struct op_plan p = { .def = r->def, .node = "checked", .param = r->param,
                         .training = !r->gc->eval, .want_din = r->wanted, .n_in = r->n_in,
                         .n_out = r->n_out, .in = bare_at, .out = bare + GRADCHECK_MAX };
    uint32_t i;
    int rc = 0;

    for (i = 0; i < r->n_in; i++) {
        bare[i] = r->in[i];
        bare[i].data = NULL;
        bare_at[i] = r->in_at[i] != NULL ? &bare[i] : NULL;
    }
    for (i = 0; i < r->n_out; i++) {
        r->out[i].layout = layout_for(r, &r->out[i].shape, i == 0);
        if (r->gc->turned)
            r->out[i].layout =
                r->out[i].layout == TENSOR_PLAIN ? TENSOR_CHANNELS_LAST : TENSOR_PLAIN;
        bare[GRADCHECK_MAX + i] = r->out[i];
        bare[GRADCHECK_MAX + i].data = NULL;
    }
    if (r->kernels->plan != NULL)
        rc = r->kernels->plan(&p, err);
    if (rc < 0)
        return rc;
    r->state = p.state;
    r->call.save = p.save_bytes > 0 ? block_open(&r->save, p.save_bytes, RIG_POISON_NAN) : NULL;
    r->call.scratch =
        p.scratch_bytes > 0 ? block_open(&r->scratch, p.scratch_bytes, RIG_POISON_NAN) : NULL;
    return 0;
}

static uint32_t wanted_bits(const struct gradcheck_case *gc, const struct op_def *def)
{
    uint32_t bits = 0, i;

    for (i = 0; i < gc->n_in && !gc->eval && def->cpu.bwd != NULL; i++) {
        bool is_float = gc->in[i].dtype == TENSOR_NONE || gc->in[i].dtype == TENSOR_F32;

        if (((def->diff | def->stat) & OP_IN(i)) != 0 && is_float && !gc->in[i].absent &&
            !gc->in[i].constant && (gc->not_wanted & OP_IN(i)) == 0)
            bits |= OP_IN(i);
    }
    return bits;
}

static void rig_dout(struct rig *r)
{
    static const struct gradcheck_tensor unit = { .lo = -1, .hi = 1 };
    uint32_t i;

    for (i = 0; i < r->n_out; i++) {
        size_t n = (size_t)tensor_elements(&r->out[i]);
        float *plain;

        if (((r->gc->unread | r->gc->no_dout) & OP_OUT(i)) != 0 ||
            (r->out[i].dtype != TENSOR_F32 && !is_half(r->out[i].dtype)))
            continue;
        plain = malloc(n * sizeof(float) + 1);
        assert_non_null(plain);
        if (r->gc->dout[i] != NULL)
            memcpy(plain, r->gc->dout[i], n * sizeof(float));
        else
            rig_random(&unit, TENSOR_F32, plain, n, r->gc->seed * 1000 + 500 + i);
        r->dout[i] = r->out[i];
        r->dout[i].dtype = TENSOR_F32;
        r->dout[i].data = block_open(&r->dout_mem[i], n * sizeof(float), 0);
        to_layout(&r->dout[i], plain);
        if (((r->gc->half | r->gc->rounded) & OP_OUT(i)) != 0)
            make_half(&r->dout[i], &r->dout_mem[i], (r->gc->half & OP_OUT(i)) == 0, r->gc->float16);
        r->dout_at[i] = &r->dout[i];
        free(plain);
    }
}

static bool is_listed(const struct op_def *def)
{
    size_t n, i = 0;
    const struct op_def *const *all = op_all(&n);

    while (i < n && all[i] != def)
        i++;
    return i < n;
}

static int open_rig(struct rig *r, const struct gradcheck_case *gc, uint32_t wanted,
                    const struct cuda_api *cuda, struct err *err)
{
    const char *layout = gc->layout == TENSOR_CHANNELS_LAST ? ", channels-last" : "";
    uint32_t i;
    int rc;

    memset(r, 0, sizeof(*r));
    r->gc = gc;
    r->def = gc->def != NULL ? gc->def : op_find(gc->domain, gc->op, gc->opset);
    if (r->def == NULL)
        fail_msg("no row for %s at opset %u", gc->op, gc->opset);
    snprintf(r->name, sizeof(r->name), "%s (opset %u%s%s)", r->def->name, gc->opset, layout,
             cuda != NULL ? ", on the GPU" : "");
    if (!is_listed(r->def)) /* a test's own op, which the plugin does not have */
        cuda = NULL;
    r->cuda = cuda;
    r->kernels = cuda != NULL ? cuda->op(op_row(r->def)) : &r->def->cpu;
    if (r->kernels == NULL) {
        print_message("%s: no kernels\n", r->name);
        skip();
    }
    r->n_in = gc->n_in;
    r->n_out = gc->n_out == 0 ? 1 : gc->n_out;
    r->wanted = wanted_bits(gc, r->def) & wanted;
    for (i = 0; i < r->n_in; i++)
        if (!gc->in[i].absent)
            rig_feed(r, i);
    rc = rig_infer(r, err);
    if (rc == 0)
        rig_halve(r);
    if (rc == 0)
        rc = rig_plan(r, err);
    if (rc < 0) {
        rig_close(r);
        return rc;
    }
    for (i = 0; i < r->n_out; i++) {
        if (tensor_bytes(&r->out[i]) == SIZE_MAX || tensor_dtype_bytes(r->out[i].dtype) == 0)
            fail_msg("%s: infer left output %u without a type or shape", r->name, i);
        if ((gc->unread & OP_OUT(i)) != 0)
            continue;
        r->out[i].data = block_open(&r->out_mem[i], tensor_bytes(&r->out[i]), RIG_POISON_NAN);
        r->out_at[i] = &r->out[i];
    }
    for (i = 0; i < r->n_in; i++) {
        if ((r->wanted & OP_IN(i)) == 0)
            continue;
        r->din[i] = r->in[i];
        r->din[i].data = block_open(&r->din_mem[i], tensor_bytes(&r->in[i]), RIG_POISON_NAN);
        r->din_at[i] = &r->din[i];
    }
    rig_dout(r);
    r->run = gc->run;
    if (r->run.loss_scale == 0)
        r->run.loss_scale = 1;
    r->call.param = r->param;
    r->call.state = r->state;
    r->call.n_in = r->n_in;
    r->call.n_out = r->n_out;
    r->call.in = r->in_at;
    r->call.out = r->out_at;
    r->call.stream = gc->stream;
    r->call.run = &r->run;
    return 0;
}

bool rig_has_kernels(const struct op_def *def)
{
    const struct cuda_api *cuda = rig_gpu();

    return cuda == NULL || cuda->op(op_row(def)) != NULL;
}

int rig_open(struct rig *r, const struct gradcheck_case *gc, uint32_t wanted, struct err *err)
{
    return open_rig(r, gc, wanted, rig_gpu(), err);
}

int rig_open_cpu(struct rig *r, const struct gradcheck_case *gc, uint32_t wanted, struct err *err)
{
    return open_rig(r, gc, wanted, NULL, err);
}

static void poison(struct block *b, int byte)
{
    if (b->raw != NULL)
        memset(b->raw + RIG_GUARD, byte, b->bytes);
}

void rig_check_guards(const struct rig *r)
{
    uint32_t i;

    for (i = 0; i < GRADCHECK_MAX; i++) {
        block_check(&r->in_mem[i], r->name, "input", i);
        block_check(&r->out_mem[i], r->name, "output", i);
        block_check(&r->din_mem[i], r->name, "gradient", i);
        block_check(&r->dout_mem[i], r->name, "output gradient", i);
    }
    block_check(&r->save, r->name, "save", 0);
    block_check(&r->scratch, r->name, "scratch", 0);
}

int rig_fwd(struct rig *r, int poison_byte, struct err *err)
{
    uint32_t i;
    int rc;

    for (i = 0; i < r->n_out; i++)
        poison(&r->out_mem[i], poison_byte);
    poison(&r->save, poison_byte);
    poison(&r->scratch, poison_byte);
    r->call.dout = NULL;
    r->call.din = NULL;
    r->call.din_add = 0;
    rc = rig_call(r, false, err);
    r->has_run = r->has_run || rc == 0;
    rig_check_guards(r);
    for (i = 0; i < r->n_in; i++)
        if (r->in_at[i] != NULL && memcmp(r->in[i].data, r->kept[i], r->in_mem[i].bytes) != 0)
            fail_msg("%s: forward modified input %u", r->name, i);
    return rc;
}

void rig_bwd(struct rig *r, int poison_byte, uint32_t add)
{
    struct err err = { 0 };
    void *dout_kept[GRADCHECK_MAX] = { NULL };
    uint32_t i;

    for (i = 0; i < r->n_in; i++) {
        if (r->in_at[i] != NULL && (r->def->bwd_reads & OP_IN(i)) == 0)
            poison(&r->in_mem[i], poison_byte);
        if ((add & OP_IN(i)) == 0)
            poison(&r->din_mem[i], poison_byte);
    }
    for (i = 0; i < r->n_out; i++) {
        if ((r->def->bwd_reads & OP_OUT(i)) == 0)
            poison(&r->out_mem[i], poison_byte);
        if (r->dout_at[i] == NULL)
            continue;
        dout_kept[i] = malloc(r->dout_mem[i].bytes + 1);
        assert_non_null(dout_kept[i]);
        memcpy(dout_kept[i], r->dout[i].data, r->dout_mem[i].bytes);
    }
    poison(&r->scratch, poison_byte);
    r->call.dout = r->dout_at;
    r->call.din = r->din_at;
    r->call.din_add = add;
    if (rig_call(r, true, &err) < 0)
        fail_msg("%s: backward refused: %s", r->name, err.text);
    rig_check_guards(r);
    for (i = 0; i < r->n_out; i++) {
        if (dout_kept[i] != NULL &&
            memcmp(dout_kept[i], r->dout[i].data, r->dout_mem[i].bytes) != 0)
            fail_msg("%s: backward modified the gradient of output %u", r->name, i);
        free(dout_kept[i]);
    }
    for (i = 0; i < r->n_in; i++) { /* restore them for the next forward */
        if (r->in_at[i] == NULL)
            continue;
        if ((r->def->bwd_reads & OP_IN(i)) != 0 &&
            memcmp(r->in[i].data, r->kept[i], r->in_mem[i].bytes) != 0)
            fail_msg("%s: backward modified input %u", r->name, i);
        memcpy(r->in[i].data, r->kept[i], r->in_mem[i].bytes);
    }
}
