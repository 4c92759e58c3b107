/* netcheck_text.h - prints the result of `trainerctl netcheck`. Pure. */
#ifndef DAEMON_NETCHECK_TEXT_H
#define DAEMON_NETCHECK_TEXT_H

#include <stdint.h>

#include "preflight/racks.h"

struct buf;

struct netcheck_task { /* borrowed strings */
    const char *name, *address; /* "worker 1", "10.0.0.2:2222" */
};

struct netcheck {
    uint32_t n;
    struct netcheck_task *tasks; /* [n] */
    struct racks_pair *pairs;    /* [n * n] from * n + to */
    struct racks racks;          /* of these pairs */
};

/* Appends a table with a line for each sender, the findings, and the proposed locations. */
void netcheck_text(const struct netcheck *c, struct buf *out);
void netcheck_json(const struct netcheck *c, struct buf *out);

#endif
