/* example.h - features of a serialized tf.train.Example, without unpacking the whole message.
 *
 *     Example.features (1) -> Features.feature (1), a map: entries of key (1) and value (2)
 *     Feature: one of bytes_list (1), float_list (2), int64_list (3), each with value (1)
 *
 * Read as any protobuf parser does: of two entries with one key the last counts, parts of one list
 * are joined, numbers may be packed or not, unknown fields are skipped. Nothing is allocated, and
 * no byte outside the record is read, whatever the record says. Threads: pure functions. */
#ifndef DATA_EXAMPLE_H
#define DATA_EXAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct data_feature;
struct err;

/* What was found in a record: a Feature, or a whole map entry that has none or several. */
struct data_entry {
    const uint8_t *at; /* NULL: no such feature in the record */
    size_t n;
    const uint8_t *record; /* where that begins, for messages */
    bool is_feature;
};

/* The names of features, to be looked up in many records. The features are borrowed. ERR_NOMEM. */
struct data_names;
int data_names_new(const struct data_feature *features, uint32_t n, struct data_names **out,
                   struct err *err);
void data_names_free(struct data_names *names); /* NULL is fine */

/* Looks them all up: found[i] belongs to features[i]. ERR_INPUT: not an Example, or a
 * feature is missing (the nearest name that is there is given) that may not be. */
int data_example_find(const struct data_names *names, const void *record, size_t n,
                      struct data_entry *found, struct err *err);

/* The values of one feature in its stored form: `elements` of type f->stored, of any alignment,
 * at *stored, which is inside the record or `room` (as many bytes, aligned to 8); of an encoded
 * image a struct data_bytes in `room`. *count: how many values there were, at most `elements`; with
 * f->pad perhaps fewer, then they are in `room`, and what is behind them is for the caller to fill.
 * ERR_INPUT: another kind or number of values; what is in `room` is then undefined. */
int data_example_read(const struct data_feature *f, size_t elements, const struct data_entry *entry,
                      void *room, const void **stored, uint64_t *count, struct err *err);

#endif
