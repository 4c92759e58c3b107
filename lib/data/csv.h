/* csv.h - CSV text, RFC 4180: lines of fields, which may stand in double quotes and then hold anything, a
 * quote written twice. Threads: pure functions. */
#ifndef DATA_CSV_H
#define DATA_CSV_H

#include <stddef.h>
#include <stdint.h>

struct csv_field { /* inside the text; of a quoted one what stands between the quotes, as it is */
    const uint8_t *at;
    size_t n;
};

/* Bytes of the line that begins here, its newline included. */
size_t csv_line(const void *text, size_t n);
/* The fields of a line. Fills up to `max` of them; returns how many there are, at least 1. */
uint32_t csv_split(const void *line, size_t n, char delimiter, struct csv_field *fields,
                   uint32_t max);

#endif
