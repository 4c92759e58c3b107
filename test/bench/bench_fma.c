/* bench_fma.c - measures the peak of the cores: GFLOP/s of independent multiply-adds.
 *
 *   bench_fma [THREADS]
 *
 * Prints "float32 X GFLOP/s" for a loop of independent multiply-adds in the widest registers, and
 * "bfloat16 Y GFLOP/s" for a product of large matrices with the kernel library, if it supports
 * bfloat16. All threads run at the same time, each pinned to its own core; the best of a few rounds
 * counts. */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "harness/product.h"
#include "op/op.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MAX_THREADS = 256, ROUNDS = 7, CHAINS = 12, LOOPS = 4000000, SIDE = 1024, PRODUCTS = 8 };

/* ---- multiply-adds: enough independent chains to hide the latency ---- */

/* Computes x = x * a + b repeatedly in CHAINS registers. Their sum is used, so that the compiler
 * does not remove the loop. */
#define CHAIN_LOOP(vector, set, fma, add)                                                          \
    vector x[CHAINS], a = set(0.999999f), b = set(1e-6f);                                          \
    for (int k = 0; k < CHAINS; k++)                                                               \
        x[k] = set((float)k);                                                                      \
    for (uint64_t i = 0; i < loops; i++) {                                                         \
        x[0] = fma(x[0], a, b), x[1] = fma(x[1], a, b), x[2] = fma(x[2], a, b);                    \
        x[3] = fma(x[3], a, b), x[4] = fma(x[4], a, b), x[5] = fma(x[5], a, b);                    \
        x[6] = fma(x[6], a, b), x[7] = fma(x[7], a, b), x[8] = fma(x[8], a, b);                    \
        x[9] = fma(x[9], a, b), x[10] = fma(x[10], a, b), x[11] = fma(x[11], a, b);                \
    }                                                                                              \
    for (int k = 1; k < CHAINS; k++)                                                               \
        x[0] = add(x[0], x[k]);                                                                    \
    memcpy(out, &x[0], sizeof(x[0]))

struct width { /* a loop, and the number of floats in one of its registers */
    void (*run)(uint64_t loops, float *out);
    int numbers;
};

#if defined(__x86_64__)
__attribute__((target("avx512f"), noinline)) static void run_avx512(uint64_t loops, float *out)
{
    CHAIN_LOOP(__m512, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps);
}

__attribute__((target("avx2,fma"), noinline)) static void run_avx2(uint64_t loops, float *out)
{
    CHAIN_LOOP(__m256, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps);
}
#endif

typedef float four __attribute__((vector_size(16)));
#define FOUR_SET(x) ((four){ x, x, x, x })
#if defined(__FP_FAST_FMAF)
#define FMAF __builtin_fmaf
#define FOUR_FMA(x, a, b)                                                                          \
    ((four){ FMAF(x[0], a[0], b[0]), FMAF(x[1], a[1], b[1]), FMAF(x[2], a[2], b[2]),               \
             FMAF(x[3], a[3], b[3]) })
#else
#define FOUR_FMA(x, a, b) ((x) * (a) + (b))
#endif
#define FOUR_ADD(x, y) ((x) + (y))

__attribute__((noinline)) static void run_plain(uint64_t loops, float *out)
{
    CHAIN_LOOP(four, FOUR_SET, FOUR_FMA, FOUR_ADD);
}

static struct width widest(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return (struct width){ run_avx512, 16 };
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (struct width){ run_avx2, 8 };
#endif
    return (struct width){ run_plain, 4 };
}

/* ---- threads ---- */

static pthread_barrier_t barrier;
static struct width width;

struct worker {
    pthread_t thread;
    int cpu;
    double fma[ROUNDS], matrix[ROUNDS]; /* seconds; matrix[0] is 0 if there is no kernel */
    float sink[16];
};

static double seconds_since(uint64_t begin)
{
    return (double)(clock_ns() - begin) / 1e9;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct product product;
    cpu_set_t set;
    bool fine;

    CPU_ZERO(&set);
    CPU_SET((size_t)w->cpu, &set);
    (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set); /* best effort */
    op_thread_init();
    fine = product_open(&product, TENSOR_BF16, SIDE) && product_run(&product);
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t begin;

        pthread_barrier_wait(&barrier);
        begin = clock_ns();
        width.run(LOOPS, w->sink);
        w->fma[r] = seconds_since(begin);
        pthread_barrier_wait(&barrier);
        begin = clock_ns();
        for (int i = 0; i < PRODUCTS && fine; i++)
            fine = product_run(&product);
        w->matrix[r] = fine ? seconds_since(begin) : 0;
    }
    product_close(&product);
    return NULL;
}

int main(int argc, char **argv)
{
    static struct worker workers[MAX_THREADS];
    double fma = 0, matrix = 0;
    cpu_set_t mine;
    int n = 0, wanted;

    if (sched_getaffinity(0, sizeof(mine), &mine) != 0) {
        perror("bench_fma: sched_getaffinity");
        return 1;
    }
    wanted = argc > 1 ? atoi(argv[1]) : CPU_COUNT(&mine);
    if (wanted < 1 || wanted > MAX_THREADS || wanted > CPU_COUNT(&mine)) {
        fprintf(stderr, "bench_fma: expected 1 to %d threads, found '%s'\n", CPU_COUNT(&mine),
                argc > 1 ? argv[1] : "");
        return 2;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE && n < wanted; cpu++)
        if (CPU_ISSET((size_t)cpu, &mine))
            workers[n++].cpu = cpu;
    width = widest();
    pthread_barrier_init(&barrier, NULL, (unsigned)n);
    for (int i = 0; i < n; i++)
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            perror("bench_fma: pthread_create");
            return 1; /* the waiting threads end with the process */
        }
    for (int i = 0; i < n; i++)
        pthread_join(workers[i].thread, NULL);
    for (int r = 0; r < ROUNDS; r++) {
        double speed[2] = { 0, 0 };

        for (int i = 0; i < n; i++) {
            speed[0] += 2.0 * LOOPS * CHAINS * width.numbers / workers[i].fma[r];
            if (workers[i].matrix[r] > 0)
                speed[1] += 2.0 * PRODUCTS * SIDE * SIDE * SIDE / workers[i].matrix[r];
        }
        fma = speed[0] > fma ? speed[0] : fma;
        matrix = speed[1] > matrix ? speed[1] : matrix;
    }
    printf("float32 %.1f GFLOP/s\n", fma / 1e9);
    if (matrix > 0)
        printf("bfloat16 %.1f GFLOP/s\n", matrix / 1e9);
    return 0;
}
