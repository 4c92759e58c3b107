/* data.h - reads record files as batches, in an order that is a pure function of (seed, epoch,
 * position).
 *
 *   data_set     the files of one or more patterns, the index of their records, the features
 *   data_reader  one replica's stream of lane (micro-batch) batches, prefetched by decode threads
 *                into a bounded number of slots
 *
 * A record is a tf.train.Example of a TFRecord file, a line of a CSV file, the i-th items of NumPy
 * arrays, or a window of a token file (enum data_format). A sample is a record, or a pack of
 * several short records, concatenated (data_origin.pack).
 *
 * Order: position p of epoch e is sample perm(seed, e, p) (rng_permute(); the identity without
 * shuffling). order.h defines the order of a mixture of several patterns. Step k (from 1) is batch
 * b = (k - 1) mod S of epoch (k - 1) / S, S = data_steps_per_epoch(). With a global batch of B
 * samples, lane l of L contains the positions [b*B + l*B/L, b*B + (l+1)*B/L). The last, incomplete
 * batch of an epoch of n samples is either dropped, S = n / B, or padded, S = ceil(n / B):
 * positions >= n are then samples from the start of the epoch's order with weight zero. The step
 * number is therefore the complete cursor, and every step is reached in O(1). */
#ifndef DATA_DATA_H
#define DATA_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "opts/data.h"
#include "tensor/tensor.h"

struct cancel;
struct data_reader;
struct data_set;
struct err;

enum { DATA_CONTENT_PARTS = 128 }; /* checksums of a set, see data_content() */
#define DATA_ANY_FEATURE UINT32_MAX /* data_sample_place(): no feature is known */

struct data_opts {
    struct data_origin origin; /* parts: copied */
    const char *glob; /* the matching files, sorted by name; no match: ERR_NOENT with the glob. Not
                         used if origin has parts */
    const struct data_feature *features; /* [n_features] copied */
    uint32_t n_features;
    bool training;               /* selects in_training or in_evaluation of the steps of an image */
    uint64_t deadline_ms;        /* a failing read is retried for this time; 0: no retry */
    uint32_t threads;            /* threads that build the index; 0: the number of cores */
    uint64_t check_seed;         /* selects the blocks that are compared to detect a changed file */
    const struct cancel *cancel; /* polled by data_open(); may be NULL */
    /* Reports the progress of indexing, at most every 200 ms and at the end. Called from any
     * thread; may be NULL. */
    void (*on_progress)(void *arg, uint64_t bytes_done, uint64_t bytes_all, uint64_t records);
    /* Reports an event to a person: a read that is retried or does not return, a skipped record
     * (the first four, then the 16th, 64th, 256th ...). Called from any thread; may be NULL. */
    void (*on_warning)(void *arg, const char *text);
    void *arg;
};

/* Finds the files and builds or loads the index. Checks the length CRC of every TFRecord; the data
 * CRC is checked when the record is read. A kept index is used if path, size and modification time
 * of its file match. On success the caller owns *out. Errors: ERR_NOENT, ERR_INPUT, ERR_CORRUPT
 * (file and offset), ERR_CHANGED, ERR_IO, ERR_NOMEM, ERR_CANCELED. */
int data_open(const struct data_opts *opts, struct data_set **out, struct err *err);
void data_free(struct data_set *s); /* after its readers are closed; NULL is allowed */

/* Calls visit(arg, path, err) for each file that data_open() would read; a result other than 0 ends the search and is
 * returned. If data_open() would fail to find its files, no call is made and 0 is returned. Reads no file; uses origin,
 * glob and features of opts only. */
int data_each_path(const struct data_opts *opts,
                   int (*visit)(void *arg, const char *path, struct err *err), void *arg,
                   struct err *err);

/* The numbers that a feature may have in a batch. */
struct data_range {
    double least, greatest;
    double other; /* allowed too, if has_other */
    bool has_other;
    const char *what; /* borrowed until data_free(): what they are, for the error */
};
/* From now on a sample with another number in feature i is refused as a bad record. Called before readers are opened. */
void data_set_range(struct data_set *s, uint32_t i, const struct data_range *range);

uint64_t data_samples(const struct data_set *s);
uint64_t data_records(const struct data_set *s); /* data_samples(), or more with packing */
/* the fraction of pack items that is not padding */
double data_pack_fill(const struct data_set *s);
uint32_t data_files(const struct data_set *s);
/* Returns the original path of file i, and the number of its records. */
const char *data_file_name(const struct data_set *s, uint32_t i, uint64_t *records);
/* bad records skipped so far, counted at each use */
uint64_t data_skipped(const struct data_set *s);
/* Returns the SHA-256 in hex of file names (without directory), sizes and record counts, and with
 * packing of the records' lengths. Tasks compare it. */
const char *data_digest(const struct data_set *s);
/* Sets out to checksums of the content of the files, in their order, and of their names, sizes and record counts.
 * What they cover: content.c. Tasks compare them, and those of a checkpoint at a resume. */
void data_content(const struct data_set *s, uint32_t out[DATA_CONTENT_PARTS]);
/* Returns the interval of steps in which tasks compare a record that each of them reads, so that these are less than
 * 1 % of the records that a replica reads; 0: data_content() covers the whole content. */
uint64_t data_check_every(const struct data_set *s, uint32_t global_batch, uint32_t replicas);
/* Writes the place of the record that is compared in a step. */
void data_check_place(const struct data_set *s, uint64_t step, uint64_t every, char *out,
                      size_t room);
/* Writes the record of a sample, or the records of one that packs several, and the file: that of the feature, where
 * each has its own. */
void data_sample_place(const struct data_set *s, uint64_t sample, uint32_t feature, char *out,
                       size_t room);
/* Writes the place of a part: a file with a range of its bytes, or several files. */
void data_content_place(const struct data_set *s, uint32_t part, char *out, size_t room);
/* What the head of a JPEG or PNG file states. */
struct data_image_info {
    uint32_t w, h;        /* of the stored image */
    uint32_t channels;    /* 1 grey, 3 colors */
    uint32_t orientation; /* of Exif, 1 to 8; 1: as it is stored */
};
/* Errors: ERR_INPUT (neither format), ERR_CORRUPT. */
int data_image_info(const void *bytes, size_t n, struct data_image_info *out, struct err *err);
/* Returns 0 if the set has fewer samples than a batch and `pad` is false. */
uint64_t data_steps_per_epoch(const struct data_set *s, uint32_t global_batch, bool pad);

/* Decodes one sample: writes feature i (plain, of the fed type) to out[i]. Samples are numbered in
 * file order. For evaluation tools and tests. Any thread. */
int data_sample(struct data_set *s, uint64_t sample, void *const *out, struct err *err);

struct data_reader_opts {
    uint64_t seed;
    bool shuffle;
    bool pad;
    uint32_t global_batch;
    uint32_t lanes;      /* micro-batches of a step; divides global_batch */
    uint32_t first_lane; /* this replica's lanes: [first_lane, first_lane + n_lanes) */
    uint32_t n_lanes;
    /* The last n_second of the n_lanes lanes are [second_lane, second_lane + n_second) instead; 0: none. */
    uint32_t second_lane, n_second;
    uint64_t first_step; /* first global step of the stream, from 1 */
    uint64_t last_step;  /* last global step of the stream */
    uint32_t threads;    /* decode threads of this reader; 0: data_next() decodes */
    uint32_t prefetch;   /* lane batches that are prefetched, >= 1; bounds the memory */
    /* The first batch of each step that is a multiple of it has the checksum of a record, the same record in every
     * reader of the set; 0: none. See data_check_every(). */
    uint64_t check_every;
    /* data_next() returns ERR_IO after 1.25 * deadline_ms; 0: no limit. If it waits for a read that
     * does not return, it also calls on_warning, because data_reader_close() must wait for that
     * read. */
    uint64_t deadline_ms;
};

struct data_batch { /* all pointers are owned by the reader */
    uint64_t step;
    uint32_t lane;
    uint32_t n_real; /* samples with weight 1; the others are padding */
    /* [n_features] contiguous, [lane batch, shape...] of the fed type */
    const void *const *features;
    const float *weights;        /* [lane batch] 1, or 0 for padding */
    const uint64_t *samples;     /* [lane batch] numbers of the samples, for the log */
    uint32_t check;              /* 1 + a checksum of 24 bits; 0: the batch has none */
};

/* Starts the decode threads. One thread uses the reader. On success the caller owns *out. Errors:
 * ERR_NOMEM, ERR_IO (no thread). */
int data_reader_open(struct data_set *s, const struct data_reader_opts *opts,
                     struct data_reader **out, struct err *err);
/* Waits for the next lane batch in order: step first_step with lanes first_lane, first_lane + 1,
 * ..., and those from second_lane on, then the next step. *out is valid until data_release(); NULL at the end of the stream.
 * Errors: ERR_CANCELED (data_reader_cancel() was called), ERR_CORRUPT or ERR_INPUT (a bad record;
 * the text contains file, offset, record number and the expected content), ERR_CHANGED, ERR_IO,
 * ERR_NOMEM. */
int data_next(struct data_reader *r, const struct data_batch **out, struct err *err);
/* Whether data_next() would return without a wait, or decodes itself. */
bool data_is_ready(struct data_reader *r);
void data_release(struct data_reader *r); /* frees the slot of the batch of data_next() */
/* Makes the current and all later data_next() fail with ERR_CANCELED. Any thread. */
void data_reader_cancel(struct data_reader *r);
/* Waits for the decode threads and frees the reader. NULL is allowed. */
void data_reader_close(struct data_reader *r);
uint64_t data_wait_ns(const struct data_reader *r); /* total time that data_next() waited */

#endif
