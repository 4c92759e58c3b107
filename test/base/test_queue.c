#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/queue.h"

static void items_leave_in_the_order_they_came(void **state)
{
    struct queue *q = queue_new(3);
    int items[5];

    (void)state;
    for (int round = 0; round < 5; round++) { /* the ring turns */
        assert_true(queue_push(q, &items[0]));
        assert_true(queue_try_push(q, &items[1]));
        assert_int_equal(queue_len(q), 2);
        assert_ptr_equal(queue_pop(q, 0), &items[0]);
        assert_true(queue_push(q, &items[2]));
        assert_true(queue_push(q, &items[3]));
        assert_false(queue_try_push(q, &items[4])); /* full */
        assert_ptr_equal(queue_pop(q, 0), &items[1]);
        assert_ptr_equal(queue_pop(q, UINT64_MAX), &items[2]);
        assert_ptr_equal(queue_pop(q, 5), &items[3]);
        assert_null(queue_pop(q, 0));
    }
    queue_free(q);
}

static void a_wait_ends_when_its_time_is_up(void **state)
{
    struct queue *q = queue_new(1);
    uint64_t start = clock_ms();

    (void)state;
    assert_null(queue_pop(q, 30));
    assert_in_range(clock_ms() - start, 29, 20000);
    queue_free(q);
}

static void a_closed_queue_drains_and_takes_no_more(void **state)
{
    struct queue *q = queue_new(2);
    int item;

    (void)state;
    assert_true(queue_push(q, &item));
    queue_close(q);
    queue_close(q);
    assert_false(queue_push(q, &item));
    assert_false(queue_try_push(q, &item));
    assert_ptr_equal(queue_pop(q, UINT64_MAX), &item);
    assert_null(queue_pop(q, UINT64_MAX));
    queue_free(q);
    queue_free(NULL);
}

static void *pop_one(void *q)
{
    return queue_pop(q, UINT64_MAX);
}

static void *push_one(void *q)
{
    static int item;

    return queue_push(q, &item) ? &item : NULL;
}

static void closing_wakes_those_who_wait(void **state)
{
    const struct timespec a_moment = { 0, 5000000 };
    struct queue *empty = queue_new(1), *full = queue_new(1);
    pthread_t poppers[2], pushers[2];
    void *result;
    int item;

    (void)state;
    assert_true(queue_push(full, &item));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&poppers[i], NULL, pop_one, empty), 0);
        assert_int_equal(pthread_create(&pushers[i], NULL, push_one, full), 0);
    }
    nanosleep(&a_moment, NULL); /* so that most runs find them asleep; any order must work */
    queue_close(empty);
    queue_close(full);
    for (int i = 0; i < 2; i++) {
        pthread_join(poppers[i], &result);
        assert_null(result);
        pthread_join(pushers[i], &result);
        assert_null(result);
    }
    assert_int_equal(queue_len(full), 1);
    queue_free(empty);
    queue_free(full);
}

enum { PRODUCERS = 3, CONSUMERS = 3, EACH = 5000 };

struct traffic {
    struct queue *q;
    uint8_t seen[PRODUCERS * EACH]; /* each byte is written by whoever popped that item */
    int producer;
};

static void *produce(void *arg)
{
    struct traffic *t = arg;
    int me = __atomic_fetch_add(&t->producer, 1, __ATOMIC_RELAXED);

    for (int i = 0; i < EACH; i++)
        if (!queue_push(t->q, &t->seen[me * EACH + i]))
            return t;
    return NULL;
}

static void *consume(void *arg)
{
    struct traffic *t = arg;
    uint8_t *item;

    while ((item = queue_pop(t->q, UINT64_MAX)) != NULL)
        (*item)++;
    return NULL;
}

static void nothing_is_lost_or_doubled_between_many_threads(void **state)
{
    static struct traffic t;
    pthread_t producers[PRODUCERS], consumers[CONSUMERS];
    void *failed;

    (void)state;
    t.q = queue_new(7);
    for (int i = 0; i < PRODUCERS; i++)
        assert_int_equal(pthread_create(&producers[i], NULL, produce, &t), 0);
    for (int i = 0; i < CONSUMERS; i++)
        assert_int_equal(pthread_create(&consumers[i], NULL, consume, &t), 0);
    for (int i = 0; i < PRODUCERS; i++) {
        pthread_join(producers[i], &failed);
        assert_null(failed);
    }
    queue_close(t.q);
    for (int i = 0; i < CONSUMERS; i++)
        pthread_join(consumers[i], NULL);
    for (int i = 0; i < PRODUCERS * EACH; i++)
        assert_int_equal(t.seen[i], 1);
    queue_free(t.q);
}

static void a_queue_beyond_memory_is_not_made(void **state)
{
    (void)state;
    assert_null(queue_new(SIZE_MAX));
    assert_null(queue_new(SIZE_MAX / sizeof(void *)));
    fault_arm("mem", NULL);
    assert_null(queue_new(1));
    fault_arm(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_leave_in_the_order_they_came),
        cmocka_unit_test(a_wait_ends_when_its_time_is_up),
        cmocka_unit_test(a_closed_queue_drains_and_takes_no_more),
        cmocka_unit_test(closing_wakes_those_who_wait),
        cmocka_unit_test(nothing_is_lost_or_doubled_between_many_threads),
        cmocka_unit_test(a_queue_beyond_memory_is_not_made),
    };

    return cmocka_run_group_tests_name("base/queue", tests, NULL, NULL);
}
