/* group.h - a healthy group of GROUP tasks for the tests of the pure parts, which spoil a copy. */
#ifndef TEST_PREFLIGHT_GROUP_H
#define TEST_PREFLIGHT_GROUP_H

#include <stdio.h>
#include <string.h>

#include "preflight/types.h"

enum { GROUP = 4 };

struct group {
    struct preflight_task tasks[GROUP];
    struct preflight_row rows[GROUP];
    struct preflight_entry entries[GROUP][GROUP];
    char names[GROUP][32];
    struct preflight_table table;
};

static inline void group_init(struct group *g, uint32_t world)
{
    memset(g, 0, sizeof(*g));
    for (uint32_t i = 0; i < world; i++) {
        struct preflight_facts *f = &g->rows[i].facts;

        snprintf(g->names[i], sizeof(g->names[i]), "worker %u", i);
        g->tasks[i] = (struct preflight_task){ g->names[i], "10.0.0.1:2222", "10.0.0.1", 2222 };
        g->rows[i].present = true;
        g->rows[i].entries = g->entries[i];
        *f = (struct preflight_facts){ .nonce = i + 1, .data_port = 7000, .sync_us = 900, .open_ms = 1500,
                                       .state_bytes = 3000000000u, .gradient_bytes = 1000000000u, .cluster = "c", .job = "j",
                                       .version = "1", .devices = "1 cpu", .kernels = "k" };
        for (uint32_t k = 0; k < world; k++)
            if (k != i)
                g->entries[i][k] = (struct preflight_entry){
                    .control = PREFLIGHT_REACHED, .data = PREFLIGHT_REACHED, .in = 1, .large = PREFLIGHT_GOOD,
                    .storage = PREFLIGHT_GOOD, .lock = PREFLIGHT_GOOD, .reverse = PREFLIGHT_GOOD,
                    .rtt_us = 100 + i + k, .skew_us = 10, .rate = 1000000000u + i, .mtu = 1500 };
    }
    g->table = (struct preflight_table){ .world = world, .tasks = g->tasks, .rows = g->rows };
}

#endif
