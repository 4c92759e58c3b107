/* job_check.h - what ties one key of the job to another. */
#ifndef CONF_JOB_CHECK_H
#define CONF_JOB_CHECK_H

struct conf;
struct err;
struct json;

/* Defaults that depend on other keys, then everything that ties one key to another. */
int conf_job_check(const struct json *doc, struct conf *c, struct err *err);

#endif
