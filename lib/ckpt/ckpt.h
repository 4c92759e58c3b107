/* ckpt.h - write the state of a run so that it survives anything.
 *
 *   <directory>/step-<8 digits>/model.safetensors      parameters and statistics, named as in the graph
 *                               optimizer.safetensors  slots, named <tensor>/<slot>
 *                               manifest.json          written last
 *
 * A checkpoint is written under a temporary name (`.step-00000100.tmp-<random>`, which no two writers
 * share), each file synced, the manifest last, the folder synced; everything is read back from the disk and
 * compared; then it is renamed and the parent synced. Only when all that held is an older one removed. So a
 * folder named step-* is complete or the disk lies; and readers check anyway. A checkpoint of the same step
 * and run that is there already and verifies is not written again; anything else of that name is replaced.
 *
 * Every task of a job may become the one that writes, while the one before it may still be at it, unknowing
 * (stopped, or its storage hangs). So a writer asks may_publish() before it begins, right before the rename,
 * and before each removal; refused, it discards its copy. Left-over temporaries are removed by who has the
 * right, by renaming them first: a former writer that goes on in one finds it gone, and can never publish
 * what is half removed. What is left is a rename that hangs in the kernel between the question and its
 * effect: then a checkpoint of that step appears late, whole and verified; and as the state is a function
 * of job and step, it is the same that another has written or would have.
 *
 * Manifest: {"format": 1, "step", "epoch", "position", "seed", "lanes", "global_batch_size", "job_digest",
 *            "model_digest", "data_digest", "name", "complete", "written_at", and where they are not
 *            zero "plateau_step", "plateau_has_best", "plateau_best", "plateau_waited",
 *            "plateau_reductions", "evaluated_step", "loss_scale", "loss_scale_good_steps",
 *            "files": {"model.safetensors": {"bytes", "xxh3_128"}, ...},
 *            "checksum"}                             XXH3-128 of the text in front of it
 *
 * Threads: a ckpt_writer has a thread of its own; see each call. */
#ifndef CKPT_CKPT_H
#define CKPT_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

struct buf;
struct ckpt_writer;
struct err;

struct ckpt_meta {
    uint64_t step;     /* optimizer steps completed */
    uint64_t epoch;    /* finished epochs at this step */
    uint64_t position; /* samples used of the current epoch */
    uint64_t seed;
    uint32_t lanes;
    uint32_t global_batch_size;
    char job_digest[65];
    char model_digest[65]; /* "": the manifest does not name it */
    char data_digest[65];
    char name[256];
    bool complete; /* the job's last step */
    /* What evaluations have said to a plateau schedule; all zero without one. */
    uint64_t plateau_step;
    bool plateau_has_best;
    double plateau_best; /* finite */
    uint32_t plateau_waited, plateau_reductions;
    uint64_t evaluated_step; /* the last step whose evaluation was told; 0: none was, or nobody noted it */
    double loss_scale; /* of the step behind this one; 0: the job has none */
    uint32_t loss_scale_good_steps;
};

struct ckpt_tensor {
    const char *name;   /* "conv1.weight", or "conv1.weight/momentum" in the optimizer file */
    enum tensor_dtype dtype;
    struct shape shape;
    size_t offset;      /* bytes into the state given to ckpt_write() */
};

/* ---- writing ---- */
struct ckpt_event {
    enum {
        CKPT_WRITTEN,
        CKPT_FAILED,
        CKPT_REMOVED,
        CKPT_DISCARDED, /* not ours to publish any more (text says why), or abandoned */
    } kind;
    uint64_t step;
    uint64_t bytes;
    uint64_t ns;         /* WRITTEN: from hand-over to verified */
    const char *path;    /* valid during the call */
    const char *text;    /* FAILED: the error; will be tried again unless `final`. DISCARDED: why */
    bool final;
    bool again;          /* FAILED, DISCARDED: told before, and nothing was written since */
};

struct ckpt_writer_opts {
    const char *directory;             /* made if missing, before the first save; copied */
    uint32_t max_to_keep;              /* 0: all */
    const struct ckpt_tensor *model;   /* copied, names too */
    uint32_t n_model;
    const struct ckpt_tensor *slots;
    uint32_t n_slots;
    size_t state_bytes;                /* size of the state that is copied at hand-over */
    void *staging;                     /* for that copy, the caller's; NULL: memory of the writer's own */
    uint64_t retry_ms;                 /* after a failure, doubling up to 32 times that; 0: a second */
    uint64_t close_ms;                 /* see ckpt_writer_close(); 0: ten seconds */
    /* Both from the writer's thread (or ckpt_writer_close()), one at a time, maybe before
     * ckpt_writer_open() has returned, and not any more once ckpt_writer_close() has. */
    void (*on_event)(void *arg, const struct ckpt_event *e);
    /* NULL: we are alone. 0: yes, now. ERR_REFUSED: never again for this state: it is discarded. Other
     * errors: it cannot be known now, tried again as if the disk had failed. Must return in bounded time. */
    int (*may_publish)(void *arg, struct err *err);
    /* Likewise, before anything is read of what was handed over: until all of it has come to the staging
     * area. NULL: it has when it is handed over. A failure is one of the save. Must return in bounded time. */
    int (*arrive)(void *arg, struct err *err);
    void *arg;
};

/* Makes the directory, so that one that cannot be used is refused at the start. Waits for the storage. */
int ckpt_directory(const char *directory, struct err *err);

/* Does not touch the storage, which may hang: that is all done by the thread. Errors: ERR_INPUT (names),
 * ERR_UNSUPPORTED, ERR_NOMEM. */
int ckpt_writer_open(const struct ckpt_writer_opts *opts, struct ckpt_writer **out, struct err *err);
/* Copies the state (the only stall) and returns; the thread writes it. If the one before is still being
 * written: ERR_EXISTS at once with nothing done. A state that waits for a retry is replaced by the newer
 * one. */
int ckpt_write(struct ckpt_writer *w, const struct ckpt_meta *meta, const void *state, struct err *err);
/* Is the one before still being written, so that ckpt_write() would say ERR_EXISTS? */
bool ckpt_is_busy(struct ckpt_writer *w);
/* The same copy in parts, by several threads: ckpt_begin (as ckpt_write, nothing copied) gives the
 * staging area, the caller fills all state_bytes (with `arrive`: sees to it that they will be), ckpt_hand_over
 * starts the writing. */
int ckpt_begin(struct ckpt_writer *w, void **staging, struct err *err);
void ckpt_hand_over(struct ckpt_writer *w, const struct ckpt_meta *meta);
/* How many stay from the next one on. Any thread. */
void ckpt_set_keep(struct ckpt_writer *w, uint32_t max_to_keep);
/* How long ckpt_flush() waits. */
struct ckpt_patience {
    uint64_t wait_ms;
    uint32_t tries;    /* it returns after so many failures of this state; 0: any number */
    uint64_t stall_ms; /* it returns when the storage has completed nothing for so long; 0: never for this reason */
};
/* Waits until what was handed over last is on disk and verified. 0; else its last error (ERR_FULL, ERR_IO, ...;
 * ERR_REFUSED, ERR_CANCELED: it was discarded) or ERR_TIMEOUT. After an error the writer goes on trying. */
int ckpt_flush(struct ckpt_writer *w, const struct ckpt_patience *p, struct err *err);
/* What is wrong with the storage now. Any thread, waits for nothing. */
struct ckpt_trouble {
    uint32_t failures;   /* saves that failed since one was written */
    uint64_t stalled_ms; /* a save is under way, and the storage has completed nothing for so long */
    int code;            /* of the last of these failures; 0: there is none */
    char text[512];      /* the reason; "": there is no trouble */
};
void ckpt_trouble(struct ckpt_writer *w, struct ckpt_trouble *out);
/* Somebody else writes now: what is being filled, written or waits is discarded as soon as the thread
 * notices; it publishes nothing of it any more. Does not wait, and the writer can be used again; until the
 * thread has noticed, ckpt_begin() says ERR_EXISTS. Nobody may be filling the staging area. */
void ckpt_abandon(struct ckpt_writer *w);
/* Waits for a save under way for at most close_ms (nothing to speak of if it was abandoned), then leaves it
 * behind: it publishes nothing, and its thread frees what is left when the storage lets it go. Gives up a
 * pending retry. false: the thread was left behind, and may still read a staging area of the caller's. NULL is
 * fine. */
bool ckpt_writer_close(struct ckpt_writer *w);

/* ---- reading ---- */
struct ckpt_info {
    char path[4096];
    struct ckpt_meta meta;
    uint64_t bytes;
};

/* Newest checkpoint below `directory` that verifies, checksums included. Those that do not are
 * skipped, newest first, each reported with what is wrong. `match_model`: ERR_INPUT if any checkpoint there is of
 * another model by its manifest, so that a run of this model neither replaces nor removes it; NULL: any model.
 * ERR_NOENT: there is no checkpoint. ERR_CORRUPT: there are some, and none can be used; the text lists them.
 * ERR_IO: none can be used, but one of them at least could not be read, and may be good. */
int ckpt_newest(const char *directory, const char *match_model,
                void (*on_skip)(void *arg, const char *path, const char *why),
                void (*on_progress)(void *arg, uint64_t done, uint64_t all), void *arg,
                struct ckpt_info *out, struct err *err);
/* The newest checkpoint of this model by its manifest alone: step, job, `complete`. The files it names are
 * there and have their sizes, what is in them is not read. One whose manifest does not hold is passed over.
 * ERR_NOENT: none. */
int ckpt_peek(const char *directory, const char *match_model, struct ckpt_info *out, struct err *err);
/* Checks one checkpoint folder: manifest, sizes, checksums, safetensors headers, names within bounds.
 * ERR_CORRUPT with what is wrong, ERR_NOENT. */
int ckpt_verify(const char *path, void (*on_progress)(void *arg, uint64_t done, uint64_t all),
                void *arg, struct ckpt_info *out, struct err *err);
/* Reads the tensors into the state: every name must be there with this type and shape
 * (ERR_INPUT naming tensor, found, expected), extra ones in the file are an error too. Checksums are
 * computed on the way (ERR_CORRUPT). After an error the state is undefined. */
int ckpt_load(const char *path, const struct ckpt_tensor *model, uint32_t n_model,
              const struct ckpt_tensor *slots, uint32_t n_slots, void *state, struct err *err);
/* Calls `each` for every step-* folder below, oldest first; rc 0 or the error of ckpt_verify. */
int ckpt_each(const char *directory,
              void (*each)(void *arg, const struct ckpt_info *info, int rc, const char *why),
              void *arg, struct err *err);

#endif
