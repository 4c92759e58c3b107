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

enum { ROWS = 7, DIM = 3, CLASSES = 2, PADDING = 2 };

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
static void run(struct plan *p, const int64_t *all_ids, float *grads, size_t n_grads,
                uint32_t first, uint32_t batch, bool is_weighted, double *loss, float *sums)
{
    const struct op_run step = { .loss_scale = 1 };
    float *weights = plan_input(p, is_weighted ? 2 : 1)->data;
    struct err err = { 0 };

    memcpy(plan_input(p, 0)->data, all_ids + (size_t)first * WIDTH, batch * WIDTH * sizeof(*ids));
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
        fail_msg("%s: found %.9g, expected %.9g", what, found, want);
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

static void train(const char *name, const char *ending, const int64_t *all_ids, uint32_t batch)
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
        run(plan, all_ids, grads, n, first, batch, is_weighted, &loss, sums);
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
            train(names[i], "", ids, batch);
            train(names[i], "_default", ids, batch);
        }
}

/* An id below 0 counts from the end of the table; that of the padding too. */
static void padded_bags_with_ids_from_the_end_have_the_loss_and_the_gradients_of_pytorch(
    void **state)
{
    static const char *const names[] = { "sum", "mean", "max", "weighted" };
    int64_t all[BAGS * WIDTH], every_second[BAGS * WIDTH];

    (void)state;
    for (size_t i = 0; i < BAGS * WIDTH; i++) {
        all[i] = ids[i] - ROWS;
        every_second[i] = i % 2 == 0 ? ids[i] : ids[i] - ROWS;
    }
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        train(names[i], "", all, BAGS);
        train(names[i], "_default", every_second, BAGS);
    }
}

/* Before opset 18 the axes of ReduceMean and ReduceMax are attributes. */
static void padded_bags_of_opset_17_have_the_loss_and_the_gradients_of_pytorch(void **state)
{
    (void)state;
    for (uint32_t batch = 1; batch <= BAGS; batch *= 2) {
        train("mean", "_17", ids, batch);
        train("max", "_17", ids, batch);
    }
}

/* A change of the model: the first text `from` behind the text `after` becomes `to`, of the same length, or
 * longer: then the bytes after `from` change too. */
struct edit {
    const char *after, *from, *to;
};

static uint8_t *find_text(uint8_t *bytes, size_t n, const char *text)
{
    uint8_t *at = memmem(bytes, n, text, strlen(text));

    if (at == NULL)
        fail_msg("the model does not have '%s'", text);
    return at;
}

static int import_edited(const struct edit *edits, size_t n_edits, struct graph **out,
                         struct err *err)
{
    static uint8_t bytes[BYTES_MAX]; /* the graph refers to them */
    const struct graph_opts from = { .path = "bags.onnx" };
    FILE *f = fopen(FOLDER "bags_mean_default.onnx", "rb");
    size_t n;

    assert_non_null(f);
    n = fread(bytes, 1, sizeof(bytes), f);
    fclose(f);
    for (size_t i = 0; i < n_edits && edits[i].from != NULL; i++) {
        uint8_t *at = find_text(bytes, n, edits[i].after);

        assert_true(strlen(edits[i].from) <= strlen(edits[i].to));
        at = find_text(at, n - (size_t)(at - bytes), edits[i].from);
        memcpy(at, edits[i].to, strlen(edits[i].to));
    }
    return graph_import_bytes(&from, bytes, n, out, err);
}

#define NOT_REPLACED "its condition depends on the data" /* the If nodes of the expanded loop are refused */

/* Every model is valid, but its loop computes something other than the positions without padding. */
static void padded_bags_of_an_unknown_form_are_refused(void **state)
{
    static const struct {
        const char *what;
        struct edit edits[2];
        const char *text;
    } cases[] = {
        { "another reduction", { { "ReduceMean", "ReduceMean", "ReduceProd" } }, "an EmbeddingBag with padding_idx" },
        { "j - 1", { { "\x12\x04j_34", "Add", "Sub" } }, NOT_REPLACED },
        { "index - rows", { { "num_embeddings_scalar", "Add", "Sub" } }, NOT_REPLACED },
        { "the branches exchanged",
          { { "\x12\x0f" "curr_offsets_32", "then_branch", "else_branch" },
            { "\x12\x0f" "curr_offsets_30", "else_branch", "then_branch" } },
          NOT_REPLACED },
        { "positions in descending order",
          { { "pytorch", "\n\x0f" "curr_offsets_22\n\x06tmp_29", "\n\x06tmp_29\n\x0f" "curr_offsets_22" } },
          NOT_REPLACED },
        { "j + 0", { { "pytorch", "\n\x0fint64_1_33_cast\x12\x04j_34", "\n\x0fint64_0_23_cast\x12\x04j_34" } }, NOT_REPLACED },
        { "the end compared with another number", { { "pytorch", "j_34\n\aend_pos", "i_16\n\aend_pos" } }, NOT_REPLACED },
        { "index < 4", { { "pytorch", "val_4\n\x05index", "val_5\n\x05index" } }, NOT_REPLACED },
        { "0 < 0", { { "pytorch", "index\n\x0fint64_0_23_cast", "val_4\n\x0fint64_0_23_cast" } }, NOT_REPLACED },
        { "0 + rows", { { "pytorch", "index\n\x15num_embeddings_scalar", "val_4\n\x15num_embeddings_scalar" } }, NOT_REPLACED },
        { "an empty bag that is not 0", { { "pytorch", "row_resultJ\f", "row_resultJ\f\x01" } }, NOT_REPLACED },
        { "a size of 4 compared", { { "pytorch", "val_4\n\x06tmp_38", "val_5\n\x06tmp_38" } }, NOT_REPLACED },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct err err = { 0 };
        struct graph *g = NULL;
        struct plan *plan;

        if (import_edited(cases[i].edits, COUNT_OF(cases[i].edits), &g, &err) < 0)
            fail_msg("%s: %s", cases[i].what, err.text);
        if (make_plan(g, BAGS, false, &plan, &err) == 0)
            fail_msg("%s: not refused", cases[i].what);
        if (strstr(err.text, cases[i].text) == NULL)
            fail_msg("%s: %s", cases[i].what, err.text);
        graph_free(g);
    }
}

static float *param_of(const struct graph *g, const char *name, float *params)
{
    uint32_t count;
    const struct graph_param *p = graph_params(g, &count);

    for (uint32_t i = 0; i < count; i++)
        if (strcmp(p[i].name, name) == 0) {
            memcpy(params + p[i].offset, p[i].initial, p[i].elements * sizeof(float));
            return params + p[i].offset;
        }
    fail_msg("no parameter '%s'", name);
    return NULL;
}

/* The loss is the sum of the logits, which are W row + b; its gradient of the row is the sum of the rows of W. */
static void padded_bag_of_one_row_is_that_row_in_every_mode(void **state)
{
    enum { ROW = 4 };
    static const char *const names[] = { "sum", "mean", "max" };
    static const int64_t bag[WIDTH] = { PADDING, PADDING, ROW, PADDING };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[160];
        const struct graph_opts from = { .path = path };
        struct err err = { 0 };
        struct graph *g = NULL;
        struct plan *plan;
        _Alignas(64) float params[GRADS_MAX] = { 0 };
        _Alignas(64) float grads[GRADS_MAX] = { 0 };
        float sums[GRADS_MAX] = { 0 };
        const float *e, *w, *b;
        double loss = 0, expected = 0;
        void *work;

        snprintf(path, sizeof(path), FOLDER "bags_%s.onnx", names[i]);
        if (graph_import(&from, &g, &err) < 0 || make_plan(g, 1, false, &plan, &err) < 0)
            fail_msg("%s", err.text);
        assert_true(graph_arena_floats(g) <= GRADS_MAX);
        e = param_of(g, "e.weight", params);
        w = param_of(g, "l.weight", params);
        b = param_of(g, "l.bias", params);
        work = allocate(plan_work_bytes(plan));
        plan_bind(plan, params, work);
        run(plan, bag, grads, graph_arena_floats(g), 0, 1, false, &loss, sums);
        for (size_t c = 0; c < CLASSES; c++) {
            expected += (double)b[c];
            for (size_t k = 0; k < DIM; k++)
                expected += (double)w[c * DIM + k] * (double)e[ROW * DIM + k];
        }
        close_to(names[i], loss, expected);
        for (size_t k = 0; k < (size_t)ROWS * DIM; k++)
            close_to(names[i], (double)sums[(size_t)(e - params) + k],
                     k / DIM == ROW ? (double)w[k % DIM] + (double)w[DIM + k % DIM] : 0);
        plan_free(plan);
        graph_free(g);
        free(work);
    }
}

/* Each bag is then zeros, and the logits are the bias of the last layer. */
static void padded_bags_whose_loop_does_not_begin_are_empty(void **state)
{
    static const struct edit edit = { "pytorch", "\n\tstart_pos\n\aend_pos\x12\x06" "cond_2",
                                      "\n\aend_pos\n\tstart_pos\x12\x06" "cond_2" };
    struct err err = { 0 };
    struct graph *g = NULL;
    struct plan *plan;
    const struct graph_param *p;
    float *params, *grads, sums[GRADS_MAX] = { 0 };
    double loss = 0, expected = 0;
    uint32_t count;
    void *work;

    (void)state;
    if (import_edited(&edit, 1, &g, &err) < 0 || make_plan(g, BAGS, false, &plan, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(graph_arena_floats(g) <= GRADS_MAX);
    params = allocate(graph_arena_floats(g) * sizeof(float));
    grads = allocate(graph_arena_floats(g) * sizeof(float));
    work = allocate(plan_work_bytes(plan));
    p = graph_params(g, &count);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(params + p[i].offset, p[i].initial, p[i].elements * sizeof(float));
        for (size_t k = 0; strcmp(p[i].name, "l.bias") == 0 && k < p[i].elements; k++)
            expected += BAGS * (double)params[p[i].offset + k];
    }
    plan_bind(plan, params, work);
    run(plan, ids, grads, graph_arena_floats(g), 0, BAGS, false, &loss, sums);
    close_to("loss", loss, expected);
    for (uint32_t i = 0; i < count; i++)
        for (size_t k = 0; k < p[i].elements; k++)
            close_to(p[i].name, (double)sums[p[i].offset + k],
                     strcmp(p[i].name, "l.bias") == 0 ? BAGS : 0);
    plan_free(plan);
    graph_free(g);
    free(params);
    free(grads);
    free(work);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padded_bags_have_the_loss_and_the_gradients_of_pytorch),
        cmocka_unit_test(padded_bags_with_ids_from_the_end_have_the_loss_and_the_gradients_of_pytorch),
        cmocka_unit_test(padded_bag_of_one_row_is_that_row_in_every_mode),
        cmocka_unit_test(padded_bags_of_opset_17_have_the_loss_and_the_gradients_of_pytorch),
        cmocka_unit_test(padded_bags_of_an_unknown_form_are_refused),
        cmocka_unit_test(padded_bags_whose_loop_does_not_begin_are_empty),
    };

    return cmocka_run_group_tests_name("graph/padded_bags", tests, NULL, NULL);
}
