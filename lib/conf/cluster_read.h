/* cluster_read.h - reads TF_CONFIG. */
#ifndef CONF_CLUSTER_READ_H
#define CONF_CLUSTER_READ_H

#include <stddef.h>

struct cluster_draft;
struct err;

/* Fills the draft from n bytes of JSON. Errors: ERR_INPUT, ERR_NOMEM. */
int cluster_read_json(struct cluster_draft *d, const char *text, size_t n, struct err *err);

#endif
