#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>

#include "base/gate.h"
#include "harness/wait.h"

enum { THREADS_MAX = 4 };

struct meeting {
    struct gate gate;
    uint32_t n, rounds;
    uint32_t next_id;
    uint64_t written[THREADS_MAX]; /* not atomic: only the gate orders the accesses */
    uint64_t wrong[THREADS_MAX];
    uint64_t passed[THREADS_MAX];
};

/* In each round, every thread writes the round's number, waits, reads the other threads' numbers,
 * and waits again. */
static void *run_rounds(void *arg)
{
    struct meeting *m = arg;
    uint32_t me = __atomic_fetch_add(&m->next_id, 1, __ATOMIC_RELAXED);

    for (uint64_t round = 1; round <= m->rounds; round++) {
        m->written[me] = round;
        if (!gate_wait(&m->gate))
            break;
        for (uint32_t other = 0; other < m->n; other++)
            m->wrong[me] += m->written[other] != round;
        if (!gate_wait(&m->gate))
            break;
        m->passed[me] = round;
    }
    return NULL;
}

static void assert_all_meet(uint32_t n, bool spin, uint32_t rounds)
{
    struct meeting m = { .n = n, .rounds = rounds };
    pthread_t threads[THREADS_MAX];

    gate_init(&m.gate, n, spin);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_rounds, &m), 0);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(m.wrong[i], 0);
        assert_int_equal(m.passed[i], rounds);
    }
    assert_int_equal(m.gate.sleeping, 0);
}

static void gate_with_two_spinning_threads_synchronises_every_round(void **state)
{
    (void)state;
    assert_all_meet(2, true, 10000);
}

static void gate_with_three_sleeping_threads_synchronises_every_round(void **state)
{
    (void)state;
    assert_all_meet(3, false, 10000);
}

static void gate_with_more_spinning_threads_than_cores_synchronises(void **state)
{
    (void)state;
    assert_all_meet(4, true, 1000);
}

static void gate_of_one_thread_never_waits(void **state)
{
    (void)state;
    assert_all_meet(1, false, 100);
}

struct waiter {
    struct gate *gate;
    uint32_t rounds; /* calls of gate_wait() that returned true */
};

static void *wait_until_broken(void *arg)
{
    struct waiter *w = arg;

    while (gate_wait(w->gate))
        w->rounds++;
    return NULL;
}

static void gate_broken_while_threads_wait_releases_them_and_stays_broken(void **state)
{
    (void)state;
    for (int spin = 0; spin < 2; spin++) {
        struct gate g;
        struct waiter w[2] = { { &g, 0 }, { &g, 0 } };
        pthread_t threads[2];

        gate_init(&g, 3, spin); /* the third thread never calls gate_wait() */
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, wait_until_broken, &w[i]), 0);
        wait_disturb(3000000); /* in most runs they sleep now; any order must work */
        gate_break(&g);
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(w[i].rounds, 0);
        }
        assert_false(gate_wait(&g));
        gate_break(&g);
        assert_false(gate_wait(&g));
    }
}

static void *break_gate(void *gate)
{
    gate_break(gate);
    return NULL;
}

/* The gate is broken while rounds complete: a round must return true on all threads or on none. */
static void gate_broken_during_rounds_completes_a_round_for_all_or_none(void **state)
{
    (void)state;
    for (int attempt = 0; attempt < 300; attempt++) {
        struct gate g;
        struct waiter w[3] = { { &g, 0 }, { &g, 0 }, { &g, 0 } };
        pthread_t threads[3], breaker;

        gate_init(&g, 3, attempt % 2);
        for (int i = 0; i < 3; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, wait_until_broken, &w[i]), 0);
        assert_int_equal(pthread_create(&breaker, NULL, break_gate, &g), 0);
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
        pthread_join(breaker, NULL);
        assert_int_equal(w[0].rounds, w[1].rounds);
        assert_int_equal(w[0].rounds, w[2].rounds);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gate_with_two_spinning_threads_synchronises_every_round),
        cmocka_unit_test(gate_with_three_sleeping_threads_synchronises_every_round),
        cmocka_unit_test(gate_with_more_spinning_threads_than_cores_synchronises),
        cmocka_unit_test(gate_of_one_thread_never_waits),
        cmocka_unit_test(gate_broken_while_threads_wait_releases_them_and_stays_broken),
        cmocka_unit_test(gate_broken_during_rounds_completes_a_round_for_all_or_none),
    };

    return cmocka_run_group_tests_name("base/gate", tests, NULL, NULL);
}
