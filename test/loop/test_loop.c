#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "loop/loop.h"

enum { THREADS = 4, POSTS = 20000 };

struct fixture {
    struct loop *loop;
    struct loop_timer *timer;
    uint32_t n, stop_at;
    uint32_t seen[16];
    int signum;
    pthread_t self;
};

static void open_loop(struct fixture *f)
{
    *f = (struct fixture){ .self = pthread_self() };
    assert_int_equal(loop_open(&f->loop, NULL), 0);
}

static void count(void *arg)
{
    struct fixture *f = arg;

    if (++f->n == f->stop_at)
        loop_stop(f->loop);
}

static void stop(void *arg)
{
    struct fixture *f = arg;

    loop_stop(f->loop);
}

struct numbered {
    struct fixture *f;
    uint32_t number;
};

static void note_number(void *arg)
{
    struct numbered *m = arg;

    m->f->seen[m->f->n++] = m->number;
}

static void loop_posts_run_in_order_including_those_before_the_run(void **state)
{
    struct fixture f;
    struct numbered m[10];

    (void)state;
    open_loop(&f);
    for (uint32_t i = 0; i < 10; i++) {
        m[i] = (struct numbered){ &f, i };
        loop_post(f.loop, note_number, &m[i]);
    }
    assert_int_equal(f.n, 0); /* not inside the call */
    loop_post(f.loop, stop, &f);
    loop_run(f.loop);
    assert_int_equal(f.n, 10);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(f.seen[i], i);
    loop_close(f.loop);
}

static void post_and_stop(void *arg)
{
    struct fixture *f = arg;

    loop_post(f->loop, count, f);
    assert_int_equal(f->n, 0);
    loop_stop(f->loop);
}

static void loop_close_runs_pending_posts(void **state)
{
    struct fixture f;

    (void)state;
    open_loop(&f);
    loop_post(f.loop, post_and_stop, &f);
    loop_run(f.loop); /* stops before or after the inner post runs */
    loop_post(f.loop, count, &f);
    loop_close(f.loop);
    assert_int_equal(f.n, 2);
}

struct sender {
    struct fixture *f;
    uint32_t next; /* number expected next; loop thread only */
    bool in_order;
    pthread_t thread;
    struct sent {
        struct sender *s;
        uint32_t number;
    } sent[POSTS];
};

static void receive(void *arg)
{
    struct sent *m = arg;

    m->s->in_order =
        m->s->in_order && m->number == m->s->next && pthread_equal(pthread_self(), m->s->f->self);
    m->s->next++;
    count(m->s->f);
}

static void *send_all(void *arg)
{
    struct sender *s = arg;

    for (uint32_t i = 0; i < POSTS; i++) {
        s->sent[i] = (struct sent){ s, i };
        loop_post(s->f->loop, receive, &s->sent[i]);
    }
    return NULL;
}

static void loop_posts_of_several_threads_run_exactly_once(void **state)
{
    struct fixture f;
    struct sender *senders = calloc(THREADS, sizeof(*senders));

    (void)state;
    assert_non_null(senders);
    open_loop(&f);
    f.stop_at = THREADS * POSTS;
    for (uint32_t i = 0; i < THREADS; i++) {
        senders[i].f = &f;
        senders[i].in_order = true;
        assert_int_equal(pthread_create(&senders[i].thread, NULL, send_all, &senders[i]), 0);
    }
    loop_run(f.loop);
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(senders[i].thread, NULL);
        assert_true(senders[i].in_order);
        assert_int_equal(senders[i].next, POSTS);
    }
    assert_int_equal(f.n, THREADS * POSTS);
    loop_close(f.loop);
    free(senders);
}

static void loop_post_in_a_warm_loop_allocates_nothing(void **state)
{
    struct fixture f;
    struct mallinfo2 before, after;

    (void)state;
    open_loop(&f);
    for (uint32_t round = 0; round < 3; round++) {
        if (round == 1)
            before = mallinfo2();
        f.n = 0;
        f.stop_at = 1000;
        for (uint32_t i = 0; i < 1000; i++)
            loop_post(f.loop, count, &f);
        loop_run(f.loop);
        assert_int_equal(f.n, 1000);
    }
    after = mallinfo2(); /* all zero under a sanitizer, which disables this check */
    assert_true(after.uordblks <= before.uordblks);
    loop_close(f.loop);
}

static void loop_timer_fires_after_its_delay_and_then_repeats(void **state)
{
    struct fixture f;
    uint64_t start = clock_ms();

    (void)state;
    open_loop(&f);
    f.stop_at = 3;
    f.timer = loop_timer_new(f.loop, 20, 5, count, &f);
    loop_run(f.loop);
    assert_int_equal(f.n, 3);
    assert_true(clock_ms() - start >= 29); /* 20 + 5 + 5, rounded down to milliseconds */
    loop_timer_free(f.timer);
    loop_timer_free(NULL);
    loop_close(f.loop);
}

static void restart_timer(void *arg)
{
    struct fixture *f = arg;

    if (++f->n < 3)
        loop_timer_restart(f->timer, 10);
    else
        loop_stop(f->loop);
}

static void loop_timer_that_fired_once_can_be_restarted(void **state)
{
    struct fixture f;
    uint64_t start = clock_ms();

    (void)state;
    open_loop(&f);
    f.timer = loop_timer_new(f.loop, 0, 0, restart_timer, &f);
    loop_run(f.loop);
    assert_int_equal(f.n, 3);
    assert_true(clock_ms() - start >= 19);
    loop_close(f.loop); /* frees the remaining timer */
}

static void free_self(void *arg)
{
    struct fixture *f = arg;

    f->n++;
    loop_timer_free(f->timer);
}

static void loop_timer_freed_in_its_callback_does_not_fire_again(void **state)
{
    struct fixture f;
    struct loop_timer *end;

    (void)state;
    open_loop(&f);
    f.timer = loop_timer_new(f.loop, 1, 1, free_self, &f);
    end = loop_timer_new(f.loop, 30, 0, stop, &f);
    loop_run(f.loop);
    assert_int_equal(f.n, 1);
    loop_timer_free(end);
    loop_close(f.loop);
}

static void on_signal(void *arg, int signum)
{
    struct fixture *f = arg;

    f->signum = signum;
    count(f);
}

static void loop_signal_is_delivered_on_every_occurrence(void **state)
{
    struct fixture f;

    (void)state;
    open_loop(&f);
    f.stop_at = 1;
    assert_int_equal(loop_signal(f.loop, SIGUSR1, on_signal, &f, NULL), 0);
    kill(getpid(), SIGUSR1);
    loop_run(f.loop);
    assert_int_equal(f.signum, SIGUSR1);
    f.stop_at = 2;
    kill(getpid(), SIGUSR1);
    loop_run(f.loop);
    assert_int_equal(f.n, 2);
    loop_close(f.loop);
}

static void loop_signal_that_cannot_be_caught_is_refused(void **state)
{
    struct fixture f;
    struct err err;

    (void)state;
    open_loop(&f);
    assert_int_equal(loop_signal(f.loop, SIGKILL, on_signal, &f, &err), ERR_IO);
    assert_string_equal(err.text, "signal 9: invalid argument");
    loop_close(f.loop);
}

static void *stop_from_elsewhere(void *arg)
{
    stop(arg);
    return NULL;
}

static void loop_stop_from_another_thread_ends_the_run(void **state)
{
    struct fixture f;
    pthread_t thread;

    (void)state;
    open_loop(&f);
    assert_int_equal(pthread_create(&thread, NULL, stop_from_elsewhere, &f), 0);
    loop_run(f.loop);
    pthread_join(thread, NULL);
    loop_close(f.loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loop_posts_run_in_order_including_those_before_the_run),
        cmocka_unit_test(loop_close_runs_pending_posts),
        cmocka_unit_test(loop_posts_of_several_threads_run_exactly_once),
        cmocka_unit_test(loop_post_in_a_warm_loop_allocates_nothing),
        cmocka_unit_test(loop_timer_fires_after_its_delay_and_then_repeats),
        cmocka_unit_test(loop_timer_that_fired_once_can_be_restarted),
        cmocka_unit_test(loop_timer_freed_in_its_callback_does_not_fire_again),
        cmocka_unit_test(loop_signal_is_delivered_on_every_occurrence),
        cmocka_unit_test(loop_signal_that_cannot_be_caught_is_refused),
        cmocka_unit_test(loop_stop_from_another_thread_ends_the_run),
    };

    return cmocka_run_group_tests_name("loop/loop", tests, NULL, NULL);
}
