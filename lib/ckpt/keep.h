/* keep.h - keeps one checkpoint of another task in a directory of its own, where no retention
 * removes it.
 *
 *   <to>/.step-00000100.tmp-<random>   the pinned checkpoint: a candidate
 *   <to>/step-00000100                 the kept checkpoint
 *
 * ckpt_pin() makes hard links of the files, so a writer may remove its checkpoint at any time;
 * where hard links are not possible (another file system, files of another user) it copies the
 * bytes. The caller verifies the pinned checkpoint (ckpt_load(), ckpt_verify()); ckpt_keep() publishes
 * it by a rename.
 *
 * Threads: one at a time for each directory `to`. */
#ifndef CKPT_KEEP_H
#define CKPT_KEEP_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_info;
struct err;

/* A checkpoint in a directory, without reading it. */
struct ckpt_entry {
    uint64_t step;
    /* Identifies the folder: a checkpoint of the same step that replaces another has other
     * values. */
    uint64_t inode, changed_ns;
};

/* Lists the checkpoints in `directory`, ascending by step. The caller frees *out with free().
 * Errors: ERR_NOENT (no directory), ERR_IO, ERR_NOMEM. */
int ckpt_entries(const char *directory, struct ckpt_entry **out, size_t *n, struct err *err);

/* Creates `to`, and removes the pinned checkpoints that an ended process left there. Errors:
 * ERR_IO, ... */
int ckpt_keep_prepare(const char *to, struct err *err);
/* Pins the checkpoint of `step` in `from`, and checks its manifest and the sizes of its files;
 * out->path is the pinned folder. On failure nothing is left. Errors: ERR_NOENT (the checkpoint was
 * removed), ERR_CORRUPT (it is damaged), ERR_UNSUPPORTED (a newer format), ERR_IO, ERR_FULL,
 * ERR_NOMEM. */
int ckpt_pin(const char *from, uint64_t step, const char *to, struct ckpt_info *out,
             struct err *err);
/* Publishes the pinned checkpoint, which the caller has verified, as <to>/step-*, durable when it returns 0, then removes every
 * other checkpoint in `to`. `pinned` no longer exists afterwards. On failure the checkpoints that
 * `to` held remain. Errors: ERR_IO, ERR_FULL, ERR_NOMEM. */
int ckpt_keep(const char *to, const struct ckpt_info *pinned, struct err *err);
/* Removes a pinned checkpoint. */
int ckpt_unpin(const struct ckpt_info *pinned, struct err *err);

#endif
