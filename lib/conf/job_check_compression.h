/* job_check_compression.h - rules that concern several keys of /communication/compression. */
#ifndef CONF_JOB_CHECK_COMPRESSION_H
#define CONF_JOB_CHECK_COMPRESSION_H

struct conf;
struct err;
struct json;

/* Refuses groups that are no blocks of lanes, and combinations that compression does not support.
 * Errors: ERR_INPUT. */
int conf_check_compression(const struct json *doc, const struct conf *c, struct err *err);

#endif
