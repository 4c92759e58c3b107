/* ctl_convert.h - the inputs that `trainerctl convert` converts to TFRecord files; one source file
 * for each kind of input.
 *
 * Each conversion adds its samples to c->writer in an order that depends only on the inputs, and
 * describes their features. Several inputs are concatenated: several CSV files are one table,
 * several arrays with one name are one array. */
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
    char *name; /* owned; NAME of NAME=FILE, "" for an input without a name */
    char *path; /* owned */
};

struct convert {
    const char *out, *shards_text, *label, *delimiter, *seed_text, *classes;
    bool no_header, help;
    uint64_t seed;
    VEC(struct convert_input) inputs; /* at least one; patterns are expanded, each sorted by path */
    struct data_writer *writer;
    struct buf list;     /* features of the current sample, encoded */
    struct buf features; /* description of the features in the syntax of a job file */
    struct buf class_list; /* the classes that the inputs define, a line for each; empty: they define none */
};

/* ctl_convert_describe.c: appends a feature to c->features. `shape` is JSON; `more` is inserted before the closing
 * brace. */
void convert_describe(struct convert *c, const char *name, const char *dtype, const char *shape,
                      const char *more);
int convert_arrays(struct convert *c, struct err *err); /* ctl_convert_array.c */
int convert_tables(struct convert *c, struct err *err); /* ctl_convert_table.c */
int convert_images(struct convert *c, struct err *err); /* ctl_convert_image.c: one folder */

/* ctl_convert_checkpoint.c: is the path the folder of a checkpoint; copies it to c->out with whole tables */
bool convert_is_checkpoint(const char *path);
int convert_checkpoint(const struct convert *c, struct err *err);

#endif
