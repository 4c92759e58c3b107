/* data.h - what a job defines about its samples: plain values, which lib/conf fills and lib/data reads.
 * The functions: data/data.h. */
#ifndef OPTS_DATA_H
#define OPTS_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "opts/tensor.h"

enum data_format {
    /* tf.train.Example records; plain, or compressed with gzip or zlib (see data_origin.cache) */
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
    bool upright;                  /* encoded: turned by the orientation that its Exif data state */
    bool channels_last;            /* image: the shape is [h, w, c], else [c, h, w] or [h, w] */
    const struct data_step *steps; /* image: [n_steps] applied in this order; copied */
    uint32_t n_steps;
};

struct data_part { /* one component of a mixture */
    const char *glob;
    uint32_t weight; /* >= 1: this many of every W samples, W = the sum of the weights */
};

enum data_cache {
    DATA_CACHE_NONE,
    DATA_CACHE_MEMORY, /* samples are kept in memory, in their stored form, after the first use */
    DATA_CACHE_DISK,   /* files are first copied (and unpacked) to cache_directory */
};

/* How samples are stored, and where they are kept while a job reads them. */
struct data_origin {
    enum data_format format;
    const struct data_part *parts; /* [n_parts] a mixture of several sets of files */
    uint32_t n_parts;              /* 0: one set */
    /* NULL, or the name of a feature of shape [T, ...] by which records are packed: a sample is
     * then the concatenation of several records with at most T items in total. All stored features
     * are lists with the same number of items (shape [T, ...] with their own inner dimensions) and
     * are padded with pad_value after the last record. The plan of packs is a function of the data
     * only (pack.c); data_open() reads all records once to compute it. */
    const char *pack;
    bool csv_header;    /* the first line of each file contains the names of the columns */
    char csv_delimiter; /* 0: a comma */
    /* A bad record is replaced by the next good record and counted; the rest of a TFRecord file
     * after a damaged header is skipped. */
    bool skip_bad;
    enum data_cache cache;       /* compressed files require memory or disk */
    const char *cache_directory; /* with DATA_CACHE_DISK, else NULL */
    const char *index_directory; /* indexes are kept here between runs; NULL: memory only */
};

#endif
