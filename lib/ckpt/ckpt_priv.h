/* ckpt_priv.h - what the files of ckpt/ share.
 *
 *   safetensors.c  the container
 *   weights.c      files of other programs: one, or several with an index (weights_index.c)
 *   export.c       the trained weights as one file of that container
 *   manifest.c     what a checkpoint says about itself
 *   folder.c       the folders: their names, and which there are
 *   save.c         one checkpoint from memory to its folder, durable and verified
 *   verify.c       one checkpoint read and compared; the newest, all
 *   load.c         one checkpoint from its folder to memory
 *   thread.c       threads that nobody has to wait for
 *   writer.c       the thread that saves, tries again and removes old ones */
#ifndef CKPT_CKPT_PRIV_H
#define CKPT_CKPT_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <xxhash.h>

#include "base/json.h"
#include "ckpt/ckpt.h"
#include "ckpt/safetensors.h"

#define CKPT_MODEL_FILE "model.safetensors"
#define CKPT_OPTIMIZER_FILE "optimizer.safetensors"
#define CKPT_MANIFEST_FILE "manifest.json"

enum {
    CKPT_FORMAT = 1,
    CKPT_HASH_BYTES = 33,       /* 32 hex digits of XXH3-128, as xxhsum prints it */
    CKPT_FILES_MAX = 64,        /* in a manifest */
    CKPT_FILE_NAME_BYTES = 128,
    CKPT_MANIFEST_MAX = 1 << 20,
    CKPT_CHUNK_BYTES = 4 << 20, /* read and written at once */
};

/* ---- manifest.c ---- */
struct ckpt_file {
    char name[CKPT_FILE_NAME_BYTES];
    uint64_t bytes;
    char hash[CKPT_HASH_BYTES];
};

struct ckpt_manifest {
    struct ckpt_meta meta;
    struct ckpt_file files[CKPT_FILES_MAX];
    uint32_t n_files;
};

void ckpt_manifest_print(const struct ckpt_manifest *m, uint64_t wall_us, struct buf *out);
/* ERR_CORRUPT, ERR_UNSUPPORTED (a newer format), ERR_NOMEM. */
int ckpt_manifest_parse(const char *text, size_t n, struct ckpt_manifest *out, struct err *err);
int ckpt_manifest_read(const char *folder, struct ckpt_manifest *out, struct err *err);
/* ERR_CORRUPT: a value of the JSON is not as it should be. */
int ckpt_odd(const struct json *doc, const cJSON *value, const char *expected, struct err *err);
/* A whole number from 0 to max. */
int ckpt_whole(const struct json *doc, const cJSON *value, uint64_t max, uint64_t *out,
               struct err *err);
int ckpt_corrupt(struct err *err); /* what is told there already means ERR_CORRUPT */
/* The last member of a JSON object, and its end: the checksum of all text in front of it. */
void ckpt_sum_print(struct buf *out);
int ckpt_sum_check(const char *what, const char *text, size_t n, struct err *err);
const struct ckpt_file *ckpt_manifest_file(const struct ckpt_manifest *m, const char *name);

/* ---- folder.c ---- */
enum { CKPT_NAME_BYTES = 64 };
void ckpt_folder_name(uint64_t step, char out[CKPT_NAME_BYTES]);
bool ckpt_folder_step(const char *name, uint64_t *step); /* "step-00000100" */
/* A name for it that no reader looks at, with `kind` ("tmp", "old") and random digits. */
int ckpt_hidden_name(uint64_t step, const char *kind, char out[CKPT_NAME_BYTES], struct err *err);
/* Steps of the checkpoint folders below, ascending; *out is the caller's to free(). ERR_NOENT if
 * there is no directory. */
int ckpt_folder_list(const char *directory, uint64_t **out, size_t *n, struct err *err);
/* Removes what other writers left behind, dead or not: each name is taken from them before anything in it
 * is removed. A checkpoint that was only moved aside goes back. */
int ckpt_folder_clean(const char *directory, struct err *err);

/* ---- save.c ---- */
/* What the owner of a save and the thread that performs it know of each other; both fields are atomic. */
struct ckpt_watch {
    _Atomic bool is_canceled;  /* set by the owner: the save is abandoned */
    _Atomic uint64_t moved_ns; /* set by the thread: clock_ns() when the storage last completed an operation */
};

/* One file of a checkpoint, ready to be written again and again. */
struct ckpt_layout {
    const char *name;     /* of the file */
    char *header;         /* owned */
    size_t header_bytes;
    struct ckpt_piece {
        size_t offset, bytes; /* of the state */
    } *pieces;            /* owned; the data, in the order of the file */
    size_t n_pieces;
    uint64_t bytes;       /* of the whole file */
};
int ckpt_layout_init(const char *name, const struct ckpt_tensor *tensors, uint32_t n,
                     size_t state_bytes, struct ckpt_layout *out, struct err *err);
void ckpt_layout_fini(struct ckpt_layout *l);

/* The right to publish. */
struct ckpt_right {
    int (*may_publish)(void *arg, struct err *err); /* NULL: yes */
    void *arg;
    struct ckpt_watch *watch; /* NULL: never abandoned */
    bool is_lost;            /* out: REFUSED or CANCELED was the answer */
};
/* ERR_CANCELED, and what may_publish() says. */
int ckpt_ask(struct ckpt_right *right, struct err *err);

/* Writes, syncs, reads back, publishes. *existed: the same checkpoint was there already, and
 * verified; nothing was written. */
int ckpt_save(const char *directory, const struct ckpt_layout *layouts, uint32_t n_layouts,
              struct ckpt_right *right, const struct ckpt_meta *meta, const void *state,
              uint64_t *bytes, bool *existed, struct err *err);
/* The first half of it: a folder of this path, durable. Left behind as it is on failure. */
int ckpt_write_folder(const char *path, const struct ckpt_layout *layouts, uint32_t n_layouts,
                      struct ckpt_watch *watch, const struct ckpt_meta *meta, const void *state,
                      uint64_t *bytes, struct err *err);
/* Removes the checkpoint of a step; it is out of sight at once. */
int ckpt_remove(const char *directory, uint64_t step, struct err *err);

/* ---- verify.c ---- */
/* Notes that the storage completed an operation. ERR_CANCELED if the save is abandoned. Called with each chunk; NULL
 * is fine. */
int ckpt_check_canceled(struct ckpt_watch *watch, struct err *err);
struct ckpt_progress {
    void (*report)(void *arg, uint64_t done, uint64_t all); /* NULL is fine */
    void *arg;
    struct ckpt_watch *watch; /* NULL is fine */
    uint64_t done, all;
};
/* Compares a folder with its manifest. `from_disk`: the page cache is emptied of it first. */
int ckpt_verify_folder(const char *path, const struct ckpt_manifest *m, bool from_disk,
                       struct ckpt_progress *progress, struct err *err);
/* Opens a file for reading, and nothing else that may have its name; returns fd. ERR_CORRUPT. */
int ckpt_open_regular(const char *path, uint64_t *bytes, struct err *err);
/* Opens a file of a checkpoint and compares its size; returns fd. */
int ckpt_open_file(const char *folder, const struct ckpt_file *file, char **path, struct err *err);
/* All n bytes from the current position. */
int ckpt_read_all(int fd, const char *path, void *out, size_t n, struct err *err);
/* Reads and checks the header from position 0. ended with safetensors_fini(). *raw: the bytes in
 * front of the data, the caller's to free(); NULL: not wanted. */
int ckpt_read_header(int fd, const char *path, uint64_t file_bytes, struct safetensors *out,
                     char **raw, struct err *err);
void ckpt_hash_print(XXH128_hash_t hash, char out[CKPT_HASH_BYTES]);
int ckpt_check_hash(const char *path, const struct ckpt_file *file, const char *hash,
                    struct err *err);

#endif
