/* path_tests.c - see path_tests.h. */
#include "daemon/path_tests.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "loop/loop.h"
#include "rdzv/rdzv.h"

struct path_test { /* the paths of one REACH */
    struct path_test *next;
    struct path_tests *tests;
    path_tests_fn *fn;
    void *arg;
    pthread_t thread;
    bool is_abandoned;
    uint64_t round;
    uint32_t n, ranks[MEMBER_REACH_MAX];
    char *addresses[MEMBER_REACH_MAX]; /* owned */
    bool is_dead[MEMBER_REACH_MAX];
};

static void free_test(struct path_test *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        free(t->addresses[i]);
    free(t);
}

static void report(const struct path_test *t)
{
    struct member_loss loss = { .peer = MEMBER_NO_RANK };

    for (uint32_t i = 0; i < t->n; i++)
        if (t->is_dead[i])
            loss.dead_paths[loss.n_dead_paths++] = t->ranks[i];
    t->fn(t->arg, t->round, &loss);
}

static void on_done(void *arg)
{
    struct path_test *t = arg;

    if (!t->is_abandoned) {
        struct path_test **at = &t->tests->first;

        while (*at != t)
            at = &(*at)->next;
        *at = t->next;
        pthread_join(t->thread, NULL);
        report(t);
    }
    free_test(t);
}

/* The thread of a test. */
static void *run(void *arg)
{
    struct path_test *t = arg;
    struct err err;

    if (comm_test_paths((const char *const *)t->addresses, t->n, MEMBER_REACH_MS, t->is_dead,
                        &err) < 0)
        log_warn("group", "%s", err.text);
    loop_post(t->tests->loop, on_done, t);
    return NULL;
}

void path_tests_start(struct path_tests *tests, const struct rdzv_action *a, path_tests_fn *fn,
                      void *arg)
{
    struct path_test *t = calloc(1, sizeof(*t));
    struct err err;

    CHECK(t != NULL && a->action->n_ranks <= MEMBER_REACH_MAX);
    t->tests = tests;
    t->fn = fn;
    t->arg = arg;
    t->round = a->action->round;
    for (; t->n < a->action->n_ranks; t->n++) {
        t->ranks[t->n] = a->action->ranks[t->n];
        t->addresses[t->n] = strdup(a->addresses[t->n]);
        CHECK(t->addresses[t->n] != NULL);
    }
    if (thread_start(&t->thread, "tests data paths", run, t, &err) < 0) {
        log_warn("group", "%s", err.text);
        report(t);
        free_test(t);
        return;
    }
    t->next = tests->first;
    tests->first = t;
}

void path_tests_abandon(struct path_tests *tests)
{
    for (struct path_test *t = tests->first, *next; t != NULL; t = next) {
        next = t->next; /* on_done(), which the loop still runs, frees it */
        pthread_join(t->thread, NULL);
        t->is_abandoned = true;
    }
    tests->first = NULL;
}
