/* job.h - reads the job file.
 *
 * One table (job_keys.h) describes every key: type, range, default, words. The reader, the
 * defaults, the output of --check and config/job.schema.json all follow from it. The error for an
 * unknown key names the most similar key, the error for a wrong type or range the expected and the
 * found value, and the error for a contradiction both keys. Relative paths start in the folder of
 * the job file.
 *
 * Threads: one at a time. A struct conf is read-only after it is created. */
#ifndef CONF_JOB_H
#define CONF_JOB_H

#include <stddef.h>

#include "conf/job_types.h"

struct err;

/* Reads a job file. On success the caller owns *out and frees it with conf_free(). Errors:
 * ERR_INPUT, ERR_NOENT, ERR_IO, ERR_NOMEM. */
int conf_read(const char *path, struct conf **out, struct err *err);
/* Reads a job from n bytes in memory, as conf_read() does from a file. `path` is used for messages, the default name and
 * relative paths. */
int conf_parse(const char *path, const char *text, size_t n, struct conf **out, struct err *err);
/* Accepts NULL. */
void conf_free(struct conf *c);

#endif
