/* GroupNormalization, DeformConv and the ops of opsets 23 to 28: outputs and gradients of the cases
 * in data/op_cases.gz, which PyTorch computed in float64 (make_op_cases.py), and the errors of
 * training steps. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/err.h"
#include "device/device.h"
#include "graph/graph.h"
#include "harness/model.h"
#include "harness/net.h"
#include "harness/onnx_case.h"
#include "op/op.h"

enum { MOST = 16 };

struct attempt {
    const struct onnx_case *c;
    struct arena mem;
    struct graph *graph;
    struct plan *plan;
    struct device_mem work;
    const char *outputs[MOST];
    struct tensor in[MOST];
    uint32_t n_in, n_out;
};

static struct tensor tensor_from(struct attempt *t, const struct onnx_case_bytes *b)
{
    struct tensor out = { 0 };
    struct err err = { 0 };

    if (graph_read_tensor_bytes(".", b->data, b->n, &t->mem, &out, &err) < 0)
        fail_msg("%s: %s", t->c->name, err.text);
    return out;
}

static void open_plan(struct attempt *t)
{
    const struct graph_opts opts = { .path = "case", .all_constant = true };
    struct plan_feed feeds[MOST];
    struct plan_opts o = { .purpose = PLAN_RUN, .feeds = feeds, .keep = t->outputs, .sum_outputs = true,
                           .feed_grads = true, .training = true };
    const struct graph_io *in, *out;
    struct err err = { 0 };
    uint32_t i;

    if (graph_import_bytes(&opts, t->c->model.data, t->c->model.n, &t->graph, &err) < 0)
        fail_msg("%s: %s", t->c->name, err.text);
    in = graph_inputs(t->graph, &t->n_in);
    out = graph_outputs(t->graph, &t->n_out);
    assert_true(t->n_in == t->c->n_in && t->n_out + t->n_in == t->c->n_out && t->n_in <= MOST &&
                t->n_out <= MOST);
    for (i = 0; i < t->n_in; i++) {
        t->in[i] = tensor_from(t, &t->c->in[i]);
        feeds[i] = (struct plan_feed){ .name = in[i].name, .source = in[i].name, .dtype = t->in[i].dtype,
                                       .shape = t->in[i].shape, .value = t->in[i].data };
    }
    for (i = 0; i < t->n_out; i++)
        t->outputs[i] = out[i].name;
    o.n_feeds = t->n_in;
    o.n_keep = t->n_out;
    if (plan_new(t->graph, &o, &t->plan, &err) < 0 ||
        device_mem_open(&t->work, plan_work_bytes(t->plan), false, &err) < 0)
        fail_msg("%s: %s", t->c->name, err.text);
}

static void compute(struct attempt *t)
{
    const struct op_run run = { .loss_scale = 1 };
    struct err err = { 0 };

    op_thread_init();
    memset(t->work.base, 0xff, plan_work_bytes(t->plan)); /* NaN */
    plan_bind(t->plan, NULL, t->work.base);
    for (uint32_t i = 0; i < t->n_in; i++)
        memcpy(plan_input(t->plan, i)->data, t->in[i].data, tensor_bytes(&t->in[i]));
    if (plan_forward(t->plan, &run, &err) < 0 ||
        plan_backward(t->plan, &run, NULL, NULL, NULL, &err) < 0)
        fail_msg("%s: %s", t->c->name, err.text);
}

/* Tolerance relative to the element and to the root mean square of the tensor. */
static void expect(const struct attempt *t, const char *what, const struct tensor *found,
                   const struct tensor *want)
{
    const size_t n = (size_t)tensor_elements(want);
    const float *b = want->data;
    double size = 0;
    size_t i;

    for (i = 0; i < n; i++)
        size += isfinite(b[i]) ? (double)b[i] * (double)b[i] / (double)n : 0;
    size = sqrt(size);
    if (found != NULL && !shape_equal(&found->shape, &want->shape))
        fail_msg("%s: %s has another shape", t->c->name, what);
    for (i = 0; i < n; i++) {
        const double x = found != NULL ? (double)((const float *)found->data)[i] : 0,
                     y = (double)b[i];

        if (isinf(y) ? x != y : !(fabs(x - y) <= 1e-5 * (fabs(y) + size)))
            fail_msg("%s: %s, element %zu is %.9g; PyTorch has %.9g", t->c->name, what, i, x, y);
    }
}

static void check(const struct onnx_case *c)
{
    struct attempt t = { .c = c, .work = { .fd = -1 } };
    char what[96];

    open_plan(&t);
    compute(&t);
    for (uint32_t i = 0; i < c->n_out; i++) {
        const struct tensor want = tensor_from(&t, &c->out[i]);

        if (i < t.n_out) {
            expect(&t, t.outputs[i], plan_tensor(t.plan, t.outputs[i]), &want);
        } else if (tensor_elements(&want) > 0) {
            snprintf(what, sizeof(what), "the gradient of input %u", i - t.n_out);
            expect(&t, what, plan_input_grad(t.plan, i - t.n_out), &want);
        }
    }
    plan_free(t.plan);
    device_mem_close(&t.work);
    graph_free(t.graph);
    arena_fini(&t.mem);
}

/* ---- tests ---- */

static void outputs_and_gradients_match_pytorch(void **state)
{
    struct onnx_archive *a = onnx_archive_open("test/graph/data/op_cases.gz");
    struct onnx_case c;
    uint32_t n = 0;
    int got;

    (void)state;
    assert_non_null(a);
    while ((got = onnx_archive_next(a, &c)) == 1) {
        check(&c);
        onnx_case_free(&c);
        n++;
    }
    onnx_archive_close(a);
    assert_int_equal(got, 0);
    assert_int_equal(n, 63);
}

/* Asserts that a training plan is refused with these parts in the error. */
static void expect_refused(struct model *m, const char *const *parts)
{
    const struct plan_feed feeds[] = {
        { .name = "x", .source = "x", .dtype = TENSOR_F32, .shape = shape_of(3, (int64_t)2, (int64_t)5, (int64_t)4) },
        { .name = "past", .source = "past", .dtype = TENSOR_F32,
          .shape = shape_of(3, (int64_t)2, (int64_t)3, (int64_t)4) },
    };
    const struct plan_opts o = { .purpose = PLAN_TRAIN, .batch = 2, .feeds = feeds, .n_feeds = 2, .sum_outputs = true };
    const char *keep[] = { "logits" };
    struct plan_opts with = o;
    struct graph *g = net_import_model(m, NULL);
    struct plan *p = NULL;
    struct err err = { 0 };

    with.keep = keep;
    with.n_keep = 1;
    assert_true(plan_new(g, &with, &p, &err) < 0);
    for (; *parts != NULL; parts++)
        if (strstr(err.text, *parts) == NULL)
            fail_msg("'%s' lacks '%s'", err.text, *parts);
    graph_free(g);
    model_free(m);
}

static struct model *begin(int64_t opset)
{
    struct model *m = model_new(opset);

    model_input(m, "x", TENSOR_F32, shape_of(4, (int64_t)-1, (int64_t)2, (int64_t)5, (int64_t)4));
    model_input(m, "past", TENSOR_F32,
                shape_of(4, (int64_t)-1, (int64_t)2, (int64_t)3, (int64_t)4));
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)4), 3);
    model_node(m, "MatMul", "x w", "q");
    return m;
}

static void training_with_cache_is_refused_with_remedy(void **state)
{
    static const char *const past[] = { "Attention", "a cache of keys and values", "use_cache = False", NULL };
    static const char *const scatter[] = { "TensorScatter", "a cache of keys and values", "use_cache = False", NULL };
    struct model *m = begin(24);

    (void)state;
    model_node(m, "Attention", "q q q - past past", "logits");
    model_output(m, "logits");
    expect_refused(m, past);
    m = begin(24);
    model_node(m, "TensorScatter", "past q", "logits");
    model_output(m, "logits");
    expect_refused(m, scatter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_and_gradients_match_pytorch),
        cmocka_unit_test(training_with_cache_is_refused_with_remedy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
