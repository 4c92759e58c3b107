/* cluster_int.h - converts an index as Python's int() does. */
#ifndef CONF_CLUSTER_INT_H
#define CONF_CLUSTER_INT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

/* Set *out to int(v) of a JSON value or a string. A value out of range becomes INT64_MAX or
 * -INT64_MAX. Return false where Python would raise an exception. */
bool cluster_python_int(const struct json *doc, const cJSON *v, int64_t *out);
bool cluster_python_int_text(const char *s, int64_t *out);

#endif
