/* cuda_vectors.h - dim3 and the short vectors, with CUDA's sizes and alignments. */
#ifndef CUDA_VECTORS_H
#define CUDA_VECTORS_H

/* Alignment in bytes of the vectors with 1, 2, 3 and 4 elements. */
#define CUDA_VECTORS(name, type, a1, a2, a3, a4)                                                   \
    struct __attribute__((aligned(a1))) name##1 {                                                  \
        type x;                                                                                    \
    };                                                                                             \
    struct __attribute__((aligned(a2))) name##2 {                                                  \
        type x, y;                                                                                 \
    };                                                                                             \
    struct __attribute__((aligned(a3))) name##3 {                                                  \
        type x, y, z;                                                                              \
    };                                                                                             \
    struct __attribute__((aligned(a4))) name##4 {                                                  \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    typedef struct name##1 name##1;                                                                \
    typedef struct name##2 name##2;                                                                \
    typedef struct name##3 name##3;                                                                \
    typedef struct name##4 name##4;                                                                \
    static inline name##1 make_##name##1(type x)                                                   \
    {                                                                                              \
        name##1 v = { x };                                                                         \
        return v;                                                                                  \
    }                                                                                              \
    static inline name##2 make_##name##2(type x, type y)                                           \
    {                                                                                              \
        name##2 v = { x, y };                                                                      \
        return v;                                                                                  \
    }                                                                                              \
    static inline name##3 make_##name##3(type x, type y, type z)                                   \
    {                                                                                              \
        name##3 v = { x, y, z };                                                                   \
        return v;                                                                                  \
    }                                                                                              \
    static inline name##4 make_##name##4(type x, type y, type z, type w)                           \
    {                                                                                              \
        name##4 v = { x, y, z, w };                                                                \
        return v;                                                                                  \
    }

CUDA_VECTORS(char, signed char, 1, 2, 1, 4)
CUDA_VECTORS(uchar, unsigned char, 1, 2, 1, 4)
CUDA_VECTORS(short, short, 2, 4, 2, 8)
CUDA_VECTORS(ushort, unsigned short, 2, 4, 2, 8)
CUDA_VECTORS(int, int, 4, 8, 4, 16)
CUDA_VECTORS(uint, unsigned int, 4, 8, 4, 16)
CUDA_VECTORS(long, long, 8, 16, 8, 16)
CUDA_VECTORS(ulong, unsigned long, 8, 16, 8, 16)
CUDA_VECTORS(longlong, long long, 8, 16, 8, 16)
CUDA_VECTORS(ulonglong, unsigned long long, 8, 16, 8, 16)
CUDA_VECTORS(float, float, 4, 8, 4, 16)
CUDA_VECTORS(double, double, 8, 16, 8, 16)
#undef CUDA_VECTORS

struct dim3 {
    unsigned int x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
        : x(x_), y(y_), z(z_)
    {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
#endif
};
#ifndef __cplusplus
typedef struct dim3 dim3;
#endif

#endif
