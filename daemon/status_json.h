/* status_json.h - the one JSON document about a task and its group: `trainerctl status --json`,
 * /api/v1/status and the status page. systemd/README.md describes its members, whose names are stable. */
#ifndef DAEMON_STATUS_JSON_H
#define DAEMON_STATUS_JSON_H

#include "proto/trainerd.pb-c.h"

struct buf;

void status_json(const Trainerd__V1__StatusReply *s, struct buf *out); /* appends a line */
/* Appends {"last": ..., "records": [...]}: /api/v1/events. */
void status_json_records(const Trainerd__V1__LogsReply *l, struct buf *out);

#endif
