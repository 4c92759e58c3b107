/* ckpt.h - writes and reads checkpoints: the state of a run on durable storage.
 *
 *   <directory>/step-<8 digits>/model.safetensors      parameters and statistics, graph names
 *                               optimizer.safetensors  slots, named <tensor>/<slot>
 *                               manifest.json          written last
 *
 * If the job keeps tables on parameter servers, the rows of these tables are in shard files (shard_files.h), so
 * that servers can write and read them without one process that has them all:
 *
 *   <directory>/step-<8 digits>/model-dense.safetensors      all other parameters and statistics
 *                               optimizer-dense.safetensors  their slots
 *                               model-00000-of-00016.safetensors      ... model-00015-of-00016.safetensors
 *                               optimizer-00000-of-00016.safetensors  ... (none if there are no slots)
 *                               model.safetensors.index.json the file of each tensor of the model files, in the
 *                                                            format of Hugging Face
 *                               manifest.json                of format 2
 *
 * A checkpoint is written in this order:
 *   1. under a unique temporary name (`.step-00000100.tmp-<random>`); each file is synced, the
 *      manifest is written last, the directory is synced;
 *   2. all files are read back from the disk and compared;
 *   3. the directory is renamed and its parent is synced;
 *   4. older checkpoints are removed.
 * A directory named step-* is therefore complete unless the disk failed; readers verify it anyway.
 * An existing checkpoint of the same step and run that verifies is not written again; anything else
 * of that name is replaced.
 *
 * Every task of a job may become the writer, while the previous writer may still be running without
 * knowing that it was replaced (it is stopped, or its storage hangs). A writer therefore calls
 * may_publish() before it begins, directly before the rename, and before each removal; if refused,
 * it discards its copy. The current writer removes leftover temporary directories by renaming them
 * first, so that a former writer which continues in one fails and cannot publish a partly removed
 * directory. One case remains: a rename may hang in the kernel after may_publish() and take effect
 * later. A checkpoint of that step then appears with a delay, but complete and verified; its
 * content equals that of any other writer, because the state is a function of job and step.
 *
 * Manifest: {"format": 1 (2: with shard files, 3: with dynamic tables), "step", "epoch", "position", "seed", "lanes", "global_batch_size",
 *            "job_digest", "model_digest", "data_digest", "name", "complete", "written_at",
 *            if not zero "plateau_step", "plateau_has_best", "plateau_best", "plateau_waited",
 *            "plateau_reductions", "evaluated_step", "loss_scale", "loss_scale_good_steps",
 *            "phase", "groups", "outer_step", "has_outer_momentum", "staleness", "residual_groups", "compression",
 *            "data_content",
 *            with shard files "shards": {"files": 16, "rows": the rule that divides the rows, with dynamic tables
 *            "ids": their rule},
 *            "files": {"model.safetensors": {"bytes", "xxh3_128"}, ...},
 *            "checksum"}                             XXH3-128 of the preceding text
 *
 * Threads: a ckpt_writer has its own thread. One thread at a time calls the functions of a writer,
 * unless stated otherwise. */
#ifndef CKPT_CKPT_H
#define CKPT_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/shard_files.h"
#include "tensor/tensor.h"

struct buf;
struct ckpt_watch;
struct ckpt_writer;
struct err;

enum { CKPT_CONTENT_DIGITS = 1024 };

struct ckpt_meta {
    uint64_t step;     /* optimizer steps completed */
    uint64_t epoch;    /* finished epochs at this step */
    uint64_t position; /* samples used of the current epoch */
    uint64_t seed;
    uint32_t lanes;
    uint32_t global_batch_size;
    char job_digest[65];
    char model_digest[65]; /* "": the manifest does not contain it */
    char data_digest[65];
    /* checksums of parts of the training data, 8 hexadecimal digits each; "": the manifest does not contain them */
    char data_content[CKPT_CONTENT_DIGITS + 1];
    char name[256]; /* of the job */
    bool complete;  /* the last step of the job */
    /* State of a plateau schedule; all zero without such a schedule. */
    uint64_t plateau_step;
    bool plateau_has_best;
    double plateau_best; /* finite */
    uint32_t plateau_waited, plateau_reductions;
    uint64_t evaluated_step; /* last step with a reported evaluation; 0: none, or not recorded */
    double loss_scale;       /* of the next step; 0: the job does not scale the loss */
    uint32_t loss_scale_good_steps;
    uint32_t phase;      /* of this step, from 1; 0: the job has no phases */
    uint32_t groups;     /* of local SGD in that phase; 0: it is synchronous */
    uint64_t outer_step; /* outer steps completed */
    bool has_outer_momentum; /* a slot of every trained parameter */
    uint32_t staleness; /* older versions of tables, which are slots too */
    uint32_t residual_groups; /* groups of lanes whose residuals are slots; 0: none are kept */
    /* the code of the gradients of all steps so far; "none": the job decided against its code; "": it has none */
    char compression[16];
};

#define CKPT_ELSEWHERE SIZE_MAX
struct ckpt_tensor {
    const char *name;   /* "conv1.weight", or "conv1.weight/momentum" in the optimizer file */
    enum tensor_dtype dtype;
    struct shape shape;
    /* bytes into the state given to ckpt_write(). CKPT_ELSEWHERE: the state does not have it. The rows of a table
     * are then written by write_rows(), and ckpt_load() only compares the shape */
    size_t offset;
    /* Writing: 1 + the number of the table whose rows it has, float32, which are written to the shard files
     * (shard_files.h); 0: it is a tensor of the file of the others. The tables are numbered in the order of
     * `model`, and in `slots` the tensors of a table are consecutive, in the order of the tables. */
    uint32_t table;
    /* For a dynamic table (shard_files.h): 1 + the group whose rows it has, so that dimension 0 is that of
     * ckpt_set_sizes(), or of the file; 0: the table has a fixed number of rows. The tensors of integers are int64 of
     * rank 1. `model` has <table>/ids and the table; the slots have the other tensors of integers first. */
    uint32_t group;
};

/* ---- writing ---- */

/* The shard files of a checkpoint that is being written, whose rows the state does not have. */
struct ckpt_row_files {
    const char *folder; /* has the files, with their headers and their final sizes */
    uint64_t data_at[CKPT_SHARD_KINDS][CKPT_SHARD_FILES]; /* bytes before the data; 0: no such file */
    const struct ckpt_sizes *sizes; /* [n_sizes] by the number of the table; n_sizes 0: no table is dynamic */
    uint32_t n_sizes;
    uint64_t sums[CKPT_SHARD_KINDS][CKPT_SHARD_FILES]; /* out: ckpt_shard_sum() over all rows of the file */
    struct ckpt_watch *watch;
};
/* Writes all rows of the files, durable, and sets the sums. */
typedef int ckpt_write_rows_fn(void *arg, struct ckpt_row_files *files, struct err *err);
/* Called by a ckpt_write_rows_fn at least every second, as long as the processes that write rows make progress: the
 * storage of this process is not to blame for a wait. Errors: ERR_CANCELED: the save is abandoned. */
int ckpt_row_files_check(const struct ckpt_row_files *files, struct err *err);

struct ckpt_event {
    enum {
        CKPT_WRITTEN,
        CKPT_FAILED,
        CKPT_REMOVED,
        CKPT_DISCARDED, /* the right to publish was lost (`text`: why), or the save was abandoned */
    } kind;
    uint64_t step;
    uint64_t bytes;
    uint64_t ns;      /* WRITTEN: from ckpt_hand_over() to the end of the verification */
    const char *path; /* valid during the call */
    const char *text; /* FAILED: the error. DISCARDED: the reason. Valid during the call */
    bool final;       /* FAILED: the save is not retried */
    bool again;       /* FAILED, DISCARDED: reported before, and nothing was written since */
};

struct ckpt_writer_opts {
    const char *directory;           /* created before the first save if absent; copied */
    uint32_t max_to_keep;            /* number of checkpoints to keep; 0: all */
    const struct ckpt_tensor *model; /* [n_model] copied, with the names */
    uint32_t n_model;
    const struct ckpt_tensor *slots; /* [n_slots] copied, with the names */
    uint32_t n_slots;
    size_t state_bytes; /* size of the state */
    void *staging;      /* [state_bytes] staging area, owned by the caller; NULL: by the writer */
    uint64_t retry_ms;  /* delay after a failure, doubled up to 32 times this value; 0: 1000 */
    uint64_t close_ms;  /* see ckpt_writer_close(); 0: 10000 */
    /* The callbacks are called on the writer's thread (or in ckpt_writer_close()), one at a time,
     * possibly before ckpt_writer_open() has returned, and never after ckpt_writer_close() has
     * returned. */
    void (*on_event)(void *arg, const struct ckpt_event *e); /* may be NULL */
    /* Returns 0 if the writer may publish now. ERR_REFUSED: the state must never be published and
     * is discarded. Other errors: unknown now; the save is retried like after a disk failure. Must
     * return in bounded time. NULL: this writer is the only one. */
    int (*may_publish)(void *arg, struct err *err);
    /* Waits until the state is complete in the staging area; called before the writer reads the
     * area. An error fails the save. Must return in bounded time. NULL: the state is complete when
     * ckpt_hand_over() is called. */
    int (*wait_snapshot)(void *arg, struct err *err);
    /* Writes the rows of the tables whose `offset` is CKPT_ELSEWHERE, by any processes, on all hosts that reach
     * the directory. Called in ckpt_wait_rows(), on the thread of its caller, at most once for a state that was
     * handed over; so a save that fails is not retried: the state is discarded after CKPT_FAILED. NULL: all rows
     * are in the state. */
    ckpt_write_rows_fn *write_rows;
    void *arg;
};

/* Creates the directory, so that an unusable path is rejected at the start. Waits for the
 * storage. */
int ckpt_create_directory(const char *directory, struct err *err);

/* Starts the writer's thread. Does not access the storage, which may hang; only the thread does. On
 * success the caller owns *out. Errors: ERR_INPUT (names), ERR_UNSUPPORTED, ERR_NOMEM. */
int ckpt_writer_open(const struct ckpt_writer_opts *opts, struct ckpt_writer **out,
                     struct err *err);
/* Copies the state, the only time the caller waits, and returns; the thread writes the copy.
 * Replaces a state that waits for a retry. Errors: ERR_EXISTS (the previous state is still being
 * written; nothing was done). */
int ckpt_write(struct ckpt_writer *w, const struct ckpt_meta *meta, const void *state,
               struct err *err);
/* Returns true while a state is being written, so that ckpt_write() would fail with ERR_EXISTS. */
bool ckpt_is_busy(struct ckpt_writer *w);
/* ckpt_write() in parts, for copies by several threads: ckpt_begin() returns the staging area
 * (errors as ckpt_write()); the caller writes all state_bytes, or with `wait_snapshot` starts the
 * transfers; ckpt_hand_over() starts the save. */
int ckpt_begin(struct ckpt_writer *w, void **staging, struct err *err);
void ckpt_hand_over(struct ckpt_writer *w, const struct ckpt_meta *meta);
/* Between ckpt_begin() and ckpt_hand_over(), if a table is dynamic: the rows in its shards. sizes [n]: by the number of
 * the table; copied. Errors: ERR_NOMEM, ERR_UNSUPPORTED; the caller then abandons the save. */
int ckpt_set_sizes(struct ckpt_writer *w, const struct ckpt_sizes *sizes, uint32_t n,
                   struct err *err);
/* With write_rows, to be called after each ckpt_hand_over(): waits until the shard files exist, and calls
 * write_rows(); or returns because the save has ended without it (the same checkpoint exists, or an error). The
 * rows may change afterwards. The other files are written, and all are verified, after that. If the storage
 * completes no operation for stall_ms before write_rows() is called, abandons the save. Errors: those of the
 * save and of write_rows(). */
int ckpt_wait_rows(struct ckpt_writer *w, uint64_t stall_ms, struct err *err);
/* Changes max_to_keep from the next save on. Any thread. */
void ckpt_set_max_to_keep(struct ckpt_writer *w, uint32_t max_to_keep);
/* Limits of ckpt_flush(). */
struct ckpt_flush_limits {
    uint64_t wait_ms;  /* most time to wait */
    uint32_t tries;    /* most failures of this state; 0: unlimited */
    uint64_t stall_ms; /* most time without a completed operation of the storage; 0: unlimited */
};
/* Waits until the last state that was handed over is on disk and verified, or a limit is reached.
 * Errors: the last error of the save (ERR_FULL, ERR_IO, ...; ERR_REFUSED or ERR_CANCELED: it was
 * discarded), ERR_TIMEOUT. After an error the writer continues to retry. */
int ckpt_flush(struct ckpt_writer *w, const struct ckpt_flush_limits *p, struct err *err);
/* The current failure of the storage. */
struct ckpt_failure {
    uint32_t failures;   /* failed saves since the last successful save */
    uint64_t stalled_ms; /* time without a completed operation during a save; 0: no save */
    int code;            /* of the last of these failures; 0: no failure */
    char text[512];      /* the reason; "": no failure */
};
/* Any thread; does not wait. */
void ckpt_failure(struct ckpt_writer *w, struct ckpt_failure *out);
/* Called when another task became the writer: discards the state that is being filled, written or
 * retried; nothing of it is published any more. Does not wait. The writer can be used again, but
 * ckpt_begin() fails with ERR_EXISTS until the thread has stopped the save. No thread may be
 * writing to the staging area. */
void ckpt_abandon(struct ckpt_writer *w);
/* Waits for a running save for at most close_ms (after ckpt_abandon() only briefly) and cancels a
 * pending retry. If the save is still running, detaches the thread, which publishes nothing and
 * frees the writer when the storage returns. Returns false if the thread was detached; it may then
 * still read the caller's staging area. NULL is allowed. */
bool ckpt_writer_close(struct ckpt_writer *w);

/* ---- reading ---- */
struct ckpt_info {
    char path[4096];
    struct ckpt_meta meta;
    uint64_t bytes;
};

/* Finds the newest checkpoint in `directory` that verifies, including checksums. Calls on_skip with
 * the reason for each newer checkpoint that does not verify. `match_model`: the required model
 * digest, NULL: any. Errors: ERR_INPUT (a manifest has another model digest; a run must neither
 * replace nor remove that checkpoint), ERR_NOENT (no checkpoint), ERR_CORRUPT (no checkpoint is
 * usable; the text lists them), ERR_IO (no checkpoint is usable, but at least one could not be read
 * and may be valid). */
int ckpt_newest(const char *directory, const char *match_model,
                void (*on_skip)(void *arg, const char *path, const char *why),
                void (*on_progress)(void *arg, uint64_t done, uint64_t all), void *arg,
                struct ckpt_info *out, struct err *err);
/* Finds the newest checkpoint of this model by its manifest only (step, job, `complete`). Checks
 * that its files exist with their sizes, without reading them. Skips checkpoints with an invalid
 * manifest. Errors: ERR_NOENT (no checkpoint). */
int ckpt_peek(const char *directory, const char *match_model, struct ckpt_info *out,
              struct err *err);
/* Reads the manifest of one checkpoint directory, and checks that its files exist with their sizes.
 * Errors: ERR_INPUT (another model), ERR_CORRUPT, ERR_NOENT, ERR_IO. */
int ckpt_peek_folder(const char *path, const char *match_model, struct ckpt_info *out,
                     struct err *err);
/* Verifies one checkpoint directory: manifest, sizes, checksums, safetensors headers, name lengths; with shard
 * files also their rows, their index, and that the directory has no other safetensors file. Errors:
 * ERR_CORRUPT, ERR_NOENT, ERR_IO. */
int ckpt_verify(const char *path, void (*on_progress)(void *arg, uint64_t done, uint64_t all),
                void *arg, struct ckpt_info *out, struct err *err);
/* Reads the tensors to the state and verifies the checksums of the files that it reads. The checkpoint must
 * contain exactly these names, types and shapes, in shard files or not. After an error the content of the state is undefined. Errors: ERR_INPUT
 * (the text contains the tensor, the found and the expected value), ERR_CORRUPT, ERR_IO. */
int ckpt_load(const char *path, const struct ckpt_tensor *model, uint32_t n_model,
              const struct ckpt_tensor *slots, uint32_t n_slots, void *state, struct err *err);
/* Calls `each` for every step-* directory in `directory`, oldest first, with the result of
 * ckpt_verify(). */
int ckpt_each(const char *directory,
              void (*each)(void *arg, const struct ckpt_info *info, int rc, const char *why),
              void *arg, struct err *err);

#endif
