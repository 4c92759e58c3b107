/* summary_priv.h - what the files of event files share.
 *
 *   summary.c      the file, its thread, scalars
 *   summary_run.c  hyper-parameters and graph of a run
 *   summary_record.c  the frame of an event */
#ifndef METRICS_SUMMARY_PRIV_H
#define METRICS_SUMMARY_PRIV_H

#include "metrics/summary.h"
#include "metrics/summary_run.h"

struct buf;

/* Appends a TFRecord: uint64 length, masked CRC of the length, data, masked CRC of the data; all
 * little-endian. */
void summary_add_record(struct buf *out, const void *data, uint32_t n);
/* Appends the records that describe the run. */
void summary_run_encode(const struct summary_run *run, uint64_t wall_us, struct buf *out);

#endif
