/* outer_nonfinite.h - local SGD: the first step of a period in which loss or gradient of a group are
 * not finite. The tasks of that group write a note; at the outer step all tasks receive the note of
 * the earliest step. Threads: the first replica's. */
#ifndef TRAIN_OUTER_NONFINITE_H
#define TRAIN_OUTER_NONFINITE_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct replica;

struct outer_note {
    /* 0: nothing was found; else the larger the earlier the step, and the lower the lane in it */
    double key;
    char text[800];
};

/* Called right after the gradient of `step` was reduced, while the group's model is selected; last: of
 * the period. Computes the lanes (micro-batches) of this task again to find the origin, unless *note
 * names an earlier step. Overwrites gradient arena 0. Errors: those of describe_nonfinite() and
 * locate_nonfinite() of the engine. */
int outer_note_step(struct replica *r, uint64_t step, uint64_t last, double loss,
                    struct outer_note *note, struct err *err);
/* Called by every task at the outer step if any of them has a note: *note becomes the one of the
 * earliest step. Overwrites gradient arena 0. Errors: those of comm; ERR_PEER (an invalid note). */
int outer_share_note(struct replica *r, struct outer_note *note, struct err *err);

#endif
