/* path_tests.h - the tests of data paths that a leader orders (REACH), each on a thread of its own.
 *
 * Threads: the functions are called on the loop's thread; the callback runs there too. */
#ifndef DAEMON_PATH_TESTS_H
#define DAEMON_PATH_TESTS_H

#include <stdint.h>

struct loop;
struct member_loss;
struct path_test;
struct rdzv_action;

struct path_tests {
    struct loop *loop;       /* borrowed; set by the caller */
    struct path_test *first; /* owned; tests that run */
};

/* loss->dead_paths: the ranks that were not reached. Called once for each start, unless the tests are abandoned. */
typedef void path_tests_fn(void *arg, uint64_t round, const struct member_loss *loss);

/* Starts the tests of a REACH action; they end within MEMBER_REACH_MS. If no thread can be created, no path counts as
 * dead, and fn is called at once. */
void path_tests_start(struct path_tests *tests, const struct rdzv_action *a, path_tests_fn *fn,
                      void *arg);
/* Waits for the threads; their results are not reported. */
void path_tests_abandon(struct path_tests *tests);

#endif
