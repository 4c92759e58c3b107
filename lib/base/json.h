/* json.h - cJSON, with what it lacks: strict RFC 8259 grammar, positions, duplicate keys, depth.
 *
 * A document is a cJSON tree, to be read with cJSON's functions and never changed or deleted; for
 * every value we know line and column (1-based, columns in bytes) and its JSON pointer (RFC 6901).
 * A UTF-8 byte order mark in front is skipped. Refused, with place and remedy: text after the
 * value, comments, trailing commas, single quotes, NaN and Infinity, bad escapes, strings that are
 * not UTF-8 or hold NUL, numbers outside double, duplicate keys, more than JSON_MAX_DEPTH levels,
 * JSON_MAX_VALUES values or JSON_MAX_BYTES bytes.
 * Threads: one at a time. */
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
    JSON_LAST_DUPLICATE_WINS = 1, /* as Python: duplicate keys are no error */
};

/* Parses n bytes. `name` is what messages call the source ("TF_CONFIG", "job.json"); copied.
 * On success the caller owns *out. Errors: ERR_INPUT ("job.json:3:14: ..."), ERR_NOMEM. */
int json_parse(const char *name, const char *text, size_t n, unsigned flags, struct json **out,
               struct err *err);
void json_free(struct json *doc); /* NULL is fine */

const cJSON *json_root(const struct json *doc);
/* Where a value of this document stands. */
void json_place(const struct json *doc, const cJSON *value, uint32_t *line, uint32_t *column);
/* The pointer of a value, "/cluster/worker/0"; "" for the root. Valid while the document lives. */
const char *json_pointer(const struct json *doc, const cJSON *value);
/* The number exactly as it was written (for integers above 2^53 and "1.0" against "1"); valid
 * while the document lives; NULL if the value is not a number. */
const char *json_number_text(const struct json *doc, const cJSON *value);

/* ERR_INPUT, "name:line:column: /pointer: " and the message. `value` NULL: the document. */
int json_error(const struct json *doc, const cJSON *value, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* "an object", "the string \"abc\"", "the number 1.5", "null"; for "expected ..., found ...".
 * Long strings are cut. Writes at most n bytes. */
void json_describe(const struct json *doc, const cJSON *value, char *out, size_t n);

#endif
