/* print.h - the result of a preflight for a person and for a program. Pure.
 *
 * The matrix has a row for each task and fits a screen: groups of more than PRINT_CELLS tasks have the
 * worst pair of each task in place of a cell for each pair. */
#ifndef PREFLIGHT_PRINT_H
#define PREFLIGHT_PRINT_H

#include <stdint.h>

#include "preflight/judge.h"
#include "preflight/types.h"

struct buf;

enum { PRINT_CELLS = 8 };

/* Each appends text. */
void print_matrix(const struct preflight_table *t, const struct preflight_findings *f,
                  struct buf *out);
/* One line for each finding, with its remedy, or a line that no fault was found. */
void print_verdict(const struct preflight_table *t, const struct preflight_findings *f,
                   struct buf *out);
/* Four headings: environment, needs, strategy, improve. */
void print_advice(const struct preflight_table *t, const struct preflight_findings *f,
                  struct buf *out);
/* One JSON object. */
void print_json(const struct preflight_table *t, const struct preflight_findings *f, uint32_t self,
                struct buf *out);

/* The parts of the time to the end of the first step, in seconds. */
struct print_estimate {
    double open;     /* the slowest task opens model and data */
    double transfer; /* a task receives the state over the slowest path */
    double reduce;   /* the all-reduce of a step over the slowest path */
};
/* Returns false if the size of the state or every rate is unknown. */
bool print_estimate(const struct preflight_table *t, struct print_estimate *out);

#endif
