/* job_check_deterministic.h - rules that concern /communication/deterministic and other keys. */
#ifndef CONF_JOB_CHECK_DETERMINISTIC_H
#define CONF_JOB_CHECK_DETERMINISTIC_H

struct conf;
struct err;
struct json;

/* Refuses jobs whose results depend on the number of replicas, or on time, in spite of the key. Errors:
 * ERR_INPUT, with the place in `doc`. */
int conf_check_deterministic(const struct json *doc, const struct conf *c, struct err *err);

#endif
