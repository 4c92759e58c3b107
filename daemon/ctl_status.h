/* ctl_status.h - formats a StatusReply as text (status_json.h: as JSON). Appends to `out`. */
#ifndef DAEMON_CTL_STATUS_H
#define DAEMON_CTL_STATUS_H

#include "proto/trainerd.pb-c.h"

struct buf;

void ctl_status_text(const Trainerd__V1__StatusReply *s, struct buf *out);
/* Appends one line without a newline: "train  step 12/440  epoch 0  loss 1.23 ...". */
void ctl_status_line(const Trainerd__V1__StatusReply *s, struct buf *out);

#endif
