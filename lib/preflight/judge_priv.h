/* judge_priv.h - what the files of the judge share. */
#ifndef PREFLIGHT_JUDGE_PRIV_H
#define PREFLIGHT_JUDGE_PRIV_H

#include "base/vec.h"
#include "preflight/judge.h"

struct judged {
    const struct preflight_table *t;
    VEC(struct preflight_finding) found;
    bool failed; /* out of memory */
};

/* Adds a finding; `task` and `other` as in struct preflight_finding. */
void judge_add(struct judged *j, enum preflight_severity severity, const char *what, uint32_t task,
               uint32_t other, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));

/* Returns entry [from][to]; NULL: the row of `from` is absent. */
const struct preflight_entry *judge_entry(const struct preflight_table *t, uint32_t from,
                                          uint32_t to);

/* judge_pairs.c: faults of pairs: ports, large packets, storage, locks, MTU. */
void judge_pairs(struct judged *j);
/* judge_tasks.c: numbers and texts of a task that differ from the median or the majority. */
void judge_tasks(struct judged *j);

#endif
