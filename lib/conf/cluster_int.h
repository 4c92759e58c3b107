/* cluster_int.h - an index as Python's int() converts it. */
#ifndef CONF_CLUSTER_INT_H
#define CONF_CLUSTER_INT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

/* int(v) as Python computes it from a JSON value or a string; saturates at the ends of int64_t.
 * false: Python would raise. */
bool cluster_python_int(const struct json *doc, const cJSON *v, int64_t *out);
bool cluster_python_int_text(const char *s, int64_t *out);

#endif
