/* ctl_convert.h - what `trainerctl convert` makes TFRecords of: a file per kind of input.
 *
 * Each adds its samples to c->writer in an order that depends on the inputs alone, and describes their
 * features. Inputs of a kind stand behind each other: several CSV files are one table, several arrays of a
 * name one array. */
#ifndef DAEMON_CTL_CONVERT_H
#define DAEMON_CTL_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/vec.h"

struct data_writer;
struct err;

enum { CONVERT_FILE_BYTES_MAX = 1 << 30 };

struct convert_input {
    char *name; /* owned; of NAME=FILE, else "" */
    char *path; /* owned */
};

struct convert {
    const char *out, *shards_text, *label, *delimiter, *seed_text;
    bool no_header, help;
    uint64_t seed;
    VEC(struct convert_input) inputs; /* at least one; patterns are resolved, each sorted by name */
    struct data_writer *writer;
    struct buf list;     /* of the sample at hand */
    struct buf features; /* how a job describes them */
};

/* Adds a feature to the description. `more` comes in front of the closing brace. */
void convert_describe(struct convert *c, const char *name, const char *dtype, const char *shape,
                      const char *more);
int convert_arrays(struct convert *c, struct err *err); /* ctl_convert_array.c */
int convert_tables(struct convert *c, struct err *err); /* ctl_convert_table.c */
int convert_images(struct convert *c, struct err *err); /* ctl_convert_image.c: one folder */

#endif
