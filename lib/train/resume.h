/* resume.h - loads a checkpoint as the held state, if the job may go on from it.
 *
 * Threads: those of save.h. */
#ifndef TRAIN_RESUME_H
#define TRAIN_RESUME_H

struct ckpt_info;
struct err;
struct train;

/* Called when no task holds state: loads the newest checkpoint, if there is one, as the held
 * state. */
int resume_newest(struct train *t, struct err *err);
/* Loads the checkpoint folder `path` as the held state, without an evaluation. See train_load(). */
int resume_path(struct train *t, const char *path, struct ckpt_info *out, struct err *err);

#endif
