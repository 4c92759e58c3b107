/* inspect_tensors.h - the part of `trainerctl inspect` about initializers: which ones are trained
 * and why. */
#ifndef DAEMON_INSPECT_TENSORS_H
#define DAEMON_INSPECT_TENSORS_H

struct buf;
struct graph;

/* Prints a line for each initializer on stdout. */
void inspect_tensors_print(const struct graph *g);
/* Appends the key "tensors" to an object. */
void inspect_tensors_json(const struct graph *g, struct buf *out);

#endif
