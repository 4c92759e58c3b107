/* Remote tables: a plan that looks up rows in compact tables computes the bits of a plan with local
 * tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "device/cuda.h"
#include "graph/plan_priv.h"
#include "harness/model.h"
#include "harness/net.h"
#include "tensor/packed.h"

enum { BATCH = 6, WORDS = 3, ROWS = 200, KINDS = 40, TABLES = 3, ROUNDS = 12 };

/* Nodes that compute logits [batch, 3] from i [batch, 3] int64 and f [batch, 4] float32. Remote are
 * "direct" (read twice, once at indices of a view), "padded" (row 2 is its padding row) and
 * "computed" (read at indices that the largest of a few products selects, plus an offset); "near"
 * stays local. The product h has three readers with a gradient, and the second of them is among the
 * nodes that compute indices: the order of contributions to its gradient matters. */
static struct model *model_of_tables(void)
{
    static const int64_t axes[] = { 1 }, first = 0, flat[] = { -1 }, seven = 7,
                         three_dims[] = { -1, WORDS, 5 };
    struct model *m = model_new(17);

    model_input(m, "i", TENSOR_I64, shape_of(2, (int64_t)-1, (int64_t)WORDS));
    model_input(m, "f", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "direct", shape_of(2, (int64_t)ROWS, (int64_t)5), 1);
    model_weights(m, "padded", shape_of(2, (int64_t)ROWS, (int64_t)5), 2);
    model_weights(m, "computed", shape_of(1, (int64_t)KINDS), 3);
    model_weights(m, "near", shape_of(2, (int64_t)ROWS, (int64_t)5), 4);
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)5), 5);
    model_weights(m, "scale", shape_of(1, (int64_t)5), 6);
    model_weights(m, "out", shape_of(2, (int64_t)5, (int64_t)3), 7);
    model_int64s(m, "axes", axes, 1);
    model_int64s(m, "first", &first, 1);
    model_int64s(m, "flat", flat, 1);
    model_int64s(m, "seven", &seven, 1);
    model_int64s(m, "three_dims", three_dims, 3);
    model_node(m, "Gather", "near i", "n");
    model_node(m, "MatMul", "f w", "h");
    model_node(m, "Sigmoid", "h", "h1");
    model_node(m, "Reshape", "i flat", "i_flat"); /* a view of an input */
    model_node(m, "Gather", "direct i_flat", "a_flat");
    model_node(m, "Reshape", "a_flat three_dims", "a");
    model_node(m, "Gather", "padded i", "b");
    model_node(m, "Gather", "i first", "column"); /* [batch, 1] */
    model_int(m, "axis", 1);
    model_node(m, "Gather", "direct column", "c");
    model_node(m, "Mul", "h scale", "h2");
    model_node(m, "ArgMax", "h2", "best"); /* [batch, 1] */
    model_int(m, "axis", 1);
    model_node(m, "Mul", "best seven", "spread");
    model_node(m, "Add", "spread seven", "kind");
    model_node(m, "Tanh", "h", "h3");
    model_node(m, "Gather", "computed kind", "d"); /* [batch, 1] */
    model_node(m, "Mul", "a b", "ab");
    model_node(m, "Add", "ab n", "words");
    model_node(m, "ReduceSum", "words axes", "bags");
    model_int(m, "keepdims", 0);
    model_node(m, "Squeeze", "c axes", "one");
    model_node(m, "Add", "h1 h2", "h12");
    model_node(m, "Add", "h12 h3", "h123");
    model_node(m, "Add", "bags one", "e");
    model_node(m, "Add", "e h123", "g");
    model_node(m, "Add", "g d", "gd");
    model_node(m, "MatMul", "gd out", "logits");
    model_output(m, "logits");
    return m;
}

static bool is_far(const void *arg, const char *name, uint64_t rows, uint64_t width)
{
    unsigned *asked = (unsigned *)(uintptr_t)arg;

    assert_int_equal(rows, strcmp(name, "computed") == 0 ? KINDS : ROWS);
    assert_int_equal(width, strcmp(name, "computed") == 0 ? 1 : 5);
    if (asked != NULL)
        ++*asked;
    return strcmp(name, "near") != 0;
}

static const struct graph_padding padding = { "padded", 2 };

static struct graph *import(struct model *m, bool remote)
{
    const struct graph_opts opts = { .path = "test.onnx",
                                     .padding = &padding,
                                     .n_padding = 1,
                                     .is_remote = remote ? is_far : NULL };

    return net_import_model(m, &opts);
}

/* ---- a parameter server in the process ---- */

struct far { /* of a graph with remote tables */
    const struct graph *graph;
    struct packed_table tables[TABLES];
    struct packed rows;
    void *memory;
    float *values[TABLES]; /* compact tables */
    int64_t *slot[TABLES]; /* [rows] slot of each row; -1: no slot */
    uint32_t n_slots[TABLES];
    size_t at; /* of their gradients in the arena */
};

static void far_open(struct far *f, struct net *n)
{
    const struct graph_remote *r;
    uint32_t count;
    size_t words, room = 0;

    f->graph = n->graph;
    f->at = n->arena_bytes / sizeof(float);
    r = graph_remotes(n->graph, &count);
    assert_int_equal(count, TABLES);
    for (uint32_t t = 0; t < count; t++) {
        f->tables[t].rows = plan_lookup_room(n->plan, t);
        f->tables[t].width = r[t].width;
        room += f->tables[t].rows * r[t].width;
        f->values[t] = malloc(f->tables[t].rows * r[t].width * sizeof(float));
        f->slot[t] = malloc(r[t].rows * sizeof(int64_t));
        assert_true(f->values[t] != NULL && f->slot[t] != NULL);
    }
    words = packed_layout(f->tables, count);
    f->memory = malloc(packed_bytes(count, words));
    assert_non_null(f->memory);
    f->rows = packed_init(f->tables, count, words, f->memory);
    free(n->grads);
    n->grads = aligned_alloc(64, (n->arena_bytes + room * sizeof(float) + 63) / 64 * 64);
    assert_non_null(n->grads);
}

static void far_close(struct far *f)
{
    for (uint32_t t = 0; t < TABLES; t++) {
        free(f->values[t]);
        free(f->slot[t]);
    }
    free(f->memory);
}

/* Gives each row of the lookups a slot, in order of first appearance, and fetches it. */
static void far_fetch(struct far *f, struct net *n)
{
    uint32_t n_lookups, count;
    const struct plan_lookup *l = plan_lookups(n->plan, &n_lookups);
    const struct graph_remote *r = graph_remotes(f->graph, &count);
    struct err err = { 0 };

    for (uint32_t t = 0; t < count; t++) {
        memset(f->slot[t], 0xFF, r[t].rows * sizeof(int64_t));
        memset(f->values[t], 0xFF, f->tables[t].rows * r[t].width * sizeof(float));
        f->n_slots[t] = 0;
    }
    for (uint32_t k = 0; k < n_lookups; k++)
        for (size_t i = 0; i < l[k].n; i++) {
            uint32_t t = l[k].table;
            int64_t row = l[k].rows[i], *slot = &f->slot[t][row];

            assert_true(row >= 0 && (uint64_t)row < r[t].rows);
            if (*slot < 0) {
                *slot = f->n_slots[t]++;
                assert_int_equal(graph_fill_remote(f->graph, t, (uint64_t)row, 1,
                                                   f->values[t] + (size_t)*slot * r[t].width, &err),
                                 0);
            }
            l[k].rows[i] = *slot;
        }
    plan_set_remote(n->plan, f->values, n->grads != NULL ? &f->rows : NULL, f->at);
}

static float far_forward(struct far *f, struct net *n)
{
    struct err err = { 0 };

    if (plan_forward_indices(n->plan, &n->run, &err) < 0)
        fail_msg("%s", err.text);
    far_fetch(f, n);
    return net_forward(n);
}

/* ---- batches ---- */

static uint64_t next_number(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void feed(struct net *n, uint64_t seed)
{
    uint64_t rng = seed + 1;
    int64_t *i = plan_input(n->plan, 0)->data;
    float *f = plan_input(n->plan, 1)->data;
    int64_t rows = seed % 2 ? ROWS : 4; /* often the same few rows */

    for (uint32_t k = 0; k < BATCH * WORDS; k++) {
        i[k] = (int64_t)(next_number(&rng) % (uint64_t)rows);
        i[k] -= next_number(&rng) % 3 == 0 ? ROWS : 0;
    }
    for (uint32_t k = 0; k < BATCH * 4; k++)
        f[k] = (float)(int64_t)(next_number(&rng) % 2001) / 1000.0f - 1.0f;
    for (uint32_t s = 0; s < BATCH; s++) {
        ((int64_t *)plan_input(n->plan, 2)->data)[s] = (int64_t)(next_number(&rng) % 3);
        ((float *)plan_input(n->plan, 3)->data)[s] = 1.0f + 0.5f * (float)(s % 2);
    }
}

/* ---- comparison ---- */

static void expect_equal_output(const struct net *a, const struct net *b)
{
    const struct tensor *x = plan_tensor(a->plan, "logits"), *y = plan_tensor(b->plan, "logits");

    assert_memory_equal(x->data, y->data, tensor_bytes(x));
}

/* The gradient of row `row` of remote table t; NULL: no gradient. */
static const float *row_of(const struct far *f, const struct net *n, uint32_t t, size_t row)
{
    int64_t slot = f->slot[t][row];
    const uint64_t *marks = f->rows.marks + f->tables[t].first_word;

    if (slot < 0 || (marks[slot / 64] >> slot % 64 & 1) == 0)
        return NULL;
    return n->grads + f->at + f->rows.first[t] +
           f->tables[t].width *
               packed_place(marks, f->rows.before + f->tables[t].first_word, (size_t)slot);
}

/* The local table of the plan with remote tables; `rows`: its packed gradients. */
static void expect_equal_table(const struct net *n, const struct packed *rows, const float *whole)
{
    static const float zeros[5] = { 0 };
    const float *values = n->grads + graph_dense_floats(n->graph);

    for (size_t k = 0; k < ROWS; k++) {
        bool is_marked = (rows->marks[k / 64] >> k % 64 & 1) != 0;

        assert_memory_equal(is_marked ? values + 5 * packed_place(rows->marks, rows->before, k)
                                      : zeros,
                            whole + 5 * k, sizeof(zeros));
    }
}

/* `whole`: the plan with local tables, whose gradients are dense. near: packed gradients of the
 * local table of n; NULL: they are dense. */
static void expect_equal_gradients(const struct net *n, const struct far *f,
                                   const struct packed *near, const struct net *whole)
{
    static const float zeros[5] = { 0 };
    uint32_t count;
    const struct graph_remote *r = graph_remotes(n->graph, &count);
    size_t marked = 0;

    for (uint32_t i = 0; i < n->n_params; i++) {
        const struct graph_param *q = &n->params_of[i];
        const float *want = whole->grads + net_param(whole, q->name)->offset;

        if (q->is_table && near != NULL)
            expect_equal_table(n, near, want);
        else
            assert_memory_equal(n->grads + q->offset, want, q->elements * sizeof(float));
    }
    for (uint32_t t = 0; t < count; t++) {
        const float *all = whole->grads + net_param(whole, r[t].name)->offset;

        for (size_t k = 0; k < r[t].rows; k++) {
            const float *row = row_of(f, n, t, k);

            marked += row != NULL ? r[t].width : 0;
            assert_memory_equal(row != NULL ? row : zeros, all + k * r[t].width,
                                r[t].width * sizeof(float));
        }
    }
    assert_int_equal(marked, packed_floats(&f->rows));
}

static void train_both(struct net *local, struct net *remote)
{
    struct far f;
    bool pads = false;
    uint32_t n_near;
    size_t words;
    const struct packed_table *near_tables = graph_tables(remote->graph, &n_near, &words);
    void *memory = malloc(packed_bytes(n_near, words));
    struct packed near;

    assert_non_null(memory);
    near = packed_init(near_tables, n_near, words, memory);
    far_open(&f, remote);
    for (uint32_t round = 0; round < ROUNDS; round++)
        for (uint32_t lane = 0; lane < 2; lane++) {
            float loss;

            local->run.step = remote->run.step = round;
            local->run.lane = remote->run.lane = lane;
            feed(local, 2 * round + lane);
            feed(remote, 2 * round + lane);
            plan_set_packed(remote->plan, lane == 1 ? &near : NULL);
            loss = net_forward(local);
            net_backward(local);
            assert_true(far_forward(&f, remote) == loss);
            net_backward(remote);
            expect_equal_output(local, remote);
            expect_equal_gradients(remote, &f, lane == 1 ? &near : NULL, local);
            for (uint32_t t = 0; t < TABLES; t++)
                pads = pads || (f.tables[t].width == 5 && f.slot[t][2] >= 0 &&
                                row_of(&f, remote, t, 2) == NULL);
        }
    assert_true(pads); /* the padding row was read */
    far_close(&f);
    free(memory);
}

static void remote_tables_train_with_the_bits_of_local_tables(void **state)
{
    struct model *m = model_of_tables();

    (void)state;
    for (int half = 0; half < (op_has_bfloat16() ? 2 : 1); half++) {
        struct net local = half ? net_open_half(import(m, false), PLAN_TRAIN, BATCH)
                                : net_open_graph(import(m, false), PLAN_TRAIN, BATCH);
        struct net remote = half ? net_open_half(import(m, true), PLAN_TRAIN, BATCH)
                                 : net_open_graph(import(m, true), PLAN_TRAIN, BATCH);

        train_both(&local, &remote);
        net_close(&local);
        net_close(&remote);
    }
    model_free(m);
}

/* Delayed tables: forward of PLAN_TRAIN reads them elsewhere, and everything else in the arena. */
static void delayed_tables_are_read_where_the_caller_says(void **state)
{
    const struct graph_opts opts = { .path = "test.onnx", .padding = &padding, .n_padding = 1,
                                     .is_delayed = is_far };
    struct model *m = model_of_tables();
    struct net plain = net_open_graph(import(m, false), PLAN_TRAIN, BATCH);
    struct net delayed = net_open_graph(net_import_model(m, &opts), PLAN_TRAIN, BATCH);
    struct net evaluates = net_open_graph(net_import_model(m, &opts), PLAN_EVAL, BATCH);
    float *older = aligned_alloc(64, (delayed.arena_bytes + 63) / 64 * 64);
    uint32_t n_delayed = 0;
    struct err err = { 0 };

    (void)state;
    assert_non_null(older);
    memset(older, 0xFF, delayed.arena_bytes); /* NaN */
    for (uint32_t i = 0; i < delayed.n_params; i++) {
        const struct graph_param *p = &delayed.params_of[i];

        assert_int_equal(p->is_delayed, p->is_table && strcmp(p->name, "near") != 0);
        if (!p->is_delayed)
            continue;
        n_delayed++;
        memcpy(older + p->offset, delayed.params + p->offset, p->elements * sizeof(float));
        memset(delayed.params + p->offset, 0xFF, p->elements * sizeof(float));
    }
    assert_int_equal(n_delayed, TABLES);
    plan_bind_delayed(delayed.plan, older);
    assert_int_equal(plan_verify(delayed.plan, &err), 0);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        float loss;

        feed(&plain, round);
        feed(&delayed, round);
        feed(&evaluates, round);
        loss = net_forward(&plain);
        net_backward(&plain);
        assert_true(net_forward(&delayed) == loss);
        net_backward(&delayed);
        for (uint32_t i = 0; i < delayed.n_params; i++) {
            const struct graph_param *p = &delayed.params_of[i];

            assert_memory_equal(delayed.grads + p->offset,
                                plain.grads + net_param(&plain, p->name)->offset,
                                p->elements * sizeof(float));
        }
        (void)net_forward(&evaluates);
        expect_equal_output(&plain, &evaluates);
    }
    free(older);
    net_close(&plain);
    net_close(&delayed);
    net_close(&evaluates);
    model_free(m);
}

static void remote_tables_evaluate_with_the_bits_of_local_tables(void **state)
{
    struct model *m = model_of_tables();
    struct net local = net_open_graph(import(m, false), PLAN_EVAL, BATCH),
               remote = net_open_graph(import(m, true), PLAN_EVAL, BATCH);
    struct far f;

    (void)state;
    far_open(&f, &remote);
    free(remote.grads);
    remote.grads = NULL;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        double a[2] = { 0 }, b[2] = { 0 };

        feed(&local, round);
        feed(&remote, round);
        assert_true(net_forward(&local) == far_forward(&f, &remote));
        expect_equal_output(&local, &remote);
        assert_int_equal(plan_metric_words(remote.plan, 0), 2);
        plan_metric_add(local.plan, 0, a);
        plan_metric_add(remote.plan, 0, b);
        assert_memory_equal(a, b, sizeof(a));
    }
    far_close(&f);
    net_close(&local);
    net_close(&remote);
    model_free(m);
}

/* ---- the order of calls ---- */

static int count_call(void *arg, uint32_t call, struct err *err)
{
    uint32_t *next = arg;

    (void)err;
    assert_int_equal(call, *next);
    ++*next;
    return 0;
}

static void calls_before_the_lookups_are_those_that_compute_indices(void **state)
{
    static const char *const first[] = { "MatMul", "Gather", "Mul", "ArgMax", "Mul", "Add" };
    struct model *m = model_of_tables();
    struct net n = net_open_graph(import(m, true), PLAN_TRAIN, BATCH);
    struct far f;
    struct buf text = { 0 };
    struct err err = { 0 };
    uint32_t next = 0, n_lookups;

    (void)state;
    far_open(&f, &n);
    feed(&n, 1);
    plan_watch(n.plan, count_call, &next);
    assert_int_equal(plan_forward_indices(n.plan, &n.run, &err), 0);
    assert_int_equal(next, COUNT_OF(first));
    for (uint32_t i = 0; i < next; i++)
        assert_string_equal(plan_call_info(n.plan, i).op, first[i]);
    far_fetch(&f, &n);
    (void)net_forward(&n);
    assert_int_equal(next, n.plan->calls.forward.n);
    net_backward(&n);
    assert_int_equal(next, plan_calls_count(n.plan));
    (void)plan_lookups(n.plan, &n_lookups);
    assert_int_equal(n_lookups, 4);
    plan_print(n.plan, &text);
    assert_non_null(strstr(text.data, "(the indices of remote tables are complete)"));
    assert_non_null(strstr(text.data, "looks up rows of a remote table"));
    buf_fini(&text);
    far_close(&f);
    net_close(&n);
    model_free(m);
}

static void plan_verify_refuses_corrupted_lookups(void **state)
{
    struct model *m = model_of_tables();
    struct net n = net_open_graph(import(m, true), PLAN_TRAIN, BATCH);
    struct plan_remote *r = &n.plan->remote;
    struct err err = { 0 };
    uint32_t calls = r->n_calls;

    (void)state;
    r->n_calls--;
    assert_int_equal(plan_verify(n.plan, &err), ERR_CORRUPT);
    assert_non_null(strstr(err.text, "end of the calls that compute indices: indices"));
    r->n_calls = (uint32_t)n.plan->calls.forward.n - 1;
    assert_int_equal(plan_verify(n.plan, &err), ERR_CORRUPT);
    assert_non_null(strstr(err.text, "from a remote table; expected it after call"));
    r->n_calls = calls;
    r->calls[1]->call.lookup = NULL;
    assert_int_equal(plan_verify(n.plan, &err), ERR_CORRUPT);
    assert_non_null(strstr(err.text, "expected a lookup of the remote table, found none"));
    r->calls[1]->call.lookup = &r->reads[1];
    assert_int_equal(plan_verify(n.plan, &err), 0);
    net_close(&n);
    model_free(m);
}

/* ---- refused plans and indices ---- */

static bool all(const void *arg, const char *name, uint64_t rows, uint64_t width)
{
    (void)arg, (void)name, (void)rows, (void)width;
    return true;
}

static void index_from_a_remote_row_is_refused(void **state)
{
    static const struct plan_feed feeds = { .name = "i", .dtype = TENSOR_I64 };
    static const struct graph_opts remote = { .path = "test.onnx", .is_remote = all };
    const struct plan_opts opts = {
        .purpose = PLAN_TRAIN, .batch = 2, .feeds = &feeds, .n_feeds = 1, NET_LOSS
    };
    struct model *m = model_new(17);
    struct graph *g;
    struct plan *p;
    struct err err = { 0 };

    (void)state;
    model_input(m, "i", TENSOR_I64, shape_of(1, (int64_t)-1));
    model_weights(m, "chooser", shape_of(2, (int64_t)9, (int64_t)4), 1);
    model_weights(m, "chosen", shape_of(2, (int64_t)4, (int64_t)3), 2);
    model_weights(m, "out", shape_of(2, (int64_t)4, (int64_t)3), 3);
    model_node(m, "Gather", "chooser i", "scores");
    model_node(m, "ArgMax", "scores", "best");
    model_int(m, "axis", 1);
    model_int(m, "keepdims", 0);
    model_node(m, "Gather", "chosen best", "picked");
    model_node(m, "MatMul", "scores out", "other");
    model_node(m, "Add", "picked other", "logits");
    model_output(m, "logits");
    g = net_import_model(m, &remote);
    assert_int_equal(plan_new(g, &opts, &p, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "Gather 'picked' reads remote table 'chosen' at indices that "
                                     "depend on Gather 'scores' from remote table 'chooser'"));
    graph_free(g);
    model_free(m);
}

static void ignore(void *memory)
{
    (void)memory;
}

static void plan_that_only_runs_or_computes_on_a_gpu_is_refused(void **state)
{
    static const struct cuda_api gpu = { .free = ignore, .unpin = ignore }; /* never used */
    struct plan_feed feeds[] = {
        { .name = "i", .dtype = TENSOR_I64, .shape = shape_of(2, (int64_t)2, (int64_t)WORDS) },
        { .name = "f", .dtype = TENSOR_F32, .shape = shape_of(2, (int64_t)2, (int64_t)4) },
    };
    static const char *const keep[] = { "logits" };
    struct plan_opts opts = {
        .purpose = PLAN_RUN, .batch = 2, .feeds = feeds, .n_feeds = 2, .keep = keep, .n_keep = 1
    };
    struct model *m = model_of_tables();
    struct graph *g = import(m, true);
    struct plan *p;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(plan_new(g, &opts, &p, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "expected a plan that trains or evaluates"));
    opts.cuda = &gpu;
    opts.purpose = PLAN_EVAL;
    feeds[0].shape = shape_of(1, (int64_t)WORDS);
    feeds[1].shape = shape_of(1, (int64_t)4);
    assert_int_equal(plan_new(g, &opts, &p, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "which GPUs do not support"));
    graph_free(g);
    model_free(m);
}

static void index_out_of_range_is_refused_with_the_message_of_a_local_table(void **state)
{
    static const int64_t wrong[] = { ROWS, -ROWS - 1, INT64_MIN, INT64_MAX };
    struct model *m = model_of_tables();
    struct net local = net_open_graph(import(m, false), PLAN_TRAIN, BATCH),
               remote = net_open_graph(import(m, true), PLAN_TRAIN, BATCH);
    struct far f;

    (void)state;
    far_open(&f, &remote);
    /* Only remote tables read index 4 here: "near" would report it first. */
    for (size_t k = 0; k < COUNT_OF(wrong); k++) {
        struct err a = { 0 }, b = { 0 };

        feed(&local, 1);
        feed(&remote, 1);
        ((int64_t *)plan_input(local.plan, 0)->data)[4] = wrong[k];
        ((int64_t *)plan_input(remote.plan, 0)->data)[4] = wrong[k];
        assert_int_equal(plan_forward(local.plan, &local.run, &a), ERR_INPUT);
        assert_int_equal(plan_forward_indices(remote.plan, &remote.run, &b), ERR_INPUT);
        assert_non_null(strstr(a.text, "forward of Gather 'n': Gather: index 4 is "));
        assert_non_null(strstr(b.text, "forward of Gather 'a_flat': Gather: index 4 is "));
        assert_string_equal(strstr(a.text, "': Gather"), strstr(b.text, "': Gather"));
    }
    feed(&remote, 1); /* the plan works again */
    (void)far_forward(&f, &remote);
    far_close(&f);
    net_close(&local);
    net_close(&remote);
    model_free(m);
}

/* ---- the graph ---- */

static void remote_tables_are_in_no_list_of_local_parameters(void **state)
{
    static const char *const names[] = { "computed", "padded", "direct" };
    struct model *m = model_of_tables();
    unsigned asked = 0;
    const struct graph_opts opts = { .path = "test.onnx",
                                     .padding = &padding,
                                     .n_padding = 1,
                                     .is_remote = is_far,
                                     .remote_arg = &asked };
    struct graph *local = import(m, false), *g = net_import_model(m, &opts);
    uint32_t n, n_local, n_remote = 0, i;
    const struct graph_remote *r = graph_remotes(local, &n);
    const struct graph_tensor *t;
    const struct packed_table *tables;
    size_t words;
    float rows[3][5];
    struct err err = { 0 };

    (void)state;
    assert_int_equal(n, 0);
    r = graph_remotes(g, &n);
    assert_int_equal(n, TABLES);
    assert_int_equal(asked, TABLES + 1);
    for (i = 0; i < n; i++) {
        assert_string_equal(r[i].name, names[i]);
        assert_int_equal(r[i].rows, i == 0 ? KINDS : ROWS);
        assert_int_equal(r[i].width, i == 0 ? 1 : 5);
        assert_int_equal(r[i].shape.rank, i == 0 ? 1 : 2);
    }
    assert_string_equal(graph_digest(g), graph_digest(local));
    (void)graph_params(local, &n_local);
    (void)graph_params(g, &n);
    assert_int_equal(n, n_local - TABLES);
    assert_int_equal(graph_dense_floats(g), graph_dense_floats(local));
    assert_int_equal(graph_trained_floats(g), graph_dense_floats(g) + 1008); /* 200 * 5, aligned */
    assert_int_equal(graph_arena_floats(g), graph_trained_floats(g));
    tables = graph_tables(g, &n, &words);
    assert_int_equal(n, 1);
    assert_int_equal(tables[0].rows, ROWS);
    assert_int_equal(words, (ROWS + 63) / 64);
    (void)graph_classified(local, &n_local);
    (void)graph_classified(g, &n);
    assert_int_equal(n, n_local);
    (void)graph_notes(local, &n_local);
    (void)graph_notes(g, &n);
    assert_int_equal(n, n_local);
    t = graph_module_tensors(g, &n);
    for (i = 0; i < n; i++) {
        assert_int_equal(t[i].is_remote, strcmp(t[i].name, "direct") == 0 ||
                                             strcmp(t[i].name, "padded") == 0 ||
                                             strcmp(t[i].name, "computed") == 0);
        assert_false(t[i].is_param && t[i].is_remote);
        if (t[i].is_remote) {
            assert_string_equal(t[i].name, r[t[i].remote].name);
            n_remote++;
        }
    }
    assert_int_equal(n_remote, TABLES);
    assert_int_equal(graph_fill_remote(g, 2, 7, 3, rows[0], &err), 0);
    (void)graph_params(local, &n);
    for (i = 0; i < n; i++)
        if (strcmp(graph_params(local, &n)[i].name, "direct") == 0)
            assert_memory_equal(rows, graph_params(local, &n)[i].initial + 7 * 5, sizeof(rows));
    graph_release_initial(g);
    assert_int_equal(graph_fill_remote(g, 2, 0, 1, rows[0], &err), ERR_INPUT);
    graph_free(g);
    graph_free(local);
    model_free(m);
}

/* ---- export ---- */

static int read_initial(void *arg, uint32_t i, uint64_t first, uint64_t n, float *out,
                        struct err *err)
{
    return graph_fill_remote(arg, i, first, n, out, err);
}

static int fail_to_read(void *arg, uint32_t i, uint64_t first, uint64_t n, float *out,
                        struct err *err)
{
    (void)arg, (void)i, (void)first, (void)n, (void)out;
    return err_set(err, ERR_PEER, "the server is gone");
}

static void expect_equal_files(const char *a, const char *b)
{
    FILE *x = fopen(a, "rb"), *y = fopen(b, "rb");
    int c;

    assert_true(x != NULL && y != NULL);
    do {
        c = fgetc(x);
        assert_int_equal(c, fgetc(y));
    } while (c != EOF);
    fclose(x);
    fclose(y);
}

static void export_reads_remote_rows_in_the_model_or_beside_it(void **state)
{
    char dir[] = "/tmp/test_remote-XXXXXX", path[2][64], data[2][64];
    struct model *m = model_of_tables();
    struct net local = net_open_graph(import(m, false), PLAN_TRAIN, BATCH),
               remote = net_open_graph(import(m, true), PLAN_TRAIN, BATCH);
    struct graph_row_reader reader = { read_initial, remote.graph, NULL };
    struct err err = { 0 };

    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int k = 0; k < 2; k++) {
        /* equal names in two folders: the model contains the name of the file beside it */
        char folder[48];

        snprintf(folder, sizeof(folder), "%s/%d", dir, k);
        assert_int_equal(mkdir(folder, 0700), 0);
        snprintf(path[k], sizeof(path[k]), "%s/m.onnx", folder);
        snprintf(data[k], sizeof(data[k]), "%s.data", path[k]);
    }
    assert_int_equal(graph_export(remote.graph, remote.params, path[1], &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "expected a reader of its rows"));
    for (int split = 0; split < 2; split++) {
        uint64_t limit = split ? 1000 : UINT64_MAX;

        assert_int_equal(graph_export_split(local.graph, local.params, NULL, path[0], limit, &err),
                         0);
        if (graph_export_split(remote.graph, remote.params, &reader, path[1], limit, &err) < 0)
            fail_msg("%s", err.text);
        expect_equal_files(path[0], path[1]);
        if (split)
            expect_equal_files(data[0], data[1]);
    }
    reader.read = fail_to_read;
    assert_int_equal(graph_export_remote(remote.graph, remote.params, &reader, path[1], &err),
                     ERR_PEER);
    assert_non_null(strstr(err.text, "remote table '"));
    expect_equal_files(path[0], path[1]); /* the previous export is unchanged */
    for (int k = 0; k < 2; k++) {
        unlink(path[k]);
        unlink(data[k]);
        *strrchr(path[k], '/') = '\0';
        rmdir(path[k]);
    }
    rmdir(dir);
    net_close(&local);
    net_close(&remote);
    model_free(m);
}

/* ---- non-finite tracing ---- */

static void tracing_finds_bad_rows_and_bad_gradients_of_remote_tables(void **state)
{
    struct model *m = model_of_tables();
    struct net n = net_open_graph(import(m, true), PLAN_TRAIN, BATCH);
    struct far f;
    struct plan_nonfinite bad;
    struct err err = { 0 };

    (void)state;
    far_open(&f, &n);
    plan_trace_nonfinite(n.plan, &bad);
    feed(&n, 1);
    (void)far_forward(&f, &n);
    net_backward(&n);
    assert_false(bad.found);

    feed(&n, 1);
    assert_int_equal(plan_forward_indices(n.plan, &n.run, &err), 0);
    far_fetch(&f, &n);
    f.values[2][3] = 1.0f / 0.0f; /* direct */
    (void)net_forward(&n);
    assert_true(bad.found);
    assert_string_equal(bad.text, "the weights: a row of parameter 'direct' float32 [5] holds inf, "
                                  "1 of 5 numbers");

    feed(&n, 1);
    ((float *)plan_input(n.plan, 1)->data)[0] = 0.0f / 0.0f;
    (void)far_forward(&f, &n);
    assert_true(bad.found);
    assert_non_null(strstr(bad.text, "the batch: input 'f'"));

    /* Finite gradients of one row, of 1e30 times the others, until their sum is infinite. */
    bad.found = false;
    for (n.run.loss_scale = 1e6f; !bad.found; n.run.loss_scale *= 2) {
        feed(&n, 0);
        for (int k = 0; k < BATCH * WORDS; k++)
            ((int64_t *)plan_input(n.plan, 0)->data)[k] = 1;
        for (int k = 0; k < BATCH; k++)
            ((int64_t *)plan_input(n.plan, 2)->data)[k] = 0;
        assert_int_equal(plan_forward_indices(n.plan, &n.run, &err), 0);
        far_fetch(&f, &n);
        for (int k = 0; k < 5; k++) {
            f.values[2][k] = 1e-30f; /* direct */
            f.values[1][k] = 1e30f;  /* padded */
        }
        (void)net_forward(&n);
        net_backward(&n);
    }
    assert_non_null(
        strstr(bad.text, "backward of Gather: the sum of gradients of rows of 'direct' float32"));
    plan_trace_nonfinite(n.plan, NULL);
    far_close(&f);
    net_close(&n);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remote_tables_train_with_the_bits_of_local_tables),
        cmocka_unit_test(delayed_tables_are_read_where_the_caller_says),
        cmocka_unit_test(remote_tables_evaluate_with_the_bits_of_local_tables),
        cmocka_unit_test(calls_before_the_lookups_are_those_that_compute_indices),
        cmocka_unit_test(plan_verify_refuses_corrupted_lookups),
        cmocka_unit_test(index_from_a_remote_row_is_refused),
        cmocka_unit_test(plan_that_only_runs_or_computes_on_a_gpu_is_refused),
        cmocka_unit_test(index_out_of_range_is_refused_with_the_message_of_a_local_table),
        cmocka_unit_test(remote_tables_are_in_no_list_of_local_parameters),
        cmocka_unit_test(export_reads_remote_rows_in_the_model_or_beside_it),
        cmocka_unit_test(tracing_finds_bad_rows_and_bad_gradients_of_remote_tables),
    };

    return cmocka_run_group_tests_name("graph/remote", tests, NULL, NULL);
}
