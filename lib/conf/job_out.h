/* job_out.h - writes JSON text with one member per line. */
#ifndef CONF_JOB_OUT_H
#define CONF_JOB_OUT_H

#include <stdbool.h>

struct buf;

struct conf_out {
    struct buf *buf; /* not owned */
    int depth;       /* number of open objects and arrays */
    bool is_empty;   /* the innermost open object or array has no members yet */
};
/* Starts a member; the caller appends its value to the buffer. `key` is NULL inside an array and
 * for the outermost value. */
void conf_out_key(struct conf_out *o, const char *key);
/* Start a member that is an object or array ('{' or '['), and end the innermost one ('}' or
 * ']'). */
void conf_out_open(struct conf_out *o, const char *key, char bracket);
void conf_out_close(struct conf_out *o, char bracket);

#endif
