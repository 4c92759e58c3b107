/* node_kit.h - clusters and expectations for the scenarios of test_node*.c. */
#ifndef MEMBER_NODE_KIT_H
#define MEMBER_NODE_KIT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

/* Starts four tasks with shared storage, and waits until they train together. The arguments
 * override options. */
#define START_CLUSTER(...) start_together((struct sim_opts){ .tell = true, __VA_ARGS__ })

static inline void log_and_fail(struct sim *s, const char *what)
{
    fputs(sim_log(s), stderr);
    fail_msg("%s", what);
}
#define EXPECT(s_, cond_) ((cond_) ? (void)0 : log_and_fail(s_, "does not hold: " #cond_))

static inline struct sim *start_together(struct sim_opts o)
{
    struct sim *s;

    o.world = o.world != 0 ? o.world : 4;
    o.seed = o.seed != 0 ? o.seed : 1;
    o.rejoin_ms = o.rejoin_ms != 0 ? o.rejoin_ms : 1;
    s = sim_new(&o);
    if (!sim_until_together(s, o.world - o.n_absent, 5000))
        log_and_fail(s, "the cluster does not form a group");
    if (!sim_until_step(s, 5, 60000))
        log_and_fail(s, "the cluster does not train");
    return s;
}

/* Waits until n tasks train as one group led by `leader`, within limit_ms. No held step may be
 * lost. */
static inline void expect_group(struct sim *s, uint32_t n, uint32_t leader, uint64_t limit_ms)
{
    uint64_t held = sim_newest(s), begin = sim_now(s);
    char what[200];

    snprintf(what, sizeof(what), "%u tasks are not one group led by %u within %" PRIu64 " ms", n,
             leader, limit_ms);
    do {
        if (!sim_until_together(s, n, limit_ms))
            log_and_fail(s, what);
        if (member_node_leader(sim_node(s, leader)) == leader)
            break;
        sim_advance(s, 1);
    } while (sim_now(s) <= begin + limit_ms);
    if (sim_now(s) > begin + limit_ms + 1)
        log_and_fail(s, what);
    EXPECT(s, sim_newest(s) >= held);
    if (!sim_until_step(s, held + 2, 1000))
        log_and_fail(s, "the group does not train");
}

static inline void expect_exit(struct sim *s, uint32_t rank, int code, const char *text)
{
    if (sim_exit_code(s, rank) == code && strstr(sim_exit_text(s, rank), text) != NULL)
        return;
    fputs(sim_log(s), stderr);
    fail_msg("worker %u: %d \"%s\", expected %d with \"%s\"", rank, sim_exit_code(s, rank),
             sim_exit_text(s, rank), code, text);
}

static inline void expect_said(struct sim *s, uint32_t rank, const char *text)
{
    if (strstr(sim_last_line(s, rank), text) != NULL &&
        sim_last_line_ms(s, rank) + 3 * MEMBER_LOG_MS > sim_now(s))
        return;
    fputs(sim_log(s), stderr);
    fail_msg("worker %u logged \"%s\", expected \"%s\" in it", rank, sim_last_line(s, rank), text);
}

#endif
