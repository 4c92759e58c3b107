/* curve.h - the course of a run, in bounded memory: loss, learning rate, gradient norm and speed over
 * the steps that this process has seen, and the last evaluations.
 *
 * A point covers `stride` steps in a row. When CURVE_POINTS are in use, neighbors are merged in
 * pairs and the stride doubles, so the curve always begins with the first step, and has at least
 * CURVE_POINTS / 2 points after as many steps. A step that is not larger than the last one (the group
 * returned to an older state) removes the points from there on.
 *
 * Every task keeps the curve, because every task knows the loss of each step and may lead next.
 * Threads: the caller serializes the calls. */
#ifndef DAEMON_CURVE_H
#define DAEMON_CURVE_H

#include <stdint.h>

struct buf;

enum { CURVE_POINTS = 512, CURVE_EVALUATIONS = 128 };

struct curve_step {
    uint64_t step;
    uint64_t time_us; /* microseconds since 1970 UTC */
    double loss, learning_rate;
    double gradient_norm; /* NaN: not computed */
    uint64_t samples;     /* of the step */
    uint64_t ns;          /* wall time since the step before */
};

struct curve_point {
    uint64_t first, last; /* steps */
    uint64_t time_us;     /* of the last step */
    double loss;          /* sum; divided by n when it is printed. May be NaN */
    double norm;          /* sum over n_norms steps */
    double learning_rate; /* of the last step */
    uint64_t samples, ns;
    uint32_t n, n_norms;
};

struct curve_evaluation {
    uint64_t step, time_us;
    double loss;
    double metrics[8]; /* the first ones of the job, in the order of curve_print()'s names */
};

struct curve { /* all zero is an empty curve */
    struct curve_point points[CURVE_POINTS];
    uint32_t n;
    uint64_t stride; /* steps of a point; 0: no step yet */
    struct curve_evaluation evaluations[CURVE_EVALUATIONS];
    uint64_t n_evaluations; /* ever; the newest are kept */
};

void curve_add(struct curve *c, const struct curve_step *s);
void curve_add_evaluation(struct curve *c, const struct curve_evaluation *e);
/* Appends a JSON object: arrays of equal length with an entry for each point. An unknown number is
 * null. n_names <= 8: the metrics. */
void curve_print(const struct curve *c, const char *const *names, uint32_t n_names,
                 struct buf *out);

#endif
