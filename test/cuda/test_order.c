/* The exchanges of an all-reduce in the order of lanes (comm_exchange) and the additions
 * between them (math->add_tree), between 2 to 8 emulated GPUs of one process. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/cancel.h"
#include "base/check.h"
#include "base/err.h"
#include "comm/comm.h"
#include "comm/reduce.h"
#include "device/cuda.h"
#include "device/device.h"
#include "harness/wait.h"

extern const struct cuda_api trainerd_cuda_plugin;
#define CUDA (&trainerd_cuda_plugin)
#define MUST(call) CHECK((call) == 0)

enum { RANKS_MAX = 8, LANES_MAX = 24, N_MAX = 5000, GRAIN = 256 };

/* One sum; shared by the threads of the ranks. */
static struct play {
    uint32_t world, lanes;
    size_t n, first; /* the vector begins at this float of its memory */
    bool captured;
    uint32_t leaves[RANKS_MAX + 1];
    size_t borders[RANKS_MAX + 1];
    uint8_t merges[RANKS_MAX];
    unsigned char id[CUDA_ID_BYTES];
    float got[RANKS_MAX][N_MAX];
} play;

/* Fixed values of very different size and sign, so that every order of additions rounds differently. */
static float value(uint32_t lane, size_t i)
{
    return (float)(sin((double)(lane * 7919 + i * 31 + 1)) *
                   pow(10, (double)((lane + i) % 13) - 6));
}

/* The tree over lanes [first, end), level by level: neighbours are paired, and the odd one moves up. */
static float by_levels(uint32_t first, uint32_t end, size_t i)
{
    float v[LANES_MAX];
    uint32_t n = end - first;

    for (uint32_t k = 0; k < n; k++)
        v[k] = value(first + k, i);
    for (; n > 1; n = n / 2 + n % 2)
        for (uint32_t k = 0; k < n; k += 2)
            v[k / 2] = k + 1 == n ? v[k] : v[k] + v[k + 1];
    return v[0];
}

struct rank {
    uint32_t rank;
    struct cancel cancel;
    struct cuda_comm *comm;
    struct cuda_stream *stream;
    float *x, *received;
    uint8_t *merges;
    struct err err;
};

static void connect_rank(struct rank *r)
{
    int rc;

    MUST(CUDA->enter(r->rank, &r->err));
    MUST(CUDA->stream_open(CUDA_HIGH_PRIORITY, &r->stream, &r->err));
    MUST(CUDA->alloc((void **)&r->x, (N_MAX + 64) * sizeof(float), &r->err));
    MUST(CUDA->alloc((void **)&r->received, (N_MAX + 2 * GRAIN * RANKS_MAX) * sizeof(float),
                     &r->err));
    MUST(CUDA->alloc((void **)&r->merges, RANKS_MAX, &r->err));
    MUST(CUDA->comm_open(play.id, r->rank, play.world, &r->cancel, &r->comm, &r->err));
    WAIT_UNTIL((rc = CUDA->comm_state(r->comm, &r->err)) != 0);
    CHECK(rc == 1);
}

static size_t slice_bytes(uint32_t k)
{
    return (play.borders[k + 1] - play.borders[k]) * sizeof(float);
}

/* Sends each slice to its owner, or the own slice to all. */
static void exchange(struct rank *r, bool scatters)
{
    float *x = r->x + play.first, *own = x + play.borders[r->rank];
    struct cuda_exchange with[RANKS_MAX];

    for (uint32_t k = 0; k < play.world; k++) {
        float *slice = x + play.borders[k],
              *place =
                  (float *)((char *)r->received + slice_bytes(r->rank) * (k < r->rank ? k : k - 1));

        with[k] = (struct cuda_exchange){ .from = scatters ? slice : own,
                                          .from_bytes = slice_bytes(scatters ? k : r->rank),
                                          .to = scatters ? place : slice,
                                          .to_bytes = slice_bytes(scatters ? r->rank : k) };
    }
    MUST(CUDA->comm_exchange(r->comm, with, r->stream, &r->err));
}

static void reduce_in_order(struct rank *r)
{
    struct cuda_tree tree = { .own = r->x + play.first + play.borders[r->rank],
                              .others = r->received,
                              .stride = slice_bytes(r->rank) / sizeof(float),
                              .n = slice_bytes(r->rank) / sizeof(float),
                              .merges = r->merges,
                              .world = play.world,
                              .self = r->rank };

    exchange(r, true);
    MUST(CUDA->math->add_tree(&tree, r->stream, &r->err));
    exchange(r, false);
}

/* With a captured graph: once directly, then three launches. */
static void *run_rank(void *arg)
{
    struct rank *r = arg;
    float x[N_MAX];
    struct cuda_graph *graph = NULL;

    connect_rank(r);
    for (size_t i = 0; i < play.n; i++)
        x[i] = by_levels(play.leaves[r->rank], play.leaves[r->rank + 1], i);
    MUST(CUDA->copy(r->merges, play.merges, play.world, r->stream, &r->err));
    for (int k = 0; k < (play.captured ? 4 : 1); k++) {
        MUST(CUDA->copy(r->x + play.first, x, play.n * sizeof(float), r->stream, &r->err));
        if (k == 1) {
            MUST(CUDA->capture_begin(r->stream, &r->err));
            reduce_in_order(r);
            MUST(CUDA->capture_end(r->stream, &graph, &r->err));
        }
        if (graph != NULL)
            MUST(CUDA->launch(graph, r->stream, &r->err));
        else
            reduce_in_order(r);
        MUST(CUDA->copy(play.got[r->rank], r->x + play.first, play.n * sizeof(float), r->stream,
                        &r->err));
        MUST(device_wait(CUDA, r->stream, NULL, NULL, &r->err));
    }
    CUDA->graph_close(graph);
    MUST(CUDA->comm_close(r->comm, &r->err));
    CUDA->free(r->x);
    CUDA->free(r->received);
    CUDA->free(r->merges);
    CUDA->stream_close(r->stream);
    return NULL;
}

static void expect_tree(void)
{
    for (size_t i = 0; i < play.n; i++) {
        float want = by_levels(0, play.lanes, i);

        for (uint32_t k = 0; k < play.world; k++)
            if (memcmp(&play.got[k][i], &want, sizeof(want)) != 0)
                fail_msg(
                    "%u GPUs, %u lanes, %zu floats: float %zu of GPU %u is %a, the tree over lanes has %a",
                    play.world, play.lanes, play.n, i, k, (double)play.got[k][i], (double)want);
    }
}

static void run_play(uint32_t world, uint32_t lanes, size_t n, size_t first, bool captured)
{
    struct rank ranks[RANKS_MAX] = { 0 };
    pthread_t threads[RANKS_MAX];
    struct err err;

    play = (struct play){ .world = world, .lanes = lanes, .n = n, .first = first, .captured = captured };
    comm_share(NULL, lanes, world, play.leaves + 1);
    for (uint32_t k = 0; k < world; k++)
        play.leaves[k + 1] += play.leaves[k];
    reduce_merges(play.leaves, world, play.merges);
    for (uint32_t k = 1; k < world; k++) /* whole grains, as even as possible */
        play.borders[k] = n / GRAIN * k / world * GRAIN;
    play.borders[world] = n;
    MUST(CUDA->enter(0, &err));
    MUST(CUDA->comm_id(play.id, &err));
    for (uint32_t k = 0; k < world; k++) {
        ranks[k].rank = k;
        assert_int_equal(pthread_create(&threads[k], NULL, run_rank, &ranks[k]), 0);
    }
    for (uint32_t k = 0; k < world; k++)
        pthread_join(threads[k], NULL);
    expect_tree();
}

static void sums_of_any_number_of_gpus_follow_the_tree_over_lanes(void **state)
{
    (void)state;
    for (uint32_t world = 2; world <= RANKS_MAX; world++)
        run_play(world, 24, N_MAX, 0, false);
    run_play(3, 3, N_MAX, 0, false);
    run_play(8, 8, 4096, 0, false);
}

static void slices_may_be_empty_or_misaligned(void **state)
{
    (void)state;
    run_play(4, 8, 1, 0, false);    /* one slice has all */
    run_play(3, 12, 700, 0, false); /* the last slice is no multiple of four */
    run_play(2, 4, 3001, 1, false); /* no thread can read 16 bytes at a time */
}

static void captured_sums_follow_the_tree_at_every_launch(void **state)
{
    (void)state;
    run_play(3, 24, 2000, 0, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_any_number_of_gpus_follow_the_tree_over_lanes),
        cmocka_unit_test(slices_may_be_empty_or_misaligned),
        cmocka_unit_test(captured_sums_follow_the_tree_at_every_launch),
    };

    setenv("EMULATED_GPUS", "8", 1);
    return cmocka_run_group_tests_name("cuda/order", tests, NULL, NULL);
}
