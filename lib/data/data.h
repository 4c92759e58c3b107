/* data.h - reads record files as batches, in an order that is a pure function of (seed, epoch,
 * position).
 *
 *   data_set     the files of one or more patterns, the index of their records, the features
 *   data_reader  one replica's stream of lane (micro-batch) batches, prefetched by decode threads
 *                into a bounded number of slots
 *
 * A record is a tf.train.Example of a TFRecord file, a line of a CSV file, the i-th items of NumPy
 * arrays, or a window of a token file (enum data_format). A sample is a record, or a pack of
 * several short records, concatenated (data_opts.pack).
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

#include "tensor/tensor.h"

struct cancel;
struct data_reader;
struct data_set;
struct err;

enum data_format {
    /* tf.train.Example records; plain, or gzip (see cache_directory) */
    DATA_TFRECORD,
    /* RFC 4180; a feature of n elements is n adjacent columns */
    DATA_CSV,
    /* a .npy file per feature: the pattern contains {feature}; the first dimension counts
     * records */
    DATA_NPY,
    /* raw uint16 or uint32 tokens: record i of a file is tokens [iT, iT + T) as feature "tokens"
     * and [iT + 1, iT + T + 1) as feature "labels", where T is the number of elements of each */
    DATA_TOKENS,
};

/* A preprocessing step of an image. Random steps are functions of (seed, epoch, record). */
enum data_step_op {
    DATA_RANDOM_RESIZED_CROP, /* a random part, resized to the shape (as in torchvision) */
    DATA_RANDOM_CROP, /* a random part of the shape's size, after `padding` with black pixels */
    DATA_CENTER_CROP, /* `fraction` of the largest central part with the shape's aspect ratio */
    DATA_FLIP,                /* left to right, with `probability` */
    DATA_COLOR_JITTER,        /* random brightness, contrast, saturation, hue */
    DATA_NORMALIZE, /* (pixel / 255 - mean) / std per channel, replaces scale and offset */
};
enum { DATA_CHANNELS_MAX = 4 };
struct data_step {
    enum data_step_op op;
    bool in_training, in_evaluation; /* the kinds of sets in which the step is applied */
    double scale[2], ratio[2]; /* random_resized_crop: range of the area's fraction, of w / h */
    uint32_t padding;                /* random_crop: pixels on each side */
    double fraction, probability;    /* center_crop; flip */
    /* color_jitter: the factor is in [1 - x, 1 + x]; hue: the shift is in [-x, x] turns */
    double brightness, contrast, saturation, hue;
    double mean[DATA_CHANNELS_MAX], std[DATA_CHANNELS_MAX]; /* normalize */
};

/* The source of a feature: the record, or the list of another feature with n values, which are n
 * items if its shape is [T, ...]. */
enum data_derived {
    DATA_STORED,   /* the record */
    DATA_LENGTH,   /* one int64: the number of values; for a pack, of all its records */
    /* [T] int64: 1 for each item, 0 after the last; in a pack 1, 2, 3 ... per record */
    DATA_SEGMENT,
    DATA_POSITION, /* [T] int64: index of the item in its record, from 0; 0 after the last item */
};

/* The partition of a flat list into the rows of a shape [R, C, ...]. Each row has its own length
 * and is padded. */
enum data_rows {
    DATA_NO_ROWS,
    DATA_ROW_LENGTHS, /* another list, [R] int64: the number of items of each row */
    /* another list, [R + 1] int64: the start of each row, and the end of the last */
    DATA_ROW_SPLITS,
};

struct data_feature {
    const char *name; /* key in tf.train.Example; see `column` */
    /* Type in the record. Example: TENSOR_U8: one bytes value of exactly n bytes; TENSOR_F32: a
     * float list, or one bytes value of 4n little-endian bytes; TENSOR_I64, TENSOR_I32: an int64
     * list, I32 with a range check. Token files: TENSOR_U16, TENSOR_U32. */
    enum tensor_dtype stored;
    struct shape shape; /* of one sample in the batch */
    /* Type in the batch: TENSOR_F32, TENSOR_I64, TENSOR_I32, TENSOR_U8 or TENSOR_BOOL (nonzero is
     * true). */
    enum tensor_dtype fed;
    double scale, offset; /* fed F32: stored * scale + offset, computed in float */

    bool pad, truncate; /* a shorter or absent list is padded; a longer list is truncated */
    double pad_value;
    enum data_derived derived;
    const char *of;      /* with `derived`: name of the source feature */
    enum data_rows rows; /* as tf.io.RaggedFeature with one partition; TFRecord only */
    const char *rows_by; /* with `rows`: name of the feature with the lengths or splits */
    /* CSV: name of the first column, or its index from 0 if there is no header; NULL: `name` */
    const char *column;
    /* TENSOR_U8: one bytes value that is a JPEG or PNG file, decoded to 1 or 3 channels and resized
     * to the shape */
    bool encoded;
    bool channels_last;            /* image: the shape is [h, w, c], else [c, h, w] or [h, w] */
    const struct data_step *steps; /* image: [n_steps] applied in this order; copied */
    uint32_t n_steps;
};

struct data_part { /* one component of a mixture */
    const char *glob;
    uint32_t weight; /* >= 1: this many of every W samples, W = the sum of the weights */
};

struct data_opts {
    enum data_format format;
    const char *glob; /* the matching files, sorted by name; no match: ERR_NOENT with the glob */
    const struct data_part *parts; /* [n_parts] a mixture, replaces `glob`; copied */
    uint32_t n_parts;              /* 0: `glob` */
    const struct data_feature *features; /* [n_features] copied */
    uint32_t n_features;
    /* NULL, or the name of a feature of shape [T, ...] by which records are packed: a sample is
     * then the concatenation of several records with at most T items in total. All stored features
     * are lists with the same number of items (shape [T, ...] with their own inner dimensions) and
     * are padded with pad_value after the last record. The plan of packs is a function of the data
     * only (pack.c); data_open() reads all records once to compute it. */
    const char *pack;
    bool csv_header;    /* the first line of each file contains the names of the columns */
    char csv_delimiter; /* 0: a comma */
    bool training;      /* selects in_training or in_evaluation of the steps of an image */
    /* A bad record is replaced by the next good record and counted; the rest of a TFRecord file
     * after a damaged header is skipped. */
    bool skip_bad;
    bool cache_memory; /* samples are kept in memory, in their stored form, after the first use */
    /* The files are first copied (and unpacked) to this directory; NULL: they are read in place.
     * gzip files require it, or cache_memory, with which they are unpacked to memory. */
    const char *cache_directory;
    uint64_t deadline_ms;        /* a failing read is retried for this time; 0: no retry */
    const char *index_directory; /* indexes are kept here between runs; NULL: memory only */
    uint32_t threads;            /* threads that build the index; 0: the number of cores */
    uint64_t check_seed;         /* selects the blocks that are compared to detect a changed file */
    const struct cancel *cancel; /* polled by data_open(); may be NULL */
    /* Reports the progress of indexing, at most every 200 ms and at the end. Called from any
     * thread; may be NULL. */
    void (*on_progress)(void *arg, uint64_t bytes_done, uint64_t bytes_all, uint64_t records);
    /* Reports an event to a person: a read that is retried or does not return, a skipped record
     * (the first four, then the 16th, 64th, 256th ...). Called from any thread; may be NULL. */
    void (*on_trouble)(void *arg, const char *text);
    void *arg;
};

/* Finds the files and builds or loads the index. Checks the length CRC of every TFRecord; the data
 * CRC is checked when the record is read. A kept index is used if path, size and modification time
 * of its file match. On success the caller owns *out. Errors: ERR_NOENT, ERR_INPUT, ERR_CORRUPT
 * (file and offset), ERR_CHANGED, ERR_IO, ERR_NOMEM, ERR_CANCELED. */
int data_open(const struct data_opts *opts, struct data_set **out, struct err *err);
void data_free(struct data_set *s); /* after its readers are closed; NULL is allowed */

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
/* Returns width and height of a JPEG or PNG file in memory. Errors: ERR_INPUT (neither format),
 * ERR_CORRUPT. */
int data_image_size(const void *bytes, size_t n, uint32_t *w, uint32_t *h, struct err *err);
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
    uint64_t first_step; /* first global step of the stream, from 1 */
    uint64_t last_step;  /* last global step of the stream */
    uint32_t threads;    /* decode threads of this reader; 0: data_next() decodes */
    uint32_t prefetch;   /* lane batches that are prefetched, >= 1; bounds the memory */
    /* data_next() returns ERR_IO after 1.25 * deadline_ms; 0: no limit. If it waits for a read that
     * does not return, it also calls on_trouble, because data_reader_close() must wait for that
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
};

/* Starts the decode threads. One thread uses the reader. On success the caller owns *out. Errors:
 * ERR_NOMEM, ERR_IO (no thread). */
int data_reader_open(struct data_set *s, const struct data_reader_opts *opts,
                     struct data_reader **out, struct err *err);
/* Waits for the next lane batch in order: step first_step with lanes first_lane, first_lane + 1,
 * ..., then the next step. *out is valid until data_release(); NULL at the end of the stream.
 * Errors: ERR_CANCELED (data_reader_cancel() was called), ERR_CORRUPT or ERR_INPUT (a bad record;
 * the text contains file, offset, record number and the expected content), ERR_CHANGED, ERR_IO,
 * ERR_NOMEM. */
int data_next(struct data_reader *r, const struct data_batch **out, struct err *err);
void data_release(struct data_reader *r); /* frees the slot of the batch of data_next() */
/* Makes the current and all later data_next() fail with ERR_CANCELED. Any thread. */
void data_reader_cancel(struct data_reader *r);
/* Waits for the decode threads and frees the reader. NULL is allowed. */
void data_reader_close(struct data_reader *r);
uint64_t data_wait_ns(const struct data_reader *r); /* total time that data_next() waited */

#endif
