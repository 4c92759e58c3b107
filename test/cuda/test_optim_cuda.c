/* Optimizers and the scan of gradients on a GPU, against those of CPUs. The GPU is the emulated
 * one, or with TRAINERD_TEST_CUDA=1 the first GPU that the plugin finds. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/err.h"
#include "device/cuda.h"
#include "device/device.h"
#include "optim/named.h"
#include "optim/optim.h"
#include "optim/reference.h"
#include "tensor/packed.h"

/* the emulated plugin, linked into this program */
extern const struct cuda_api trainerd_cuda_plugin;

static const struct cuda_api *cuda;
static struct cuda_stream *stream;
static struct err err;

static void must(int rc)
{
    if (rc < 0)
        fail_msg("%s", err.text);
}

static int open_gpu(void **state)
{
    (void)state;
    cuda = &trainerd_cuda_plugin;
    if (getenv("TRAINERD_TEST_CUDA") != NULL)
        must(device_plugin(&cuda, &err));
    must(cuda->enter(0, &err));
    must(cuda->stream_open(CUDA_HIGH_PRIORITY, &stream, &err));
    return 0;
}

static int close_gpu(void **state)
{
    (void)state;
    cuda->stream_close(stream);
    return 0;
}

static void *upload(const void *from, size_t bytes)
{
    void *p;

    must(cuda->alloc(&p, bytes, &err));
    must(cuda->copy(p, from, bytes, stream, &err));
    must(device_wait(cuda, stream, NULL, NULL, &err));
    return p;
}

static void fetch(void *to, const void *there, size_t bytes)
{
    must(cuda->copy(to, there, bytes, stream, &err));
    must(device_wait(cuda, stream, NULL, NULL, &err));
}

/* The generator of test/optim. */
static float draw(uint32_t *x)
{
    *x = 1664525 * *x + 1013904223;
    return (float)(*x >> 8) / (1 << 24) - 0.5f;
}

static void draw_all(uint32_t *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = draw(x);
}

/* ---- an arena: weights, gradient, slots, average, with gaps that must stay unchanged ---- */

enum { GAP_BITS = 0x7fc12345, ARRAYS = 6, MOST = 9 * OPTIM_BLOCK };
enum { W, G, SLOT, AVERAGE = 5 };
static float host[ARRAYS][MOST], back[ARRAYS][MOST];

/* A single float, fewer than four floats at every offset, whole chunks, several chunks, incomplete
 * ends. */
static const struct optim_param params[] = {
    { 0, 1, 1, 0.01, true, NULL, false, 0, false, 0, 0 },
    { 3, 9, 1, 0.01, true, NULL, false, 0, false, 0, 0 },
    { 13, 2, 0.5, 0, true, NULL, false, 0, false, 0, 0 },
    { 16, 64, 0.5, 0, true, NULL, false, 0, false, 0, 0 },
    { OPTIM_BLOCK, OPTIM_BLOCK, 1, 0.02, true, NULL, false, 0, false, 0, 0 },
    /* three stretches of one parameter; its other floats do not train */
    { 2 * OPTIM_BLOCK + 32, 2 * OPTIM_BLOCK + 3, 1, 0.01, true, NULL, false, 0, false, 0, 0 },
    { 4 * OPTIM_BLOCK + 47, 90, 1, 0.01, true, NULL, false, 2 * OPTIM_BLOCK + 15, false, 0, 0 },
    { 5 * OPTIM_BLOCK + 32, 2 * OPTIM_BLOCK + 777, 1, 0.01, true, NULL, false, 3 * OPTIM_BLOCK, false, 0, 0 },
    { 7 * OPTIM_BLOCK + 1009, 300, 2, 0.01, false, NULL, false, 0, false, 0, 0 },
};
static const struct cuda_statistic statistics[] = {
    { 7 * OPTIM_BLOCK + 1312, 64, 0.9f },
    { 7 * OPTIM_BLOCK + 1376, 5001, 0.99f },
};
enum { N_PARAMS = sizeof(params) / sizeof(*params), N_STATISTICS = 2 };

static bool is_in(size_t i, bool with_statistics)
{
    for (size_t k = 0; k < N_PARAMS; k++)
        if (i >= params[k].first && i < params[k].first + params[k].n)
            return true;
    for (size_t k = 0; k < N_STATISTICS && with_statistics; k++)
        if (i >= statistics[k].first && i < statistics[k].first + statistics[k].n)
            return true;
    return false;
}

static void fill_arena(uint32_t *x, size_t from, size_t to)
{
    const uint32_t bits = GAP_BITS;

    for (size_t a = from; a < to; a++)
        for (size_t i = 0; i < MOST; i++)
            if (is_in(i, true))
                host[a][i] = a < SLOT ? draw(x) : a == AVERAGE ? 0.125f : 0;
            else
                memcpy(&host[a][i], &bits, sizeof(bits));
}

static struct optim_state state_of(float (*arrays)[MOST], const struct optim_def *def,
                                   const struct optim_hyper *h, bool averages)
{
    struct optim_state s = { .w = arrays[W], .g = arrays[G], .average = averages ? arrays[AVERAGE] : NULL };

    for (uint32_t k = 0; k < def->n_slots; k++)
        s.slots[k] = optim_uses(def, h, k) ? arrays[SLOT + k] : NULL;
    return s;
}

static void step_on_cpu(struct optim *o, const struct optim_hyper *h, const struct optim_state *s,
                        float share, bool averages)
{
    if (optim_needs_norms(o))
        optim_measure(o, 0, h, s);
    optim_update(o, 0, h, s);
    for (size_t k = 0; k < N_STATISTICS; k++)
        for (size_t i = statistics[k].first; i < statistics[k].first + statistics[k].n; i++) {
            float keep = statistics[k].keep;

            s->w[i] = keep * s->w[i] + (1.0f - keep) * (s->g[i] * share);
            if (averages)
                s->average[i] = s->w[i];
        }
}

/* Results differ only by rounding: a GPU fuses multiplication and addition. */
static void compare_arenas(const char *who, uint64_t step)
{
    for (size_t a = 0; a < ARRAYS; a++)
        for (size_t i = 0; i < MOST; i++) {
            double x = host[a][i], y = back[a][i];

            if (!is_in(i, true) ? memcmp(&host[a][i], &back[a][i], sizeof(float)) != 0
                                : !(fabs(x - y) <= 1e-6 * (1 + fabs(x))))
                fail_msg("%s, step %d, array %zu, float %zu: %.9g, on a CPU %.9g", who, (int)step,
                         a, i, y, x);
        }
}

static void compare_row(const struct optim_def *def, double momentum, bool flag, double average)
{
    struct optim_opts opts = { .def = def, .params = params, .n_params = N_PARAMS, .n_parts = 1,
                               .average = average };
    struct optim *o;
    struct cuda_optim *c;
    float(*arrays)[MOST];
    uint32_t x = 3;

    fill_arena(&x, 0, ARRAYS);
    must(optim_new(&opts, &o, &err));
    must(cuda->math->optim_open(&opts, statistics, N_STATISTICS, &c, &err));
    arrays = upload(host, sizeof(host));
    for (uint64_t step = 1; step <= 4; step++) {
        struct optim_hyper h = { .learning_rate = 0.013, .momentum = momentum, .beta1 = 0.9, .beta2 = 0.97,
                                 .epsilon = 1e-7, .trust_coefficient = 0.02, .nesterov = flag,
                                 .centered = flag, .step = step, .grad_scale = 0.37f };
        struct optim_state here = state_of(host, def, &h, average > 0);
        struct optim_state there = state_of(arrays, def, &h, average > 0);

        fill_arena(&x, G, G + 1);
        must(cuda->copy(arrays[G], host[G], sizeof(host[G]), stream, &err));
        must(cuda->math->optim_update(c, &h, &there, 0.25f, stream, &err));
        fetch(back, arrays, sizeof(back));
        step_on_cpu(o, &h, &here, 0.25f, average > 0);
        compare_arenas(def->name, step);
    }
    cuda->math->optim_close(c);
    optim_free(o);
    cuda->free(arrays);
}

static void every_optimizer_on_gpu_matches_cpu(void **state)
{

    (void)state;
    for (size_t k = 0; k < OPTIM_TYPES; k++)
        for (int way = 0; way < 4; way++) {
            if (way > 0 && k != OPTIM_MOMENTUM && k != OPTIM_RMSPROP)
                continue; /* the others have only one form */
            compare_row(optim_get(k), way & 1 ? 0 : 0.9, (way & 2) != 0, way == 0 ? 0.9 : 0);
        }
}

static void hundred_steps_match_pytorch(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof(references) / sizeof(*references); r++) {
        const struct reference *ref = &references[r];
        const struct optim_param two[] = {
            { 0, REFERENCE_FIRST, 1, ref->decay, true, NULL, false, 0, false, 0, 0 },
            { REFERENCE_FIRST, REFERENCE_N - REFERENCE_FIRST, ref->factor, ref->decay2, true, NULL, false, 0, false, 0, 0 },
        };
        struct optim_opts opts = { .def = optim_named(ref->optimizer), .params = two, .n_params = 2,
                                   .n_parts = 1 };
        float a[5][32] = { { 0 } }, (*arrays)[32];
        struct cuda_scan *look = upload(&(struct cuda_scan){ 0 }, sizeof(*look)), seen;
        struct cuda_optim *c;
        uint32_t x = ref->seed;
        size_t shown = 0;

        draw_all(&x, a[W], REFERENCE_N);
        arrays = upload(a, sizeof(a));
        must(cuda->math->optim_open(&opts, NULL, 0, &c, &err));
        for (uint64_t step = 1; step <= REFERENCE_STEPS; step++) {
            struct optim_hyper h = { .learning_rate = ref->rate, .momentum = ref->momentum,
                                     .beta1 = ref->beta1, .beta2 = ref->beta2, .epsilon = ref->epsilon,
                                     .trust_coefficient = ref->trust, .nesterov = ref->nesterov,
                                     .centered = ref->centered, .step = step };
            struct optim_state s = { .w = arrays[W], .g = arrays[G],
                                     .slots = { arrays[SLOT], arrays[SLOT + 1], arrays[SLOT + 2] } };

            draw_all(&x, a[G], REFERENCE_N);
            must(cuda->copy(arrays[G], a[G], sizeof(a[G]), stream, &err));
            must(cuda->math->optim_scan(c, arrays[G], (float)ref->clip_value, look, stream, &err));
            fetch(&seen, look, sizeof(seen));
            h.grad_scale = optim_clip(sqrt(seen.squares), ref->clip);
            must(cuda->math->optim_update(c, &h, &s, 1, stream, &err));
            if (step != reference_shown[shown])
                continue;
            fetch(a[W], arrays[W], sizeof(a[W]));
            for (size_t i = 0; i < REFERENCE_N; i++)
                if (!(fabs((double)a[W][i] - (double)ref->weights[shown][i]) <=
                      5e-7 + 8e-9 * (double)step))
                    fail_msg("%s, step %d, weight %zu: %.9g, expected %.9g", ref->what, (int)step,
                             i, (double)a[W][i], (double)ref->weights[shown][i]);
            shown++;
        }
        assert_int_equal(shown, REFERENCE_SHOWN);
        cuda->math->optim_close(c);
        cuda->free(arrays);
        cuda->free(look);
    }
}

/* ---- tables: rows without marks ---- */

enum { TABLES = 6, TABLE_FLOATS = 4 * OPTIM_BLOCK };

static const struct packed_table shapes[TABLES] = {
    { .rows = 130, .width = 1 }, { .rows = 77, .width = 3 },     { .rows = 40, .width = 5 },
    { .rows = 300, .width = 8 }, { .rows = 2, .width = 4099 }, { .rows = 70, .width = 64 },
};

struct marked {
    struct packed_table tables[TABLES];
    struct optim_param params[TABLES + 1]; /* tables with gaps before them; one dense parameter */
    size_t n_words;
    void *memory;
    struct packed rows;
    float read[64 * 32], values[TABLE_FLOATS];
    float host[ARRAYS][TABLE_FLOATS], back[ARRAYS][TABLE_FLOATS], before[ARRAYS][TABLE_FLOATS];
};

static void init_marked(struct marked *m, bool lazy, double decay)
{
    size_t at = 1;

    memcpy(m->tables, shapes, sizeof(shapes));
    m->n_words = packed_layout(m->tables, TABLES);
    assert_true(64 * m->n_words <= sizeof(m->read) / sizeof(*m->read));
    m->memory = calloc(1, packed_bytes(TABLES, m->n_words));
    assert_non_null(m->memory);
    m->rows = packed_init(m->tables, TABLES, m->n_words, m->memory);
    for (uint32_t t = 0; t < TABLES; t++) {
        m->params[t] = (struct optim_param){ .first = at, .n = m->tables[t].rows * m->tables[t].width,
                                             .rate_factor = 1, .weight_decay = decay, .adapts = true,
                                             .table = &m->tables[t], .lazy = lazy };
        at += m->params[t].n + 1 + 2 * t;
    }
    m->params[TABLES] = (struct optim_param){ .first = at, .n = 33, .rate_factor = 1, .adapts = true };
    assert_true(at + 33 <= TABLE_FLOATS);
}

/* Draws the marks and gradients of a step. For rows without marks, the GPU has NaN instead of zero,
 * because it must not read them. */
static void draw_marks(struct marked *m, uint32_t *x, bool rests)
{
    size_t n = 0;

    packed_clear(&m->rows);
    memset(m->read, 0, sizeof(m->read));
    memset(m->host[G], 0, sizeof(m->host[G]));
    for (uint32_t t = 0; t < TABLES; t++)
        for (size_t r = 0; r < m->tables[t].rows; r++) {
            const struct packed_rows rows = { .marks = m->rows.marks + m->tables[t].first_word };
            float *g = m->host[G] + m->params[t].first + r * m->tables[t].width;
            bool is_read = draw(x) > 0;

            if (is_read) {
                packed_mark(&rows, r);
                m->read[64 * m->tables[t].first_word + r] = 1 + (float)(r % 3); /* counts lanes */
                draw_all(x, g, m->tables[t].width);
                memcpy(m->values + n, g, m->tables[t].width * sizeof(float));
                n += m->tables[t].width;
            }
            for (size_t k = 0; !is_read && rests && k < m->tables[t].width; k++)
                g[k] = NAN;
        }
    draw_all(x, m->host[G] + m->params[TABLES].first, m->params[TABLES].n);
    packed_index(&m->rows);
    assert_int_equal(packed_floats(&m->rows), n);
}

static void compare_marked(const struct marked *m, const char *who, bool rests)
{
    for (uint32_t p = 0; p <= TABLES; p++)
        for (size_t i = 0; i < m->params[p].n; i++)
            for (size_t a = 0; a < ARRAYS; a++) {
                size_t at = m->params[p].first + i;
                double x = m->host[a][at], y = m->back[a][at];
                bool is_still = rests && p < TABLES && a != AVERAGE &&
                                m->read[64 * m->tables[p].first_word + i / m->tables[p].width] == 0;

                if (a == G)
                    continue;
                if (!(fabs(x - y) <= 1e-6 * (1 + fabs(x))))
                    fail_msg("%s, table %u, float %zu, array %zu: %.9g, on a CPU %.9g", who, p, i,
                             a, y, x);
                if (is_still && memcmp(&m->back[a][at], &m->before[a][at], sizeof(float)) != 0)
                    fail_msg("%s, table %u, float %zu, array %zu has moved", who, p, i, a);
            }
}

static void compare_tables(const struct optim_def *def, bool lazy, double decay, double average)
{
    struct marked *m = calloc(1, sizeof(*m));
    struct optim_opts opts = { .def = def, .n_params = TABLES + 1, .n_parts = 1, .average = average };
    struct optim_hyper h = { .learning_rate = 0.013, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.97,
                             .epsilon = 1e-7, .grad_scale = 0.37f };
    struct optim *o;
    struct cuda_optim *c;
    float(*there)[TABLE_FLOATS], *read;
    uint32_t x = 17;
    bool rests;

    assert_non_null(m);
    init_marked(m, lazy, decay);
    opts.params = m->params;
    must(optim_new(&opts, &o, &err));
    must(cuda->math->optim_open(&opts, NULL, 0, &c, &err));
    draw_all(&x, m->host[W], TABLE_FLOATS);
    there = upload(m->host, sizeof(m->host));
    read = upload(m->read, sizeof(m->read));
    rests = optim_skipping_tables(o, &h) == TABLES;
    assert_int_equal(rests, lazy || (decay == 0 && def->skips_zero != NULL));
    for (h.step = 1; h.step <= 3; h.step++) {
        struct optim_state here = { .w = m->host[W], .g = m->host[G], .packed = &m->rows, .values = m->values,
                                    .average = average > 0 ? m->host[AVERAGE] : NULL };
        struct optim_state on_gpu = { .w = there[W], .g = there[G], .read = read,
                                      .average = average > 0 ? there[AVERAGE] : NULL };

        for (uint32_t k = 0; k < def->n_slots; k++)
            if (optim_uses(def, &h, k)) {
                here.slots[k] = m->host[SLOT + k];
                on_gpu.slots[k] = there[SLOT + k];
            }
        draw_marks(m, &x, rests);
        must(cuda->copy(there[G], m->host[G], sizeof(m->host[G]), stream, &err));
        must(cuda->copy(read, m->read, sizeof(m->read), stream, &err));
        fetch(m->before, there, sizeof(m->before));
        must(cuda->math->optim_update(c, &h, &on_gpu, 1, stream, &err));
        fetch(m->back, there, sizeof(m->back));
        if (optim_needs_norms(o))
            optim_measure(o, 0, &h, &here);
        optim_update(o, 0, &h, &here);
        compare_marked(m, def->name, rests);
    }
    cuda->math->optim_close(c);
    cuda->free(there);
    cuda->free(read);
    optim_free(o);
    free(m->memory);
    free(m);
}

static void unread_rows_stay_unchanged_as_on_cpu(void **state)
{

    (void)state;
    for (size_t k = 0; k < OPTIM_TYPES; k++)
        for (int way = 0; way < 6; way++)
            if (way % 2 == 0 || optim_get(k)->measure == NULL) /* optimizers with norms cannot be lazy */
                compare_tables(optim_get(k), way % 2 == 1, way / 2 == 1 ? 0.01 : 0,
                               way / 2 == 2 ? 0.9 : 0);
}

/* ---- scan ---- */

static struct cuda_scan scan(const float *x, size_t n)
{
    static struct cuda_scan garbage[64];
    struct cuda_scan seen, *there;
    float *gpu = upload(x, n * sizeof(*x));

    memset(garbage, 0x5A, sizeof(garbage));
    assert_true(cuda_scan_count(n) <= 64);
    there = upload(garbage, cuda_scan_count(n) * sizeof(*there));
    must(cuda->math->scan(gpu, n, there, stream, &err));
    fetch(&seen, there, sizeof(seen));
    cuda->free(there);
    cuda->free(gpu);
    return seen;
}

static void scan_matches_squares_and_checksum_of_cpu(void **state)
{
    static const size_t sizes[] = { 0, 1, 3, 4, 15, 16, 17, 1023, 4095, 4096, 4097, 16384, 16385, 100003 };
    static float x[100003];
    uint32_t seed = 9;

    (void)state;
    draw_all(&seed, x, 100003);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        struct cuda_scan seen = scan(x, sizes[s]), again = scan(x, sizes[s]);
        double squares = 0;
        bool finite = true;

        for (size_t i = 0; i < sizes[s]; i++)
            squares += (double)x[i] * (double)x[i];
        assert_int_equal(seen.checksum, checksum_part(x, sizes[s], 0, &finite));
        assert_true(fabs(seen.squares - squares) <= 1e-12 * squares);
        assert_int_equal(seen.non_finite, 0);
        assert_memory_equal(&seen, &again, sizeof(seen));
    }
}

static void scan_of_words_with_all_bits_does_not_overflow(void **state)
{
    static const uint32_t words[] = { 0xffffffff, 0xffff0000, 0x7f7fffff, 0x80000001, 0x0000ffff };
    static float x[5 * 4096 + 7];

    (void)state;
    for (size_t k = 0; k < 5; k++) {
        struct cuda_scan seen;
        bool finite = true;

        for (size_t i = 0; i < 5 * 4096 + 7; i++)
            memcpy(&x[i], &words[k], sizeof(x[i]));
        seen = scan(x, 5 * 4096 + 7);
        assert_int_equal(seen.checksum, checksum_part(x, 5 * 4096 + 7, 0, &finite));
        assert_int_equal(seen.non_finite == 0, finite);
    }
}

static void scan_finds_non_finite_number_at_any_position(void **state)
{
    static const uint32_t bad[] = { 0x7f800000, 0xff800000, 0x7fc00000, 0xff800001 };
    static float x[16384 + 4096 + 5];
    enum { N = 16384 + 4096 + 5 };

    (void)state;
    for (size_t i = 0; i < N; i += i < 8 || i + 9 > N ? 1 : 1501) {
        memcpy(&x[i], &bad[i % 4], sizeof(x[i]));
        assert_int_not_equal(scan(x, N).non_finite, 0);
        x[i] = 0;
    }
    assert_int_equal(scan(x, N).non_finite, 0);
}

struct pass {
    uint32_t sum;
    bool finite;
};

static void add_stretch(void *arg, size_t at, const float *g, size_t n)
{
    struct pass *p = arg;

    p->sum = checksum_add(p->sum, checksum_part(g, n, at, &p->finite));
}

/* The gaps of the arena contain NaN and must be ignored. */
static void gradient_scan_with_clip_limits_gradients_as_on_cpu(void **state)
{
    struct optim_opts opts = { .def = optim_get(OPTIM_SGD), .params = params, .n_params = N_PARAMS,
                               .n_parts = 1 };
    struct cuda_scan *there = upload(&(struct cuda_scan){ 0 }, sizeof(*there)), seen;
    struct optim_state s = { .g = host[G] };
    struct optim *o;
    struct cuda_optim *c;
    uint32_t x = 12;

    (void)state;
    must(optim_new(&opts, &o, &err));
    must(cuda->math->optim_open(&opts, statistics, N_STATISTICS, &c, &err));
    for (int way = 0; way < 4; way++) {
        float clip = way % 2 == 0 ? 0 : 0.3f, *g;
        struct pass p = { .finite = true };
        double squares;

        fill_arena(&x, G, G + 1);
        if (way == 2)
            host[G][statistics[1].first + 5000] = -INFINITY;
        if (way == 3)
            /* a non-finite gradient is found although gradients are limited */
            host[G][params[5].first + 5] = INFINITY;
        optim_each(o, 0, &s, add_stretch, &p);
        for (size_t k = 0; k < N_STATISTICS; k++)
            add_stretch(&p, statistics[k].first, host[G] + statistics[k].first, statistics[k].n);
        g = upload(host[G], sizeof(host[G]));
        must(cuda->math->optim_scan(c, g, clip, there, stream, &err));
        fetch(&seen, there, sizeof(seen));
        fetch(back[G], g, sizeof(back[G]));
        cuda->free(g);
        if (clip > 0)
            optim_clip_values(o, 0, &s, clip);
        assert_memory_equal(host[G], back[G], sizeof(host[G]));
        optim_measure_gradient(o, 0, &s);
        squares = pow(optim_gradient_norm(o, 0), 2);
        assert_int_equal(seen.checksum, p.sum);
        assert_int_equal(seen.non_finite == 0, p.finite);
        assert_true(p.finite == (way < 2));
        assert_true(fabs(seen.squares - squares) <= 1e-12 * squares);
    }
    cuda->math->optim_close(c);
    optim_free(o);
    cuda->free(there);
}

/* A NaN is not limited, and reaches the weights. */
static void non_finite_gradients_propagate_as_on_cpu(void **state)
{
    const struct optim_param p = { .n = 5, .rate_factor = 1, .adapts = true };

    (void)state;
    for (size_t k = 0; k < OPTIM_TYPES; k++) {
        struct optim_opts opts = { .def = optim_get(k), .params = &p, .n_params = 1, .n_parts = 1 };
        struct optim_hyper h = { .learning_rate = 0.1, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.9,
                                 .trust_coefficient = 0.1, .step = 1, .grad_scale = 1 };
        /* 0 / 0 if epsilon is 0 and there never was a gradient */
        float a[5][16] = { { 1, 1, 1, 1, 1 }, { 0, NAN, 1, INFINITY, -INFINITY } }, b[5][16];
        float(*arrays)[16] = upload(a, sizeof(a));
        struct optim_state here = { .w = a[W], .g = a[G], .slots = { a[2], a[3], a[4] } };
        struct optim_state there = { .w = arrays[W], .g = arrays[G],
                                     .slots = { arrays[2], arrays[3], arrays[4] } };
        struct optim *o;
        struct cuda_optim *c;

        must(optim_new(&opts, &o, &err));
        must(cuda->math->optim_open(&opts, NULL, 0, &c, &err));
        must(cuda->math->optim_update(c, &h, &there, 1, stream, &err));
        fetch(b, arrays, sizeof(b));
        if (optim_needs_norms(o))
            optim_measure(o, 0, &h, &here);
        optim_update(o, 0, &h, &here);
        for (size_t i = 0; i < 5 * 16; i++) {
            float x = a[i / 16][i % 16], y = b[i / 16][i % 16];

            if (isnan(x) ? !isnan(y) : isinf(x) ? x != y : !(fabsf(x - y) <= 1e-6f))
                fail_msg("%s, array %zu, float %zu: %g, on a CPU %g", optim_get(k)->name, i / 16,
                         i % 16, (double)y, (double)x);
        }
        cuda->math->optim_close(c);
        optim_free(o);
        cuda->free(arrays);
    }
}

static void optimizer_without_parameters_is_valid(void **state)
{
    struct optim_opts opts = { .def = optim_get(OPTIM_LAMB), .n_parts = 1 };
    struct cuda_scan *there = upload(&(struct cuda_scan){ 7, 7, 7 }, sizeof(*there)), seen;
    struct optim_hyper h = { .step = 1, .beta1 = 0.9, .beta2 = 0.9, .grad_scale = 1 };
    struct optim_state s = { 0 };
    struct cuda_optim *c;

    (void)state;
    must(cuda->math->optim_open(&opts, NULL, 0, &c, &err));
    must(cuda->math->optim_scan(c, NULL, 0, there, stream, &err));
    must(cuda->math->optim_update(c, &h, &s, 1, stream, &err));
    fetch(&seen, there, sizeof(seen));
    assert_true(seen.squares == 0 && seen.checksum == 0 && seen.non_finite == 0);
    cuda->math->optim_close(c);
    cuda->free(there);
}

static void optimizer_without_gpu_kernel_is_rejected_by_name(void **state)
{
    const struct optim_def strange = { .type = OPTIM_TYPES, .name = "strange" };
    struct optim_opts opts = { .def = &strange, .n_parts = 1 };
    struct cuda_optim *c;

    (void)state;
    assert_int_equal(cuda->math->optim_open(&opts, NULL, 0, &c, &err), ERR_DEVICE);
    assert_string_equal(err.text, "optimizer strange on the GPU: there are no kernels for it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_optimizer_on_gpu_matches_cpu),
        cmocka_unit_test(unread_rows_stay_unchanged_as_on_cpu),
        cmocka_unit_test(hundred_steps_match_pytorch),
        cmocka_unit_test(scan_matches_squares_and_checksum_of_cpu),
        cmocka_unit_test(scan_of_words_with_all_bits_does_not_overflow),
        cmocka_unit_test(scan_finds_non_finite_number_at_any_position),
        cmocka_unit_test(gradient_scan_with_clip_limits_gradients_as_on_cpu),
        cmocka_unit_test(non_finite_gradients_propagate_as_on_cpu),
        cmocka_unit_test(optimizer_without_parameters_is_valid),
        cmocka_unit_test(optimizer_without_gpu_kernel_is_rejected_by_name),
    };

    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
