/* sensors.h - what the sensors of this task's GPUs say: asked every few seconds by a thread of its own, because
 * a driver may take its time; shown in metrics and in Status, with what the task itself knows of its GPUs. Nothing
 * on CPUs. */
#ifndef DAEMON_SENSORS_H
#define DAEMON_SENSORS_H

#include <stdint.h>

struct buf;
struct err;
struct metrics;
struct rdzv_gpu;
struct sensors;
struct settled;

/* Both borrowed. *out is NULL on CPUs and on failure, which every call below accepts. Errors: ERR_NOMEM,
 * ERR_IO (no thread). */
int sensors_open(const struct settled *s, struct metrics *m, struct sensors **out, struct err *err);
void sensors_close(struct sensors *x); /* waits for the thread, which may be inside the driver */

/* What training says: [the task's GPUs], the share of a step in which each had no work; NaN: not known. Any thread. */
void sensors_idle(struct sensors *x, const double *idle);
/* The last readings; at most `max`. Returns how many GPUs there are. Any thread. */
uint32_t sensors_read(struct sensors *x, struct rdzv_gpu *out, uint32_t max);
/* A JSON array of them. Any thread. */
void sensors_print(struct sensors *x, struct buf *out);

#endif
