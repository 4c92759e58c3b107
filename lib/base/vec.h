/* vec.h - a growing array of one type.   VEC(struct x) xs = {0};  VEC_PUSH(xs, value)
 *
 * VEC_PUSH and VEC_RESERVE yield true, or false if memory is exhausted; the array is then
 * unchanged. Threads: one at a time. */
#ifndef BASE_VEC_H
#define BASE_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#define VEC(type_) struct { type_ *at; size_t n; size_t cap; }
#define VEC_PUSH(v_, ...)                                                                          \
    (vec_grow((void **)&(v_).at, &(v_).cap, (v_).n + 1, sizeof(*(v_).at))                          \
         ? ((v_).at[(v_).n++] = (__VA_ARGS__), true)                                               \
         : false)
/* Ensures room for n elements in total. */
#define VEC_RESERVE(v_, n_) vec_grow((void **)&(v_).at, &(v_).cap, (n_), sizeof(*(v_).at))
#define VEC_FINI(v_) (free((v_).at), (v_).at = NULL, (v_).n = (v_).cap = 0)

/* Called by the macros only: ensures a capacity of at least `want` elements of `size` bytes. */
bool vec_grow(void **at, size_t *cap, size_t want, size_t size);

#endif
