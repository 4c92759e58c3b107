/* job_read.h - fills a job from its document. */
#ifndef CONF_JOB_READ_H
#define CONF_JOB_READ_H

struct arena;
struct conf;
struct err;
struct json;

/* Reads the document by the table into *c (zeroed but for path and directory). What is absent gets
 * its default, what does not apply stays zero. Maps are sorted by name. */
int conf_job_fill(const struct json *doc, struct conf *c, struct err *err);
/* `name` under `dir` (itself if absolute), without "." and doubled slashes; NULL: out of memory. */
const char *conf_job_resolve(struct arena *mem, const char *dir, const char *name);

#endif
