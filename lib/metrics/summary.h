/* summary.h - TensorBoard event files: events.out.tfevents.<seconds>.<host>.<pid>, TFRecord frames
 * of tensorflow.Event with Summary scalar values (proto/summary.proto, the public field numbers).
 *
 * Written by a thread of its own so that a slow disk never stops training: summary_scalar() copies
 * into a bounded queue; when it is full the value is dropped and counted. Threads: any, for all but
 * close. */
#ifndef METRICS_SUMMARY_H
#define METRICS_SUMMARY_H

#include <stdint.h>

struct err;
struct summary;

/* Bytes of UTF-8; a point with a longer tag is dropped, and counted. */
enum { SUMMARY_TAG_MAX = 127 };

/* Makes the folder; the first event is the file version "brain.Event:2". On resume at step k, pass
 * purge_step = k + 1 (a SessionLog START, which makes TensorBoard drop later points of an earlier
 * run); 0: none. */
int summary_open(const char *directory, uint64_t purge_step, struct summary **out, struct err *err);
void summary_scalar(struct summary *s, uint64_t step, const char *tag, float value);
uint64_t summary_dropped(const struct summary *s);
/* Returns when everything so far is in the file. Errors: that of the last write which failed since
 * the last flush (its points are dropped, and counted); ERR_TIMEOUT after 5 s. */
int summary_flush(struct summary *s, struct err *err);
/* Writes what is left, for at most 5 s. NULL is fine. */
void summary_close(struct summary *s);

#endif
