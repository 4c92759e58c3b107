/* job_out.h - JSON text, a member a line. */
#ifndef CONF_JOB_OUT_H
#define CONF_JOB_OUT_H

#include <stdbool.h>

struct buf;

/* JSON text, a member a line. `key` NULL inside an array and for the outermost value. */
struct conf_out {
    struct buf *buf;
    int depth;
    bool is_empty; /* nothing yet in the object or array that is open */
};
void conf_out_key(struct conf_out *o, const char *key); /* the value is added by the caller */
void conf_out_open(struct conf_out *o, const char *key, char bracket);
void conf_out_close(struct conf_out *o, char bracket);

#endif
