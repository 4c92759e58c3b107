/* job_check.h - rules that concern several keys of a job. */
#ifndef CONF_JOB_CHECK_H
#define CONF_JOB_CHECK_H

struct conf;
struct err;
struct json;

/* Sets the defaults that depend on other keys, then checks the rules. Errors: ERR_INPUT,
 * ERR_NOMEM. */
int conf_check(const struct json *doc, struct conf *c, struct err *err);

#endif
