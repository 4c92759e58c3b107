/* random.h - the parameters of the ops of random.c, set by infer and read by their kernels. */
#ifndef OP_RANDOM_RANDOM_H
#define OP_RANDOM_RANDOM_H

#include <stdint.h>

struct draw { /* RandomUniform*, RandomNormal*: y = base + scale * (a draw) */
    float base, scale;
};

struct choice { /* Multinomial */
    int64_t rows, classes, samples; /* input [rows, classes] -> output [rows, samples] */
};

#endif
