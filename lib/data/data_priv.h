/* data_priv.h - what the files of data/ share.
 *
 *   set.c        the object, and its cache
 *   features.c   what they are, and where their values lie in a sample
 *   files.c      which files, in which order; their numbers and their digest
 *   index.c      where the records of each file are
 *   pack.c       short records that make one sample together
 *   survey.c     how long they are
 *   unpack.c     copies on a local disk or in memory, without gzip
 *   record.c     a record's bytes, read in windows
 *   unchanged.c  whether a file is still the one that was indexed
 *   source.c     the formats, a row each; with walk.c, csv.c, npy.c, tfrecord.c behind them
 *   example.c    a feature's bytes inside a tf.train.Example
 *   image.c      from a JPEG or PNG, or raw pixels, to the batch; with jpeg.c, png.c, resample.c, color.c
 *   convert.c    from the stored type to the fed one
 *   ragged.c     rows of different lengths
 *   sample.c     all of these: one sample into the caller's memory, through the cache
 *   order.c      which sample stands where
 *   reader.c     threads that fill lane batches ahead */
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

enum { DATA_RECORD_BYTES_MAX = 1 << 30 };

/* How long something that fails is tried again. */
struct data_patience {
    uint64_t deadline_ms;
    const struct cancel *cancel; /* NULL is fine */
    atomic_bool *canceled;      /* NULL is fine */
    void (*on_trouble)(void *arg, const char *text);
    void *arg;
};

struct data_file {
    char *origin;       /* owned; as it was found */
    char *path;         /* owned; what is read: the same, or a local copy */
    uint64_t origin_bytes;
    uint64_t bytes;     /* size and modification time when it was indexed; see unchanged.c */
    int64_t mtime_ns;
    _Atomic int64_t known_mtime_ns; /* the newest modification time whose content was found unchanged */
    uint32_t sample;    /* data_file_sample() when it was indexed */
    uint64_t n_records;
    uint64_t first;     /* number of its first record in the set */
    /* Record i is the bytes [starts[i], starts[i + 1]), or without starts
     * [data_at + i * step, data_at + i * step + span). */
    uint64_t *starts;   /* [n_records + 1] owned, or NULL */
    uint64_t data_at, step, span;
    const uint8_t *mapping; /* owned: the bytes above, read by mapping_copy() alone; NULL: none */
    atomic_int fd;      /* -1: not open */
    bool pinned;        /* fd is an unpacked copy in memory: it stays open */
    _Atomic uint64_t checked_ns; /* when size and time were last looked at */
};

struct data_set {
    struct arena mem;            /* the features and all that hangs on them */
    const struct data_source *source;
    struct data_patience patience;
    uint64_t check_seed;         /* of data_opts */
    struct data_feature *features;
    struct data_step **steps;    /* [n_features] those that are done here */
    size_t *elements;            /* [n_features] of one sample */
    size_t *stored_at;           /* [n_features] bytes into a stored sample, multiples of 8 */
    size_t *stored_size;         /* [n_features] */
    size_t stored_bytes;         /* of a stored sample */
    size_t *fed_bytes;           /* [n_features] of one sample in a batch */
    size_t *inner;               /* [n_features] elements of an item: of what the first dimension counts */
    uint32_t *of;                /* [n_features] what it is derived from; UINT32_MAX: it is stored */
    uint32_t *rows_by;           /* [n_features] index of that feature; UINT32_MAX: no rows */
    uint32_t pack_by;            /* index of data_opts.pack */
    uint32_t n_features;
    struct data_names *names;    /* owned */
    uint32_t *columns;           /* [n_features] CSV: the first column of each */
    uint32_t n_columns;          /* CSV: of a line */
    char csv_delimiter;
    bool csv_header, training, skip_bad;
    struct data_file *files;     /* owned; groups of n_members, by part and path */
    uint32_t n_files;
    uint32_t n_members;          /* files that hold a record together: 1, .npy: n_features */
    struct data_order_part *parts; /* owned */
    uint32_t n_parts;
    uint64_t n_records;
    struct data_packs *packs;    /* owned; NULL: a sample is a record */
    _Atomic uint64_t n_skipped;
    atomic_uint n_open;          /* files kept open, at most open_max */
    uint32_t open_max;
    uint8_t *cache;              /* [samples][stored_bytes] owned; NULL: none */
    atomic_uchar *cached;        /* [samples] owned; enum data_cached */
    char digest[65];
};

/* The stored form of an encoded image. */
struct data_bytes {
    const uint8_t *at;
    size_t n;
};

/* ---- files.c ---- */
int data_find_files(struct data_set *s, const struct data_opts *opts, struct err *err);
/* Numbers, parts and digest, once all are indexed. */
int data_number_records(struct data_set *s, struct err *err);
void data_free_files(struct data_set *s);

/* ---- features.c ---- */
/* ERR_INPUT: they contradict themselves, each other, or the format. */
int data_copy_features(struct data_set *s, const struct data_opts *opts, struct err *err);
/* A list or bytes of raw pixels: is this feature an image? */
bool data_is_image(const struct data_feature *f);
/* Values [have, n) of the stored form become pad_value. */
void data_fill_up(const struct data_feature *f, void *stored, size_t have, size_t n);

/* ---- index.c ---- */
/* Fills size, time and place of the records of every file (their paths are set). */
int data_index(const struct data_opts *opts, struct data_set *s, struct err *err);
uint32_t data_cores(void); /* that this process may use */

/* A file on its way through a row's index(). */
struct data_walk {
    struct data_set *s;
    struct data_file *f;
    uint32_t member;     /* which of the n_members it is */
    int fd;
    uint8_t *block;      /* DATA_BLOCK_BYTES, which hold ... */
    uint64_t from, held; /* ... these bytes of the file */
    uint64_t *starts;    /* owned, grows */
    size_t n_starts, cap_starts;
    struct builder *builder;
    uint64_t told_at, told_n; /* what was reported */
};
enum { DATA_BLOCK_BYTES = 256 << 10 };
/* At least `need` bytes at `at`, which must be in the file; `want`: how much to read if it is not in
 * the block. need, want <= DATA_BLOCK_BYTES. *held: how many there are. */
int data_walk_fetch(struct data_walk *w, uint64_t at, uint64_t need, uint64_t want,
                    const uint8_t **bytes, uint64_t *held, struct err *err);
int data_walk_start(struct data_walk *w, uint64_t at, struct err *err); /* a record starts here */
/* Every now and then: progress up to `at`, and ERR_CANCELED. */
int data_walk_report(struct data_walk *w, uint64_t at, struct err *err);
int data_walk_error(const struct data_walk *w, uint64_t at, int rc, struct err *err);

/* ---- unpack.c ---- */
/* Copies the file that `fd` is open on to the cache folder, or a gzip file into memory; changes
 * f->path, bytes, mtime_ns. Returns a descriptor of what is to be read, which may be `fd`. */
int data_unpack(const struct data_opts *opts, const struct data_patience *patience,
                struct data_file *f, int fd, uint8_t *block, struct err *err);

/* ---- record.c ---- */
/* Part of a file in memory; belongs to one thread. All zero is empty. */
struct data_window {
    uint8_t *bytes; /* owned */
    size_t cap;
    uint32_t file;
    uint64_t from, to; /* the range of the file that is held; equal: none */
};
void data_window_fini(struct data_window *w);
/* The bytes of record i of a file, valid until the next call. `last`: those up to this one will be
 * asked for next, so that one read can fetch them together. */
int data_window_record(struct data_set *s, struct data_window *w, uint32_t file, uint64_t i,
                       uint64_t last, const struct data_patience *patience, const uint8_t **bytes,
                       size_t *n, struct err *err);
/* A hint: this record will be asked for soon. Fetches small ones from memory, not from the disk. */
void data_record_ahead(const struct data_set *s, uint64_t record);
uint32_t data_file_of(const struct data_set *s, uint64_t record); /* the first member of its group */
void data_record_place(const struct data_file *f, uint64_t i, uint64_t *from, uint64_t *to);
/* Opens for reading, checks that it is a regular file and tells its size and time. Returns fd. */
int data_file_open(const char *path, uint64_t *bytes, int64_t *mtime_ns, struct err *err);
/* All n bytes at `offset`, or an error: ERR_CHANGED if the file ends before. */
int data_file_read(int fd, const char *path, void *out, size_t n, uint64_t offset, struct err *err);
/* The same, with another fault point (base/fault.h). */
int data_file_read_at(const char *point, int fd, const char *path, void *out, size_t n, uint64_t offset,
                      struct err *err);
/* data_file_read(), tried again. */
int data_file_read_again(const struct data_patience *p, int fd, const char *path, void *out,
                         size_t n, uint64_t offset, struct err *err);
void data_file_close(struct data_file *f);

/* ---- unchanged.c ---- */
/* *out: a checksum of some blocks of the file. Errors: as data_file_read(). */
int data_file_sample(const struct data_set *s, int fd, const char *path, uint64_t bytes, uint32_t *out,
                     struct err *err);
/* Compares the size and time of an open file with those of the index, and if the time differs its content.
 * Any thread. Errors: ERR_CHANGED, and those of data_file_read(). */
int data_file_unchanged(const struct data_set *s, struct data_file *f, int fd, uint64_t bytes, int64_t mtime_ns,
                        struct err *err);
/* Whether what failed with this error should be tried again; if so, after a pause. *tries from 0. */
bool data_try_again(const struct data_patience *p, uint32_t *tries, uint64_t *since_ns, int rc,
                    struct err *err);

/* ---- source.c ---- */
struct cancel;
struct data_decoder;
struct data_source {
    const char *name;
    uint32_t kept_as;  /* kept indexes of this row; 0: not worth keeping */
    bool may_be_gzip;
    bool has_members;  /* a file per feature */
    /* Do the features fit this format? NULL: any. */
    int (*check)(const struct data_set *s, struct err *err);
    /* Finds the records of w->f: starts, or data_at, step, span and n_records. */
    int (*index)(struct data_walk *w, struct err *err);
    /* Once all files are indexed; NULL: nothing to do. */
    int (*finish)(struct data_set *s, struct err *err);
    /* d->stored[] from the bytes of a record (of one member). */
    int (*parse)(struct data_decoder *d, uint32_t member, const uint8_t *bytes, size_t n,
                 struct err *err);
};
const struct data_source *data_source_of(enum data_format format);

int tfrecord_index(struct data_walk *w, struct err *err);
int csv_index(struct data_walk *w, struct err *err);
int csv_finish(struct data_set *s, struct err *err);
int csv_parse(struct data_decoder *d, uint32_t member, const uint8_t *bytes, size_t n,
              struct err *err);

/* ---- convert.c ---- */
/* From the stored form (of any alignment) to the fed one. ERR_INPUT: a value out of range. */
struct data_convert {
    enum tensor_dtype stored, fed;
    int (*run)(const struct data_feature *f, size_t n, const void *src, void *dst,
               struct err *err);
};
const struct data_convert *data_convert_find(enum tensor_dtype stored, enum tensor_dtype fed);

/* ---- sample.c ---- */
struct data_decoder { /* one thread's tools */
    struct data_set *s;
    struct data_patience patience;
    struct data_window *windows;        /* [n_members] owned */
    struct data_entry *found;           /* [n_features] owned */
    const void **stored;                /* [n_features] owned; the stored form of each, wherever it lies */
    uint64_t *counts;                   /* [n_features] owned; values found */
    uint8_t *room;                      /* stored_bytes, owned, for what does not lie in the record */
    uint8_t *pack;                      /* stored_bytes, owned; several records */
    const struct data_convert **convert; /* [n_features] owned; NULL: an image */
    struct csv_field *fields;           /* [n_columns] owned; CSV */
    struct image *image;                /* owned; NULL: no feature is one */
    atomic_uint reading;                /* file of the read that is going on, + 1; 0: none */
};
int data_decoder_new(struct data_set *s, struct data_decoder **out, struct err *err);
void data_decoder_free(struct data_decoder *d); /* NULL is fine */

struct data_draw { /* which sample, and the place that its random numbers come from */
    uint64_t seed, epoch, sample;
};
/* One sample: feature i goes to batch[i], as sample `at` of that tensor. `last`: the last one of
 * the same file that is worth reading together with it. *used: its number; with skip_bad perhaps
 * another one. */
int data_decode(struct data_decoder *d, const struct data_draw *draw, uint64_t last,
                void *const *batch, size_t at, uint64_t *used, struct err *err);

/* d->stored and d->counts from a record, not filled up; the message says which record. `last` as above. */
int data_read_record(struct data_decoder *d, uint64_t record, uint64_t last, struct err *err);
/* Where a record is, in front of what is wrong with it. Returns rc. */
int data_at_record(const struct data_set *s, uint64_t record, int rc, struct err *err);
/* After an error, with skip_bad: counts the record, and says so now and then. false: do not skip it. */
bool data_skip(struct data_set *s, int rc, const struct err *why);

/* ---- numbers.c ---- */
/* Packed numbers are taken 64 bytes at a time: where each ends is known for all of them before the
 * first one is taken out, so that nothing waits for the length of the one before. */
enum { DATA_NUMBERS_BLOCK = 64, DATA_NUMBERS_LONGEST = 8 /* bytes; longer ones go alone */ };
/* Takes numbers off `bytes` bytes for as long as 72 of them are left and out [room] has 64 places,
 * up to a long one. Returns how many, *used: their bytes. What is in `out` behind them is undefined.
 * The plain one is for processors that cannot collect bits. */
size_t data_numbers(const uint8_t *at, size_t bytes, uint64_t *out, size_t room, size_t *used);
size_t data_numbers_plainly(const uint8_t *at, size_t bytes, uint64_t *out, size_t room,
                            size_t *used);

/* ---- ragged.c ---- */
/* Feature i of the record that was just read, which has rows: puts them in their places and fills up.
 * ERR_INPUT: what the record says of its rows cannot be. */
int data_spread_rows(struct data_decoder *d, uint32_t i, struct err *err);

/* ---- survey.c ---- */
#define DATA_LEFT_OUT UINT32_MAX
/* How many items each record has; DATA_LEFT_OUT: it is bad, and they are skipped. lengths [n_records]. */
int data_survey(struct data_set *s, const struct data_opts *opts, uint32_t *lengths,
                struct err *err);
/* The items of the record that was just read. ERR_INPUT: its features do not have as many. */
int data_count_items(const struct data_decoder *d, uint64_t *items, struct err *err);

/* ---- pack.c ---- */
struct data_packs {
    uint32_t n;
    uint32_t *starts;  /* [n + 1] owned: the records of pack i are those from starts[i] on ... */
    uint32_t *records; /* ... in here, owned, ascending */
    uint64_t length;   /* items in a pack, at most */
    uint64_t items;    /* in all packs */
};
/* Makes s->packs; parts and digest are then those of packs. */
int data_pack(struct data_set *s, const struct data_opts *opts, struct err *err);
void data_packs_free(struct data_packs *p); /* NULL is fine */

#endif
