/* data_priv.h - what the files of data/ share.
 *
 *   tfrecord.c   the container
 *   index.c      where the records of each file start
 *   record.c     a record's bytes, read in windows and checked
 *   example.c    a feature's bytes inside a record
 *   convert.c    from the stored type to the fed one
 *   sample.c     the four above: one sample into the caller's memory, through the cache
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

enum { DATA_RECORD_BYTES_MAX = 1 << 30 };

struct data_file {
    char *path;         /* owned */
    uint64_t bytes;     /* size and modification time when it was indexed; ... */
    int64_t mtime_ns;   /* ... another one later is another file */
    uint64_t n_records;
    uint64_t first;     /* number of its first record in the set */
    uint64_t *starts;   /* [n_records + 1] owned; where each head is; at last the file's end */
    atomic_int fd;      /* -1: not open */
};

struct data_set {
    struct arena mem;            /* the features and their names */
    struct data_feature *features;
    size_t *elements;            /* [n_features] of one sample */
    size_t *stored_at;           /* [n_features] bytes into a stored sample, multiples of 8 */
    size_t stored_bytes;         /* of a stored sample */
    size_t *fed_bytes;           /* [n_features] of one sample in a batch */
    uint32_t n_features;
    struct data_file *files;     /* owned, sorted by path */
    uint32_t n_files;
    uint64_t n_records;
    atomic_uint n_open;          /* files kept open, at most open_max */
    uint32_t open_max;
    uint8_t *cache;              /* [n_records][stored_bytes] owned; NULL: none */
    atomic_uchar *cached;        /* [n_records] owned; enum data_cached */
    char digest[65];
};

/* ---- index.c ---- */
/* Fills size, time, records and starts of every file (their paths are set). */
int data_index(const struct data_opts *opts, struct data_file *files, uint32_t n_files,
               struct err *err);

/* ---- record.c ---- */
/* Part of a file in memory; belongs to one thread. All zero is empty. */
struct data_window {
    uint8_t *bytes; /* owned */
    size_t cap;
    uint32_t file;
    uint64_t from, to; /* the range of the file that is held; equal: none */
};
void data_window_fini(struct data_window *w);
/* The data of a record, checked; valid until the next call. `run`: this record and so many more
 * behind it (run - 1) will be asked for next, so that one read can fetch them together. */
int data_window_record(struct data_set *s, struct data_window *w, uint64_t record, uint64_t run,
                       const uint8_t **data, size_t *n, struct err *err);
uint32_t data_file_of(const struct data_set *s, uint64_t record);
/* Opens for reading, checks that it is a regular file and tells its size and time. Returns fd. */
int data_file_open(const char *path, uint64_t *bytes, int64_t *mtime_ns, struct err *err);
/* All n bytes at `offset`, or an error: ERR_CORRUPT if the file ends before. */
int data_file_read(int fd, const char *path, void *out, size_t n, uint64_t offset, struct err *err);
void data_file_close(struct data_file *f);

/* ---- convert.c ---- */
/* From the stored form (of any alignment) to the fed one. ERR_INPUT: a value out of range. */
struct data_convert {
    enum tensor_dtype stored, fed;
    int (*run)(const struct data_feature *f, size_t n, const void *src, void *dst,
               struct err *err);
};
const struct data_convert *data_convert_find(enum tensor_dtype stored, enum tensor_dtype fed);

/* ---- sample.c ---- */
struct data_decoder; /* one thread's tools */
int data_decoder_new(struct data_set *s, struct data_decoder **out, struct err *err);
void data_decoder_free(struct data_decoder *d); /* NULL is fine */
/* One sample: feature i goes to batch[i], as sample `at` of that tensor. `run` as in
 * data_window_record(). */
int data_decode(struct data_decoder *d, uint64_t record, uint64_t run, void *const *batch,
                size_t at, struct err *err);

/* A thread that takes no signals: those are the business of the loop. */
int data_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, struct err *err);

#endif
