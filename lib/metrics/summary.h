/* summary.h - writes TensorBoard event files: events.out.tfevents.<seconds>.<host>.<pid>, TFRecord
 * frames of tensorflow.Event with Summary scalar values, and once for a run its hyper-parameters and
 * graph (proto/summary.proto, the public field numbers).
 *
 * A writer thread writes the file, so a slow disk does not delay training: summary_scalar() copies
 * the point to a bounded queue; if the queue is full, the point is dropped and counted.
 * Threads: any; summary_close() is called once, after all other calls have returned. */
#ifndef METRICS_SUMMARY_H
#define METRICS_SUMMARY_H

#include <stdint.h>

struct err;
struct summary;
struct summary_run;

/* The longest tag in bytes of UTF-8; a point with a longer tag is dropped and counted. */
enum { SUMMARY_TAG_MAX = 127 };

/* Creates the directory and the file; the first event is the file version "brain.Event:2". After a
 * resume at step k, the caller passes purge_step = k + 1: a SessionLog START event makes
 * TensorBoard discard the points of an earlier run from that step on. 0: no such event. On success
 * the caller owns *out. Errors: those of creating and writing the file, ERR_NOMEM, ERR_IO (no
 * thread). */
int summary_open(const char *directory, uint64_t purge_step, struct summary **out, struct err *err);
void summary_scalar(struct summary *s, uint64_t step, const char *tag, float value);
/* Writes hyper-parameters and graph (summary_run.h), unless the directory contained an event file
 * before summary_open(): a run is described once. Called before the first point. */
void summary_describe(struct summary *s, const struct summary_run *run);
uint64_t summary_dropped(const struct summary *s); /* points dropped since summary_open() */
/* Waits until all points that were accepted before the call are written. Errors: the error of the
 * last failed write since the previous flush (its points are dropped and counted); ERR_TIMEOUT
 * after 5 s. */
int summary_flush(struct summary *s, struct err *err);
/* Writes the remaining points, waits for at most 5 s, and frees `s`. NULL is allowed. */
void summary_close(struct summary *s);

#endif
