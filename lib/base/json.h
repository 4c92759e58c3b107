/* json.h - parses strict JSON (RFC 8259) to a cJSON tree with the position of each value.
 *
 * The caller reads the tree with cJSON's functions and must not change or delete it. Each value has
 * a line and a column (1-based, columns in bytes) and a JSON pointer (RFC 6901). A UTF-8 byte order
 * mark at the start is skipped. Rejected, with place and remedy: text after the value, comments,
 * trailing commas, single quotes, NaN and Infinity, invalid escapes, strings that are not UTF-8 or
 * contain NUL, numbers outside the range of double, duplicate keys, more than JSON_MAX_DEPTH
 * levels, JSON_MAX_VALUES values or JSON_MAX_BYTES bytes. Threads: one at a time. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

struct err;
struct json;

enum { JSON_MAX_DEPTH = 64, JSON_MAX_VALUES = 1 << 20, JSON_MAX_BYTES = 16 << 20 };

enum json_flags {
    JSON_LAST_DUPLICATE_WINS = 1, /* as in Python: a duplicate key replaces the earlier value */
};

/* Parses n bytes. `name` is the name of the source in messages ("TF_CONFIG", "job.json"); copied.
 * On success the caller owns *out. Errors: ERR_INPUT ("job.json:3:14: ..."), ERR_NOMEM. */
int json_parse(const char *name, const char *text, size_t n, unsigned flags, struct json **out,
               struct err *err);
void json_free(struct json *doc); /* NULL is allowed */

const cJSON *json_root(const struct json *doc);
/* Sets the position of a value of this document. */
void json_position(const struct json *doc, const cJSON *value, uint32_t *line, uint32_t *column);
/* Returns the JSON pointer of a value, such as "/cluster/worker/0"; "" for the root. Valid until
 * json_free(). */
const char *json_pointer(const struct json *doc, const cJSON *value);
/* Returns the number exactly as written (distinguishes integers above 2^53, and "1.0" from "1");
 * NULL if the value is not a number. Valid until json_free(). */
const char *json_number_text(const struct json *doc, const cJSON *value);

/* Reports ERR_INPUT with the text "name:line:column: /pointer: message". `value` NULL: the message
 * concerns the whole document. */
int json_error(const struct json *doc, const cJSON *value, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Describes a value for "expected ..., found ...": "an object", "the string \"abc\"", "the number
 * 1.5", "null". Long strings are truncated. Writes at most n bytes. */
void json_describe(const struct json *doc, const cJSON *value, char *out, size_t n);

#endif
