/* data_priv.h - declarations shared by the files of data/.
 *
 *   set.c        the data_set, and its cache
 *   features.c   checks the features, and computes their positions in a stored sample
 *   files.c      finds and sorts the files, numbers their records, computes the digest
 *   shards.c     finds absent files of a set whose names state its size
 *   file.c       opens and reads a file, with retries
 *   index.c      finds the positions of the records in each file
 *   scan.c       scans a file in blocks, for the formats
 *   pack.c       plans which short records are packed to one sample
 *   lengths.c    reads the length of every record, for pack.c
 *   unpack.c     copies files to a local disk or to memory, and unpacks gzip and zlib
 *   record.c     reads the bytes of records, in windows
 *   content.c    checksums of the content, which tasks compare
 *   check.c      records that tasks compare while steps read them
 *   unchanged.c  detects a file that changed after it was indexed
 *   source.c     the table of formats; with tfrecord.c, tfrecord_index.c, csv.c, arrays.c
 *   example.c    finds features in a tf.train.Example; with example_read.c (values), proto.c
 *   varints.c    decodes packed integers, for example_read.c
 *   image.c      preprocesses JPEG, PNG or raw pixels; with jpeg.c, png.c, exif.c, upright.c,
 *                resample.c, color.c
 *   convert.c    converts the stored type to the fed type
 *   ragged.c     rows of different lengths
 *   decoder.c    the buffers of a decoding thread; reads one record
 *   sample.c     decodes one sample with all of the above, through the cache
 *   order.c      the order of the samples
 *   reader.c     the threads that prefetch lane batches */
#ifndef DATA_DATA_PRIV_H
#define DATA_DATA_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "data/data.h"
#include "data/order.h"

enum {
    DATA_RECORD_BYTES_MAX = 1 << 30,
    DATA_REGIONS = 32,           /* of a file; see content.c */
    DATA_WHOLE_BYTES = 32 << 20, /* a set of at most this size is compared byte by byte */
};

/* When a failing operation is retried, and how that is reported. */
struct data_retry {
    uint64_t deadline_ms;        /* total time of all attempts; 0: no retry */
    const struct cancel *cancel; /* borrowed; NULL: cannot be cancelled this way */
    atomic_bool *canceled;       /* borrowed; NULL: cannot be cancelled this way */
    void (*on_warning)(void *arg, const char *text);
    void *arg;
};

struct data_file {
    char *origin;          /* owned; the path that matched the pattern */
    char *path;            /* owned; the path that is read: `origin`, or a local copy */
    uint64_t origin_bytes; /* size of `origin` */
    uint64_t bytes;        /* size and modification time when it was indexed; see unchanged.c */
    int64_t mtime_ns;
    _Atomic int64_t known_mtime_ns; /* latest modification time with verified, unchanged content */
    uint32_t sampled[DATA_REGIONS]; /* data_file_checksum() when it was indexed */
    uint32_t content[DATA_REGIONS]; /* checksums of all that is compared; see content.c */
    uint64_t n_records;
    uint64_t first; /* number in the set of the file's first record */
    /* Record i is the bytes [starts[i], starts[i + 1]), or without starts
     * [data_at + i * step, data_at + i * step + span). */
    uint64_t *starts; /* [n_records + 1] owned, or NULL */
    uint64_t data_at, step, span;
    enum tensor_dtype dtype;     /* npy: of the numbers in the file */
    const uint8_t *mapping;      /* owned; [bytes] for mapping_copy() only; NULL: not mapped */
    atomic_int fd;               /* owned; -1: not open */
    bool pinned;                 /* fd is an unpacked copy in memory, which stays open */
    _Atomic uint64_t checked_ns; /* clock_ns() when size and time were last checked */
};

/* Sizes and positions of the features. Arrays of [n_features] in the arena of the set; constant
 * after data_open(). */
struct data_layout {
    size_t *elements;    /* elements of one sample */
    size_t *stored_at;   /* offset in a stored sample, a multiple of 8 */
    size_t *stored_size; /* bytes in a stored sample */
    size_t stored_bytes; /* bytes of a stored sample */
    size_t *fed_bytes;   /* bytes of one sample in a batch */
    size_t *inner;       /* elements per index of the first dimension */
    uint32_t *of;        /* index of the source; UINT32_MAX: it is stored */
    uint32_t *rows_by;   /* index of the lengths; UINT32_MAX: no rows */
    uint32_t pack_by;    /* index of the feature data_origin.pack */
};

/* The columns of CSV files; constant after data_open(). */
struct data_columns {
    uint32_t *first; /* [n_features] the first column of each feature; in the arena */
    struct csv_field *names; /* [n] with a header: that of the first file; in the arena */
    uint32_t n;      /* columns of a line */
    char delimiter;
    bool has_header;
};

/* Stored samples in memory, filled by the decoding threads. */
struct data_samples {
    uint8_t *samples;     /* [samples][stored_bytes] owned; NULL: no cache */
    atomic_uchar *states; /* [samples] owned; enum data_cached */
};

/* The files that the decoding threads keep open. */
struct data_open_files {
    atomic_uint n; /* at most max */
    uint32_t max;
};

/* An opened data set. Constant after data_open(), except atomics and the cache; any thread may
 * read it. */
struct data_set {
    struct arena mem; /* memory of the features and their arrays */
    const struct data_source *source;
    struct data_retry retry;
    uint64_t check_seed;           /* copy of data_opts */
    struct data_feature *features; /* [n_features] */
    struct data_step **steps;      /* [n_features] the steps that apply in this set */
    struct data_range *ranges;   /* [n_features] what NULL: any number */
    uint32_t n_features;
    struct data_layout layout;
    struct data_names *names; /* owned */
    struct data_columns columns;
    bool training, skip_bad;
    struct data_file *files; /* owned; groups of n_members files, ordered by part and path */
    uint32_t n_files;
    uint64_t bytes;                /* of all files */
    uint32_t n_members;            /* files that contain a record together: 1, .npy: n_features */
    struct data_order_part *parts; /* owned; [n_parts] */
    uint32_t n_parts;
    uint64_t n_records;
    struct data_packs *packs; /* owned; NULL: a sample is a record */
    _Atomic uint64_t n_skipped;
    struct data_open_files open;
    struct data_samples cache;
    char digest[65];
};

/* The stored form of an encoded image: its file in memory. */
struct data_bytes {
    const uint8_t *at;
    size_t n;
};

/* ---- files.c ---- */
int data_find_files(struct data_set *s, const struct data_opts *opts, struct err *err);
/* Numbers the records and computes parts and digest, after all files are indexed. */
int data_number_records(struct data_set *s, struct err *err);
void data_free_files(struct data_set *s);

/* ---- shards.c ---- */
/* Checks the files [n] of a pattern whose names state how many they are. Errors: ERR_NOENT (one of them is absent),
 * ERR_INPUT (two sets of one name), ERR_NOMEM. */
int data_check_shards(const char *pattern, char *const *paths, size_t n, struct err *err);

/* ---- features.c ---- */
/* Copies and checks the features and computes their layout. Errors: ERR_INPUT (a feature is
 * inconsistent in itself, with another feature or with the format), ERR_NOMEM. */
int data_copy_features(struct data_set *s, const struct data_opts *opts, struct err *err);
/* Reports that a feature does not fit a format of files; returns ERR_INPUT. */
int data_refuse_feature(const struct data_feature *f, const char *format, const char *what,
                        struct err *err);
/* Returns true if the feature is encoded or has preprocessing steps. */
bool data_is_image(const struct data_feature *f);
/* Sets the values [have, n) of the stored form to pad_value. */
void data_pad(const struct data_feature *f, void *stored, size_t have, size_t n);

/* ---- index.c ---- */
/* Sets size, time and the positions of the records of every file whose path is set. */
int data_index(const struct data_opts *opts, struct data_set *s, struct err *err);
uint32_t data_cores(void); /* number of cores that affinity and processor quota allow to use */

/* ---- scan.c ---- */
/* The state of indexing one file with the index() of its format. */
struct data_scan {
    struct data_set *s;
    struct data_file *f;
    uint32_t member; /* index of the file in its group, < n_members */
    int fd;          /* borrowed */
    uint8_t *block;  /* borrowed; DATA_BLOCK_BYTES, the bytes [from, from + held) of the file */
    uint64_t from, held;
    uint64_t *starts; /* owned; offsets of the records */
    size_t n_starts, cap_starts;
    /* Called with the bytes and records since the last call; returns false if the index is canceled. */
    bool (*on_progress)(void *arg, uint64_t bytes, uint64_t records);
    void *arg;
    uint64_t reported_at, reported_n; /* offset and number of records of the last progress report */
};
enum { DATA_BLOCK_BYTES = 256 << 10 };
/* Refuses a file that begins like a file of another format (base/file_kind.h). `expected`: "a CSV file"; `remedy`: what to do
 * with a format that has no remedy of its own. Changes err only if it fails. Errors: ERR_INPUT; those of data_scan_fetch(). */
int data_scan_refuse_kind(struct data_scan *w, const char *expected, const char *remedy,
                          struct err *err);
/* Sets *bytes to at least `need` bytes at offset `at`, which must be in the file, and *held to
 * their number. If they are not in the block, reads `want` bytes. need, want <=
 * DATA_BLOCK_BYTES. */
int data_scan_fetch(struct data_scan *w, uint64_t at, uint64_t need, uint64_t want,
                    const uint8_t **bytes, uint64_t *held, struct err *err);
int data_scan_add(struct data_scan *w, uint64_t at, struct err *err); /* adds a record's start */
/* Reports the progress up to `at`. Called periodically by index(). Errors: ERR_CANCELED. */
int data_scan_report(struct data_scan *w, uint64_t at, struct err *err);
/* Prepends file and offset to the error text; returns rc. */
int data_scan_error(const struct data_scan *w, uint64_t at, int rc, struct err *err);

/* ---- unpack.c ---- */
struct data_source;
/* Copies the file of descriptor `fd` to the cache directory, or unpacks a compressed file to memory, and
 * updates f->path, bytes, mtime_ns. Returns the descriptor to read from, which may be `fd`. */
int data_unpack(const struct data_opts *opts, const struct data_source *source,
                const struct data_retry *retry, struct data_file *f, int fd, uint8_t *block,
                struct err *err);

/* ---- file.c ---- */
/* Sets size and time of an open file. Errors: ERR_IO, ERR_INPUT (not a regular file). */
int data_file_stat(int fd, const char *path, uint64_t *bytes, int64_t *mtime_ns, struct err *err);
/* Opens a regular file for reading, and returns size, time and descriptor. */
int data_file_open(const char *path, uint64_t *bytes, int64_t *mtime_ns, struct err *err);
/* Reads all n bytes at `offset`. Errors: ERR_IO, ERR_CHANGED (the file ends before). */
int data_file_read(int fd, const char *path, void *out, size_t n, uint64_t offset, struct err *err);
/* Does what data_file_read() does, with the fault point `point` (base/fault.h). */
int data_file_read_at(const char *point, int fd, const char *path, void *out, size_t n,
                      uint64_t offset, struct err *err);
/* Does what data_file_read() does, with retries. */
int data_file_read_again(const struct data_retry *p, int fd, const char *path, void *out, size_t n,
                         uint64_t offset, struct err *err);
void data_file_close(struct data_file *f);
/* Called after an operation failed with rc: returns true, after a pause, if it should be retried.
 * The caller sets *tries to 0 before the first attempt. */
bool data_should_retry(const struct data_retry *p, uint32_t *tries, uint64_t *since_ns, int rc,
                       struct err *err);

/* ---- record.c ---- */
/* A range of a file in memory; used by one thread. A zeroed struct is empty. */
struct data_window {
    uint8_t *bytes; /* owned; [cap] */
    size_t cap;
    uint32_t file;
    uint64_t from, to; /* the range [from, to) of the file; equal: empty */
};
void data_window_fini(struct data_window *w);
/* Sets *bytes to the bytes of record i of a file, valid until the next call. `last`: the caller
 * requests the records i .. last next, so one read may fetch several of them. */
int data_window_record(struct data_set *s, struct data_window *w, uint32_t file, uint64_t i,
                       uint64_t last, const struct data_retry *retry, const uint8_t **bytes,
                       size_t *n, struct err *err);
/* A hint that this record is needed soon: prefetches a small record to the processor's cache if its
 * file is mapped; never reads from the disk. */
void data_record_prefetch(const struct data_set *s, uint64_t record);
/* Returns the index of the file that contains a record (of the first file of the group). */
uint32_t data_file_of(const struct data_set *s, uint64_t record);
/* Sets [*from, *to) to the bytes of record i of the file. */
void data_record_range(const struct data_file *f, uint64_t i, uint64_t *from, uint64_t *to);

/* ---- check.c ---- */
struct data_decoder;
/* Sets *out to the check of a step for data_batch.check. Errors: as data_read_record(). */
int data_check_record(struct data_decoder *d, uint64_t step, uint64_t every, uint32_t *out,
                      struct err *err);

/* ---- content.c ---- */
/* Sets sums to the checksums of the sampled bytes of each region. Errors: as data_file_read(). */
int data_file_checksum(const struct data_set *s, int fd, const char *path, uint64_t bytes,
                       uint32_t sums[DATA_REGIONS], struct err *err);
/* Adds bytes [n] at offset `at` of a file of file_bytes bytes to the checksums of its regions. */
void data_content_add(uint32_t *content, uint64_t file_bytes, uint64_t at, const uint8_t *bytes,
                      uint64_t n);
/* Adds other checksums of the regions. */
void data_content_mix(uint32_t *content, const uint32_t sums[DATA_REGIONS]);

/* ---- unchanged.c ---- */
/* Compares the size and time of an open file with those of the index and, if the time differs, the
 * sampled content. Any thread. Errors: ERR_CHANGED, and those of data_file_read(). */
int data_file_unchanged(const struct data_set *s, struct data_file *f, int fd, uint64_t bytes,
                        int64_t mtime_ns, struct err *err);

/* ---- source.c ---- */
struct cancel;
struct data_decoder;
struct data_source {
    const char *name;
    uint32_t index_kind;  /* id of the format in kept index files; 0: the index is not kept */
    /* Returns true if a file that begins with these bytes [n], n >= 2, is not compressed. NULL: files of this format are never
     * compressed. */
    bool (*is_plain)(const uint8_t *head, size_t n);
    bool has_members;  /* a file per feature */
    bool has_lines;     /* records are lines of text, whose numbers errors state */
    bool reads_content; /* index() adds the whole content to data_file.content */
    /* Checks that the features fit this format; NULL: all do. */
    int (*check)(const struct data_set *s, struct err *err);
    /* Finds the records of w->f: adds starts, or sets data_at, step, span and n_records. */
    int (*index)(struct data_scan *w, struct err *err);
    /* Called once, after all files are indexed; may be NULL. */
    int (*finish)(struct data_set *s, struct err *err);
    /* Sets d->stored[] and d->counts[] from the bytes of a record (of one member). */
    int (*parse)(struct data_decoder *d, uint32_t member, const uint8_t *bytes, size_t n,
                 struct err *err);
};
const struct data_source *data_source_of(enum data_format format);

static inline bool data_is_token_type(enum tensor_dtype t)
{
    return t == TENSOR_U16 || t == TENSOR_U32;
}
int arrays_fit(const struct data_set *s, struct err *err);
int arrays_index(struct data_scan *w, struct err *err);
int arrays_parse(struct data_decoder *d, uint32_t member, const uint8_t *bytes, size_t n,
                 struct err *err);
int tfrecord_index(struct data_scan *w, struct err *err);
int csv_index(struct data_scan *w, struct err *err);
int csv_finish(struct data_set *s, struct err *err);
int csv_parse(struct data_decoder *d, uint32_t member, const uint8_t *bytes, size_t n,
              struct err *err);

/* ---- convert.c ---- */
struct data_convert {
    enum tensor_dtype stored, fed;
    /* Converts n values from the stored type (without alignment) to the fed type. Errors: ERR_INPUT
     * (a value out of range). */
    int (*run)(const struct data_feature *f, size_t n, const void *src, void *dst,
               struct err *err);
};
const struct data_convert *data_convert_find(enum tensor_dtype stored, enum tensor_dtype fed);

/* ---- decoder.c ---- */
struct data_decoder { /* buffers of one thread */
    struct data_set *s;
    struct data_retry retry;
    const struct data_file *file;        /* the file of the bytes of parse() */
    struct data_window *windows;         /* [n_members] owned */
    struct data_entry *found;            /* [n_features] owned */
    const void **stored;                 /* [n_features] owned; into record, room, pack or cache */
    uint64_t *counts;                    /* [n_features] owned; number of values of each */
    uint8_t *room;                       /* owned; [stored_bytes] values that had to be decoded */
    uint8_t *pack;                       /* owned; [stored_bytes] the records of a pack */
    const struct data_convert **convert; /* [n_features] owned; NULL: an image */
    struct csv_field *fields;            /* [n_columns] owned; CSV */
    struct image *image;                 /* owned; NULL: no feature is an image */
    atomic_uint reading;                 /* index + 1 of the file being read; 0: no read */
};
int data_decoder_new(struct data_set *s, struct data_decoder **out, struct err *err);
void data_decoder_free(struct data_decoder *d); /* NULL is allowed */
/* Reads a record and sets d->stored and d->counts, without padding. `last` as in data_decode(). The
 * error text contains file and record. */
int data_read_record(struct data_decoder *d, uint64_t record, uint64_t last, struct err *err);
/* Prepends file, record and offset to the error text; returns rc. member: the array that failed; 0: the whole sample, or
 * the only file. */
int data_wrap_record(const struct data_set *s, uint64_t record, uint32_t member, int rc,
                     struct err *err);
/* Called after an error: with skip_bad, counts and sometimes reports the bad record, and returns
 * true. false: the record must not be skipped. */
bool data_skip(struct data_set *s, int rc, const struct err *why);
/* Returns the number of items of the current record. Errors: ERR_INPUT (its features have different
 * numbers of items). */
int data_count_items(const struct data_decoder *d, uint64_t *items, struct err *err);

/* ---- sample.c ---- */

struct data_sample_key { /* a sample, and the key of its random numbers */
    uint64_t seed, epoch, sample;
};
/* Decodes one sample: feature i to batch[i], as sample `at` of that tensor. `last`: the last sample
 * of the same file that should be read together with it. Sets *used to the number of the decoded
 * sample, which differs from draw->sample if bad records were skipped. */
int data_decode(struct data_decoder *d, const struct data_sample_key *draw, uint64_t last,
                void *const *batch, size_t at, uint64_t *used, struct err *err);

/* ---- varints.c ---- */
/* Packed varints are decoded in blocks of 64 bytes: the ends of all numbers of a block are found
 * first, so the decoding of a number does not wait for the length of the previous number. */
enum {
    DATA_VARINTS_BLOCK = 64,
    DATA_VARINTS_LONGEST = 8 /* bytes of a number; longer numbers are left to the caller */
};
/* Decodes numbers from `bytes` bytes while at least 72 bytes are left and out [room] has room for
 * 64 more; stops at a number of more than 8 bytes. Returns their count; *used: their bytes. The
 * content of `out` after them is undefined. data_varints_portable() needs no BMI2 instructions. */
size_t data_varints(const uint8_t *at, size_t bytes, uint64_t *out, size_t room, size_t *used);
size_t data_varints_portable(const uint8_t *at, size_t bytes, uint64_t *out, size_t room,
                             size_t *used);

/* ---- ragged.c ---- */
/* Moves the rows of feature i of the current record to their positions and pads them. Errors:
 * ERR_INPUT (invalid row lengths or splits). */
int data_pad_rows(struct data_decoder *d, uint32_t i, struct err *err);

/* ---- lengths.c ---- */
#define DATA_SKIPPED UINT32_MAX
/* Sets lengths [n_records] to the number of items of each record; DATA_SKIPPED: a bad record,
 * which is skipped. */
int data_record_lengths(struct data_set *s, const struct data_opts *opts, uint32_t *lengths,
                        struct err *err);

/* ---- pack.c ---- */
struct data_packs {
    uint32_t n;
    /* [n + 1] owned; pack i is records[starts[i]] .. records[starts[i + 1] - 1] */
    uint32_t *starts;
    uint32_t *records; /* owned; record numbers, ascending in each pack */
    uint64_t length;   /* capacity of a pack in items */
    uint64_t items;    /* items of all packs */
};
/* Sets s->packs, and changes s->parts and s->digest from records to packs. */
int data_pack(struct data_set *s, const struct data_opts *opts, struct err *err);
void data_packs_free(struct data_packs *p); /* NULL is allowed */

#endif
