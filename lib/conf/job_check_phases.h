/* job_check_phases.h - rules that concern several keys of /train/phases. */
#ifndef CONF_JOB_CHECK_PHASES_H
#define CONF_JOB_CHECK_PHASES_H

struct conf;
struct err;
struct json;

/* Refuses phases that no run can have, and combinations that local SGD does not support.
 * Errors: ERR_INPUT. */
int conf_check_phases(const struct json *doc, const struct conf *c, struct err *err);

#endif
