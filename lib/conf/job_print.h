/* job_print.h - prints a job as JSON. */
#ifndef CONF_JOB_PRINT_H
#define CONF_JOB_PRINT_H

struct buf;
struct conf;
struct conf_key;

/* The functions append to `out`, and set out->failed if memory runs out. */

/* Appends the job with all defaults. */
void conf_print(const struct conf *c, struct buf *out);
/* Appends the text that is hashed for the digest: the keys that determine the result, and only the
 * last part of each path. */
void conf_print_canonical(const struct conf *c, struct buf *out);
/* Appends the value of a row as JSON; "nothing" if conf_print() omits the key. `base` is the struct
 * conf. Not for objects. */
void conf_print_value(const struct conf_key *k, const void *base, struct buf *out);

#endif
