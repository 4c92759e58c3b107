/* csv.h - splits CSV text (RFC 4180) into lines and fields. A field in double quotes may contain
 * any bytes; a quote inside it is doubled. Threads: any; pure functions. */
#ifndef DATA_CSV_H
#define DATA_CSV_H

#include <stddef.h>
#include <stdint.h>

/* A field, pointing into the text. For a quoted field the bytes between the quotes, unmodified. */
struct csv_field {
    const uint8_t *at;
    size_t n;
};

/* Returns the length of the line at the start of `text`, with its newline. */
size_t csv_line(const void *text, size_t n);
/* Splits a line: sets at most `max` fields, and returns the number of fields of the line, at least
 * 1. */
uint32_t csv_split(const void *line, size_t n, char delimiter, struct csv_field *fields,
                   uint32_t max);

struct err;
/* Refuses a file that is not CSV text. `head`: its first n bytes, at least FILE_KIND_BYTES or all (base/file_kind.h).
 * Errors: ERR_INPUT. */
int csv_check_text(const char *name, const void *head, size_t n, struct err *err);

#endif
