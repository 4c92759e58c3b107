/* nn.EmbeddingBag with padding_idx, written by PyTorch's exporter (make_bags.py): loss and gradients compared with
 * PyTorch's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/graph.h"
#include "graph/plan_priv.h"

#define FOLDER "test/graph/data/"
enum { BAGS = 4, WIDTH = 4, GRADS_MAX = 1024, BYTES_MAX = 1 << 16 };

static const int64_t ids[BAGS * WIDTH] = { 0, 1, 3, 6, 2, 4, 2, 1, 5, 5, 2, 2, 2, 2, 2, 2 };

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);

    assert_non_null(p);
    memset(p, 0, bytes);
    return p;
}

static int make_plan(const struct graph *g, uint32_t batch, bool is_weighted, struct plan **out,
                     struct err *err)
{
    struct plan_feed feeds[] = {
        { .name = "ids", .dtype = TENSOR_I64, .shape = shape_of(1, (int64_t)WIDTH) },
        { .name = "weights", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)WIDTH) },
    };
    struct plan_opts o = { .purpose = PLAN_TRAIN, .batch = batch, .feeds = feeds,
                           .n_feeds = is_weighted ? 2 : 1, .sum_outputs = true };

    return plan_new(g, &o, out, err);
}

/* Adds the loss and the gradients of the samples [first, first + batch). */
static void run(struct plan *p, float *grads, size_t n_grads, uint32_t first, uint32_t batch,
                bool is_weighted, double *loss, float *sums)
{
    const struct op_run step = { .loss_scale = 1 };
    float *weights = plan_input(p, is_weighted ? 2 : 1)->data;
    struct err err = { 0 };

    memcpy(plan_input(p, 0)->data, ids + (size_t)first * WIDTH, batch * WIDTH * sizeof(*ids));
    for (uint32_t i = 0; is_weighted && i < batch * WIDTH; i++)
        ((float *)plan_input(p, 1)->data)[i] = (float)(first * WIDTH + i) / 8 - 0.75f;
    for (uint32_t i = 0; i < batch; i++)
        weights[i] = 1;
    assert_int_equal(plan_forward(p, &step, &err), 0);
    assert_int_equal(plan_backward(p, &step, grads, NULL, NULL, &err), 0);
    *loss += (double)plan_loss(p);
    for (size_t i = 0; i < n_grads; i++)
        sums[i] += grads[i];
}

static void close_to(const char *what, double found, double want)
{
    if (!(fabs(found - want) <= 2e-5 * fabs(want) + 2e-6))
        fail_msg("%s: found %.9g, PyTorch has %.9g", what, found, want);
}

/* Compares with the lines "loss NUMBER" and "PARAMETER NUMBER..." of the file. */
static void expect_pytorch(const struct graph *g, const char *path, double loss, const float *grads)
{
    uint32_t count, found = 0;
    const struct graph_param *p = graph_params(g, &count);
    char line[2048], *word, *rest;
    FILE *f = fopen(path, "r");

    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        word = strtok_r(line, " \n", &rest);
        if (strcmp(word, "loss") == 0)
            close_to(path, loss, strtod(rest, NULL));
        for (uint32_t i = 0; i < count; i++) {
            if (strcmp(p[i].name, word) != 0)
                continue;
            for (size_t k = 0; k < p[i].elements; k++)
                close_to(word, (double)grads[p[i].offset + k],
                         strtod(strtok_r(NULL, " \n", &rest), NULL));
            found++;
            break;
        }
    }
    fclose(f);
    assert_int_equal(found, count);
}

static void train(const char *name, const char *ending, uint32_t batch)
{
    bool is_weighted = strcmp(name, "weighted") == 0;
    char path[160];
    struct graph_opts from = { .path = path };
    struct graph *g;
    struct plan *plan;
    const struct graph_param *p;
    struct err err = { 0 };
    double loss = 0;
    float *params, *grads, sums[GRADS_MAX] = { 0 };
    uint32_t count;
    size_t n;
    void *work;

    snprintf(path, sizeof(path), FOLDER "bags_%s%s.onnx", name, ending);
    if (graph_import(&from, &g, &err) < 0 || make_plan(g, batch, is_weighted, &plan, &err) < 0)
        fail_msg("%s: %s", path, err.text);
    n = graph_arena_floats(g);
    assert_true(n <= GRADS_MAX);
    params = allocate(n * sizeof(float));
    grads = allocate(n * sizeof(float));
    work = allocate(plan_work_bytes(plan));
    p = graph_params(g, &count);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(p[i].is_table == (strcmp(p[i].name, "e.weight") == 0));
        memcpy(params + p[i].offset, p[i].initial, p[i].elements * sizeof(float));
    }
    plan_bind(plan, params, work);
    for (uint32_t first = 0; first < BAGS; first += batch)
        run(plan, grads, n, first, batch, is_weighted, &loss, sums);
    snprintf(path, sizeof(path), FOLDER "bags_%s.txt", name);
    expect_pytorch(g, path, loss, sums);
    plan_free(plan);
    graph_free(g);
    free(params);
    free(grads);
    free(work);
}

static void padded_bags_have_the_loss_and_the_gradients_of_pytorch(void **state)
{
    static const char *const names[] = { "sum", "mean", "max", "weighted" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        for (uint32_t batch = 1; batch <= BAGS; batch *= 2) {
            train(names[i], "", batch);
            train(names[i], "_default", batch);
        }
}

/* Replaces a text by another one of the same length. */
static void replace(uint8_t *bytes, size_t n, const char *from, const char *to)
{
    size_t length = strlen(from), found = 0;

    assert_int_equal(length, strlen(to));
    for (size_t i = 0; i + length <= n; i++)
        if (memcmp(bytes + i, from, length) == 0) {
            memcpy(bytes + i, to, length);
            found++;
        }
    assert_true(found > 0);
}

/* The positions without padding are no value of the plan: another reader than the reduction is refused. */
static void padded_bags_of_an_unknown_form_are_refused(void **state)
{
    static const struct {
        const char *from, *to, *text;
    } cases[] = {
        { "ReduceMean", "ReduceProd", "an EmbeddingBag with padding_idx" },
        { "Equal", "Xqual", "" },
        { "Not", "Neg", "" },
        { "Size", "Relu", "" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        static uint8_t bytes[BYTES_MAX];
        const struct graph_opts from = { .path = "bags.onnx" };
        struct err err = { 0 };
        struct graph *g = NULL;
        struct plan *plan;
        FILE *f = fopen(FOLDER "bags_mean_default.onnx", "rb");
        size_t n;

        assert_non_null(f);
        n = fread(bytes, 1, sizeof(bytes), f);
        fclose(f);
        replace(bytes, n, cases[i].from, cases[i].to);
        if (graph_import_bytes(&from, bytes, n, &g, &err) == 0)
            assert_int_not_equal(make_plan(g, BAGS, false, &plan, &err), 0);
        assert_non_null(strstr(err.text, cases[i].text));
        graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padded_bags_have_the_loss_and_the_gradients_of_pytorch),
        cmocka_unit_test(padded_bags_of_an_unknown_form_are_refused),
    };

    return cmocka_run_group_tests_name("graph/padded_bags", tests, NULL, NULL);
}
