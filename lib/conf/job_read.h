/* job_read.h - fills a job from its JSON document. */
#ifndef CONF_JOB_READ_H
#define CONF_JOB_READ_H

struct arena;
struct conf;
struct err;
struct json;

/* Reads the document into *c, as the table of keys describes. *c must be zero except for path and
 * directory. Absent keys get their default; keys that do not apply stay zero. Maps are sorted by
 * name. Errors: ERR_INPUT, ERR_NOMEM. */
int conf_read_document(const struct json *doc, struct conf *c, struct err *err);
/* Returns the path of `name` in the folder `dir` (of `name` itself if it is absolute), without "."
 * and double slashes, allocated in `mem`; NULL: out of memory. */
const char *conf_resolve_path(struct arena *mem, const char *dir, const char *name);

#endif
