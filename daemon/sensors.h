/* sensors.h - readings of the sensors of this task's GPUs. A separate thread reads them every two
 * seconds, because a driver call may be slow. The readings, together with the idle share that
 * training measures, appear in metrics and in Status. On CPUs there are no sensors. */
#ifndef DAEMON_SENSORS_H
#define DAEMON_SENSORS_H

#include <stdint.h>

struct err;
struct metrics;
struct rdzv_gpu;
struct sensors;
struct settled;

/* Starts the thread. `s` and `m` are borrowed until sensors_close(). *out is NULL on CPUs and on
 * failure; every function below accepts NULL. Errors: ERR_NOMEM, ERR_IO (no thread). */
int sensors_open(const struct settled *s, struct metrics *m, struct sensors **out, struct err *err);
/* Stops the thread and waits for it; the wait includes a running driver call. */
void sensors_close(struct sensors *x);

/* Stores the share of the last step in which each GPU had no work, 0 to 1; NaN: unknown. `idle` has
 * an entry for each GPU of the task. Any thread. */
void sensors_idle(struct sensors *x, const double *idle);
/* Copies at most `max` readings and returns the number of GPUs. Any thread. */
uint32_t sensors_read(struct sensors *x, struct rdzv_gpu *out, uint32_t max);

#endif
