/* copy.c - see copy.h. Sanitizers check memcpy(), but not these stores. */
#include "base/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <emmintrin.h>

enum { LINE = 64, SHORT = 1024 /* bytes */ };

void copy_uncached(void *to, const void *from, size_t n)
{
    const uint8_t *f = from;
    uint8_t *t = to;
    size_t head = (LINE - (uintptr_t)t % LINE) % LINE;

    if (n < SHORT) {
        memcpy(t, f, n);
        return;
    }
    memcpy(t, f, head);
    for (t += head, f += head, n -= head; n >= LINE; t += LINE, f += LINE, n -= LINE)
        for (size_t i = 0; i < LINE; i += sizeof(__m128i))
            _mm_stream_si128((__m128i *)(t + i), _mm_loadu_si128((const __m128i *)(f + i)));
    memcpy(t, f, n);
    _mm_sfence();
}

#else

void copy_uncached(void *to, const void *from, size_t n)
{
    memcpy(to, from, n);
}

#endif
