/* The codes on a GPU (code/code_cuda.cuh) against those on CPUs, byte by byte: an emulated GPU, or with
 * TRAINERD_TEST_CUDA=1 the first GPU that the plugin finds. The CPU's are compared with numpy in test_code.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "code/gpu_kit.h"
#include "code/map.h"
#include "comm/coded_tree.h"
#include "comm/reduce.h"
#include "harness/emulated_gpus.h"

enum {
    BLOCKS = 44,
    REST = 77, /* numbers after the last whole block */
    N = BLOCKS * CODE_BLOCK + REST,
    FIRST = 3,  /* the first block of the part that the kernels receive */
    PART = N - FIRST * CODE_BLOCK,
    RANKS = 5,
    LANES = 16,
    GROUPS = 4,
};

static const struct code_key key = { .seed = 0x0123456789abcdefu, .step = 77, .place = 3 };

/* ---- numbers ---- */

static uint64_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 20;
}

static void fill_spread(float *x, size_t n, int base, int spread, uint64_t *s)
{
    for (size_t i = 0; i < n; i++) {
        double size = ldexp(1 + (double)(next(s) % (1 << 23)) / (1 << 23),
                            base + (int)(next(s) % (unsigned)spread));

        x[i] = (float)(next(s) % 2 == 0 ? size : -size);
        if (next(s) % 16 == 0)
            x[i] = 0;
    }
}

/* Blocks with all exponents, halfway numbers, equal numbers, subnormal numbers, the largest, NaN and infinity. */
static void fill(float *x, size_t n, uint64_t seed)
{
    static const int bases[] = { -149, -130, -101, -100, -99, -20, -1, 0, 13, 100, 126 };
    static const float equal[] = { 0, -0.0f, 1, -1.5f, 1e-30f, 0.99e-30f, 1e-45f, 3.4e38f, NAN, INFINITY, -INFINITY };
    uint64_t s = seed;

    for (size_t b = 0; b * CODE_BLOCK < n; b++) {
        float *block = x + b * CODE_BLOCK;
        size_t m = n - b * CODE_BLOCK < CODE_BLOCK ? n - b * CODE_BLOCK : CODE_BLOCK;

        if (b % 4 == 3) {
            for (size_t i = 0; i < m; i++)
                block[i] = equal[b / 4 % (sizeof(equal) / sizeof(equal[0]))];
            continue;
        }
        fill_spread(block, m, bases[next(&s) % (sizeof(bases) / sizeof(bases[0]))],
                    1 + (int)(next(&s) % 2), &s);
        if (b % 7 == 0) /* halfway numbers, with scale 1 of int8 */
            for (size_t i = 0; i < m; i++)
                block[i] = i == 0 ? 127 : (float)(i % 127) + 0.5f;
        if (b % 11 == 5)
            block[next(&s) % m] = b % 2 == 0 ? NAN : -INFINITY;
    }
}

/* NaN has other bits on a GPU. */
static void expect_floats(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof(got[i])) != 0 && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s: number %zu is %a, expected %a", what, i, (double)got[i], (double)want[i]);
}

/* ---- a code ---- */

static struct code {
    struct code_map map;
    struct cuda_code gpu;
    uint32_t *before;
    uint64_t *step;
} code;

static void open_code(enum code_kind kind)
{
    const uint64_t step = key.step + (UINT64_C(1) << 32); /* the low 32 bits count */

    MUST(code_map_open(&code.map, kind, N, &err));
    code_map_raw(&code.map, 5 * CODE_BLOCK + 9, 6 * CODE_BLOCK + 1);
    code_map_raw(&code.map, 20 * CODE_BLOCK, 21 * CODE_BLOCK);
    code_map_index(&code.map);
    code.before = to_gpu(code.map.before, (code.map.n_blocks + 1) * sizeof(*code.before));
    code.step = to_gpu(&step, sizeof(step));
    code.gpu = (struct cuda_code){ .kind = kind, .before = code.before, .n_blocks = code.map.n_blocks,
                                   .seed = key.seed, .step = code.step };
    MUST(device_wait(cuda, stream, NULL, NULL, &err));
}

static void close_code(void)
{
    cuda->free(code.before);
    cuda->free(code.step);
    code_map_close(&code.map);
}

/* The message of a part with codes[n_codes], and the floats of the other blocks of x. Returns its bytes. */
static size_t message(const uint8_t *const *codes, uint32_t n_codes, const float *x, size_t begin,
                      size_t n, uint8_t *out)
{
    uint8_t *at = out;

    for (uint32_t g = 0; g < n_codes; g++) {
        size_t bytes = code_map_coded_bytes(&code.map, begin, begin + n);

        memcpy(at, codes[g] + code_map_coded_before(&code.map, begin), bytes);
        at += bytes;
    }
    for (size_t i = 0; i < n; i++)
        if (n_codes == 0 || !code_map_is_coded(&code.map, (begin + i) / CODE_BLOCK)) {
            memcpy(at, &x[i], sizeof(*x));
            at += sizeof(*x);
        }
    return (size_t)(at - out);
}

/* ---- the tests ---- */

/* Replaces x [PART], the numbers from block FIRST on, by rounded ones; codes [N floats] of the whole vector. */
static void round_on_gpu(float *x, uint32_t place, uint8_t *codes)
{
    float *there = to_gpu(x, PART * sizeof(*x));
    uint8_t *kept = to_gpu(codes, N * sizeof(float));
    const struct cuda_code_part p = { .x = there, .begin = FIRST * CODE_BLOCK, .n = PART };

    MUST(cuda->math->code_round(&code.gpu, &p, place, kept, stream, &err));
    from_gpu(x, there, PART * sizeof(*x));
    from_gpu(codes, kept, N * sizeof(float));
    cuda->free(there);
    cuda->free(kept);
}

static void round_on_cpu(float *x, uint32_t place, uint8_t *codes)
{
    struct code_key k = key;

    k.place = place;
    code_map_round(&code.map, &k, x, FIRST * CODE_BLOCK, N,
                   codes + code_map_coded_before(&code.map, FIRST * CODE_BLOCK));
}

static void codes_have_the_bytes_of_the_cpu(void **state)
{
    static float x[PART], y[PART];
    static uint8_t want[N * sizeof(float)], got[N * sizeof(float)];

    (void)state;
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            open_code((enum code_kind)kind);
            fill(x, PART, seed);
            memcpy(y, x, sizeof(y));
            memset(want, 0xa5, sizeof(want));
            memset(got, 0xa5, sizeof(got));
            round_on_cpu(x, (uint32_t)seed, want);
            round_on_gpu(y, (uint32_t)seed, got);
            assert_memory_equal(got, want, sizeof(got));
            expect_floats(y, x, PART, code_name((enum code_kind)kind));
            close_code();
        }
}

static void messages_are_joined_and_read(void **state)
{
    static float x[PART], y[PART], back[PART];
    static uint8_t codes[2][N * sizeof(float)], want[2 * N * sizeof(float)],
        got[2 * N * sizeof(float)];
    const uint8_t *const both[] = { codes[0], codes[1] };

    (void)state;
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++) {
        open_code((enum code_kind)kind);
        for (uint32_t g = 0; g < 2; g++) {
            fill(x, PART, 7 + g);
            round_on_cpu(x, g, codes[g]);
        }
        for (uint32_t n_codes = 1; n_codes <= 2; n_codes++) {
            size_t bytes = message(both, n_codes, x, FIRST * CODE_BLOCK, PART, want);
            float *there = to_gpu(x, sizeof(x));
            uint8_t *kept = to_gpu(codes, sizeof(codes)), *out = to_gpu(got, sizeof(got));
            struct cuda_code_part p = { .x = there, .begin = FIRST * CODE_BLOCK, .n = PART };

            MUST(cuda->math->code_join(&code.gpu, &p, kept, sizeof(codes[0]), n_codes, out, stream,
                                       &err));
            from_gpu(got, out, bytes);
            assert_memory_equal(got, want, bytes);
            if (n_codes == 1) {
                memcpy(y, x, sizeof(y));
                for (size_t b = FIRST; b < BLOCKS; b++)
                    if (code_map_is_coded(&code.map, b))
                        code_decode((enum code_kind)kind,
                                    codes[0] + code_map_coded_before(&code.map, b * CODE_BLOCK), 1,
                                    y + (b - FIRST) * CODE_BLOCK);
                MUST(cuda->math->code_read(&code.gpu, &p, out, stream, &err));
                from_gpu(back, there, sizeof(back));
                expect_floats(back, y, PART, code_name((enum code_kind)kind));
            }
            cuda->free(there);
            cuda->free(kept);
            cuda->free(out);
        }
        close_code();
    }
}

/* ---- sums ---- */

/* Ranks with two groups, a part of a group three times, and a group. */
static const uint32_t first_lane[RANKS + 1] = { 0, 8, 10, 11, 12, LANES };
static const uint32_t n_codes_of[RANKS] = { 2, 0, 0, 0, 1 };

static struct rank {
    float sums[2][PART]; /* of each group, rounded if it is whole; a part of a group: the first one */
    float x[PART];       /* the sum of the rank */
    uint8_t codes[2][N * sizeof(float)];
} ranks[RANKS];

static void make_ranks(void)
{
    for (uint32_t k = 0; k < RANKS; k++) {
        struct rank *r = &ranks[k];
        uint32_t parts = n_codes_of[k] > 1 ? n_codes_of[k] : 1;

        for (uint32_t g = 0; g < parts; g++) {
            uint64_t s = 10 * k + g + 1;

            fill_spread(r->sums[g], PART, -12, 20, &s);
            if (n_codes_of[k] > 0)
                round_on_cpu(r->sums[g], first_lane[k] / (LANES / GROUPS) + g, r->codes[g]);
        }
        for (size_t i = 0; i < PART; i++)
            r->x[i] = parts == 2 ? r->sums[0][i] + r->sums[1][i] : r->sums[0][i];
    }
}

/* The tree of lib/comm over all groups and parts, and the rounding of the whole sum. */
static void sum_on_cpu(float *out, uint8_t *codes)
{
    struct coded_source coded[RANKS + 1], raw[RANKS];
    uint32_t lanes[RANKS + 2], n = 0;
    struct coded_tree t = { .map = &code.map, .key = key, .group_lanes = LANES / GROUPS };

    for (uint32_t k = 0; k < RANKS; k++) {
        uint32_t parts = n_codes_of[k] > 1 ? n_codes_of[k] : 1;

        for (uint32_t g = 0; g < parts; g++, n++) {
            lanes[n] = first_lane[k] + g * (LANES / GROUPS);
            coded[n] = (struct coded_source){ ranks[k].sums[g], CODED_SUM };
        }
        raw[k] = (struct coded_source){ ranks[k].x, CODED_SUM };
    }
    lanes[n] = LANES;
    t.coded = (struct coded_sources){ coded, n, lanes };
    t.raw = (struct coded_sources){ raw, RANKS, first_lane };
    coded_tree_sum(&t, FIRST * CODE_BLOCK, N, out);
    round_on_cpu(out, GROUPS, codes);
}

static uint32_t make_leaves(uint32_t self, struct cuda_code_leaf *out, uint32_t *n_coded)
{
    uint32_t lanes[RANKS + 2], n = 0;
    uint8_t merges[RANKS + 1];

    for (uint32_t k = 0; k < RANKS; k++) {
        uint32_t parts = k != self && n_codes_of[k] > 1 ? n_codes_of[k] : 1;

        for (uint32_t g = 0; g < parts; g++, n++) {
            lanes[n] = first_lane[k] + g * (LANES / GROUPS);
            out[n] = (struct cuda_code_leaf){ .rank = k, .n_codes = (uint8_t)n_codes_of[k], .code = (uint8_t)g };
        }
    }
    lanes[n] = LANES;
    reduce_merges(lanes, n, merges);
    for (uint32_t i = 0; i < n; i++)
        out[i].merges = merges[i];
    /* lanes 8 to 11 are complete after the leaf of lane 11: (8 + 9) + (10 + 11) */
    for (uint32_t i = 0; i < n; i++)
        if (lanes[i] == 11) {
            out[i].rounds_at = 2;
            out[i].place = 2;
        }
    *n_coded = n;
    reduce_merges(first_lane, RANKS, merges);
    for (uint32_t k = 0; k < RANKS; k++)
        out[n + k] = (struct cuda_code_leaf){ .rank = k, .n_codes = (uint8_t)n_codes_of[k], .merges = merges[k] };
    return n + RANKS;
}

static void expect_sum_of(uint32_t self, const float *want, const uint8_t *want_message,
                          size_t bytes)
{
    enum { STRIDE = 2 * N * sizeof(float) / 16 * 16 };
    static uint8_t received[(RANKS - 1) * STRIDE], got_message[N * sizeof(float)];
    static float got[PART];
    struct cuda_code_leaf leaves[2 * RANKS + 1];
    uint32_t n_coded, n = make_leaves(self, leaves, &n_coded), at = 0;
    struct cuda_code_tree tree = { .stride = STRIDE, .n_coded = n_coded, .n_raw = RANKS, .self = self, .place = GROUPS };
    struct cuda_code_part p = { .begin = FIRST * CODE_BLOCK, .n = PART };
    uint8_t *out, *messages;

    for (uint32_t k = 0; k < RANKS; k++) {
        const uint8_t *const codes[] = { ranks[k].codes[0], ranks[k].codes[1] };

        if (k != self)
            (void)message(codes, n_codes_of[k], ranks[k].x, FIRST * CODE_BLOCK, PART,
                          received + STRIDE * at++);
    }
    messages = to_gpu(received, sizeof(received));
    tree.received = messages;
    tree.leaves = to_gpu(leaves, n * sizeof(*leaves));
    p.x = to_gpu(ranks[self].x, sizeof(got));
    out = to_gpu(got_message, sizeof(got_message));
    MUST(cuda->math->code_sum(&code.gpu, &p, &tree, out, stream, &err));
    from_gpu(got, p.x, sizeof(got));
    from_gpu(got_message, out, bytes);
    expect_floats(got, want, PART, "sum");
    assert_memory_equal(got_message, want_message, bytes);
    cuda->free(messages);
    cuda->free((void *)(uintptr_t)tree.leaves);
    cuda->free(p.x);
    cuda->free(out);
}

static void sums_follow_the_tree_over_lanes_with_its_roundings(void **state)
{
    static float want[PART];
    static uint8_t codes[N * sizeof(float)], want_message[N * sizeof(float)];
    const uint8_t *const one[] = { codes };

    (void)state;
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++) {
        size_t bytes;

        open_code((enum code_kind)kind);
        make_ranks();
        sum_on_cpu(want, codes);
        bytes = message(one, 1, want, FIRST * CODE_BLOCK, PART, want_message);
        for (uint32_t self = 0; self < RANKS; self += 2)
            expect_sum_of(self, want, want_message, bytes);
        close_code();
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_have_the_bytes_of_the_cpu),
        cmocka_unit_test(messages_are_joined_and_read),
        cmocka_unit_test(sums_follow_the_tree_over_lanes_with_its_roundings),
    };

    (void)argc;
    emulated_gpus(argv);
    open_gpu();
    return cmocka_run_group_tests_name("code/cuda", tests, NULL, NULL);
}
