/* node_kit.h - clusters for the stories of test_node*.c. */
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

#include "sim/node_sim.h"

/* Four tasks with shared storage that train together, unless the test says otherwise. */
#define CLUSTER(...) together((struct simn_opts){ .tell = true, __VA_ARGS__ })

static inline void tell_and_fail(struct simn *s, const char *what)
{
    fputs(simn_story(s), stderr);
    fail_msg("%s", what);
}
#define HOLDS(s_, cond_) ((cond_) ? (void)0 : tell_and_fail(s_, "does not hold: " #cond_))

static inline struct simn *together(struct simn_opts o)
{
    struct simn *s;

    o.world = o.world != 0 ? o.world : 4;
    o.seed = o.seed != 0 ? o.seed : 1;
    o.rejoin_ms = o.rejoin_ms != 0 ? o.rejoin_ms : 1;
    s = simn_new(&o);
    if (!simn_until_together(s, o.world - o.n_absent, 5000))
        tell_and_fail(s, "the cluster does not come together");
    if (!simn_until_step(s, 5, 60000))
        tell_and_fail(s, "the cluster does not train");
    return s;
}

/* n tasks train as one group within limit_ms, led by `leader`; nothing that was held is lost. */
static inline void regroup(struct simn *s, uint32_t n, uint32_t leader, uint64_t limit_ms)
{
    uint64_t held = simn_newest(s), begin = simn_now(s);
    char what[200];

    snprintf(what, sizeof(what), "%u tasks are not one group led by %u within %" PRIu64 " ms", n,
             leader, limit_ms);
    do {
        if (!simn_until_together(s, n, limit_ms))
            tell_and_fail(s, what);
        if (member_node_leader(simn_node(s, leader)) == leader)
            break;
        simn_advance(s, 1);
    } while (simn_now(s) <= begin + limit_ms);
    if (simn_now(s) > begin + limit_ms + 1)
        tell_and_fail(s, what);
    HOLDS(s, simn_newest(s) >= held);
    if (!simn_until_step(s, held + 2, 1000))
        tell_and_fail(s, "the group does not train");
}

static inline void ends_with(struct simn *s, uint32_t rank, int code, const char *text)
{
    if (simn_exit_code(s, rank) == code && strstr(simn_exit_text(s, rank), text) != NULL)
        return;
    fputs(simn_story(s), stderr);
    fail_msg("worker %u: %d \"%s\", expected %d with \"%s\"", rank, simn_exit_code(s, rank),
             simn_exit_text(s, rank), code, text);
}

static inline void says(struct simn *s, uint32_t rank, const char *text)
{
    if (strstr(simn_said(s, rank), text) != NULL &&
        simn_said_ms(s, rank) + 3 * MEMBER_SAY_MS > simn_now(s))
        return;
    fputs(simn_story(s), stderr);
    fail_msg("worker %u said \"%s\", expected \"%s\" in it", rank, simn_said(s, rank), text);
}

#endif
