/* example.h - reads features of a serialized tf.train.Example without decoding the whole message.
 *
 *     Example.features (1) -> Features.feature (1), a map: entries of key (1) and value (2)
 *     Feature: one of bytes_list (1), float_list (2), int64_list (3), each with value (1)
 *
 * The result equals that of a protobuf parser: the last of several entries with the same key wins,
 * parts of a list are concatenated, numbers may be packed or not, unknown fields are skipped.
 * Reading a record allocates no memory and never accesses bytes outside the record. Threads: any;
 * pure functions. */
#ifndef DATA_EXAMPLE_H
#define DATA_EXAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct data_feature;
struct err;

/* A map entry of a record. */
struct data_entry {
    const uint8_t *at; /* into the record; NULL: the record does not contain the feature */
    size_t n;
    const uint8_t *record; /* start of the record, for messages */
    bool is_feature; /* the bytes are a Feature; else a whole map entry with no or several values */
};

/* A hash table of the names of features, for the lookup in many records. `features` is borrowed. On
 * success the caller owns *out. Errors: ERR_NOMEM. */
struct data_names;
int data_names_new(const struct data_feature *features, uint32_t n, struct data_names **out,
                   struct err *err);
void data_names_free(struct data_names *names); /* NULL is allowed */

/* Finds all features in a record: found[i] is the entry of features[i]. Errors: ERR_INPUT (not an
 * Example, or a required feature is absent; the text suggests the most similar present name). */
int data_example_find(const struct data_names *names, const void *record, size_t n,
                      struct data_entry *found, struct err *err);

/* Reads the values of one feature in its stored form. Sets *stored to `elements` values of type
 * f->stored, without alignment, either inside the record or in `room` (of the same size, aligned to
 * 8); for an encoded image, to a struct data_bytes in `room`. Sets *count to the number of values,
 * at most `elements`. With f->pad it may be fewer; the values are then in `room`, and the caller
 * pads them. Errors: ERR_INPUT (another kind or number of values); the content of `room` is then
 * undefined. */
int data_example_read(const struct data_feature *f, size_t elements, const struct data_entry *entry,
                      void *room, const void **stored, uint64_t *count, struct err *err);

#endif
