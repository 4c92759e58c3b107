/* map.h - a vector of which some blocks are coded and the others stay float32.
 *
 * Small tensors, statistics and control words of a gradient stay float32: a scale that they shared with
 * large neighbours would round them to nothing. Which blocks are coded is a function of the job.
 *
 *     block        0      1      2      3      4 ...
 *     map          coded  coded  raw    coded  raw, like everything after the map
 *     wire form    [code ][code ][float32    ][code ][float32 ...
 *
 * The wire form of a range is that of its blocks one after the other, so its size is a function of the map.
 * A range begins at a multiple of CODE_BLOCK. It ends at one too, or in a raw block.
 *
 * Threads: any; nothing changes a map after code_map_index(). */
#ifndef CODE_MAP_H
#define CODE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "code/code.h"

struct err;

struct code_map {
    enum code_kind kind; /* not CODE_NONE */
    size_t n_blocks;     /* the blocks after them are raw */
    uint8_t *is_coded;   /* owned [n_blocks] */
    uint32_t *before;    /* owned [n_blocks + 1]: number of coded blocks before a block */
    bool is_indexed;     /* `before` is valid */
};

/* Codes all whole blocks of `elements` numbers, fewer than 2^34. On failure *m can be closed. Errors:
 * ERR_NOMEM. */
int code_map_open(struct code_map *m, enum code_kind kind, size_t elements, struct err *err);
void code_map_close(struct code_map *m); /* a zeroed one is allowed */
/* Leaves the blocks raw that have elements of [begin, end). */
void code_map_raw(struct code_map *m, size_t begin, size_t end);
void code_map_index(struct code_map *m);         /* to be called after the last code_map_raw() */
size_t code_map_coded(const struct code_map *m); /* number of elements in coded blocks */
/* Bytes of the codes of all blocks before element `begin`. */
size_t code_map_coded_before(const struct code_map *m, size_t begin);

static inline bool code_map_is_coded(const struct code_map *m, size_t block)
{
    return block < m->n_blocks && m->is_coded[block] != 0;
}

/* The functions below: elements [begin, end), of which x or y is the first. */

size_t code_map_bytes(const struct code_map *m, size_t begin, size_t end); /* of the wire form */
/* Writes the wire form. */
void code_map_write(const struct code_map *m, const struct code_key *key, const float *x,
                    size_t begin, size_t end, uint8_t *out);
void code_map_read(const struct code_map *m, const uint8_t *in, size_t begin, size_t end, float *y);
/* The codes of the coded blocks of the range alone. */
size_t code_map_coded_bytes(const struct code_map *m, size_t begin, size_t end);
void code_map_write_coded(const struct code_map *m, const struct code_key *key, const float *x,
                          size_t begin, size_t end, uint8_t *out);
/* Writes the wire form of codes that exist, and of raw blocks of x. */
void code_map_join(const struct code_map *m, const uint8_t *codes, const float *x, size_t begin,
                   size_t end, uint8_t *out);
/* Replaces x by what code_map_read() makes of its wire form. codes: receives the codes of the coded blocks of
 * the range; NULL: they are not kept. */
void code_map_round(const struct code_map *m, const struct code_key *key, float *x, size_t begin,
                    size_t end, uint8_t *codes);

#endif
