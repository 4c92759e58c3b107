/* job_diff.h - two jobs, key by key. */
#ifndef CONF_JOB_DIFF_H
#define CONF_JOB_DIFF_H

#include <stdbool.h>

struct conf;
struct err;

struct conf_change {
    const char *pointer;   /* of the key: "/checkpoint/every_steps"; valid during the call, as all here */
    const char *from, *to; /* its values in JSON, "nothing" where it was not given and has no default;
                              NULL: a list or a map, some part of it differs */
    bool is_live;          /* may change while the job runs */
};
/* Calls `each` for every key whose value differs, in the order of the table. Errors: ERR_NOMEM. */
int conf_diff(const struct conf *was, const struct conf *now,
              void (*each)(void *arg, const struct conf_change *change), void *arg, struct err *err);

#endif
