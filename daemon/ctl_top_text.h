/* ctl_top_text.h - the screen of `trainerctl top`, as text. Pure. */
#ifndef DAEMON_CTL_TOP_TEXT_H
#define DAEMON_CTL_TOP_TEXT_H

#include <stddef.h>

#include "proto/trainerd.pb-c.h"

struct buf;

struct top_size {
    size_t columns, rows; /* of the terminal; 0: no limit */
};

/* Appends lines that fit into `size`. If there are more tasks than rows, those that need a look
 * (missing, joined) come first, and the last line counts the others. */
void top_text(const Trainerd__V1__StatusReply *s, struct top_size size, struct buf *out);

#endif
