/* job.h - the job file: one table describes every key (type, range, default, words), and from it
 * come the reader, the defaults, the resolved print of --check and config/job.schema.json.
 *
 * An unknown key is refused with the nearest known one, a wrong type or range with what was
 * found and what is allowed, contradictions with both pointers. Paths are resolved against the
 * job file's folder. Threads: one at a time; a struct conf is read-only once made. */
#ifndef CONF_JOB_H
#define CONF_JOB_H

#include <stddef.h>

#include "conf/job_types.h"

struct err;

/* On success the caller owns *out. Errors: ERR_INPUT, ERR_NOENT, ERR_IO, ERR_NOMEM. */
int conf_read(const char *path, struct conf **out, struct err *err);
/* The same from memory; `path` is only for names and relative paths. */
int conf_parse(const char *path, const char *text, size_t n, struct conf **out, struct err *err);
void conf_free(struct conf *c);

#endif
