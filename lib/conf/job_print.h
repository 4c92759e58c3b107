/* job_print.h - a job as JSON. */
#ifndef CONF_JOB_PRINT_H
#define CONF_JOB_PRINT_H

struct buf;
struct conf;
struct conf_key;

/* The resolved job as JSON, every default visible. */
void conf_print(const struct conf *c, struct buf *out);
/* The job as the digest sees it: only the keys that decide the result, of paths the last part. */
void conf_job_canonical(const struct conf *c, struct buf *out);
/* The value of a row in JSON, as it is printed; "nothing" if it is not. Not for objects. */
void conf_job_value(const struct conf_key *k, const void *base, struct buf *out);

#endif
