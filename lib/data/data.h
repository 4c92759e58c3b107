/* data.h - from record files to batches, in an order that is a pure function of (seed, epoch, position).
 *
 *   data_set     the files of a glob, an index of their records, the features to decode
 *   data_reader  one replica's stream of lane batches, decoded ahead by threads into bounded slots
 *
 * Position p of epoch e is record perm(seed, e, p) (rng_permute; the identity without shuffling).
 * Step k (from 1) is batch (k - 1) mod S of epoch (k - 1) / S, S = data_steps_per_epoch(). Lane l of
 * L takes the positions [b*B + l*B/L, b*B + (l+1)*B/L). remainder drop: S = n / B; pad: S = ceil(n / B),
 * and positions >= n are filled with samples from the start of the epoch's order with weight zero.
 * So the step number is the whole cursor, and any step is reached at O(1) cost. */
#ifndef DATA_DATA_H
#define DATA_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

struct data_reader;
struct data_set;
struct err;

struct data_feature {
    const char *name;           /* key in tf.train.Example */
    enum tensor_dtype stored;   /* TENSOR_U8: one bytes value of exactly n bytes; TENSOR_F32: float list
                                   (or one bytes value of 4n little-endian bytes); TENSOR_I64, TENSOR_I32:
                                   int64 list, I32 with a range check */
    struct shape shape;         /* of one sample */
    enum tensor_dtype fed;      /* what the batch wants: TENSOR_F32, TENSOR_I64 or TENSOR_I32 */
    double scale, offset;       /* fed F32: stored * scale + offset, computed in float */
};

struct data_opts {
    const char *glob;                    /* sorted by name; no match is ERR_NOENT naming the glob */
    const struct data_feature *features; /* copied */
    uint32_t n_features;
    bool cache_memory;                   /* keep decoded samples (as stored) after the first use */
    const char *index_directory;         /* where indexes are kept between runs; NULL: memory only */
    uint32_t threads;                    /* for building the index; 0: cores */
    const volatile int *cancel;          /* polled; may be NULL */
    /* Progress of the index, at most every 200 ms and at the end; from any thread. NULL is fine. */
    void (*on_progress)(void *arg, uint64_t bytes_done, uint64_t bytes_all, uint64_t records);
    void *arg;
};

/* Builds or loads the index (the length CRC of every record is checked; the data CRC when the record
 * is read). A kept index is used when path, size and modification time of its file match.
 * Errors: ERR_NOENT, ERR_INPUT, ERR_CORRUPT (file and offset), ERR_IO, ERR_NOMEM, ERR_CANCELED. */
int data_open(const struct data_opts *opts, struct data_set **out, struct err *err);
void data_free(struct data_set *s); /* after its readers; NULL is fine */

uint64_t data_records(const struct data_set *s);
uint32_t data_files(const struct data_set *s);
/* SHA-256 hex over file names (without folder), sizes and record counts: tasks compare it. */
const char *data_digest(const struct data_set *s);
/* 0: fewer records than a batch and remainder drop. */
uint64_t data_steps_per_epoch(const struct data_set *s, uint32_t global_batch, bool pad);

/* One sample, decoded: writes n_features tensors (plain, of the fed type) at out[i]. For evaluation
 * tools and tests. Record in file order. Threads: any. */
int data_sample(struct data_set *s, uint64_t record, void *const *out, struct err *err);

struct data_reader_opts {
    uint64_t seed;
    bool shuffle;
    bool pad;
    uint32_t global_batch;
    uint32_t lanes;          /* divides global_batch */
    uint32_t first_lane;     /* this replica's lanes: [first_lane, first_lane + n_lanes) */
    uint32_t n_lanes;
    uint64_t first_step;     /* first global step to deliver, from 1 */
    uint64_t last_step;      /* the stream ends after it */
    uint32_t threads;        /* decode threads of this reader; 0: decode in the caller */
    uint32_t prefetch;       /* lane batches decoded ahead, >= 1; bounds the memory */
};

struct data_batch {
    uint64_t step;
    uint32_t lane;
    uint32_t n_real;                     /* samples with weight 1; the rest are padding */
    const void *const *features;         /* [n_features] plain, contiguous, [lane batch, shape...] of the fed type */
    const float *weights;                /* [lane batch]: 1 or 0 */
    const uint64_t *records;             /* [lane batch]: record numbers, for the log of sample ids */
};

/* The reader belongs to one thread. Errors: ERR_NOMEM. */
int data_reader_open(struct data_set *s, const struct data_reader_opts *opts,
                     struct data_reader **out, struct err *err);
/* Next lane batch in order: step first_step lane first_lane, lane first_lane + 1, ..., then the next
 * step. *out is valid until data_release(). *out = NULL at the end of the stream. Blocks; waiting
 * ends with ERR_CANCELED after data_reader_cancel(). A bad record: ERR_CORRUPT or ERR_INPUT with file, offset
 * and record number, and what was expected. */
int data_next(struct data_reader *r, const struct data_batch **out, struct err *err);
void data_release(struct data_reader *r);
void data_reader_cancel(struct data_reader *r); /* any thread */
void data_reader_close(struct data_reader *r);  /* NULL is fine */
uint64_t data_wait_ns(const struct data_reader *r); /* time data_next() had to wait */

#endif
