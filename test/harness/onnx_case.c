#include "harness/onnx_case.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/err.h"
#include "device/device.h"
#include "graph/graph.h"
#include "op/op.h"
#include "tensor/narrow.h"

enum { MAX_BLOB = 64 << 20, OPSET_OF_TRAINING_MODE = 12 };

/* ---- the archive ---- */

struct onnx_archive {
    gzFile file;
};

struct onnx_archive *onnx_archive_open(const char *path)
{
    struct onnx_archive *a = calloc(1, sizeof(*a));

    CHECK(a != NULL);
    a->file = gzopen(path, "rb");
    if (a->file == NULL) {
        free(a);
        return NULL;
    }
    (void)gzbuffer(a->file, 1 << 18);
    return a;
}

void onnx_archive_close(struct onnx_archive *a)
{
    if (a == NULL)
        return;
    gzclose(a->file);
    free(a);
}

static bool read_all(struct onnx_archive *a, void *out, size_t n)
{
    return n == 0 || gzread(a->file, out, (unsigned)n) == (int)n;
}

static bool read_blob(struct onnx_archive *a, struct onnx_case_bytes *out)
{
    uint32_t n;

    if (!read_all(a, &n, sizeof(n)) || n > MAX_BLOB)
        return false;
    out->data = malloc((size_t)n + 1);
    CHECK(out->data != NULL);
    out->n = n;
    return read_all(a, out->data, n);
}

int onnx_archive_next(struct onnx_archive *a, struct onnx_case *c)
{
    uint32_t head[3];
    int n = gzread(a->file, head, sizeof(head));
    bool ok;

    memset(c, 0, sizeof(*c));
    if (n == 0)
        return 0;
    if (n != (int)sizeof(head) || head[0] > 1000 || head[1] > ONNX_CASE_MAX_TENSORS ||
        head[2] > ONNX_CASE_MAX_TENSORS)
        return -1;
    c->name = calloc(1, (size_t)head[0] + 1);
    CHECK(c->name != NULL);
    ok = read_all(a, c->name, head[0]) && read_blob(a, &c->model);
    for (; ok && c->n_in < head[1]; c->n_in++)
        ok = read_blob(a, &c->in[c->n_in]);
    for (; ok && c->n_out < head[2]; c->n_out++)
        ok = read_blob(a, &c->out[c->n_out]);
    if (!ok)
        onnx_case_free(c);
    return ok ? 1 : -1;
}

void onnx_case_free(struct onnx_case *c)
{
    for (uint32_t i = 0; i < ONNX_CASE_MAX_TENSORS; i++) {
        free(c->in[i].data);
        free(c->out[i].data);
    }
    free(c->model.data);
    free(c->name);
    memset(c, 0, sizeof(*c));
}

/* ---- comparison ---- */

static bool is_float(enum tensor_dtype t)
{
    return t == TENSOR_F32 || t == TENSOR_F64 || t == TENSOR_F16 || t == TENSOR_BF16;
}

static double half_number(uint16_t bits)
{
    _Float16 x;

    memcpy(&x, &bits, sizeof(x));
    return (double)x;
}

static double bfloat16_number(uint16_t bits)
{
    uint32_t u = (uint32_t)bits << 16;
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

static double number_at(const struct tensor *t, size_t i)
{
    const void *p = t->data;

    switch (t->dtype) {
    case TENSOR_F32: return ((const float *)p)[i];
    case TENSOR_F64: return ((const double *)p)[i];
    case TENSOR_F16: return half_number(((const uint16_t *)p)[i]);
    case TENSOR_BF16: return bfloat16_number(((const uint16_t *)p)[i]);
    default: return 0;
    }
}

static bool is_close(double found, double expected, enum tensor_dtype t)
{
    double relative = t == TENSOR_BF16 ? 1.0 / 128 : 1e-3;

    if (isnan(expected) || isnan(found))
        return isnan(expected) && isnan(found);
    if (isinf(expected) || isinf(found))
        return found == expected;
    return fabs(found - expected) <= 1e-6 + relative * fabs(expected);
}

static bool is_narrow_nan(const struct tensor *t, size_t i)
{
    return isnan(tensor_narrow_number(t->dtype, ((const uint8_t *)t->data)[i]));
}

static bool compare(const struct tensor *found, const struct tensor *expected, const char *name,
                    bool numbers, char *why, size_t n)
{
    size_t elements = (size_t)tensor_elements(expected), width, i;
    struct tensor same_bits = *expected;
    char a[192], b[192];

    /* Releases before 1.18 store bfloat16 numbers as uint16. */
    if (found->dtype == TENSOR_BF16 && expected->dtype == TENSOR_U16) {
        same_bits.dtype = TENSOR_BF16;
        expected = &same_bits;
    }
    if (found->dtype != expected->dtype || !shape_equal(&found->shape, &expected->shape)) {
        snprintf(why, n, "output '%s' is %s %s; expected %s %s", name,
                 tensor_dtype_name(found->dtype), shape_print(&found->shape, a, sizeof(a)),
                 tensor_dtype_name(expected->dtype), shape_print(&expected->shape, b, sizeof(b)));
        return false;
    }
    width = tensor_dtype_bytes(expected->dtype);
    for (i = 0; numbers && i < elements; i++) {
        if (is_float(expected->dtype)) {
            double x = number_at(found, i), y = number_at(expected, i);

            if (is_close(x, y, expected->dtype))
                continue;
            snprintf(why, n, "output '%s', element %zu is %.9g; expected %.9g", name, i, x, y);
            return false;
        }
        if (tensor_is_narrow_float(expected->dtype) && is_narrow_nan(found, i) &&
            is_narrow_nan(expected, i))
            continue; /* older releases have another code */
        if (memcmp((char *)found->data + i * width, (char *)expected->data + i * width, width) !=
            0) {
            int64_t x = 0, y = 0;

            memcpy(&x, (char *)found->data + i * width, width);
            memcpy(&y, (char *)expected->data + i * width, width);
            snprintf(why, n, "output '%s', element %zu is %" PRId64 "; expected %" PRId64, name, i,
                     x, y);
            return false;
        }
    }
    return true;
}

/* ---- one run ---- */

struct attempt {
    const struct onnx_case *c;
    struct arena mem;
    struct graph *graph;
    struct plan *plan;
    struct device_mem work;
    struct tensor arrays[ONNX_CASE_MAX_TENSORS];
    const char *outputs[ONNX_CASE_MAX_TENSORS];
    uint32_t n_outputs;
    bool gradients;
};

static int make_plan(struct attempt *t, struct err *err)
{
    const struct onnx_case *c = t->c;
    struct plan_feed feeds[ONNX_CASE_MAX_TENSORS];
    const struct graph_io *in, *out;
    struct plan_opts o = { .purpose = PLAN_RUN, .feeds = feeds, .keep = t->outputs };
    uint32_t n, i;
    int rc = 0;

    in = graph_inputs(t->graph, &n);
    out = graph_outputs(t->graph, &t->n_outputs);
    if (n > c->n_in || t->n_outputs > ONNX_CASE_MAX_TENSORS)
        return err_set(err, ERR_INPUT, "the case has %u inputs, the model %u", c->n_in, n);
    for (i = 0; i < n && rc == 0; i++) {
        rc = graph_read_tensor_bytes(".", c->in[i].data, c->in[i].n, &t->mem, &t->arrays[i], err);
        if (in[i].dtype == TENSOR_BF16 && t->arrays[i].dtype == TENSOR_U16)
            t->arrays[i].dtype = TENSOR_BF16; /* as older releases store it */
        feeds[i] = (struct plan_feed){ .name = in[i].name,
                                       .source = in[i].name,
                                       .dtype = t->arrays[i].dtype,
                                       .shape = t->arrays[i].shape,
                                       .value = t->arrays[i].data };
    }
    for (i = 0; i < t->n_outputs; i++)
        t->outputs[i] = out[i].name;
    o.n_feeds = n;
    o.n_keep = t->n_outputs;
    /* Older models cannot state whether they train, and the cases expect inference. */
    o.training = graph_opset(t->graph) >= OPSET_OF_TRAINING_MODE;
    o.sum_outputs = o.feed_grads = t->gradients;
    return rc < 0 ? rc : plan_new(t->graph, &o, &t->plan, err);
}

static int bind_work(struct attempt *t, struct err *err)
{
    int rc = device_mem_open(&t->work, plan_work_bytes(t->plan), false, err);

    if (rc < 0)
        return rc;
    op_thread_init();
    plan_bind(t->plan, NULL, t->work.base);
    return 0;
}

static int compute(struct attempt *t, struct err *err)
{
    const struct op_run run = { .loss_scale = 1 };
    uint32_t n, i;

    graph_inputs(t->graph, &n);
    for (i = 0; i < n; i++) {
        const struct tensor *to = plan_input(t->plan, i);

        if (tensor_bytes(to) > 0)
            memcpy(to->data, t->arrays[i].data, tensor_bytes(to));
    }
    return plan_forward(t->plan, &run, err);
}

static bool draws_randoms(const struct graph *g)
{
    const struct graph_op *ops;
    uint32_t n, i;

    ops = graph_ops(g, &n);
    for (i = 0; i < n; i++) {
        const struct op_def *row = op_find(ops[i].domain, ops[i].name, graph_opset(g));

        if (row != NULL && row->random)
            return true;
    }
    return false;
}

/* Dropout is a random op, but a node that drops nothing has outputs that can be compared. */
static bool has_fixed_numbers(const struct attempt *t)
{
    return !draws_randoms(t->graph) ||
           (strstr(t->c->name, "dropout") != NULL && strstr(t->c->name, "training") == NULL) ||
           strstr(t->c->name, "zero_ratio") != NULL;
}

static enum onnx_verdict judge(struct attempt *t, char *why, size_t n)
{
    bool numbers = has_fixed_numbers(t);
    struct err err = { 0 };

    if (t->n_outputs != t->c->n_out) {
        snprintf(why, n, "%u outputs; expected %u", t->n_outputs, t->c->n_out);
        return ONNX_WRONG;
    }
    for (uint32_t i = 0; i < t->n_outputs; i++) {
        const struct tensor *found = plan_tensor(t->plan, t->outputs[i]);
        struct tensor expected = { 0 };

        if (graph_read_tensor_bytes(".", t->c->out[i].data, t->c->out[i].n, &t->mem, &expected,
                                    &err) < 0) {
            snprintf(why, n, "the expected output cannot be read: %s", err.text);
            return ONNX_REFUSED;
        }
        if (!compare(found, &expected, t->outputs[i], numbers, why, n))
            return ONNX_WRONG;
    }
    return ONNX_PASS;
}

static const struct graph_opts case_opts = { .path = "case", .all_constant = true };

static struct attempt *open_attempt(const struct onnx_case *c)
{
    struct attempt *t = calloc(1, sizeof(*t));

    CHECK(t != NULL);
    t->c = c;
    t->work.fd = -1;
    return t;
}

static void close_attempt(struct attempt *t)
{
    plan_free(t->plan);
    device_mem_close(&t->work);
    graph_free(t->graph);
    arena_fini(&t->mem);
    free(t);
}

enum onnx_verdict onnx_case_run(const struct onnx_case *c, char *why, size_t n)
{
    struct attempt *t = open_attempt(c);
    enum onnx_verdict verdict = ONNX_REFUSED;
    struct err err = { 0 };
    int rc;

    why[0] = '\0';
    rc = graph_import_bytes(&case_opts, c->model.data, c->model.n, &t->graph, &err);
    if (rc == 0)
        rc = make_plan(t, &err);
    if (rc == 0)
        rc = bind_work(t, &err);
    if (rc == 0)
        rc = compute(t, &err);
    if (rc == 0)
        verdict = judge(t, why, n);
    else
        snprintf(why, n, "%s", err.text);
    close_attempt(t);
    return verdict;
}

/* ---- gradients ---- */

static double sum_of_outputs(const struct attempt *t)
{
    double sum = 0;

    for (uint32_t i = 0; i < t->n_outputs; i++) {
        const struct tensor *y = plan_tensor(t->plan, t->outputs[i]);

        for (int64_t k = 0; y->dtype == TENSOR_F32 && k < tensor_elements(y); k++)
            sum += (double)((const float *)y->data)[k];
    }
    return sum;
}

/* Computes the sum of the outputs with element k of input i changed by `step`. */
static int moved(struct attempt *t, uint32_t i, size_t k, float step, double *sum, struct err *err)
{
    float *x = t->arrays[i].data, before = x[k];
    int rc;

    x[k] += step;
    rc = compute(t, err);
    x[k] = before;
    *sum = sum_of_outputs(t);
    return rc;
}

static int check_input(struct attempt *t, uint32_t i, const float *grad, float step, char *why,
                       size_t n)
{
    size_t elements = (size_t)tensor_elements(&t->arrays[i]), k;
    struct err err = { 0 };

    for (k = 0; k < elements; k++) {
        double above = 0, below = 0, expected, found = grad != NULL ? (double)grad[k] : 0;

        if (moved(t, i, k, step, &above, &err) < 0 || moved(t, i, k, -step, &below, &err) < 0) {
            snprintf(why, n, "%s", err.text);
            return -1;
        }
        expected = (above - below) / (2 * (double)step);
        if (fabs(found - expected) > 1e-2 + 1e-2 * fabs(expected)) {
            snprintf(why, n, "gradient of input %u, element %zu is %.6g; expected %.6g", i, k,
                     found, expected);
            return -1;
        }
    }
    return (int)elements;
}

static int check_all(struct attempt *t, float step, char *why, size_t n)
{
    const struct op_run run = { .loss_scale = 1 };
    float *grads[ONNX_CASE_MAX_TENSORS] = { NULL };
    struct err err = { 0 };
    uint32_t n_in, i;
    int total = 0, rc = compute(t, &err);

    graph_inputs(t->graph, &n_in);
    if (rc == 0)
        rc = plan_backward(t->plan, &run, NULL, NULL, NULL, &err);
    snprintf(why, n, "%s", err.text);
    for (i = 0; i < n_in && rc == 0; i++) { /* copy them: the next forward overwrites them */
        const struct tensor *g =
            t->arrays[i].dtype == TENSOR_F32 ? plan_input_grad(t->plan, i) : NULL;

        if (g == NULL)
            continue;
        grads[i] = malloc(tensor_bytes(g) + 1);
        CHECK(grads[i] != NULL);
        memcpy(grads[i], g->data, tensor_bytes(g));
    }
    for (i = 0; i < n_in && rc >= 0; i++)
        if (t->arrays[i].dtype == TENSOR_F32 &&
            tensor_elements(&t->arrays[i]) <= ONNX_CASE_MAX_ELEMENTS) {
            rc = check_input(t, i, grads[i], step, why, n);
            total += rc;
        }
    for (i = 0; i < n_in; i++)
        free(grads[i]);
    return rc < 0 ? -1 : total;
}

int onnx_case_check_gradients(const struct onnx_case *c, float step, char *why, size_t n)
{
    struct attempt *t = open_attempt(c);
    struct err err = { 0 };
    int rc;

    why[0] = '\0';
    t->gradients = true;
    rc = graph_import_bytes(&case_opts, c->model.data, c->model.n, &t->graph, &err);
    if (rc == 0)
        rc = make_plan(t, &err);
    if (rc == 0)
        rc = bind_work(t, &err);
    if (rc == 0)
        rc = check_all(t, step, why, n);
    else
        snprintf(why, n, "%s", err.text);
    close_attempt(t);
    return rc < 0 ? -1 : rc;
}
