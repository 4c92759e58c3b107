/* job_diff.h - compares two jobs key by key. */
#ifndef CONF_JOB_DIFF_H
#define CONF_JOB_DIFF_H

#include <stdbool.h>

struct conf;
struct err;

struct conf_change { /* pointers are valid during the call of `each` */
    const char *pointer; /* JSON pointer of the key: "/checkpoint/every_steps" */
    /* Values as JSON; "nothing": conf_print() omits the key. Both NULL: a list or map differs. */
    const char *from, *to;
    bool is_live; /* the key may change while the job runs */
};
/* Calls `each` for every key whose value differs, in the order of the table of keys. Errors:
 * ERR_NOMEM. */
int conf_diff(const struct conf *was, const struct conf *now,
              void (*each)(void *arg, const struct conf_change *change), void *arg,
              struct err *err);

#endif
