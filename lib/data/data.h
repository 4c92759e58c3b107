/* data.h - from record files to batches, in an order that is a pure function of (seed, epoch, position).
 *
 *   data_set     the files of some patterns, an index of their records, the features to decode
 *   data_reader  one replica's stream of lane batches, decoded ahead by threads into bounded slots
 *
 * A record is a tf.train.Example of a TFRecord file, a line of a CSV file, the i-th items of NumPy
 * arrays, or a window of a token file (enum data_format). A sample is a record, or a pack of several
 * short ones behind each other (data_opts.pack).
 * Position p of epoch e is sample perm(seed, e, p) (rng_permute; the identity without shuffling);
 * order.h says what several patterns mixed by weight make of it.
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

struct cancel;
struct data_reader;
struct data_set;
struct err;

enum data_format {
    DATA_TFRECORD, /* of tf.train.Example; plain, or gzip (see cache_directory) */
    DATA_CSV,      /* RFC 4180; a feature of n elements takes n columns side by side */
    DATA_NPY,      /* a .npy file per feature: the pattern holds {feature}; the first dimension counts records */
    DATA_TOKENS,   /* raw uint16 or uint32: record i of a file is tokens [iT, iT + T) as feature "tokens" and
                      [iT + 1, iT + T + 1) as feature "labels", T the elements of either */
};

/* A step of an image's way from its file to the batch; random ones draw from (seed, epoch, record). */
enum data_step_op {
    DATA_RANDOM_RESIZED_CROP, /* a part of the image, stretched to the shape (torchvision's) */
    DATA_RANDOM_CROP,         /* the shape's size out of the image with `padding` black pixels around it */
    DATA_CENTER_CROP,         /* `fraction` of the largest part in the middle with the shape's proportions */
    DATA_FLIP,                /* left to right, with `probability` */
    DATA_COLOR_JITTER,
    DATA_NORMALIZE,           /* (pixel / 255 - mean) / std per channel, in place of scale and offset */
};
enum { DATA_CHANNELS_MAX = 4 };
struct data_step {
    enum data_step_op op;
    bool in_training, in_evaluation; /* where it is done */
    double scale[2], ratio[2];       /* random_resized_crop: share of the area, width / height */
    uint32_t padding;
    double fraction, probability;
    double brightness, contrast, saturation, hue; /* factors from 1 - x to 1 + x; hue: turns from -x to x */
    double mean[DATA_CHANNELS_MAX], std[DATA_CHANNELS_MAX];
};

/* Where a feature comes from: the record, or another feature's list, n values or (of a shape [T, ...]) n
 * items of which are there. */
enum data_derived {
    DATA_STORED,
    DATA_LENGTH,   /* one int64: how many values there are; of a pack, all together */
    DATA_SEGMENT,  /* [T] int64: 1 where an item is, 0 behind them; in a pack 1, 2, 3 ... for each record */
    DATA_POSITION, /* [T] int64: which item of its record it is, from 0; 0 behind them */
};

/* How a flat list becomes the rows of a shape [R, C, ...]; each has its own length, and is filled up. */
enum data_rows {
    DATA_NO_ROWS,
    DATA_ROW_LENGTHS, /* another list, [R] int64: the items of each row */
    DATA_ROW_SPLITS,  /* another list, [R + 1] int64: where rows begin, and the last one ends */
};

struct data_feature {
    const char *name;           /* key in tf.train.Example; see `column` */
    enum tensor_dtype stored;   /* in an Example: TENSOR_U8: one bytes value of exactly n bytes; TENSOR_F32:
                                   float list (or one bytes value of 4n little-endian bytes); TENSOR_I64,
                                   TENSOR_I32: int64 list, I32 with a range check. Token files: TENSOR_U16,
                                   TENSOR_U32 */
    struct shape shape;         /* of one sample in the batch */
    enum tensor_dtype fed;      /* what the batch wants: TENSOR_F32, TENSOR_I64, TENSOR_I32, TENSOR_U8 or
                                   TENSOR_BOOL (true: not 0) */
    double scale, offset;       /* fed F32: stored * scale + offset, computed in float */

    bool pad, truncate;         /* a list that is shorter (or missing) is filled up; a longer one is cut */
    double pad_value;
    enum data_derived derived;
    const char *of;             /* derived: from this feature */
    enum data_rows rows;        /* as tf.io.RaggedFeature with one partition; TFRecord */
    const char *rows_by;        /* with rows: the other list, which is a feature too */
    const char *column;         /* CSV: name of the first column, or its number from 0 without a header;
                                   NULL: the feature's name */
    bool encoded;               /* TENSOR_U8: one bytes value that is a JPEG or PNG file, decoded to 1 or 3
                                   channels and stretched to the shape */
    bool channels_last;         /* of an image: shape is [h, w, c], else [c, h, w] (or [h, w]) */
    const struct data_step *steps; /* of an image, in this order; copied */
    uint32_t n_steps;
};

struct data_part { /* of a mixture */
    const char *glob;
    uint32_t weight;            /* >= 1: of every sum-of-weights samples so many come from here */
};

struct data_opts {
    enum data_format format;
    const char *glob;                    /* sorted by name; no match is ERR_NOENT naming the glob */
    const struct data_part *parts;       /* a mixture in its place; copied */
    uint32_t n_parts;                    /* 0: the glob alone */
    const struct data_feature *features; /* copied */
    uint32_t n_features;
    /* NULL, or a feature of shape [T, ...] whose records are packed: as many as fit into T items, one behind
     * the other, make one sample. All stored features are lists with as many items (of a shape [T, ...]
     * of their own inner dimensions), filled up with pad_value behind the last record. Which records
     * share a pack follows from the data alone: see pack.c. All records are read once for it. */
    const char *pack;
    bool csv_header;                     /* the first line of each file has the names of the columns */
    char csv_delimiter;                  /* 0: a comma */
    bool training;                       /* which steps of an image are done */
    bool skip_bad;                       /* a bad record is replaced by the next good one behind it and counted;
                                            what lies behind a damaged head is left out */
    bool cache_memory;                   /* keep samples (as stored) after the first use */
    const char *cache_directory;         /* files are first copied to here, unpacked; NULL: read where they are.
                                            gzip needs it, or cache_memory: then they are unpacked into memory */
    uint64_t deadline_ms;                /* how long a failing read is tried again; 0: not at all */
    const char *index_directory;         /* where indexes are kept between runs; NULL: memory only */
    uint32_t threads;                    /* for building the index; 0: cores */
    uint64_t check_seed;                 /* chooses the blocks by which a changed file is recognized */
    const struct cancel *cancel;          /* polled; may be NULL */
    /* Progress of the index, at most every 200 ms and at the end; from any thread. NULL is fine. */
    void (*on_progress)(void *arg, uint64_t bytes_done, uint64_t bytes_all, uint64_t records);
    /* Something a person should know: a read that is tried again or does not come back, a record that
     * is skipped (the first ones, then the 16th, 64th, 256th ...). From any thread. NULL is fine. */
    void (*on_trouble)(void *arg, const char *text);
    void *arg;
};

/* Builds or loads the index (the length CRC of every record is checked; the data CRC when the record
 * is read). A kept index is used when path, size and modification time of its file match.
 * Errors: ERR_NOENT, ERR_INPUT, ERR_CORRUPT (file and offset), ERR_CHANGED, ERR_IO, ERR_NOMEM, ERR_CANCELED. */
int data_open(const struct data_opts *opts, struct data_set **out, struct err *err);
void data_free(struct data_set *s); /* after its readers; NULL is fine */

uint64_t data_samples(const struct data_set *s);
uint64_t data_records(const struct data_set *s); /* the same, or more with packing */
double data_pack_fill(const struct data_set *s); /* the share of all packs' items that are none of filling */
uint32_t data_files(const struct data_set *s);
/* Path of file i as it was found, and its records. */
const char *data_file_name(const struct data_set *s, uint32_t i, uint64_t *records);
uint64_t data_skipped(const struct data_set *s); /* bad records so far, each time one was drawn */
/* SHA-256 hex over file names (without folder), sizes and record counts, and lengths with packing: tasks
 * compare it. */
const char *data_digest(const struct data_set *s);
/* Width and height of a JPEG or PNG file in memory. ERR_INPUT: it is neither; ERR_CORRUPT. */
int data_image_size(const void *bytes, size_t n, uint32_t *w, uint32_t *h, struct err *err);
/* 0: fewer samples than a batch and remainder drop. */
uint64_t data_steps_per_epoch(const struct data_set *s, uint32_t global_batch, bool pad);

/* One sample, decoded: writes n_features tensors (plain, of the fed type) at out[i]. For evaluation
 * tools and tests. Numbered in file order. Threads: any. */
int data_sample(struct data_set *s, uint64_t sample, void *const *out, struct err *err);

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
    uint64_t deadline_ms;    /* a wait of data_next() that is longer, by a quarter, is ERR_IO; 0: none. If it waits for a
                                read, on_trouble is told too: data_reader_close() waits on for that */
};

struct data_batch {
    uint64_t step;
    uint32_t lane;
    uint32_t n_real;                     /* samples with weight 1; the rest are padding */
    const void *const *features;         /* [n_features] plain, contiguous, [lane batch, shape...] of the fed type */
    const float *weights;                /* [lane batch]: 1 or 0 */
    const uint64_t *samples;             /* [lane batch]: their numbers, for the log of sample ids */
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
