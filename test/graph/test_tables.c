/* Gradients of tables, row-sparse (packed) and dense: the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"
#include "harness/model.h"
#include "harness/net.h"
#include "tensor/packed.h"

enum { BATCH = 6, WORDS = 3, ROWS = 200 };

/* i [batch, 3] int64: a table read twice, one of width 1, one without a path to the loss, one whose
 * gradient is summed over the words (a bag), and a dense part before them. */
static struct model *model_of_tables(void)
{
    static const int64_t axes[] = { 1 }, first = 0;
    struct model *m = model_new(17);

    model_input(m, "i", TENSOR_I64, shape_of(2, (int64_t)-1, (int64_t)WORDS));
    model_weights(m, "twice", shape_of(2, (int64_t)ROWS, (int64_t)5), 1);
    model_weights(m, "bias", shape_of(1, (int64_t)ROWS), 2);
    model_weights(m, "aside", shape_of(2, (int64_t)ROWS, (int64_t)4), 3);
    model_weights(m, "bag", shape_of(2, (int64_t)ROWS, (int64_t)5), 4);
    model_weights(m, "scale", shape_of(1, (int64_t)5), 5);
    model_weights(m, "out", shape_of(2, (int64_t)5, (int64_t)3), 6);
    model_int64s(m, "axes", axes, 1);
    model_int64s(m, "first", &first, 1);
    model_node(m, "Gather", "i first", "column"); /* [batch, 1] */
    model_int(m, "axis", 1);
    model_node(m, "Gather", "twice i", "a");
    model_node(m, "Gather", "bag i", "b");
    model_node(m, "Gather", "twice column", "c");
    model_node(m, "Gather", "bias column", "d");
    model_node(m, "Gather", "aside column", "e");
    model_node(m, "Mul", "a scale", "scaled");
    model_node(m, "Add", "scaled b", "sum");
    model_node(m, "ReduceSum", "sum axes", "bags");
    model_int(m, "keepdims", 0);
    model_node(m, "Squeeze", "c axes", "one");
    model_node(m, "Add", "bags one", "f");
    model_node(m, "Add", "f d", "g");
    model_node(m, "MatMul", "g out", "logits");
    model_node(m, "Squeeze", "e axes", "other");
    model_output(m, "logits");
    model_output(m, "other");
    return m;
}

/* Sample s, word k: often the same few rows, including negative indices. */
static void feed(struct net *n, uint32_t round)
{
    int64_t *i = plan_input(n->plan, 0)->data;

    for (uint32_t s = 0; s < BATCH; s++) {
        for (uint32_t k = 0; k < WORDS; k++)
            i[s * WORDS + k] =
                (int64_t)((round * 31 + s * s * 7 + k * 5) % (round % 2 ? ROWS : 4)) -
                (s % 2 ? ROWS : 0) * (k % 2);
        ((int64_t *)plan_input(n->plan, 1)->data)[s] = s % 3;
        ((float *)plan_input(n->plan, 2)->data)[s] = 1.0f + 0.5f * (float)(s % 2);
    }
}

struct packing {
    const struct packed_table *tables;
    uint32_t n;
    void *memory;
    struct packed rows;
};

static struct packing packing_of(const struct graph *g)
{
    struct packing p = { .n = 0 };
    size_t words;

    p.tables = graph_tables(g, &p.n, &words);
    p.memory = malloc(packed_bytes(p.n, words));
    assert_non_null(p.memory);
    p.rows = packed_init(p.tables, p.n, words, p.memory);
    return p;
}

/* The gradient of row r of table t in the packed arena; NULL: the row is not marked. */
static const float *row_of(const struct packing *p, const float *values, uint32_t t, size_t r)
{
    const uint64_t *marks = p->rows.marks + p->tables[t].first_word;

    if ((marks[r / 64] >> r % 64 & 1) == 0)
        return NULL;
    return values + p->rows.first[t] +
           p->tables[t].width * packed_place(marks, p->rows.before + p->tables[t].first_word, r);
}

static void expect_same(const struct net *n, const struct packing *p, const float *whole)
{
    const float *values = n->grads + graph_dense_floats(n->graph);
    static const float zeros[5] = { 0 };
    size_t marked = 0;
    uint32_t t = 0;

    for (uint32_t i = 0; i < n->n_params; i++) {
        const struct graph_param *q = &n->params_of[i];

        if (!q->is_table) {
            assert_memory_equal(n->grads + q->offset, whole + q->offset,
                                q->elements * sizeof(float));
            continue;
        }
        for (size_t r = 0; r < p->tables[t].rows; r++) {
            size_t width = p->tables[t].width;
            const float *row = row_of(p, values, t, r);

            marked += row != NULL ? width : 0;
            assert_memory_equal(row != NULL ? row : zeros, whole + q->offset + r * width,
                                width * sizeof(float));
        }
        t++;
    }
    assert_int_equal(t, p->n);
    assert_int_equal(marked, packed_floats(&p->rows));
}

static void packed_and_dense_gradients_have_equal_bits(void **state)
{
    struct model *m = model_of_tables();
    struct net n = net_open_model(m, PLAN_TRAIN, BATCH);
    struct packing p = packing_of(n.graph);
    float *whole = malloc(n.arena_bytes);

    (void)state;
    assert_int_equal(p.n, 4);
    for (uint32_t round = 0; round < 8; round++) {
        float loss;

        feed(&n, round);
        plan_set_packed(n.plan, NULL);
        loss = net_forward(&n);
        net_backward(&n);
        memcpy(whole, n.grads, n.arena_bytes);
        memset(n.grads, 0xFF, n.arena_bytes);
        feed(&n, round);
        plan_set_packed(n.plan, &p.rows);
        assert_true(net_forward(&n) == loss);
        net_backward(&n);
        expect_same(&n, &p, whole);
        for (size_t k = graph_dense_floats(n.graph) + packed_floats(&p.rows);
             k < graph_trained_floats(n.graph); k++)
            assert_true(n.grads[k] != n.grads[k]); /* not written */
    }
    free(whole);
    free(p.memory);
    net_close(&n);
    model_free(m);
}

/* The same with padding rows: those of "twice" and "bias" are among the rows that are read. */
static void padding_rows_have_no_gradient_packed_or_dense(void **state)
{
    static const struct graph_padding padding[] = { { "twice", 2 }, { "b?as", 0 } };
    const struct graph_opts opts = { .path = "test.onnx", .padding = padding, .n_padding = 2 };
    struct model *m = model_of_tables();
    struct net n = net_open_graph(net_import_model(m, &opts), PLAN_TRAIN, BATCH),
               plain = net_open_model(m, PLAN_TRAIN, BATCH);
    struct packing p = packing_of(n.graph);
    float *whole = malloc(n.arena_bytes);

    (void)state;
    for (uint32_t round = 0; round < 8; round++) {
        feed(&n, round);
        feed(&plain, round);
        plan_set_packed(n.plan, NULL);
        assert_true(net_forward(&n) == net_forward(&plain));
        net_backward(&n);
        net_backward(&plain);
        memcpy(whole, n.grads, n.arena_bytes);
        feed(&n, round);
        plan_set_packed(n.plan, &p.rows);
        (void)net_forward(&n);
        net_backward(&n);
        expect_same(&n, &p, whole);
        memcpy(n.grads, whole, n.arena_bytes);
        for (uint32_t i = 0; i < n.n_params; i++) {
            const struct graph_param *q = &n.params_of[i];
            size_t width = q->elements / (size_t)q->shape.dim[0];

            for (size_t k = 0; k < q->elements; k++) {
                bool pads = (strcmp(q->name, "twice") == 0 && k / width == 2) ||
                            (strcmp(q->name, "bias") == 0 && k == 0);

                assert_true(whole[q->offset + k] == (pads ? 0 : plain.grads[q->offset + k]));
            }
        }
    }
    free(whole);
    free(p.memory);
    net_close(&n);
    net_close(&plain);
    model_free(m);
}

static void dense_gradients_of_tables_match_finite_differences(void **state)
{
    struct model *m = model_of_tables();
    struct net n = net_open_model(m, PLAN_TRAIN, BATCH);

    (void)state;
    feed(&n, 1);
    (void)net_forward(&n);
    net_backward(&n);
    for (uint32_t i = 0; i < n.n_params; i++)
        for (size_t k = 0; n.params_of[i].is_table && k < n.params_of[i].elements; k += 7) {
            float *at = n.params + n.params_of[i].offset + k, keep = *at, up, down, slope;

            *at = keep + 0.01f;
            feed(&n, 1);
            up = net_forward(&n);
            *at = keep - 0.01f;
            feed(&n, 1);
            down = net_forward(&n);
            *at = keep;
            slope = (up - down) / 0.02f;
            if (!((slope - n.grads[n.params_of[i].offset + k]) <= 2e-3f &&
                  (slope - n.grads[n.params_of[i].offset + k]) >= -2e-3f))
                fail_msg("%s [%zu]: %g, finite differences %g", n.params_of[i].name, k,
                         (double)n.grads[n.params_of[i].offset + k], (double)slope);
        }
    net_close(&n);
    model_free(m);
}

struct watcher {
    size_t next;
};

static void watch(void *arg, size_t offset, size_t n)
{
    struct watcher *w = arg;

    assert_int_equal(offset, w->next);
    w->next = offset + n;
}

static void packed_tables_are_not_in_the_reported_ranges(void **state)
{
    struct model *m = model_of_tables();
    struct net n = net_open_model(m, PLAN_TRAIN, BATCH);
    struct packing p = packing_of(n.graph);
    struct err err = { 0 };

    (void)state;
    for (int packed = 0; packed < 2; packed++) {
        struct watcher w = { 0 };

        feed(&n, 0);
        plan_set_packed(n.plan, packed ? &p.rows : NULL);
        (void)net_forward(&n);
        assert_int_equal(plan_backward(n.plan, &n.run, n.grads, watch, &w, &err), 0);
        assert_int_equal(w.next,
                         packed ? graph_dense_floats(n.graph) : graph_trained_floats(n.graph));
    }
    free(p.memory);
    net_close(&n);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_and_dense_gradients_have_equal_bits),
        cmocka_unit_test(padding_rows_have_no_gradient_packed_or_dense),
        cmocka_unit_test(dense_gradients_of_tables_match_finite_differences),
        cmocka_unit_test(packed_tables_are_not_in_the_reported_ranges),
    };

    return cmocka_run_group_tests_name("graph/tables", tests, NULL, NULL);
}
