/* export.h - writes the trained model in the formats that the job requests, on the coordinator after the last step.
 * Rows of remote tables are read from the parameter servers in parts. Threads: local replica 0's. */
#ifndef TRAIN_EXPORT_H
#define TRAIN_EXPORT_H

struct err;
struct train;

int export_model(struct train *t, struct err *err);

#endif
