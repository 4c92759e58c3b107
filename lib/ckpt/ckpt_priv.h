/* ckpt_priv.h - declarations shared by the files of ckpt/.
 *
 *   safetensors.c  the container format
 *   weights.c      reads weight files of other programs: one, or several with an index
 *                  (weights_index.c)
 *   export.c       writes the trained weights to one safetensors file
 *   json.c         values of JSON documents, and the errors of invalid values
 *   read.c         opens and reads the files of a checkpoint, and compares their checksums
 *   manifest.c     prints and parses the manifest of a checkpoint
 *   folder.c       names, lists and cleans checkpoint directories
 *   layout.c       the files of a checkpoint: headers, ranges of the state
 *   shard_files.c  where the rows of sharded tables are
 *   save.c         writes one checkpoint, durable and verified
 *   row_files.c    the shard files whose rows the owner of a writer writes
 *   verify.c       verifies one checkpoint; finds the newest; lists all
 *   load.c         reads one checkpoint to memory
 *   rows.c         reads rows of its tensors, wherever they are
 *   verified.c     compares what is read with the manifest
 *   ids.c          the ids of its dynamic tables
 *   shard_set.c    the headers of its shard files, and whether they agree
 *   join.c         writes a copy without shard files
 *   keep.c         keeps one checkpoint in another directory (keep.h)
 *   thread.c       threads whose owner never waits without a limit
 *   writer.c       the calls of the owner of a writer: hand over, flush, abandon, close
 *   writer_thread.c  the thread that saves, retries and removes old checkpoints */
#ifndef CKPT_CKPT_PRIV_H
#define CKPT_CKPT_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <xxhash.h>

#include "base/json.h"
#include "ckpt/ckpt.h"
#include "ckpt/safetensors.h"
#include "ckpt/shard_files.h"

#define CKPT_MODEL_FILE "model.safetensors"
#define CKPT_OPTIMIZER_FILE "optimizer.safetensors"
#define CKPT_MANIFEST_FILE "manifest.json"
/* With shard files the names of the first two differ, because readers prefer a file "model.safetensors" to an
 * index and would miss the tables. */
#define CKPT_DENSE_MODEL_FILE "model-dense.safetensors"
#define CKPT_DENSE_OPTIMIZER_FILE "optimizer-dense.safetensors"
#define CKPT_INDEX_FILE "model.safetensors.index.json"
#define CKPT_ROWS_INFIX "/rows-" /* between the name of a tensor and the number of the file */
#define CKPT_ROWS_RULE                                                                             \
    "row r of table t (its number in the order of the data, from 0) is in shard (r / 64 + 389 t) " \
    "mod 1024; file i of 16 has the rows of shards 64 i to 64 i + 63, ascending"
#define CKPT_IDS_RULE                                                                              \
    "table t with a tensor t/ids has row i for id ids[i]; the id is in the shard of the top 10 bits of its hash, the " \
    "output function of SplitMix64; the ids of a file are in the order of their shards, those of a shard ascending"

enum {
    CKPT_FORMAT = 1,
    CKPT_SHARDED_FORMAT = 2, /* with shard files, which format 1 does not know */
    CKPT_DYNAMIC_FORMAT = 3, /* with dynamic tables, which format 2 does not know */
    CKPT_HASH_BYTES = 33,        /* 32 hex digits of XXH3-128 as printed by xxhsum, and NUL */
    CKPT_FILES_MAX = 64,         /* files in a manifest */
    CKPT_MANIFEST_MAX = 1 << 20, /* bytes */
    CKPT_CHUNK_BYTES = 4 << 20,  /* bytes per read and write */
};

/* ---- json.c ---- */
/* Reports an unexpected JSON value as ERR_CORRUPT. */
int ckpt_unexpected(const struct json *doc, const cJSON *value, const char *expected,
                    struct err *err);
/* Reads an integer from 0 to max. Errors: ERR_CORRUPT. */
int ckpt_read_integer(const struct json *doc, const cJSON *value, uint64_t max, uint64_t *out,
                      struct err *err);
int ckpt_corrupt(struct err *err); /* changes the code of an existing error to ERR_CORRUPT */

/* ---- read.c ---- */
struct ckpt_file {
    char name[CKPT_FILE_NAME_BYTES];
    uint64_t bytes;
    char hash[CKPT_HASH_BYTES];
};
/* Opens a regular file for reading and returns its descriptor. Errors: ERR_CORRUPT (not a regular
 * file), ERR_NOENT, ERR_IO. */
int ckpt_open_regular(const char *path, uint64_t *bytes, struct err *err);
/* Opens a file of a checkpoint, checks its size, and returns its descriptor. The caller frees
 * *path. */
int ckpt_open_file(const char *folder, const struct ckpt_file *file, char **path, struct err *err);
/* Reads n bytes from the current position. Errors: ERR_IO, ERR_CORRUPT (the file ends before). */
int ckpt_read_all(int fd, const char *path, void *out, size_t n, struct err *err);
/* Reads n bytes from byte `at`, with the same errors. Any thread. */
int ckpt_pread_all(int fd, const char *path, void *out, size_t n, uint64_t at, struct err *err);
/* Reads and checks the header from position 0. The caller frees *out with safetensors_fini(). *raw:
 * the bytes before the data, which the caller frees with free(); raw NULL: not needed. */
int ckpt_read_header(int fd, const char *path, uint64_t file_bytes, struct safetensors *out,
                     char **raw, struct err *err);
void ckpt_hash_print(XXH128_hash_t hash, char out[CKPT_HASH_BYTES]);
/* Compares the checksum of a file with that of the manifest. Errors: ERR_CORRUPT. */
int ckpt_check_hash(const char *path, const struct ckpt_file *file, const char *hash,
                    struct err *err);

/* ---- manifest.c ---- */
struct ckpt_manifest {
    struct ckpt_meta meta;
    bool has_shards; /* tables are in shard files */
    bool has_ids;    /* with has_shards: some of them are dynamic */
    struct ckpt_file files[CKPT_FILES_MAX];
    uint32_t n_files;
};

/* Appends the manifest with its checksum. wall_us: the time of writing. */
void ckpt_manifest_print(const struct ckpt_manifest *m, uint64_t wall_us, struct buf *out);
/* Errors: ERR_CORRUPT, ERR_UNSUPPORTED (a newer format), ERR_NOMEM. */
int ckpt_manifest_parse(const char *text, size_t n, struct ckpt_manifest *out, struct err *err);
int ckpt_manifest_read(const char *folder, struct ckpt_manifest *out, struct err *err);
/* Appends the last member of a JSON object, the checksum of the preceding text, and the end of the
 * object. */
void ckpt_checksum_print(struct buf *out);
/* Verifies that checksum. `what` is for messages. Errors: ERR_CORRUPT. */
int ckpt_checksum_verify(const char *what, const char *text, size_t n, struct err *err);
const struct ckpt_file *ckpt_manifest_file(const struct ckpt_manifest *m, const char *name);

/* ---- folder.c ---- */
enum { CKPT_NAME_BYTES = 64 };
void ckpt_folder_name(uint64_t step, char out[CKPT_NAME_BYTES]);
bool ckpt_folder_step(const char *name, uint64_t *step); /* parses "step-00000100" */
/* Makes a unique hidden name, which readers ignore, with `kind` ("tmp", "old") and random
 * digits. */
int ckpt_hidden_name(uint64_t step, const char *kind, char out[CKPT_NAME_BYTES], struct err *err);
/* Lists the steps of the checkpoints in `directory`, ascending. The caller frees *out with free().
 * Errors: ERR_NOENT (no directory), ERR_IO, ERR_NOMEM. */
int ckpt_folder_list(const char *directory, uint64_t **out, size_t *n, struct err *err);
/* Removes the leftover directories of other writers, which may still be running: each directory is
 * renamed before its content is removed. A checkpoint that was only moved aside is moved back. */
int ckpt_folder_clean(const char *directory, struct err *err);

/* Returns the name of the file of the tensors that are not in shard files. */
const char *ckpt_dense_file(const struct ckpt_manifest *m, enum ckpt_shard_kind kind);

/* ---- save.c ---- */
/* Shared by the owner of a save and the thread that performs it; both fields are atomic. */
struct ckpt_watch {
    _Atomic bool is_canceled;  /* set by the owner: the save is abandoned */
    /* set by the thread: clock_ns() of the last completed storage operation */
    _Atomic uint64_t progress_ns;
};

/* What a checkpoint contains. */
struct ckpt_source {
    const void *state;
    ckpt_write_rows_fn *write_rows; /* NULL: all rows are in the state */
    void *arg;
    const struct ckpt_sizes *sizes; /* as in struct ckpt_row_files */
    uint32_t n_sizes;
};

/* ---- layout.c ---- */
/* The layout of one file of a checkpoint, used for every save. */
struct ckpt_layout {
    char name[CKPT_FILE_NAME_BYTES]; /* of the file */
    char *header;                    /* owned */
    size_t header_bytes;
    struct ckpt_piece {
        size_t offset, bytes; /* of the state */
    } *pieces;                /* owned; [n_pieces] the data, in file order */
    size_t n_pieces, room;
    uint64_t bytes;    /* size of the file */
    bool is_elsewhere; /* its data are rows that the state does not have: no pieces */
};
/* Ignores rows of tables. */
int ckpt_layout_init(const char *name, const struct ckpt_tensor *tensors, uint32_t n,
                     size_t state_bytes, struct ckpt_layout *out, struct err *err);
void ckpt_layout_fini(struct ckpt_layout *l);
/* All files of a checkpoint except its manifest. */
struct ckpt_layouts {
    struct ckpt_layout at[3 + CKPT_SHARD_KINDS * CKPT_SHARD_FILES]; /* owned; [n] */
    uint32_t n;
    bool has_shards, has_ids; /* as in struct ckpt_manifest */
};
/* sizes [n_sizes]: of the dynamic tables, by their numbers; without an entry a table has no row. */
int ckpt_layouts_init(const struct ckpt_tensor *model, uint32_t n_model,
                      const struct ckpt_tensor *slots, uint32_t n_slots, size_t state_bytes,
                      const struct ckpt_sizes *sizes, uint32_t n_sizes, struct ckpt_layouts *out,
                      struct err *err);
void ckpt_layouts_fini(struct ckpt_layouts *l); /* a zeroed one is allowed */
bool ckpt_is_shard_file(const char *name);
/* The name of a tensor in a shard file; the caller frees it. NULL: out of memory. */
char *ckpt_shard_tensor_name(const char *name, uint32_t file);

/* The right to publish. */
struct ckpt_right {
    int (*may_publish)(void *arg, struct err *err); /* NULL: always allowed */
    void *arg;
    struct ckpt_watch *watch; /* borrowed; NULL: the save cannot be abandoned */
    bool is_lost;             /* out: ERR_REFUSED or ERR_CANCELED was returned */
};
/* Returns 0 if the writer may publish now. Errors: ERR_CANCELED, those of may_publish(). */
int ckpt_check_right(struct ckpt_right *right, struct err *err);

/* Renames the complete checkpoint `hidden` to `visible`, both in `directory`. If the same checkpoint
 * exists and verifies, removes `hidden`; replaces any other one of that name. */
int ckpt_publish(const char *directory, const char *hidden, const char *visible,
                 struct ckpt_right *right, const struct ckpt_meta *meta, struct err *err);
/* Writes, syncs, reads back and publishes a checkpoint. *existed: the same checkpoint existed and
 * verified, so nothing was written. */
int ckpt_save(const char *directory, const struct ckpt_layouts *layouts, struct ckpt_right *right,
              const struct ckpt_meta *meta, const struct ckpt_source *source, uint64_t *bytes,
              bool *existed, struct err *err);
/* Writes the files of a checkpoint to the new directory `path`, durable. After a failure the
 * directory remains. */
int ckpt_write_folder(const char *path, const struct ckpt_layouts *layouts,
                      struct ckpt_watch *watch, const struct ckpt_meta *meta,
                      const struct ckpt_source *source, uint64_t *bytes, struct err *err);
/* Creates a file with this content; durable when it returns 0. *out: its entry in the manifest. */
int ckpt_write_file(const char *folder, const struct ckpt_layout *l, const void *state,
                    struct ckpt_watch *watch, struct ckpt_file *out, struct err *err);

/* Creates the manifest, durable. */
int ckpt_write_manifest(const char *folder, const struct ckpt_manifest *m, struct err *err);

/* ---- row_files.c ---- */
/* Creates the files whose data are elsewhere, and calls source->write_rows(). */
int ckpt_row_files_write(const char *folder, const struct ckpt_layouts *layouts,
                         const struct ckpt_source *source, struct ckpt_watch *watch,
                         struct ckpt_row_files *out, struct err *err);
/* Reads such a file from the disk: its entry in the manifest. Errors: ERR_CORRUPT: its rows are not those
 * that were written; ERR_CANCELED, ERR_IO. */
int ckpt_row_file_read(const struct ckpt_row_files *files, const struct ckpt_layout *l,
                       struct ckpt_file *out, struct err *err);
/* Removes the checkpoint of a step; renames it first, so that readers ignore it at once. */
int ckpt_remove(const char *directory, uint64_t step, struct err *err);

/* ---- verify.c ---- */
/* Called after each chunk: records that the storage completed an operation. Errors: ERR_CANCELED
 * (the save is abandoned). NULL is allowed. */
int ckpt_check_canceled(struct ckpt_watch *watch, struct err *err);
struct ckpt_progress {
    void (*report)(void *arg, uint64_t done, uint64_t all); /* may be NULL */
    void *arg;
    struct ckpt_watch *watch; /* borrowed; may be NULL */
    uint64_t done, all;       /* bytes */
    bool skips_shards;        /* the shard files were read already */
};
/* Verifies the files of a directory with its manifest. `from_disk`: drops the files from the page
 * cache first. */
int ckpt_verify_folder(const char *path, const struct ckpt_manifest *m, bool from_disk,
                       struct ckpt_progress *progress, struct err *err);

#endif
